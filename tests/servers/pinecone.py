"""A Pinecone index over REST, as the vendor describes it, to be driven by the vendor's own client over loopback.

Written from the vendor's documentation and from what the official SDK (10.2) sends and reads; it shares no code with
the gateway, least of all the meaning of a filter. Where the documentation leaves something open, or where the real
service has been seen to change, there is a switch (:class:`Rules`), so that a test can have it both ways.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

__all__ = ["Fault", "Index", "Refused", "Rules", "selects", "serve", "stored", "validate"]

ABSENT = "(absent)"
_MAX_VALUES = 10_000
_MAX_TOP_K = 10_000
_METADATA_BYTES = 40 * 1024
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


class Refused(Exception):
    """The request is one that the service answers with 400."""


@dataclass(frozen=True)
class Rules:
    """What is not documented, or has been seen both ways.

    ``ne_selects_missing``: ``$ne`` and ``$nin`` select records without the field (they did not in March 2024).
    ``lists``: what ``$ne`` and ``$nin`` say of a list: that no element is equal, as the vendor has it, or that some
    element differs. ``empty_list``: ``[]`` counts as absent; as present; or as present and selected by nothing else.
    """

    ne_selects_missing: bool = True
    lists: Literal["none_of", "any_of"] = "none_of"
    empty_list: Literal["absent", "present", "valueless"] = "absent"


# Metadata


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def stored(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as it is kept: nulls dropped, numbers as doubles. Raises :class:`Refused` for what cannot be kept."""
    kept: dict[str, Any] = {}
    for name, value in metadata.items():
        if name.startswith("$"):
            raise Refused(f"metadata key {name!r} starts with $")
        if value is None:
            continue
        if is_number(value):
            try:
                kept[name] = float(value)
            except OverflowError:
                raise Refused(f"number out of range for field {name!r}") from None
        elif isinstance(value, str | bool) or (
            isinstance(value, list) and all(isinstance(item, str) for item in value)
        ):
            kept[name] = value
        else:
            raise Refused(
                f"Metadata value must be a string, number, boolean or list of strings, got '{value}' for field '{name}'"
            )
    return kept


# Filters


def validate(filter: Any) -> None:
    """Raises :class:`Refused` for a filter that does not compile."""
    if not isinstance(filter, Mapping):
        raise Refused("a filter must be an object")
    for name, value in filter.items():
        if name in ("$and", "$or"):
            if not isinstance(value, list) or not value:
                raise Refused(f"{name} must be a non-empty list")
            for part in value:
                validate(part)
        elif name.startswith("$"):
            raise Refused(f"{name} is not a valid operator here")
        elif isinstance(value, Mapping):
            if not value:
                raise Refused(f"no operator for field {name!r}")
            for operator, operand in value.items():
                _validate_operand(operator, operand)
        elif isinstance(value, list) or value is None:
            raise Refused(f"the filter for field {name!r} does not compile")


def _validate_operand(operator: str, operand: Any) -> None:
    match operator:
        case "$eq" | "$ne":
            fits = isinstance(operand, str | bool) or is_number(operand)
        case "$gt" | "$gte" | "$lt" | "$lte":
            fits = is_number(operand)
        case "$in" | "$nin":
            fits = isinstance(operand, list) and all(isinstance(item, str) or is_number(item) for item in operand)
            fits = fits and 0 < len(operand) <= _MAX_VALUES
        case "$exists":
            fits = isinstance(operand, bool)
        case _:
            raise Refused(f"{operator} is not a valid operator")
    if not fits:
        raise Refused(f"the operand of {operator} does not fit")


def selects(filter: Mapping[str, Any], metadata: Mapping[str, Any], rules: Rules = Rules()) -> bool:
    """Whether a stored record is among the candidates of a filter that compiles."""
    for name, value in filter.items():
        if name == "$and":
            if not all(selects(part, metadata, rules) for part in value):
                return False
        elif name == "$or":
            if not any(selects(part, metadata, rules) for part in value):
                return False
        else:
            operators = value if isinstance(value, Mapping) else {"$eq": value}
            if not all(_holds(operator, operand, metadata.get(name), rules) for operator, operand in operators.items()):
                return False
    return True


