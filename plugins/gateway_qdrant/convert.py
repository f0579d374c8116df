"""REST's JSON as objects of the embedded engine: just what the query builder and the filter compiler emit.

Anything else is an ``InternalError``: a condition that was silently left out would return what it should have hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import InternalError

__all__ = ["filter_of", "point", "query_request"]


def query_request(edge: Any, body: Mapping[str, Any]) -> Any:
    """The body of ``points/query`` as a request of the engine."""
    stage = _stage(edge, body)
    return edge.QueryRequest(
        limit=body["limit"],
        query=stage["query"],
        prefetches=stage["prefetches"],
        filter=stage["filter"],
        params=stage["params"],
        with_payload=_payload(edge, body.get("with_payload", False)),
        with_vector=body.get("with_vector", False),
    )


def _stage(edge: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    prefetch = body.get("prefetch")
    if isinstance(prefetch, Mapping):
        prefetch = [prefetch]
    return {
        "query": _query(edge, body["query"], body.get("using"), body),
        "prefetches": [edge.Prefetch(limit=inner["limit"], **_stage(edge, inner)) for inner in prefetch or ()],
        "filter": None if body.get("filter") is None else filter_of(edge, body["filter"]),
        "params": _params(edge, body.get("params")),
    }


def _params(edge: Any, params: Mapping[str, Any] | None) -> Any:
    return None if params is None else edge.SearchParams(**params)


def _payload(edge: Any, wanted: Any) -> Any:
    if isinstance(wanted, Mapping):
        return edge.PayloadSelector.Exclude(list(wanted["exclude"]))
    return wanted


def _query(edge: Any, query: Any, using: str | None, body: Mapping[str, Any]) -> Any:
    match query:
        case list():
            return edge.Query.Nearest(query, using=using)
        case {"indices": indices, "values": values}:
            return edge.Query.Nearest(edge.SparseVector(list(indices), list(values)), using=using)
        case {"nearest": vector, "mmr": {"diversity": diversity, "candidates_limit": limit}}:
            return edge.Mmr(vector, 1 - diversity, limit, using=using)
        case {"rrf": {"k": k, **rest}}:
            return edge.Fusion.Rrf(k=k, weights=rest.get("weights"))
        case {"fusion": "dbsf"}:
            return edge.Fusion.Dbsf()
        case {"formula": formula, **rest}:
            return edge.Formula(_expression(edge, formula), rest.get("defaults") or {})
        case _:
            raise InternalError


def _expression(edge: Any, value: Any) -> Any:
    make = edge.Expression
    match value:
        case int() | float():
            return make.Constant(float(value))
        case str():
            return make.Variable(value)
        case {"mult": parts}:
            return make.Mult([_expression(edge, part) for part in parts])
        case {"sum": parts}:
            return make.Sum([_expression(edge, part) for part in parts])
        case {"datetime": text}:
            return make.Datetime(text)
        case {"datetime_key": key}:
            return make.DatetimeKey(key)
        case {"exp_decay": {"x": x, "target": target, "scale": scale, "midpoint": midpoint}}:
            return make.Decay(
                edge.DecayKind.Exp, _expression(edge, x), _expression(edge, target), float(midpoint), float(scale)
            )
        case _:
            raise InternalError


_CLAUSES = ("must", "should", "must_not")


def filter_of(edge: Any, filter: Mapping[str, Any]) -> Any:
    """A filter object. An empty clause would select everything, so there is none."""
    if not filter or filter.keys() - set(_CLAUSES) or not all(filter.values()):
        raise InternalError
    return edge.Filter(**{name: [_condition(edge, part) for part in parts] for name, parts in filter.items()})


def _condition(edge: Any, condition: Mapping[str, Any]) -> Any:
    match condition:
        case {"is_empty": {"key": key, **rest}, **more} if not rest and not more:
            return edge.IsEmptyCondition(key)
        case {"key": key, "match": match, **rest} if not rest:
            return edge.FieldCondition(key, match=_match(edge, match))
        case {"key": key, "range": bounds, **rest} if not rest:
            return edge.FieldCondition(key, range=_range(edge, bounds))
        case _:
            return filter_of(edge, condition)


def _match(edge: Any, match: Mapping[str, Any]) -> Any:
    match match:
        # A boolean would be read as the integer 1.
        case {"value": bool()}:
            raise InternalError
        case {"value": value}:
            return edge.MatchValue(value)
        case {"any": values} if not any(isinstance(value, bool) for value in values):
            return edge.MatchAny(list(values))
        case {"substring": text}:
            return edge.MatchSubstring(text)
        case _:
            raise InternalError


def _range(edge: Any, bounds: Mapping[str, Any]) -> Any:
    kind = edge.RangeDateTime if any(isinstance(bound, str) for bound in bounds.values()) else edge.RangeFloat
    return kind(**bounds)


def point(edge: Any, given: Mapping[str, Any]) -> Any:
    """A point to store; sparse vectors come as ``{"indices", "values"}``."""
    vectors = {
        name: edge.SparseVector(list(vector["indices"]), list(vector["values"]))
        if isinstance(vector, Mapping)
        else list(vector)
        for name, vector in given["vector"].items()
    }
    return edge.Point(given["id"], vectors, dict(given["payload"]))
