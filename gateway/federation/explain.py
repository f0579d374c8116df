"""What a request would do, without doing it: who would be asked what, and who not, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.federation.leg import Leg
from gateway.federation.loss import Reason, notes_of
from gateway.federation.plan import RetrievePlan
from gateway.filters import FALSE, TRUE, Filter, fields_of, to_json

__all__ = ["Explained", "explained"]


@dataclass(frozen=True, slots=True)
class Explained:
    """``engines`` and ``stages`` are rows of plain JSON values, ``losses`` sentences."""

    engines: list[dict[str, Any]]
    stages: list[dict[str, Any]]
    losses: tuple[str, ...]


def explained(planned: RetrievePlan) -> Explained:
    """What a plan would do: who is asked what, and which stages come before and after, in their order."""
    return Explained(_engines(planned), [*_stages(planned)], notes_of(planned.losses))


def _engines(planned: RetrievePlan) -> list[dict[str, Any]]:
    """A row for each engine, asked or not.

    ``state`` is ``asked`` or why not; ``fields`` are the filter's fields with the types they have on this engine;
    ``native`` is what the engine itself evaluates (``null``: nothing), ``residual`` what the gateway checks on every
    hit (``null``: nothing, the native part is exact).
    """
    return [*map(_leg, planned.legs), *_reasons(planned.reasons)]


def _stages(planned: RetrievePlan) -> Iterator[dict[str, Any]]:
    """Each stage beyond asking and fusing, and who does it: an engine, or ``gateway``."""
    stages = planned.stages
    for name in stages.pushed:
        yield {"stage": name, "by": planned.legs[0].id}
    if stages.rewrite is not None:
        yield {"stage": "rewrite", "by": stages.rewrite.view.id, "method": stages.rewrite.method}
    yield {"stage": "fuse", "by": "gateway", "method": planned.strategy.name, "depth": planned.depth}
    if planned.mix is not None:
        by = "gateway" if planned.scorer is None else planned.scorer.id
        yield {"stage": "rescore", "by": by, "mix": planned.mix}
    if stages.rerank is not None:
        by = "gateway" if stages.rerank.view is None else stages.rerank.view.id
        yield {"stage": "rerank", "by": by, "method": stages.rerank.method, "topN": stages.rerank.top_n}
    if stages.recency is not None:
        yield {"stage": "recency", "by": "gateway", "field": stages.recency.field}
    if planned.min_score is not None:
        yield {"stage": "minScore", "by": "gateway", "least": planned.min_score}
    if stages.per_document is not None:
        yield {"stage": "perDocument", "by": "gateway", "most": stages.per_document}
    if stages.mmr is not None:
        compared = "vectors" if stages.comparable else "words"
        yield {"stage": "mmr", "by": "gateway", "lambda": stages.mmr, "compares": compared}
    yield {"stage": "pack", "by": "gateway", "k": planned.k, "tokenBudget": planned.budget}


def _leg(leg: Leg) -> dict[str, Any]:
    engine = leg.view.member.engine
    native = leg.pushdown.native
    met = fields_of(leg.filter) if leg.filter is not None else frozenset[str]()
    return {
        "engine": leg.id,
        "state": "asked",
        "k": leg.depth,
        "mode": " + ".join(modes) if (modes := [ask.query.mode for ask in leg.asks if ask.query.mode]) else None,
        "embedder": next(iter(leg.embedders), None),
        "fields": {name: leg.view.fields[name].value for name in sorted(met) if name in leg.view.fields},
        "native": engine.describe(native) if engine is not None and native is not None else None,
        "residual": _json(leg.pushdown.residual),
        "exact": leg.pushdown.residual is None,
    }


def _reasons(reasons: tuple[Reason, ...]) -> Iterator[dict[str, Any]]:
    for reason in reasons:
        yield {"engine": reason.engine, "state": reason.state, "reason": reason.message}


def _json(filter: Filter | None) -> Any:
    if filter is None or filter is TRUE:
        return None
    return False if filter is FALSE else to_json(filter)
