"""One engine's answers to several questions as one: an engine votes once, however often it was asked."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.federation.leg import Leg
from gateway.federation.loss import Failure
from gateway.federation.reading import Reply
from gateway.fusion import Ranking, Rrf, fuse, fuse_queries
from gateway.model import Hit

__all__ = ["one_of"]


def one_of(leg: Leg, outcomes: Sequence[Reply | Failure]) -> Reply | Failure:
    """The replies as one, by rank fusion; if all failed, the first failure. What failed beside an answer is told.

    Of several hits of one document the best-ranked is kept. Its score is its own only where all questions were asked in
    one mode; the scores of two modes have no common scale, so there it is the score of the fusion.
    """
    replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
    if not replies:
        return next(outcome for outcome in outcomes if isinstance(outcome, Failure))
    reply = Reply(leg)
    reply.hits = _fused([one.hits for one in replies], own=len(leg.asks) == 1)
    reply.scanned = sum(one.scanned for one in replies)
    reply.pages = max(one.pages for one in replies)
    versions = {one.version for one in replies}
    reply.version = versions.pop() if len(versions) == 1 else None
    reply.rewritten = next((one.rewritten for one in replies if one.rewritten is not None), None)
    reply.degraded = any(one.degraded for one in replies)
    for one in replies:
        for loss in one.losses:
            reply.tell(loss.kind, loss.message)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if failures:
        told = f"{len(failures)} of {len(outcomes)} questions to it failed: {failures[0].loss().message}"
        reply.tell("partial", told)
    return reply


def _fused(lists: Sequence[Sequence[Hit]], *, own: bool) -> list[Hit]:
    if own:
        return fuse_queries(lists)
    fused, _ = fuse([Ranking(engine=str(place), hits=hits, order=place) for place, hits in enumerate(lists)], Rrf())
    return [replace(one.copies[0].hit, score=one.score) for one in fused]