def _holds(operator: str, operand: Any, value: Any, rules: Rules) -> bool:
    if value == [] and rules.empty_list == "absent":
        value = None
    if operator == "$exists":
        return (value is not None) is operand
    if operator in ("$ne", "$nin"):
        if value is None:
            return rules.ne_selects_missing
        if value == [] and rules.empty_list == "valueless":
            return False
        unwanted = operand if operator == "$nin" else [operand]
        if isinstance(value, list) and rules.lists == "any_of" and value:
            return any(not _among(item, unwanted) for item in value)
        return not any(_among(item, unwanted) for item in (value if isinstance(value, list) else [value]))
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        if operator in _COMPARISONS:
            if is_number(item) and _COMPARISONS[operator](item, float(operand)):
                return True
        elif _among(item, operand if operator == "$in" else [operand]):
            return True
    return False


def _among(item: Any, values: Sequence[Any]) -> bool:
    return any(_same(item, value) for value in values)


def _same(one: Any, other: Any) -> bool:
    """Typed: a boolean is no number, and numbers are doubles."""
    if is_number(one) and is_number(other):
        return float(one) == float(other)
    return type(one) is type(other) and one == other


# The index


@dataclass
class Fault:
    """How the next request goes wrong. ``hang`` holds it for ever."""

    status: int = 500
    body: bytes = b'{"code":13,"message":"internal","details":[]}'
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    content_type: str = "application/json"


@dataclass
class Row:
    values: list[float]
    sparse: dict[str, Any] | None
    metadata: dict[str, Any]


@dataclass
class Request:
    """One request as it came."""

    path: str
    body: Any
    namespace: str
    key: str | None
    headers: Mapping[str, str]


