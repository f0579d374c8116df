"""The end of the line: what fits, sealed, with what was lost on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway._json import Raw
from gateway.fusion import merged_hit
from gateway.model import RetrieveResult, Usage
from gateway.refine.candidate import Candidate, text
from gateway.refine.seal import seal
from gateway.refine.tokens import Tokens

__all__ = ["Fit", "Packed", "emitted", "fit", "pack", "packed", "sealed"]

_NAMED = 10
_SHOWN = 80


class Fit(msgspec.Struct, frozen=True):
    """What of a list fits. ``places`` are taken, ``passed`` are larger than the whole budget.

    ``consumed`` is where the next page begins: what is before it has been delivered or passed over.
    """

    places: tuple[int, ...]
    passed: tuple[int, ...]
    consumed: int
    tokens: int


class Packed(msgspec.Struct, frozen=True):
    """``candidates`` fit; the first ``consumed`` of the list count as delivered. ``tokens`` is theirs, if counted."""

    candidates: tuple[Candidate, ...]
    consumed: int
    tokens: int | None = None
    notes: tuple[str, ...] = ()


def fit(sizes: Iterable[int], k: int, budget: int | None) -> Fit:
    """The longest prefix of at most ``k`` whose sizes stay within the budget.

    One that is larger than the whole budget would end every page for ever, so it is passed over and takes no place.
    """
    places: list[int] = []
    passed: list[int] = []
    used = consumed = 0
    for place, size in enumerate(sizes):
        if len(places) >= k:
            break
        if budget is not None and size > budget:
            passed.append(place)
        elif budget is not None and used + size > budget:
            break
        else:
            places.append(place)
            used += size
        consumed = place + 1
    return Fit(tuple(places), tuple(passed), consumed, used)


def packed(found: Sequence[Candidate], k: int, budget: int | None = None, tokens: Tokens | None = None) -> Packed:
    """The first ``k`` whose texts fit the budget of tokens together. Texts count also if they are not sent."""
    if budget is None or tokens is None:
        taken = tuple(found[:k])
        return Packed(taken, len(taken))
    sizes: list[int] = []

    def counted() -> Iterable[int]:
        for one in found:
            sizes.append(tokens.count(text(one)))
            yield sizes[-1]

    fits = fit(counted(), k, budget)
    named = [f"{found[place].fused.id[:_SHOWN]} ({sizes[place]})" for place in fits.passed[:_NAMED]]
    more = len(fits.passed) - len(named)
    told = f"passed over, having more tokens than the whole tokenBudget of {budget}: {', '.join(named)}"
    notes = (told + (f" and {more} more" if more else ""),) if named else ()
    return Packed(tuple(found[place] for place in fits.places), fits.consumed, fits.tokens, notes)


def emitted(found: Iterable[Candidate], lowest: float = math.inf) -> list[float]:
    """The scores to send, which never rise: each its own or the one before, whichever is less.

    ``lowest`` is the last score of the page before. What is unscored takes the score before it.
    """
    scores: list[float] = []
    for one in found:
        if one.score is not None:
            lowest = min(lowest, one.score)
        scores.append(lowest if lowest < math.inf else 0.0)
    return scores


def sealed(
    found: Sequence[Candidate],
    *,
    include_text: bool,
    include_vectors: bool,
    encoding: str | None = None,
    keep: Callable[[dict[str, Any]], bool] | None = None,
    lowest: float = math.inf,
) -> tuple[Raw, ...]:
    """All of them as final JSON. ``encoding`` is that of vectors; ``lowest`` and the scores are those of emitted."""
    return tuple(
        seal(
            merged_hit(one.fused, keep),
            score,
            include_text=include_text,
            include_vectors=include_vectors,
            encoding=encoding,
            scores=one.scores,
        )
        for one, score in zip(found, emitted(found, lowest), strict=True)
    )


def pack(
    hits: tuple[Raw, ...],
    *,
    candidates: int,
    started: float,
    notes: Sequence[str],
    degraded: Sequence[str],
    vendor: Mapping[str, Any],
    reranked: int = 0,
    tokens: int | None = None,
) -> RetrieveResult:
    """The result of ``retrieve``. ``candidates`` counts the engines' hits; ``started`` is ``time.perf_counter()``."""
    meta: dict[str, Any] = {}
    if degraded:
        meta["degraded"] = list(degraded)
    meta["x-gateway"] = msgspec.to_builtins({name: value for name, value in vendor.items() if value})
    usage = Usage(
        candidates=candidates,
        reranked=reranked,
        tokens=tokens,
        latency_ms=round((time.perf_counter() - started) * 1000, 1),
        notes=tuple(notes) or None,
    )
    return RetrieveResult(hits=hits, usage=usage, meta=meta)
