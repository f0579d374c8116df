"""A document on its way from fusion to the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from gateway.fusion import Fused
from gateway.model import Hit, text_of_hit

__all__ = ["Candidate", "body", "candidates", "text"]

_NO_SCORES: Mapping[str, float] = MappingProxyType({})


class Candidate(msgspec.Struct, frozen=True):
    """``score`` is on the scale of the stage that last set it; ``None`` if that stage did not score this one.

    ``scores`` are raw numbers of the gateway's own stages (``{"rerank": 0.93}``), for the hit's member of that name.
    """

    fused: Fused
    score: float | None
    scores: Mapping[str, float] = _NO_SCORES

    def scored(self, score: float, stage: str, raw: float) -> Candidate:
        """The same document with the score of a stage, which had the number ``raw`` to say."""
        return Candidate(self.fused, score, {**self.scores, stage: raw})


def candidates(fused: Iterable[Fused]) -> list[Candidate]:
    """What fusion gave, with its scores."""
    return [Candidate(one, one.score) for one in fused]


def body(candidate: Candidate) -> Hit:
    """The copy whose text, citation and chunk are the document's, and whose vector is compared."""
    fused = candidate.fused
    return fused.copies[fused.body].hit


def text(candidate: Candidate) -> str:
    """The text that will be sent, ``""`` if there is none."""
    return text_of_hit(body(candidate)) or ""
