"""Recency: what is older counts for less, by half for every half-life."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gateway.filters.dates import stored_micros
from gateway.fusion import merged_meta
from gateway.refine.candidate import Candidate

__all__ = ["Recency", "aged", "minmax"]

_DAY = 86_400_000_000
"""Microseconds."""
_EVER = 10**9 * _DAY
_LEAST = 0.05
"""Of the least relevant hit: with 0, age could not tell it from any other."""


class Recency(msgspec.Struct, frozen=True, kw_only=True):
    """``field`` holds the date in the hit's metadata. ``undated`` is the factor of a hit that has no readable date."""

    field: str
    half_life_days: float
    undated: float = 0.5


def aged(
    found: Sequence[Candidate],
    wanted: Recency,
    now: float,
    *,
    logit: bool = False,
    keep: Callable[[dict[str, Any]], bool] | None = None,
) -> tuple[list[Candidate], bool]:
    """Relevance times 2^(−age / half-life), best first; ties in the order they came; the unscored stay behind.

    ``now`` is in seconds since 1970. Relevance lies in [0, 1]: the sigmoid of the score where that is a ``logit``,
    else 0.05 to 1 over all that is scored here. A date in the future has the age 0.
    Beside the list: whether any of the hits that are scored has a readable date.
    """
    scored = [(one, one.score) for one in found if one.score is not None]
    if logit:
        relevance = [_sigmoid(score) for _, score in scored]
    else:
        relevance = [_LEAST + (1 - _LEAST) * share for share in minmax([score for _, score in scored])]
    micros = int(now * 1_000_000)
    result: list[Candidate] = []
    dated = False
    for (one, _), share in zip(scored, relevance, strict=True):
        known = _factor(merged_meta(one.fused, keep).get(wanted.field), wanted, micros)
        dated = dated or known is not None
        factor = wanted.undated if known is None else known
        result.append(one.scored(share * factor, "recency", factor))
    result.sort(key=lambda one: -(one.score or 0.0))
    return [*result, *(one for one in found if one.score is None)], dated


def minmax(scores: Sequence[float]) -> list[float]:
    """Every score between the least, 0, and the greatest, 1; all 1 if they are one."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    if low == high:
        return [1.0] * len(scores)
    if math.isinf(high - low):  # a stranger's numbers may lie as far apart as floats go
        return minmax([score / 4 for score in scores])
    return [(score - low) / (high - low) for score in scores]


def _factor(value: Any, wanted: Recency, now: int) -> float | None:
    """Of several dates the newest counts; ``None`` if none is readable."""
    dates = [stored_micros(one) for one in (value if isinstance(value, list | tuple) else (value,))]
    known = [micros for micros in dates if micros is not None]
    if not known:
        return None
    age = min(max(0, now - max(known)), _EVER) / _DAY
    return float(2.0 ** (-age / wanted.half_life_days))


def _sigmoid(score: float) -> float:
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    odds = math.exp(score)
    return odds / (1 + odds)
