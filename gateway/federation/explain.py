"""What a request would do, without doing it: who would be asked what, and who not, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.federation.leg import Leg
from gateway.federation.loss import Reason
from gateway.federation.plan import RetrievePlan
from gateway.filters import FALSE, TRUE, Filter, fields_of, to_json

__all__ = ["explained"]


def explained(planned: RetrievePlan) -> list[dict[str, Any]]:
    """A row for each engine, asked or not, as plain JSON values.

    ``state`` is ``asked`` or why not; ``fields`` are the filter's fields with the types they have on this engine;
    ``native`` is what the engine itself evaluates (``null``: nothing), ``residual`` what the gateway checks on every
    hit (``null``: nothing, the native part is exact).
    """
    return [*map(_leg, planned.legs), *_reasons(planned.reasons)]


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
