"""From what the plan decided to what :mod:`gateway.refine` does: its stages, its reranker, how hits are sealed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gateway._json import Raw
from gateway.errors import RcpError, Timeout
from gateway.federation.capability import Snapshot, View, max_candidates
from gateway.federation.loss import Loss, said
from gateway.federation.plan import RetrievePlan
from gateway.federation.replies import aligned
from gateway.federation.runner import Deadline
from gateway.federation.single import Single
from gateway.filters import compiled, nearest
from gateway.fusion import Fused, passage_of, rescored, rescored_by
from gateway.refine.candidate import Candidate
from gateway.refine.lexical import by_words
from gateway.refine.line import Refinements
from gateway.refine.pack import sealed
from gateway.refine.recency import Recency
from gateway.refine.rerank import UNCHANGED, Failed, Rerank, Score
from gateway.spi.call import Call, Route
from gateway.spi.engine import Engine, RerankQuery

__all__ = [
    "across",
    "keeper",
    "plain",
    "recall_deadline",
    "refinements",
    "scorer",
    "sealer",
    "transform_deadline",
    "undated",
    "unranked",
]

_INLINE_CHARACTERS = 10_000
"""Some 5 ms of reading; what is longer goes to a thread, so that other calls are not held up."""

_FIELD = 120
_NOTHING_CHOSEN = (None,) * 7


def refinements(planned: RetrievePlan, *, undated: float) -> Refinements:
    """``undated`` is what of its relevance a hit without a date keeps under ``recency``."""
    stages = planned.stages
    rerank, recency = stages.rerank, stages.recency
    return Refinements(
        rerank=None if rerank is None else Rerank(top_n=rerank.top_n, logit=_logit(rerank.view)),
        recency=None
        if recency is None or recency.field is None or recency.half_life_days is None
        else Recency(field=recency.field, half_life_days=recency.half_life_days, undated=undated),
        min_score=planned.min_score,
        per_document=stages.per_document,
        mmr=stages.mmr,
    )


def plain(planned: RetrievePlan) -> bool:
    """Whether what fusion gives is the answer: its first k are not changed by what comes after them."""
    stages = planned.stages
    chosen = (stages.rerank, stages.recency, stages.per_document, stages.mmr)
    return (*chosen, planned.min_score, planned.budget, planned.mix) == _NOTHING_CHOSEN


def _logit(view: View | None) -> bool:
    engine = None if view is None else view.member.engine
    return engine is not None and engine.rerank_logit


def transform_deadline(planned: RetrievePlan, deadline: Deadline) -> Deadline:
    """What of the time the query may be rewritten in: the engines that are to search with it need theirs."""
    if planned.stages.rewrite is None:
        return deadline
    return deadline.leaving(max((leg.view.member.settings.timeout for leg in planned.legs), default=0.0))


def recall_deadline(planned: RetrievePlan, deadline: Deadline) -> Deadline:
    """The engines' part of the time: a reranker that comes after them must not find all of it gone."""
    rerank = planned.stages.rerank
    later = [rerank.view] if rerank is not None and rerank.view is not None else []
    later += [planned.scorer] if planned.mix is not None and planned.scorer is not None else []
    return deadline.leaving(sum(view.member.settings.timeout for view in later)) if later else deadline


def scorer(planned: RetrievePlan, deadline: Deadline, route: Route, *, cycle: bool) -> Score | None:
    """Who scores the passages, ``None`` if nothing is reranked here."""
    rerank = planned.stages.rerank
    if rerank is None:
        return None
    if rerank.view is None:
        return _within(deadline)
    return _scored_by(
        Single(rerank.view.member, deadline, route, cycle=cycle), rerank.view, rerank.method, rerank.model
    )


