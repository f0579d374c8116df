"""How reranking services are asked and how they answer: one row for each dialect, pure functions in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import msgspec

from gateway.errors import BackendUnavailable
from gateway_models.remote import read

__all__ = ["DIALECTS", "OVER", "Dialect", "aligned"]

OVER: Final = re.compile(
    r"batch|too many|number of (texts|inputs|documents)|at most \d+|max(imum)? (number|length)", re.IGNORECASE
)
"""What services say of a request with more passages than they take; most say it with the status of any bad request."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """``batch`` is how many passages it scores at once. ``body`` takes the model, the query and the passages.

    No dialect is asked for the best few only: then the others would come back without a score, and the caller, who
    gets one for every passage, would be given an invented one.
    """

    path: str
    batch: int
    body: Callable[[str, str, Sequence[str]], dict[str, Any]]
    read: Callable[[bytes], Iterable[tuple[int, float | None]]]
    url: str = ""
    version: str = ""


class _Scored(msgspec.Struct):
    index: int
    relevance_score: float | None = None


class _Results(msgspec.Struct):
    results: list[_Scored]


class _Data(msgspec.Struct):
    data: list[_Scored]


class _Bare(msgspec.Struct):
    index: int
    score: float | None = None


def _results(body: bytes) -> Iterable[tuple[int, float | None]]:
    return [(one.index, one.relevance_score) for one in read(body, _Results).results]


def _data(body: bytes) -> Iterable[tuple[int, float | None]]:
    return [(one.index, one.relevance_score) for one in read(body, _Data).data]


def _bare(body: bytes) -> Iterable[tuple[int, float | None]]:
    return [(one.index, one.score) for one in read(body, list[_Bare])]


DIALECTS: Mapping[str, Dialect] = {
    "cohere": Dialect(
        "rerank",
        1000,
        lambda model, query, passages: {"model": model, "query": query, "documents": passages},
        _results,
        url="https://api.cohere.com",
        version="v2",
    ),
    "jina": Dialect(
        "rerank",
        1000,
        lambda model, query, passages: {
            "model": model, "query": query, "documents": passages, "return_documents": False
        },
        _results,
        url="https://api.jina.ai",
        version="v1",
    ),
    "voyage": Dialect(
        "rerank",
        1000,
        lambda model, query, passages: {
            "model": model, "query": query, "documents": passages, "return_documents": False, "truncation": True
        },
        _data,
        url="https://api.voyageai.com",
        version="v1",
    ),
    "tei": Dialect(
        "rerank",
        32,
        lambda _, query, passages: {
            "query": query, "texts": passages, "raw_scores": False, "return_text": False, "truncate": True
        },
        _bare,
    ),
}  # fmt: skip


def aligned(found: Iterable[tuple[int, float | None]], count: int) -> list[float | None]:
    """A score for every passage, ``None`` where none came. Raises ``BackendUnavailable`` for what cannot be right."""
    scores: list[float | None] = [None] * count
    seen: set[int] = set()
    for index, score in found:
        if not 0 <= index < count:
            raise BackendUnavailable(f"the service scored passage {index}, and there are {count}")
        if index in seen:
            raise BackendUnavailable(f"the service scored passage {index} twice")
        if score is not None and not isfinite(score):
            raise BackendUnavailable("the service gave a score that is not finite")
        seen.add(index)
        scores[index] = score
    return scores
