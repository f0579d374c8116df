"""How ranks, scores and confidences become contributions. One class per method; a plugin may bring another.

A strategy sees every ranking with the engine's own duplicates removed, in plan order. It never sees which document two
engines share: that is :mod:`gateway.fusion.fuse`'s business. Formulas: RCP 1.0 section 16.3 and SEMANTICS section 3.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gateway.errors import option_unsupported
from gateway.fusion.ranking import LegOffer, Note, Ranking, Scale
from gateway.model import Hit

__all__ = ["RRF_K", "Confidence", "Contributions", "Convex", "Rrf", "Strategy", "Weighted", "choose"]

RRF_K = 60
"""Cormack, Clarke and Büttcher 2009."""

NARROW = 0.01
"""A list whose scores span less than this, absolutely or relative to the largest, gets a note under min-max."""

Contributions = tuple[list[Sequence[float]], list[Note]]


class Strategy(ABC):
    """A way to fuse. Instances are immutable and may be shared between calls.

    ``name`` is the value of ``fusion.method``.
    """

    name: ClassVar[str]

    def requires(self, legs: Sequence[LegOffer]) -> str | None:
        """What these legs lack for this strategy, as prose; ``None`` if it can serve them.

        The plan then falls back to rank fusion with a note (:func:`choose`). Raises ``-32005`` where falling back would
        ignore an option the client gave.
        """
        return None

    @abstractmethod
    def contributions(self, rankings: Sequence[Ranking], scale: Scale) -> Contributions:
        """For every ranking, for every hit in order, what it adds to its document; and notes.

        Finite numbers. The rankings come in plan order; each contribution must depend on its own ranking and on
        ``scale`` alone, so that an engine's failure moves nobody else's.
        """

    def total(self, contributions: Sequence[float]) -> float:
        """The score of a document that several engines returned. It must not depend on the order.

        It is not called for a single contribution, which is the score then.
        """
        return math.fsum(contributions)


@dataclass(frozen=True, slots=True)
class Rrf(Strategy):
    """Reciprocal rank fusion: Σ w / (k + rank), over the engines that returned the document."""

    name: ClassVar[str] = "rrf"
    k: float = RRF_K

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not (0 < self.k < math.inf):
            raise ValueError("k must be a positive number")

    def contributions(self, rankings: Sequence[Ranking], scale: Scale) -> Contributions:
        k = self.k
        longest = max((len(ranking.hits) for ranking in rankings), default=0)
        lists = {w: [w / (k + rank) for rank in range(1, longest + 1)] for w in {r.weight for r in rankings}}
        return [lists[r.weight][: len(r.hits)] for r in rankings], []


@dataclass(frozen=True, slots=True)
class Weighted(Strategy):
    """Σ w · minmax(score) within each ranking; a ranking of equal scores gives 1 to each.

    A hit without a score is never taken for a 0. It takes the score of the next worse-ranked hit that has one, else
    the lowest of its list. In a list without any score, the places are the scores: they are all that is known.
    """

    name: ClassVar[str] = "weighted"

    def contributions(self, rankings: Sequence[Ranking], scale: Scale) -> Contributions:
        notes: list[Note] = []
        return [self._of(ranking, notes) for ranking in rankings], notes

    def _of(self, ranking: Ranking, notes: list[Note]) -> Sequence[float]:
        if not ranking.hits:
            return ()
        known = [_score(hit) for hit in ranking.hits]
        present = [score for score in known if score is not None]
        if len(present) < len(known):
            notes.append(_unscored(ranking, len(known) - len(present)))
        if not present:
            present = [-float(place) for place in range(len(known))]
            scores = present
        else:
            scores = _filled_from_below(known, min(present))
        low, high = min(present), max(present)
        if low == high:
            return [ranking.weight] * len(scores)
        # Halved, since the span of two finite numbers may not be finite.
        span = high / 2 - low / 2
        if span < NARROW * max(0.5, abs(high) / 2, abs(low) / 2) and known[0] is not None:
            text = f"scores of {ranking.engine} span only {low:.6g} to {high:.6g}: min-max stretches small differences"
            notes.append(Note("narrow-range", (ranking.engine,), text))
        if span == 0.0:  # two neighbouring denormals
            return [ranking.weight] * len(scores)
        return [ranking.weight * ((score / 2 - low / 2) / span) for score in scores]


@dataclass(frozen=True, slots=True)
class Convex(Strategy):
    """Σ ŵ · (score − floor) / (max − floor) with Σŵ = 1 over the planned legs. Bruch, Gai and Ingber 2023.

    ``alpha`` is the share of the dense leg, the rest that of the sparse one; it replaces the weights. A score below
    the floor, a missing one, and every score of a list whose best is not above the floor count 0. Should a reply prove
    to be of another mode than planned, so that its floor is unknown, the whole answer is fused by ``fallback``.
    """

    name: ClassVar[str] = "convex"
    alpha: float | None = None
    fallback: Strategy = field(default_factory=Rrf)

    def __post_init__(self) -> None:
        if self.alpha is not None and (isinstance(self.alpha, bool) or not (0 <= self.alpha <= 1)):
            raise ValueError("alpha must lie in [0, 1]")

    def requires(self, legs: Sequence[LegOffer]) -> str | None:
        if self.alpha is not None and sorted(leg.mode or "" for leg in legs) != ["dense", "sparse"]:
            raise option_unsupported("alpha needs exactly one dense and one sparse engine", option="fusion.alpha")
        lacking = [leg.engine for leg in legs if leg.floor is None]
        return f"no score floor from {', '.join(lacking)}" if lacking else None

    def contributions(self, rankings: Sequence[Ranking], scale: Scale) -> Contributions:
        unfit = tuple(ranking.engine for ranking in rankings if not self._fits(ranking))
        if unfit:
            values, notes = self.fallback.contributions(rankings, scale)
            text = f"fused by {self.fallback.name}: no score floor for what {', '.join(unfit)} served"
            return values, [Note("fusion-fallback", unfit, text), *notes]
        notes = []
        return [self._of(ranking, scale, notes) for ranking in rankings], notes

    def _fits(self, ranking: Ranking) -> bool:
        usable = ranking.floor is not None and math.isfinite(ranking.floor)
        return usable and (self.alpha is None or ranking.mode in ("dense", "sparse"))

    def _share(self, ranking: Ranking, scale: Scale) -> float:
        if self.alpha is None:
            return ranking.weight / scale.total_weight
        return self.alpha if ranking.mode == "dense" else 1 - self.alpha

    def _of(self, ranking: Ranking, scale: Scale, notes: list[Note]) -> Sequence[float]:
        known = [_score(hit) for hit in ranking.hits]
        present = [score for score in known if score is not None]
        if len(present) < len(known):
            notes.append(_unscored(ranking, len(known) - len(present)))
        floor, share = ranking.floor, self._share(ranking, scale)
        assert floor is not None
        below = sum(score < floor for score in present)
        if below:
            text = f"{below} hits of {ranking.engine} score below its declared floor {floor:.6g}"
            notes.append(Note("below-floor", (ranking.engine,), text))
        span = max(present, default=floor) / 2 - floor / 2
        if span <= 0:
            return [0.0] * len(known)
        return [0.0 if score is None or score <= floor else share * ((score / 2 - floor / 2) / span) for score in known]


@dataclass(frozen=True, slots=True)
class Confidence(Strategy):
    """1 − Π (1 − w′·c) over the engines that returned the document, w′ = w / the largest planned weight.

    A hit whose confidence is missing or unusable takes that of the next worse-ranked hit that has one, else 0. An
    engine that did not return a document says nothing about it.
    """

    name: ClassVar[str] = "confidence"

    def requires(self, legs: Sequence[LegOffer]) -> str | None:
        lacking = [leg.engine for leg in legs if not leg.confidence]
        return f"no confidence from {', '.join(lacking)}" if lacking else None

    def contributions(self, rankings: Sequence[Ranking], scale: Scale) -> Contributions:
        values: list[Sequence[float]] = []
        notes: list[Note] = []
        for ranking in rankings:
            known = [usable_confidence(hit) for hit in ranking.hits]
            if None in known:
                text = f"{known.count(None)} hits of {ranking.engine} carry no usable confidence"
                notes.append(Note("no-confidence", (ranking.engine,), text))
            share = min(1.0, ranking.weight / scale.max_weight)
            values.append([share * confidence for confidence in _filled_from_below(known, 0.0)])
        return values, notes

    def total(self, contributions: Sequence[float]) -> float:
        return 1 - math.prod(sorted(1 - value for value in contributions))


def choose(
    strategy: Strategy, legs: Sequence[LegOffer], fallback: Strategy | None = None
) -> tuple[Strategy, list[Note]]:
    """The strategy if it can serve these legs, else the fallback (rank fusion) with a note.

    Raises ``-32005`` as :meth:`Strategy.requires` does.
    """
    lacking = strategy.requires(legs)
    if lacking is None:
        return strategy, []
    instead = fallback or Rrf()
    engines = tuple(leg.engine for leg in legs)
    return instead, [Note("fusion-fallback", engines, f"fused by {instead.name} and not {strategy.name}: {lacking}")]


def usable_confidence(hit: Hit) -> float | None:
    """The hit's confidence if it lies in [0, 1]."""
    value = hit.confidence
    return value if value is not None and 0 <= value <= 1 else None


def _score(hit: Hit) -> float | None:
    value = hit.score
    return value if value is not None and math.isfinite(value) else None


def _filled_from_below(known: Sequence[float | None], last: float) -> list[float]:
    """Each gap filled with the next value further down, or with ``last`` where none follows."""
    filled: list[float] = []
    for value in reversed(known):
        last = last if value is None else value
        filled.append(last)
    filled.reverse()
    return filled


def _unscored(ranking: Ranking, count: int) -> Note:
    return Note("no-score", (ranking.engine,), f"{count} hits of {ranking.engine} carry no usable score")