class Index:
    """One index and its switches. ``requests`` is everything it was asked; ``faults`` are used up one by one, and
    ``broken`` answers every request."""

    def __init__(
        self,
        *,
        dimension: int = 2,
        metric: str = "cosine",
        vector_type: str = "dense",
        key: str = "secret",
        rules: Rules = Rules(),
        unsorted: bool = False,
        floats: bool = True,
        text_field: str = "text",
    ) -> None:
        self.dimension, self.metric, self.vector_type, self.key = dimension, metric, vector_type, key
        self.rules, self.unsorted, self.floats, self.text_field = rules, unsorted, floats, text_field
        self.rows: dict[str, dict[str, Row]] = {}
        self.requests: list[Request] = []
        self.faults: deque[Fault] = deque()
        self.broken: Fault | None = None
        self.hanging = 0
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.url = ""

    def fill(self, rows: Mapping[str, tuple[Sequence[float], Mapping[str, Any]]], namespace: str = "") -> None:
        """Records written by somebody else."""
        for id, (values, metadata) in rows.items():
            self._space(namespace)[id] = Row(list(values), None, stored(metadata))

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def _space(self, namespace: str | None) -> dict[str, Row]:
        return self.rows.setdefault("" if namespace in (None, "", "__default__") else str(namespace), {})

    def _number(self, value: Any) -> Any:
        if not self.floats and isinstance(value, float) and value.is_integer():
            return int(value)
        return value

    def _metadata(self, row: Row) -> dict[str, Any]:
        return {name: self._number(value) for name, value in row.metadata.items()}

    # Operations: each takes the body and gives the answer

    def query(self, body: dict[str, Any]) -> Any:
        top_k = body.get("topK")
        if not isinstance(top_k, int) or not 1 <= top_k <= _MAX_TOP_K:
            raise Refused("topK must lie in [1, 10000]")
        vector, sparse = body.get("vector"), body.get("sparseVector")
        if self.vector_type == "dense":
            if not isinstance(vector, list) or len(vector) != self.dimension:
                raise Refused(f"Vector dimension {len(vector or [])} does not match the dimension of the index")
            if sparse is not None and self.metric != "dotproduct":
                raise Refused("Index configuration does not support sparse values")
        elif vector is not None or not sparse:
            raise Refused("a sparse index takes a sparse vector")
        rows = self._candidates(body.get("namespace"), body.get("filter"))
        matches = [(self._score(row, vector, sparse), id, row) for id, row in rows]
        matches = self._ordered(matches, filtered=body.get("filter") is not None)[:top_k]
        return {
            "matches": [
                {
                    "id": id,
                    "score": score,
                    **({"values": row.values} if body.get("includeValues") else {}),
                    **({"metadata": self._metadata(row)} if body.get("includeMetadata") and row.metadata else {}),
                }
                for score, id, row in matches
            ],
            "namespace": body.get("namespace", ""),
            "usage": {"readUnits": 1},
        }

    def _candidates(self, namespace: str | None, filter: Any) -> list[tuple[str, Row]]:
        if filter is not None:
            validate(filter)
        return [
            (id, row)
            for id, row in self._space(namespace).items()
            if filter is None or selects(filter, row.metadata, self.rules)
        ]

    def _score(self, row: Row, vector: list[float] | None, sparse: Mapping[str, Any] | None) -> float:
        if vector is not None and self.metric == "euclidean":
            return math.fsum((a - b) ** 2 for a, b in zip(vector, row.values, strict=True))
        dot = math.fsum(a * b for a, b in zip(vector or [], row.values, strict=False))
        if self.metric == "cosine":
            size = math.hypot(*(vector or [])) * math.hypot(*row.values)
            return dot / size if size else 0.0
        own = row.sparse or {"indices": [], "values": []}
        weights = dict(zip(own["indices"], own["values"], strict=True))
        given = sparse or {"indices": [], "values": []}
        return dot + math.fsum(
            weights.get(index, 0.0) * value for index, value in zip(given["indices"], given["values"], strict=True)
        )

    def _ordered(self, matches: list[tuple[float, str, Row]], *, filtered: bool) -> list[tuple[float, str, Row]]:
        sign = 1 if self.metric == "euclidean" else -1
        ordered = sorted(matches, key=lambda one: (sign * one[0], one[1]))
        if filtered and self.unsorted:
            return ordered[1::2] + ordered[0::2]
        return ordered

    def upsert(self, body: dict[str, Any]) -> Any:
        vectors = body.get("vectors") or []
        if not 0 < len(vectors) <= 1_000:
            raise Refused("1 to 1000 vectors")
        ids = [vector["id"] for vector in vectors]
        if len(set(ids)) != len(ids):
            raise Refused("Cannot upsert vectors with the same id")
        for vector in vectors:
            self._check_id(vector["id"])
            if self.vector_type == "dense" and len(vector.get("values", [])) != self.dimension:
                raise Refused("Vector dimension does not match the dimension of the index")
            metadata = stored(vector.get("metadata") or {})
            self._check_size(metadata)
            row = Row(vector.get("values", []), vector.get("sparseValues"), metadata)
            self._space(body.get("namespace"))[vector["id"]] = row
        return {"upsertedCount": len(vectors)}

    def _check_id(self, id: Any) -> None:
        if not isinstance(id, str) or not 0 < len(id) <= 512 or not id.isascii():
            raise Refused("Vector ID must be ASCII, 1 to 512 characters")

    def _check_size(self, metadata: Mapping[str, Any]) -> None:
        if len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()) > _METADATA_BYTES + 64:
            raise Refused("Metadata size exceeds the limit of 40960 bytes per vector")

    def fetch(self, ids: Sequence[str], namespace: str | None) -> Any:
        space = self._space(namespace)
        found = {
            id: {"id": id, "values": space[id].values, "metadata": self._metadata(space[id])}
            for id in ids
            if id in space
        }
        return {"vectors": found, "namespace": namespace or "", "usage": {"readUnits": 1}}

    def delete(self, body: dict[str, Any]) -> Any:
        space = self._space(body.get("namespace"))
        if body.get("deleteAll"):
            space.clear()
        for id in body.get("ids") or []:
            space.pop(id, None)
        return {}

    def knows(self, namespace: str | None) -> bool:
        return bool(self._space(namespace))

    def stats(self) -> Any:
        count = {name: {"vectorCount": len(rows)} for name, rows in self.rows.items() if rows}
        return {
            "namespaces": count,
            "dimension": self.dimension if self.vector_type == "dense" else None,
            "indexFullness": 0.0,
            "totalVectorCount": sum(len(rows) for rows in self.rows.values()),
            "metric": self.metric,
            "vectorType": self.vector_type,
        }

    # Integrated inference

    def embed(self, text: str) -> list[float]:
        """Words into slots: enough to rank by shared words."""
        values = [0.0] * self.dimension
        for word in text.lower().split():
            values[sum(word.encode()) % self.dimension] += 1.0
        return values

    def upsert_records(self, records: list[dict[str, Any]], namespace: str) -> None:
        if not 0 < len(records) <= 96:
            raise Refused("1 to 96 records")
        for record in records:
            self._check_id(record.get("_id"))
            metadata = stored({name: value for name, value in record.items() if name != "_id"})
            self._check_size(metadata)
            if not isinstance(metadata.get(self.text_field), str):
                raise Refused(f"Missing or invalid field '{self.text_field}' for record")
            self._space(namespace)[record["_id"]] = Row(self.embed(metadata[self.text_field]), None, metadata)

    def search_records(self, body: dict[str, Any], namespace: str) -> Any:
        query = body["query"]
        text = query["inputs"]["text"]
        vector = self.embed(text)
        rows = self._candidates(namespace, query.get("filter"))
        matches = [(self._score(row, vector, None), id, row) for id, row in rows]
        matches = self._ordered(matches, filtered=query.get("filter") is not None)[: query["top_k"]]
        rerank = body.get("rerank")
        if rerank is not None:
            words = set(text.lower().split())

            def overlap(row: Row) -> float:
                told = " ".join(str(row.metadata.get(name, "")) for name in rerank["rank_fields"])
                return len(words & set(told.lower().split())) / max(1, len(words))

            scored = sorted(((overlap(row), id, row) for _, id, row in matches), key=lambda one: -one[0])
            matches = scored[: rerank.get("top_n", 5)]
        wanted = body.get("fields")
        return {
            "result": {
                "hits": [
                    {
                        "_id": id,
                        "_score": score,
                        "fields": {
                            name: value
                            for name, value in self._metadata(row).items()
                            if wanted is None or name in wanted
                        },
                    }
                    for score, id, row in matches
                ]
            },
            "usage": {"read_units": 1, "embed_total_tokens": 3},
        }