def _within(deadline: Deadline) -> Score:
    """Scores by words, if there is the time."""

    async def score(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        try:
            async with asyncio.timeout(deadline.remaining()):
                return await by_words(query, passages)
        except TimeoutError:
            raise Timeout("time ran out") from None

    return score


def unranked(planned: RetrievePlan, failed: Failed | None) -> list[Loss]:
    """What is lost where the plan's reranking failed."""
    if failed is None:
        return []
    view = planned.stages.rerank.view if planned.stages.rerank is not None else None
    return [_unscored(view, UNCHANGED, failed.why, failed.code, option="rerank")]


def undated(planned: RetrievePlan, snapshot: Snapshot) -> Loss:
    """That no hit has a date where ``recency`` looks for it, and where it may have been meant to look."""
    field = (planned.stages.recency.field if planned.stages.recency is not None else None) or ""
    told = f"recency: no hit has a readable date under {said(field, _FIELD)!r}"
    declared = dict.fromkeys(name for view in snapshot.views for name in view.fields)
    if declared and field not in declared:
        told += f", which no engine declares{nearest(field, declared)}"
    return Loss(kind="note", message=said(told), option="recency", field=said(field, _FIELD))


def _unscored(view: View | None, told: str, why: str, code: int | None, option: str | None = None) -> Loss:
    """A stage that its engine failed at. The engine's documents are not missing, so the answer is not degraded."""
    engine = None if view is None else view.id
    why = why.removeprefix(f"engine {engine}: ")  # the loss names it already
    return Loss(kind="degraded", message=said(f"{told}: {why}"), engine=engine, code=code, option=option)


async def across(
    planned: RetrievePlan, fused: list[Fused], deadline: Deadline, route: Route, *, cycle: bool
) -> tuple[list[Fused], list[Loss]]:
    """The list with corpora that share nothing scored together, if the plan says so, and what was lost.

    By words where no engine is named for it, or where that engine fails.
    """
    if planned.mix is None or not fused:
        return fused, []
    losses: list[Loss] = []
    if planned.scorer is not None:
        score = _scored_by(Single(planned.scorer.member, deadline, route, cycle=cycle), planned.scorer, whole=True)
        texts = {place: text for place, one in enumerate(fused) if (text := passage_of(one)) is not None}
        try:
            given = await score(planned.query, list(texts.values()))
            scores = dict(zip(texts, given, strict=True))
            return rescored_by([scores.get(place) for place in range(len(fused))], fused, mix=planned.mix), []
        except RcpError as error:
            told = "it did not score the passages, words did"
            losses.append(_unscored(planned.scorer, told, error.message, error.code))
    if sum(len(passage_of(one) or "") for one in fused) <= _INLINE_CHARACTERS:
        return rescored(planned.query, fused, mix=planned.mix), losses
    return await asyncio.to_thread(rescored, planned.query, fused, mix=planned.mix), losses


def _scored_by(
    single: Single, view: View, method: str | None = None, model: str | None = None, *, whole: bool = False
) -> Score:
    """An engine's scores, in as many calls as it takes. A method that it does not list is not told to it.

    ``whole``: an answer that leaves passages out is none.
    """
    offered = view.capabilities.rerank
    method = method if offered is not None and method in (offered.methods or ()) else None
    most = max_candidates(view.capabilities)

    async def score(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        found: list[float | None] = []
        size = most or len(passages) or 1
        for start in range(0, len(passages), size):
            batch = tuple(passages[start : start + size])
            asked = RerankQuery(query=query, passages=batch, method=method, model=model, top_n=len(batch))

            async def ask(engine: Engine, call: Call, asked: RerankQuery = asked) -> list[float | None]:
                return aligned(await engine.rerank(asked, call), len(asked.passages), whole=whole)

            found += await single.ask(ask)
        return found

    return score


def keeper(planned: RetrievePlan) -> Callable[[dict[str, Any]], bool] | None:
    """Whether the caller's filter holds for metadata merged from several copies; ``None`` if there is none."""
    return compiled(planned.filter) if planned.filter is not None else None


def sealer(planned: RetrievePlan) -> Callable[[Sequence[Candidate]], tuple[Raw, ...]]:
    """How this plan's hits are made ready to be sent. It may be kept for long, so it holds nothing else of the plan."""
    keep = keeper(planned)
    text, vectors, encoding = planned.include_text, planned.include_vectors, planned.encoding

    def seal(found: Sequence[Candidate]) -> tuple[Raw, ...]:
        return sealed(found, include_text=text, include_vectors=vectors, encoding=encoding, keep=keep)

    return seal
