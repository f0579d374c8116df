"""One engine's ranked list, and what fusion makes of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.model import Hit

__all__ = ["TRUST_LEVELS", "Copy", "Fused", "LegOffer", "Note", "Ranking", "Scale", "twelve_digits"]

TRUST_LEVELS: Final = ("untrusted", "community", "trusted")
"""The levels of RCP section 15.2, lowest first."""


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


class LegOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan knows of one leg before it runs; a strategy decides from it whether it can serve.

    ``floor`` is the least score of the planned ``mode``: ``None`` if undeclared, or void under a rerank inside the leg.
    """

    engine: str
    mode: str | None = None
    floor: float | None = None
    confidence: bool = False


class Scale(msgspec.Struct, frozen=True):
    """Weights of all planned legs, failed ones included, so that a failure moves nobody's score."""

    max_weight: float
    total_weight: float


class Note(msgspec.Struct, frozen=True, order=True):
    """Something the caller of fusion should pass on. ``engines`` names whom it speaks about, for what a client may see.

    Kinds: ``fusion-fallback``, ``below-floor``, ``no-score``, ``no-confidence``, ``narrow-range``,
    ``identity-fallback``, ``id-conflict``, ``unlike-texts``, ``not-finite``.
    """

    kind: str
    engines: tuple[str, ...]
    text: str


class Copy(msgspec.Struct, frozen=True, gc=False):
    """One engine's copy of a document. ``rank`` is 1-based, counted after this engine's duplicates are removed."""

    engine: str
    rank: int
    hit: Hit
    weight: float
    order: int
    trust: str


class Fused(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One document after fusion. ``copies`` are ordered by rank, then by the plan; ``body`` indexes into them.

    ``weight`` is the sum of the weights of the engines that returned it: the first tie-breaker.
    ``ids`` lists, sorted, the emitted ids that an identity by URI or content joined; empty if there is only one.
    ``repeats`` are hits of an engine that were joined to a better one of its own under another id: they do not vote.
    """

    id: str
    score: float
    weight: float
    copies: tuple[Copy, ...]
    body: int = 0
    confidence: float | None = None
    ids: tuple[str, ...] = ()
    repeats: tuple[Copy, ...] = ()


def twelve_digits(value: float) -> float:
    """The value rounded to 12 significant digits: 3·1/68 and 3/68 differ in the last bit and must tie.

    Division by an exact power of ten rounds correctly, so the branches give what ``float(f"{value:.11e}")`` gives at
    a third of its time; they cover what rank fusion produces.
    """
    if 0.01 <= value < 0.1:
        return round(value * 1e13) / 1e13
    if 0.001 <= value < 0.01:
        return round(value * 1e14) / 1e14
    if 0.1 <= value < 1.0:
        return round(value * 1e12) / 1e12
    if 1.0 <= value < 10.0:
        return round(value * 1e11) / 1e11
    return float(f"{value:.11e}")
