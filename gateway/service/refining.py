"""From what the plan decided to what :mod:`gateway.refine` does: its stages, its reranker, how hits are sealed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway._json import Raw
from gateway.federation.plan import RetrievePlan
from gateway.federation.runner import Deadline
from gateway.federation.single import Single
from gateway.filters import compiled
from gateway.refine.candidate import Candidate
from gateway.refine.lexical import by_words
from gateway.refine.line import Refinements
from gateway.refine.pack import sealed
from gateway.refine.recency import Recency
from gateway.refine.rerank import Rerank, Score
from gateway.spi.call import Call, Route
from gateway.spi.engine import Engine, RerankQuery

__all__ = ["comparable", "keeper", "recall_deadline", "refinements", "scorer", "sealer"]


def refinements(planned: RetrievePlan) -> Refinements:
    stages = planned.stages
    rerank, recency = stages.rerank, stages.recency
    return Refinements(
        rerank=None if rerank is None else Rerank(top_n=rerank.top_n, method=rerank.method, model=rerank.model),
        recency=None
        if recency is None or recency.field is None or recency.half_life_days is None
        else Recency(field=recency.field, half_life_days=recency.half_life_days),
        min_score=planned.min_score,
        per_document=stages.per_document,
        mmr=stages.mmr,
    )


def recall_deadline(planned: RetrievePlan, deadline: Deadline) -> Deadline:
    """The engines' part of the time: a reranker that comes after them must not find all of it gone."""
    rerank = planned.stages.rerank
    if rerank is None or rerank.view is None:
        return deadline
    return deadline.leaving(rerank.view.member.settings.timeout)


def scorer(planned: RetrievePlan, deadline: Deadline, route: Route, *, cycle: bool) -> Score | None:
    """Who scores the passages, ``None`` if nothing is reranked here."""
    rerank = planned.stages.rerank
    if rerank is None:
        return None
    if rerank.view is None:
        return by_words
    single = Single(rerank.view.member, deadline, route, cycle=cycle)
    offered = rerank.view.capabilities.rerank
    method = rerank.method if offered is not None and rerank.method in (offered.methods or ()) else None

    async def score(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        asked = RerankQuery(
            query=query, passages=tuple(passages), method=method, model=rerank.model, top_n=len(passages)
        )

        async def ask(engine: Engine, call: Call) -> Sequence[float | None]:
            return await engine.rerank(asked, call)

        return await single.ask(ask)

    return score


def comparable(planned: RetrievePlan) -> bool:
    """Whether the hits' vectors can be held against each other: every engine's come from one embedder."""
    embedders = {leg.embedders for leg in planned.legs}
    return len(embedders) == 1 and len(next(iter(embedders))) == 1


def keeper(planned: RetrievePlan) -> Callable[[dict[str, Any]], bool] | None:
    """Whether the caller's filter holds for metadata merged from several copies; ``None`` if there is none."""
    return compiled(planned.filter) if planned.filter is not None else None


def sealer(planned: RetrievePlan) -> Callable[[Sequence[Candidate]], tuple[Raw, ...]]:
    """How this plan's hits are made ready to be sent."""
    keep = keeper(planned)

    def seal(found: Sequence[Candidate]) -> tuple[Raw, ...]:
        return sealed(
            found,
            include_text=planned.include_text,
            include_vectors=planned.include_vectors,
            encoding=planned.encoding,
            keep=keep,
        )

    return seal
