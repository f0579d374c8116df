"""The less common methods of an upstream: parameters made of checked values, answers read with care.

``graph``, ``feedback``, ``memory/build``, ``memory/recall``, ``embed/multi`` (RCP sections 7.5, 7.9, 7.16, 7.17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import BackendUnavailable
from gateway.model import Hit
from gateway.protocol.peer import Answer
from gateway.spi.codec import finite_float, mend
from gateway.spi.methods import (
    Clue,
    Edge,
    FeedbackQuery,
    GraphQuery,
    GraphReply,
    Matrix,
    MemoryBuilt,
    MemoryRecall,
    MemoryReply,
    MemoryWrite,
    TransformReply,
)
from gateway_rcp import replies

__all__ = [
    "build_params",
    "built",
    "feedback_params",
    "graph_params",
    "matrices",
    "recall_params",
    "recalled",
    "taken",
    "transformed",
    "traversed",
]

_ENDS = frozenset({"src", "dst", "weight"})


# What is asked


def graph_params(query: GraphQuery) -> dict[str, Any]:
    """The parameters of ``graph``; a single seed goes under the documentation's name too (DECISIONS D30)."""
    params: dict[str, Any] = {"op": query.op}
    if query.text is not None:
        params["query"] = mend(query.text)
    if query.seed_ids:
        params["seedIds"] = [mend(id) for id in query.seed_ids]
        if len(query.seed_ids) == 1:
            params["node"] = params["seedIds"][0]
    given = {"k": query.k, "hops": query.hops, "level": query.level, "sessionId": query.session}
    return {**params, **{name: value for name, value in given.items() if value is not None}}


def feedback_params(query: FeedbackQuery) -> dict[str, Any]:
    params: dict[str, Any] = {"signals": [_mended(msgspec.to_builtins(signal)) for signal in query.signals]}
    if query.text is not None:
        params["query"] = mend(query.text)
    if query.session is not None:
        params["sessionId"] = query.session
    return params


def build_params(query: MemoryWrite) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if query.documents is not None:
        params["documents"] = [
            {"text": mend(one.text), **({} if one.id is None else {"id": mend(replies.identifier(one.id) or "")})}
            for one in query.documents
        ]
    if query.id is not None:
        params["memoryId"] = mend(query.id)
    if query.scope is not None:
        params["scope"] = query.scope
    return params


def recall_params(query: MemoryRecall) -> dict[str, Any]:
    params: dict[str, Any] = {"query": mend(query.text)}
    given = {"memoryId": None if query.id is None else mend(query.id), "sessionId": query.session, "n": query.n}
    return {**params, **{name: value for name, value in given.items() if value is not None}}


def _mended(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: mend(value) if isinstance(value, str) else value for name, value in members.items()}


# What is answered


def traversed(answer: Answer) -> GraphReply:
    """The answer to ``graph``. What does not fit the schema is left out: no list, no part (``communities: 1``, D30)."""
    result = replies.result(answer)
    found = {name: _hits(result.get(name)) for name in ("hits", "communities", "nodes")}
    if not any(isinstance(result.get(name), list) for name in (*found, "edges", "followups")) and not _text(
        result.get("summary")
    ):
        raise BackendUnavailable("the engine's answer holds nothing of a graph")
    edges = [edge for item in _list(result.get("edges")) if (edge := _edge(item)) is not None]
    return GraphReply(
        **found,
        edges=edges,
        followups=tuple(mend(item) for item in _list(result.get("followups")) if isinstance(item, str)),
        summary=_text(result.get("summary")),
        notes=replies.notes(result),
    )


def _edge(item: Any) -> Edge | None:
    if not isinstance(item, dict):
        return None
    src, dst = replies.identifier(item.get("src")), replies.identifier(item.get("dst"))
    if src is None or dst is None:
        return None
    members = {name: value for name, value in item.items() if name not in _ENDS and value is not None}
    return Edge(src=src, dst=dst, weight=finite_float(item.get("weight")), members=members)


def transformed(answer: Answer) -> TransformReply:
    """The queries; that none is usable is the gateway's to see."""
    result = replies.result(answer)
    queries = tuple(mend(item) for item in _list(result.get("queries")) if isinstance(item, str))
    return TransformReply(queries=queries, hypothetical=_text(result.get("hypothetical")), notes=replies.notes(result))


def taken(answer: Answer) -> int:
    """How many signals were taken; 0 if the upstream does not say."""
    return _count(replies.result(answer).get("accepted")) or 0


def built(answer: Answer) -> MemoryBuilt:
    result = replies.result(answer)
    id = replies.identifier(result.get("memoryId"))
    if not id:
        raise BackendUnavailable("the engine did not name the memory it built", retryable=False)
    return MemoryBuilt(id=id, tokens=_count(result.get("tokens")))


def recalled(answer: Answer) -> MemoryReply:
    result = replies.result(answer)
    if not isinstance(result.get("clues"), list) and not isinstance(result.get("hits"), list):
        raise BackendUnavailable("the engine's answer holds neither clues nor hits")
    clues = [clue for item in _list(result.get("clues")) if (clue := _clue(item)) is not None]
    return MemoryReply(clues=clues, hits=_hits(result.get("hits")), notes=replies.notes(result))


def _clue(item: Any) -> Clue | None:
    if isinstance(item, str):
        return Clue(query=mend(item))
    if not isinstance(item, dict):
        return None
    seeds = tuple(id for one in _list(item.get("seedIds")) if (id := replies.identifier(one)))
    return Clue(query=_text(item.get("query")), seed_ids=seeds, weight=finite_float(item.get("weight")))


def matrices(answer: Answer, *, count: int) -> list[Matrix]:
    """One matrix per input. Rows in base64 are read too, whether asked for or not; so is a matrix in one piece.

    Without a ``dimension`` such a piece cannot be cut into rows, and the answer is none.
    """
    result = replies.result(answer)
    given = result.get("matrices")
    if not isinstance(given, list) or len(given) != count:
        raise BackendUnavailable("the engine did not answer with one matrix per input")
    return [_matrix(item, _count(result.get("dimension"))) for item in given]


def _matrix(given: Any, dimension: int | None) -> Matrix:
    if isinstance(given, str):
        whole = replies.vector(given)
        if not dimension or len(whole) % dimension:
            raise BackendUnavailable("the engine's matrix cannot be cut into rows")
        return tuple(whole[start : start + dimension] for start in range(0, len(whole), dimension))
    if not isinstance(given, list):
        raise BackendUnavailable("the engine's matrix is not a list of vectors")
    return tuple(replies.vector(row) for row in given)


def _hits(value: Any) -> list[Hit]:
    return [hit for item in _list(value) if (hit := replies.plain_hit(item)) is not None]


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str | None:
    return mend(value) if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
