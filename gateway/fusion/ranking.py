"""One engine's ranked list, and what fusion makes of several."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.model import Hit

__all__ = ["Copy", "Fused", "Ranking"]


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's hits after residual filter and verification, best first, ready to be counted.

    ``weight`` is > 0. ``corpus`` qualifies ids (``corpus/id``) if set. ``trust`` is the engine's configured level.
    ``mode`` is the mode the engine served, if known. ``floor`` is the least score that mode can give, ``None`` if
    unknown. ``order`` is the engine's place in the plan.
    """

    engine: str
    hits: Sequence[Hit]
    order: int = 0
    weight: float = 1.0
    corpus: str | None = None
    trust: str = "community"
    mode: str | None = None
    floor: float | None = None


class Copy(msgspec.Struct, frozen=True):
    """One engine's copy of a document. ``rank`` is 1-based, counted after this engine's duplicates are removed."""

    engine: str
    rank: int
    hit: Hit
    weight: float
    order: int
    trust: str


class Fused(msgspec.Struct, frozen=True, kw_only=True):
    """One document after fusion. ``copies`` are ordered by rank, then by the plan; ``body`` indexes into them.

    ``weight`` is the sum of the weights of the engines that returned it: the first tie-breaker.
    """

    id: str
    score: float
    weight: float
    copies: tuple[Copy, ...]
    body: int = 0
    confidence: float | None = None