# HTTP


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")


def _refuse(status: int, code: int, message: str) -> web.Response:
    return _answer({"code": code, "message": message, "details": []}, status)


class _Server:
    def __init__(self, index: Index) -> None:
        self.index = index

    async def handle(self, request: web.Request) -> web.StreamResponse:
        index = self.index
        raw = await request.read()
        ndjson = "ndjson" in request.headers.get("Content-Type", "")
        body: Any = [json.loads(line) for line in raw.splitlines()] if ndjson else json.loads(raw) if raw else {}
        namespace = request.match_info.get("namespace")
        if namespace is None and isinstance(body, dict):
            namespace = request.query.get("namespace", body.get("namespace", ABSENT))
        key = request.headers.get("Api-Key")
        index.requests.append(Request(request.path, body, str(namespace), key, dict(request.headers)))
        if (fault := index.faults.popleft() if index.faults else index.broken) is not None:
            return await self._fail(fault)
        if key != index.key:
            return web.Response(status=401, text="Invalid API Key", content_type="text/plain")
        try:
            return self._route(request, body, str(namespace))
        except Refused as refused:
            return _refuse(400, 3, str(refused))

    async def _fail(self, fault: Fault) -> web.StreamResponse:
        if not fault.hang:
            return web.Response(
                status=fault.status, body=fault.body, headers=fault.headers, content_type=fault.content_type
            )
        self.index.hanging += 1
        self.index.arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.index.hanging -= 1
            self.index.gone.set()
        raise AssertionError("unreachable")

    def _route(self, request: web.Request, body: Any, namespace: str) -> web.Response:
        index = self.index
        match request.method, request.path:
            case "POST", "/query":
                return _answer(index.query(body))
            case "POST", "/vectors/upsert":
                return _answer(index.upsert(body))
            case "GET", "/vectors/fetch":
                return _answer(index.fetch(request.query.getall("ids", []), request.query.get("namespace")))
            case "POST", "/vectors/delete":
                if not index.knows(body.get("namespace")):
                    return _refuse(404, 5, "Namespace not found")
                return _answer(index.delete(body))
            case "POST", "/describe_index_stats":
                return _answer(index.stats())
            case "POST", path if path.startswith("/records/namespaces/") and path.endswith("/upsert"):
                index.upsert_records(body, namespace)
                return web.Response(status=201)
            case "POST", path if path.startswith("/records/namespaces/") and path.endswith("/search"):
                return _answer(index.search_records(body, namespace))
            case _:
                return _refuse(404, 5, "no such operation")


@asynccontextmanager
async def serve(index: Index) -> AsyncIterator[Index]:
    """The index on a loopback port; ``index.url`` is its host."""
    server = _Server(index)
    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_route("*", "/records/namespaces/{namespace}/{operation}", server.handle)
    app.router.add_route("*", "/{tail:.*}", server.handle)
    # A client that goes away cancels its handler, so that a test can see that it went.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        index.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield index
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()
