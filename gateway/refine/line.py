"""The refinements in their order: seen, rerank, recency, cut, diversify. Each runs once, over the whole window."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from gateway.fusion import Fused
from gateway.refine.candidate import Candidate, candidates
from gateway.refine.cut import cut
from gateway.refine.diversify import diversified, limited
from gateway.refine.recency import Recency, aged
from gateway.refine.rerank import Failed, Rerank, Score, reranked
from gateway.refine.until import Until

__all__ = ["Refined", "Refinements", "refine"]

_INLINE = 60
"""So many hits are compared with each other in 2 ms; more of them in a thread, so that other calls are not held up."""


class Known(Protocol):
    """Ids that the client has been given before."""

    def __contains__(self, id: object, /) -> bool: ...

    def __len__(self) -> int: ...


Told = Callable[[str, Sequence[Candidate]], None]
Keep = Callable[[dict[str, Any]], bool]


class Refinements(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan decided. ``per_document`` is the most passages of one document, at least 1; ``mmr`` the lambda."""

    rerank: Rerank | None = None
    recency: Recency | None = None
    min_score: float | None = None
    per_document: int | None = None
    mmr: float | None = None


class Refined(msgspec.Struct, frozen=True, kw_only=True):
    """``scale`` names the stage that set the scores; ``seen`` counts what was left out because the session had it.

    ``failed`` says how reranking failed, if it did, ``undated`` that recency found no date; the notes do not say it.
    """

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    reranked: int = 0
    seen: int = 0
    scale: str
    failed: Failed | None = None
    undated: bool = False


async def refine(
    fused: Sequence[Fused],
    wanted: Refinements,
    *,
    query: str,
    scale: str,
    score: Score | None = None,
    now: float,
    seen: Known = (),
    told: Told | None = None,
    keep: Keep | None = None,
    vectors_comparable: bool = False,
    remaining: Callable[[], float] = lambda: math.inf,
) -> Refined:
    """The window in its final order. Nothing is lost but what ``seen``, ``min_score`` and ``per_document`` take out.

    ``scale`` names what set the fused scores. ``now`` is in seconds since 1970. ``seen`` are emitted ids. ``told``
    hears of the stages that RCP names, after each: ``rerank`` (aged and cut) and ``diversify``. ``keep`` is the
    caller's filter on merged metadata, ``vectors_comparable`` says that all vectors are of one embedder.
    ``remaining`` tells how many seconds are left for it.
    """
    found = [one for one in candidates(fused) if not _seen(one.fused, seen)] if seen else candidates(fused)
    left_out = len(fused) - len(found)
    notes: list[str] = []
    count, min_score, logit, undated, failed = 0, wanted.min_score, False, False, None
    if wanted.rerank is not None:
        outcome = await reranked(found, wanted.rerank, query, score)
        found, count, failed = outcome.candidates, outcome.count, outcome.failed
        if outcome.note is not None:
            notes.append(outcome.note)
        if count:
            scale, logit = "rerank", wanted.rerank.logit
        elif found and min_score is not None:
            notes.append(f"minScore {min_score:g} was meant for reranked scores and is not applied")
            min_score = None
    if wanted.recency is not None:
        scale, scored = "recency", any(one.score is not None for one in found)
        found, dated = aged(found, wanted.recency, now, logit=logit, keep=keep)
        undated = scored and not dated
    found, cuts = cut(found, min_score, scale)
    notes += cuts
    if count and told is not None:
        told("rerank", found)
    if wanted.per_document is not None:
        found = limited(found, wanted.per_document)
    if wanted.mmr is not None:
        until = Until(remaining())
        found = await _diversified(found, wanted.mmr, vectors_comparable, until)
        if until.passed:
            notes.append("time ran out while the hits were diversified: those at the end follow in their order")
    if told is not None and (wanted.per_document is not None or wanted.mmr is not None):
        told("diversify", found)
    return Refined(
        candidates=tuple(found),
        notes=tuple(notes),
        reranked=count,
        seen=left_out,
        scale=scale,
        failed=failed,
        undated=undated,
    )


async def _diversified(
    found: list[Candidate], weight: float, vectors_comparable: bool, until: Until
) -> list[Candidate]:
    if weight >= 1:
        return found
    if len(found) <= _INLINE and not vectors_comparable:
        return diversified(found, weight)
    try:
        return await asyncio.to_thread(diversified, found, weight, vectors_comparable=vectors_comparable, over=until)
    finally:
        until.end()


def _seen(fused: Fused, seen: Known) -> bool:
    """Under any of its ids: which of them is emitted depends on the engines that answered."""
    return fused.id in seen or any(id in seen for id in fused.ids)
