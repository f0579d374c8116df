"""The end of the line: what fits, sealed, with what was lost on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway._json import Raw
from gateway.fusion import merged_hit
from gateway.model import RetrieveResult, Usage
from gateway.refine.candidate import Candidate
from gateway.refine.seal import seal

__all__ = ["Fit", "emitted", "fit", "pack", "passed_over", "sealed"]

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


def passed_over(ids: Sequence[str], sizes: Sequence[int], budget: int | None) -> list[str]:
    """A note that names what has more tokens than the whole budget; none if nothing has."""
    if not ids:
        return []
    named = [f"{id[:_SHOWN]} ({size})" for id, size in zip(ids[:_NAMED], sizes, strict=False)]
    more = f" and {len(ids) - len(named)} more" if len(ids) > len(named) else ""
    return [f"passed over, having more tokens than the whole tokenBudget of {budget}: {', '.join(named)}{more}"]


def emitted(found: Iterable[Candidate]) -> list[float]:
    """The scores to send, which never rise: each its own or the one before, whichever is less.

    What is unscored takes the score before it.
    """
    scores: list[float] = []
    lowest = math.inf
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
) -> tuple[Raw, ...]:
    """All of them as final JSON. ``encoding`` is that of vectors; ``keep`` the caller's filter on merged metadata."""
    return tuple(
        [
            seal(
                merged_hit(one.fused, keep, vectors=include_vectors),
                score,
                include_text=include_text,
                include_vectors=include_vectors,
                encoding=encoding,
                scores=one.scores,
            )
            for one, score in zip(found, emitted(found), strict=True)
        ]
    )


def pack(
    hits: tuple[Raw, ...],
    usage: Usage,
    *,
    degraded: Sequence[str],
    vendor: Mapping[str, Any],
    next_cursor: str | None = None,
    index_version: str | None = None,
    rewritten_query: str | None = None,
    encoding: str | None = None,
) -> RetrieveResult:
    """The result of ``retrieve``. ``vendor`` goes under ``_meta["x-gateway"]``, as far as it says anything."""
    meta: dict[str, Any] = {"degraded": list(degraded)} if degraded else {}
    meta["x-gateway"] = msgspec.to_builtins({name: value for name, value in vendor.items() if value})
    return RetrieveResult(
        hits=hits,
        usage=usage,
        next_cursor=next_cursor,
        index_version=index_version,
        rewritten_query=rewritten_query,
        encoding=encoding,
        meta=meta,
    )
