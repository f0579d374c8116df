"""Reranking: the head of the list in the order of somebody who has read the passages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from gateway._json import finite_float
from gateway.errors import RcpError
from gateway.refine.candidate import Candidate, text

__all__ = ["UNCHANGED", "Failed", "Rerank", "Reranked", "Score", "reranked"]

UNCHANGED = "not reranked, the order is that of fusion"

Score = Callable[[str, Sequence[str]], Awaitable[Sequence[float | None]]]
"""Query and passages → a score for each passage, higher is better; ``None`` for one it did not judge."""


class Rerank(msgspec.Struct, frozen=True, kw_only=True):
    """``top_n`` is how many are reranked. ``logit``: the scores are log-odds, so that a sigmoid makes them shares."""

    top_n: int
    logit: bool = False


class Failed(msgspec.Struct, frozen=True):
    """Who was asked for the scores gave none that can be used; ``code`` is that of its error, if it raised one."""

    why: str
    code: int | None = None


class Reranked(msgspec.Struct, frozen=True):
    """``count`` is how many were scored; if none, the order is still the one that was handed in."""

    candidates: list[Candidate]
    count: int = 0
    note: str | None = None
    failed: Failed | None = None


async def reranked(found: Sequence[Candidate], wanted: Rerank, query: str, score: Score | None) -> Reranked:
    """The window by rerank score, ties in the order they came; behind it, unscored, whatever was not scored.

    Documents without a text are not shown to the reranker. A reranker that raises ``RcpError``, scores nothing, or
    gives more scores than it was given passages, so that nobody knows which is whose, changes nothing.
    """
    window = found[: wanted.top_n]
    texts = [(place, passage) for place, one in enumerate(window) if (passage := text(one)).strip()]
    if not found:
        return Reranked([])
    if not texts:
        return Reranked(list(found), note=f"{UNCHANGED}: no hit has a text to rerank")
    if score is None:
        return _failed(found, "nobody reranks")
    try:
        given = await score(query, [passage for _, passage in texts])
    except RcpError as error:
        return _failed(found, error.message, error.code)
    if len(given) > len(texts):
        return _failed(found, f"it gave {len(given)} scores for {len(texts)} passages")
    pairs = zip(texts, given, strict=False)  # the passages at the end may have got none
    numbers = {place: number for (place, _), one in pairs if (number := finite_float(one)) is not None}
    if not numbers:
        return _failed(found, "it scored none of the passages")
    order = sorted(numbers, key=lambda place: (-numbers[place], place))
    head = [found[place].scored(numbers[place], "rerank", numbers[place]) for place in order]
    tail = [msgspec.structs.replace(one, score=None) for place, one in enumerate(found) if place not in numbers]
    short = f"{len(head)} of {len(window)} hits were reranked: the others have no text or were given no score"
    return Reranked([*head, *tail], len(head), short if len(head) < len(window) else None)


def _failed(found: Sequence[Candidate], why: str, code: int | None = None) -> Reranked:
    return Reranked(list(found), failed=Failed(why, code))
