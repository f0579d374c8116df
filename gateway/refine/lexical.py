"""Reranking that the gateway itself supplies: BM25 over the passages of one call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.fusion.bm25 import Index

__all__ = ["MAX_CANDIDATES", "METHOD", "by_words", "lexical_scores"]

METHOD = "bm25"
MAX_CANDIDATES = 1000
_READ, _LEAST_READ, _ALL_READ = 20_000, 2_000, 4_000_000
_INLINE_CHARACTERS = 10_000
"""Some 10 ms of BM25; what is longer goes to a thread, so that other calls are not held up."""


def lexical_scores(query: str, passages: Sequence[str]) -> tuple[float, ...]:
    """A score for each passage, 0 where it has no word of the query. Words are rare or frequent among these passages.

    About 1 µs for each character; pure. Of a long passage the beginning is read: 20,000 characters, and of very many
    passages fewer, which bounds the time to some seconds.
    """
    index = Index()
    most = min(_READ, max(_LEAST_READ, _ALL_READ // max(1, len(passages))))
    for place, passage in enumerate(passages):
        index.put(str(place), passage[:most])
    found = index.scores(query)
    return tuple(found.get(str(place), 0.0) for place in range(len(passages)))


async def by_words(query: str, passages: Sequence[str]) -> tuple[float, ...]:
    """The same, without holding up other calls."""
    if len(query) + sum(map(len, passages)) <= _INLINE_CHARACTERS:
        return lexical_scores(query, passages)
    return await asyncio.to_thread(lexical_scores, query, passages)
