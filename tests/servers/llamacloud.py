"""LlamaCloud's retrieval endpoint for tests, written from the API reference and the official client's types.

Bodies are validated strictly, extra members too, so that an adapter that sends what is not documented is refused here.
Filters are evaluated by :func:`selects`; what the reference leaves open is a switch (:class:`Rules`).
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

__all__ = ["Chunk", "Fault", "Index", "Rules", "selects", "serve", "validate"]

PATH = "/api/v1/retrieval/retrieve"
CAP = 500

Number = StrictInt | StrictFloat
Scalar = StrictStr | StrictBool | Number
Operator = Literal["eq", "gt", "gte", "in", "lt", "lte", "ne", "nin"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ValueFilter(Model):
    operator: Operator
    value: Scalar | list[Scalar]


class RangeFilter(Model):
    operator: Operator
    value: Number | list[Number]


class StringFilter(Model):
    operator: Operator
    value: StrictStr | list[StrictStr]


class StaticFilters(Model):
    parsed_directory_file_id: StringFilter | None = None


class Rerank(Model):
    enabled: bool = True
    top_n: int | None = None


Weight = Annotated[float, Field(ge=0, le=1)]


class Request(Model):
    index_id: str
    query: str
    custom_filters: dict[str, ValueFilter | list[RangeFilter] | None] | None = None
    static_filters: StaticFilters | None = None
    full_text_pipeline_weight: Weight | None = None
    vector_pipeline_weight: Weight | None = None
    num_candidates: Annotated[int, Field(ge=1)] | None = None
    rerank: Rerank = Rerank()
    score_threshold: float | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None


def validate(body: Any) -> Request:
    return Request.model_validate(body)


# Filters


@dataclass(frozen=True)
class Rules:
    """``missing``: whether ``ne`` and ``nin`` select chunks without the field. ``lists``: whether a list matches by any
    of its items, or not at all."""

    missing: bool = True
    lists: bool = False


def selects(native: Mapping[str, Any] | None, metadata: Mapping[str, Any], rules: Rules = Rules()) -> bool:
    """Whether a chunk is selected; the built-in field stands among the metadata under its name."""
    for group in (native or {}).values():
        for name, conditions in group.items():
            for one in conditions if isinstance(conditions, list) else [conditions]:
                if not _holds(one["operator"], one["value"], metadata.get(name), rules):
                    return False
    return True


def _holds(operator: str, operand: Any, value: Any, rules: Rules) -> bool:
    if operator in ("ne", "nin"):
        if value is None or value == []:
            return rules.missing
        return not _holds("eq" if operator == "ne" else "in", operand, value, rules)
    if isinstance(value, list):
        return rules.lists and any(_holds(operator, operand, item, rules) for item in value)
    match operator:
        case "eq":
            return _same(value, operand)
        case "in":
            return any(_same(value, item) for item in operand)
    if not (_is_number(value) and _is_number(operand)):
        return isinstance(value, str) and isinstance(operand, str) and _ordered(operator, value, operand)
    return _ordered(operator, value, operand)


def _ordered(operator: str, value: Any, operand: Any) -> bool:
    return bool(
        {"gt": value > operand, "gte": value >= operand, "lt": value < operand, "lte": value <= operand}[operator]
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    if _is_number(one) and _is_number(other):
        return bool(one == other)
    return type(one) is type(other) and one == other


# The index


@dataclass
class Chunk:
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    static: dict[str, Any] = field(default_factory=dict)


@dataclass
class Fault:
    """What is answered in place of the next request."""

    status: int = 500
    body: bytes = b'{"detail":"Internal Server Error"}'
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False


@dataclass
class Seen:
    path: str
    query: dict[str, str]
    body: Any
    authorization: str | None


class Index:
    """One index and its server. ``faults`` are used up one a request."""

    def __init__(self, *chunks: Chunk, id: str = "idx-abc123", key: str = "llx-secret", rules: Rules = Rules()) -> None:
        self.id = id
        self.key = key
        self.rules = rules
        self.chunks = list(chunks)
        self.faults: deque[Fault] = deque()
        self.requests: list[Seen] = []
        self.arrived, self.gone = asyncio.Event(), asyncio.Event()
        self.url = ""

    def retrieve(self, asked: Request, native: Mapping[str, Any]) -> dict[str, Any]:
        words = set(asked.query.lower().split())
        found = []
        for chunk in self.chunks:
            if not selects(native, {**chunk.metadata, **chunk.static}, self.rules):
                continue
            own = set(chunk.content.lower().split())
            vector, text = len(words & own) / max(1, len(words | own)), float(len(words & own))
            weights = (
                1.0 if asked.vector_pipeline_weight is None else asked.vector_pipeline_weight,
                1.0 if asked.full_text_pipeline_weight is None else asked.full_text_pipeline_weight,
            )
            found.append((weights[0] * vector + weights[1] * text, chunk))
        found.sort(key=lambda one: -one[0])
        kept = found[: min(asked.top_k or 10, CAP)]
        if asked.score_threshold is not None:
            kept = [one for one in kept if one[0] >= asked.score_threshold]
        results = [
            {"content": chunk.content, "metadata": chunk.metadata, "score": score, "static_fields": chunk.static}
            for score, chunk in kept
        ]
        if asked.rerank.enabled:
            for result in results:
                result["rerank_score"] = 1.0 / (1 + len(str(result["content"])))
            results.sort(key=lambda one: -one["rerank_score"])  # type: ignore[operator]
            results = results[: asked.rerank.top_n or 5]
        return {"results": results}


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")


class _Server:
    def __init__(self, index: Index) -> None:
        self.index = index

    async def handle(self, request: web.Request) -> web.StreamResponse:
        index = self.index
        raw = await request.read()
        body = json.loads(raw) if raw else None
        index.requests.append(Seen(request.path, dict(request.query), body, request.headers.get("Authorization")))
        if index.faults:
            return await self._fail(index.faults.popleft())
        if request.headers.get("Authorization") != f"Bearer {index.key}":
            return _answer({"detail": "Invalid API key"}, 401)
        if request.method == "GET" and request.path == f"/api/v1/indexes/{index.id}":
            return _answer({"id": index.id, "name": "index"})
        if (request.method, request.path) != ("POST", PATH):
            return _answer({"detail": "Not Found"}, 404)
        try:
            asked = validate(body)
        except ValidationError as error:
            rows = json.loads(error.json(include_url=False, include_context=False))
            return _answer({"detail": [{**row, "loc": ["body", *row["loc"]]} for row in rows]}, 422)
        if asked.index_id != index.id:
            return _answer({"detail": "Index not found"}, 404)
        return _answer(
            index.retrieve(asked, {key: body[key] for key in ("custom_filters", "static_filters") if body.get(key)})
        )

    async def _fail(self, fault: Fault) -> web.StreamResponse:
        if not fault.hang:
            return web.Response(status=fault.status, body=fault.body, headers=fault.headers)
        self.index.arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.index.gone.set()
        raise AssertionError("unreachable")


@asynccontextmanager
async def serve(index: Index) -> AsyncIterator[Index]:
    """The index on a loopback port; ``index.url`` is its base URL."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", _Server(index).handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        index.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield index
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()
