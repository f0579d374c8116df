"""A Weaviate to test against: its two doors, served to the real async client on free loopback ports.

The filters are evaluated by :mod:`tests.servers.weaviate_index`; scores are simple, their order and their direction are
Weaviate's.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from aiohttp import web
from weaviate.proto.v1 import (
    base_pb2,
    batch_delete_pb2,
    batch_pb2,
    properties_pb2,
    search_get_pb2,
    tenants_pb2,
    weaviate_pb2_grpc,
)

from tests.servers.weaviate_index import Corpus, Prop, Refused, nanoseconds, tokenize

__all__ = ["Collection", "Prop", "WeaviateServer", "embed", "weaviate_server"]


@dataclass
class Stored:
    number: int
    id: str
    properties: dict[str, Any]
    vectors: dict[str, list[float]]


@dataclass
class Collection:
    """A class. ``vectors`` maps names to (vectorizer, distance); ``None`` is a single unnamed one."""

    name: str
    props: list[Prop]
    vectors: dict[str, tuple[str, str]] | None = None
    vectorizer: str = "none"
    distance: str = "cosine"
    tenants: list[str] | None = None
    auto_schema: bool = False
    null_index: bool = True
    objects: dict[str | None, dict[str, Stored]] = field(default_factory=lambda: defaultdict(dict))


def embed(text: str, size: int = 2) -> list[float]:
    """A vectorizer nobody would use: letters, counted."""
    vector = [0.0] * size
    for char in text.lower():
        vector[ord(char) % size] += 1.0
    return vector


def distance(metric: str, a: Sequence[float], b: Sequence[float]) -> float:
    match metric:
        case "cosine":
            length = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
            return 1.0 - (sum(x * y for x, y in zip(a, b, strict=True)) / length if length else 0.0)
        case "dot":
            return -sum(x * y for x, y in zip(a, b, strict=True))
        case "l2-squared":
            return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return float(sum(abs(x - y) for x, y in zip(a, b, strict=True)))


class WeaviateServer(weaviate_pb2_grpc.WeaviateServicer):  # type: ignore[misc]
    """``requests`` keeps every call as (name, request). ``fail`` and ``hang`` make a call do that."""

    def __init__(self, *, version: str = "1.33.0", api_key: str | None = None, **switches: bool) -> None:
        self.version, self.api_key, self.switches = version, api_key, switches
        self.collections: dict[str, Collection] = {}
        self.requests: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, str]] = []
        self.failures: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.rest_failures: dict[str, int] = {}
        self.hanging: set[str] = set()
        self.reached = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.connections = 0
        self.rest_port = self.grpc_port = 0

    # Administration, for tests

    def create(self, collection: Collection) -> Collection:
        self.collections[collection.name] = collection
        return collection

    def fail(self, rpc: str, code: grpc.StatusCode, details: str = "") -> None:
        self.failures[rpc] = (code, details)

    def hang(self, rpc: str) -> None:
        self.hanging.add(rpc)

    def last(self, rpc: str) -> Any:
        return next(request for name, request in reversed(self.requests) if name == rpc)

    def put(
        self,
        name: str,
        properties: Mapping[str, Any],
        *,
        id: str | None = None,
        vector: Any = None,
        tenant: str | None = None,
    ) -> str:
        """Stores an object as somebody else would have."""
        collection = self.collections[name]
        id = id or str(uuid.uuid4())
        vectors = vector if isinstance(vector, dict) else {} if vector is None else {"default": vector}
        for known, (vectorizer, _) in (collection.vectors or {"default": (collection.vectorizer, "")}).items():
            if known not in vectors and vectorizer != "none":
                vectors[known] = embed(" ".join(one for one in properties.values() if isinstance(one, str)))
        shelf = collection.objects[tenant]
        number = shelf[id].number if id in shelf else len(shelf)
        shelf[id] = Stored(number, id, dict(properties), vectors)
        return id

    # The REST door

    def schema(self, collection: Collection) -> dict[str, Any]:
        index = {
            "cleanupIntervalSeconds": 300,
            "dynamicEfMin": 100,
            "dynamicEfMax": 500,
            "dynamicEfFactor": 8,
            "ef": -1,
            "efConstruction": 128,
            "flatSearchCutoff": 40000,
            "maxConnections": 32,
            "skip": False,
            "vectorCacheMaxObjects": 10**12,
        }
        found: dict[str, Any] = {
            "class": collection.name,
            "invertedIndexConfig": {
                "bm25": {"b": 0.75, "k1": 1.2},
                "cleanupIntervalSeconds": 60,
                "indexNullState": collection.null_index,
                "stopwords": {"preset": "en", "additions": None, "removals": None},
            },
            "multiTenancyConfig": {"enabled": collection.tenants is not None},
            "properties": [
                {
                    "name": prop.name,
                    "dataType": [prop.type],
                    "indexFilterable": prop.filterable,
                    "indexSearchable": prop.base == "text" and prop.searchable,
                    "indexRangeFilters": False,
                    **({"tokenization": prop.tokenizer} if prop.base == "text" else {}),
                }
                for prop in collection.props
            ],
            "replicationConfig": {"factor": 1},
            "shardingConfig": {
                "virtualPerPhysical": 128,
                "desiredCount": 1,
                "actualCount": 1,
                "desiredVirtualCount": 128,
                "actualVirtualCount": 128,
                "key": "_id",
                "strategy": "hash",
                "function": "murmur3",
            },
        }
        if collection.vectors is None:
            found |= {
                "vectorizer": collection.vectorizer,
                "moduleConfig": {collection.vectorizer: {"vectorizeClassName": False}},
                "vectorIndexType": "hnsw",
                "vectorIndexConfig": {**index, "distance": collection.distance},
            }
        else:
            found["vectorConfig"] = {
                name: {
                    "vectorizer": {vectorizer: {}},
                    "vectorIndexType": "hnsw",
                    "vectorIndexConfig": {**index, "distance": metric},
                }
                for name, (vectorizer, metric) in collection.vectors.items()
            }
        return found

    async def rest(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/v1/")
        self.requests.append(("REST", request.method + " " + path))
        kind = path.split("/", maxsplit=1)[0]
        if kind in self.hanging:
            self.reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if kind in self.rest_failures:
            return web.json_response({"error": [{"message": "injected"}]}, status=self.rest_failures[kind])
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return web.json_response({"code": 401, "message": "anonymous access not enabled"}, status=401)
        if path == "meta":
            return web.json_response({"version": self.version, "grpcMaxMessageSize": 104858000, "modules": {}})
        if path == ".well-known/ready":
            return web.Response(status=200)
        if kind == "schema":
            name, _, tenant = path.removeprefix("schema/").partition("/tenants/")
            if tenant:
                there = tenant in (self.collections[name].tenants or ())
                return web.json_response({"name": tenant}, status=200 if there else 404)
            if name in self.collections:
                return web.json_response(self.schema(self.collections[name]))
            return web.json_response({"error": [{"message": "class not found"}]}, status=404)
        return web.json_response({}, status=404)

    # The gRPC door

    async def _begin(self, rpc: str, request: Any, context: Any) -> None:
        self.requests.append((rpc, request))
        self.metadata.append(dict(context.invocation_metadata()))
        self.reached.set()
        if rpc in self.hanging:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if rpc in self.failures:
            await context.abort(*self.failures[rpc])
        if self.api_key is not None and self.metadata[-1].get("authorization") != f"Bearer {self.api_key}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "anonymous access not enabled")

    def _shelf(self, name: str, tenant: str) -> tuple[Collection, dict[str, Stored]]:
        collection = self.collections.get(name)
        if collection is None:
            raise Refused(f"could not find class {name} in schema")
        if collection.tenants is None:
            if tenant:
                raise Refused(f"class {name} has multi-tenancy disabled, but request was with tenant")
            return collection, collection.objects[None]
        if not tenant:
            raise Refused(f"class {name} has multi-tenancy enabled, but request was without tenant")
        if tenant not in collection.tenants:
            raise Refused(f"tenant not found: {tenant!r}")
        return collection, collection.objects[tenant]

    def _select(self, collection: Collection, shelf: dict[str, Stored], native: Any) -> list[Stored]:
        corpus = Corpus(
            collection.props,
            version=(int(self.version.split(".")[0]), int(self.version.split(".")[1])),
            null_index=collection.null_index,
            **self.switches,
        )
        for one in shelf.values():
            corpus.add(one.number, one.properties, one.id)
        chosen = corpus.select(native)
        return [one for one in shelf.values() if one.number in chosen]

    async def Search(self, request: Any, context: Any) -> Any:
        await self._begin("Search", request, context)
        try:
            collection, shelf = self._shelf(request.collection, request.tenant)
            if request.limit > 10_000:
                raise Refused("query maximum results exceeded")
            found = (
                self._select(collection, shelf, request.filters) if request.HasField("filters") else [*shelf.values()]
            )
            ranked = self._rank(collection, found, request)
        except Refused as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        limit = request.limit or 10
        return search_get_pb2.SearchReply(
            results=[self._result(collection, one, request.metadata, given) for one, given in ranked[:limit]]
        )

    def _rank(self, collection: Collection, found: list[Stored], request: Any) -> list[tuple[Stored, dict[str, float]]]:
        if request.HasField("near_vector"):
            return self._near(collection, found, _vector(request.near_vector), request.near_vector, request.metadata)
        if request.HasField("near_text"):
            target = self._target(collection, request.near_text)
            vectorizer = collection.vectorizer if collection.vectors is None else collection.vectors[target][0]
            if vectorizer == "none":
                raise Refused("could not vectorize input: no vectorizer")
            text = " ".join(request.near_text.query)
            return self._near(collection, found, embed(text), request.near_text, request.metadata)
        if request.HasField("bm25_search"):
            return [
                (one, {"score": score}) for one, score in _bm25(collection, found, request.bm25_search) if score > 0
            ]
        if request.HasField("hybrid_search"):
            return self._hybrid(collection, found, request.hybrid_search)
        return [(one, {}) for one in found]

    def _target(self, collection: Collection, search: Any) -> str:
        names = list(search.targets.target_vectors) or list(search.target_vectors)
        if collection.vectors is None:
            if names:
                raise Refused("class does not have named vectors")
            return "default"
        if len(names) != 1:
            if len(collection.vectors) > 1:
                raise Refused("multiple vectors: target_vectors is required")
            return next(iter(collection.vectors))
        if names[0] not in collection.vectors:
            raise Refused(f"vector {names[0]!r} not found")
        return str(names[0])

    def _near(
        self, collection: Collection, found: list[Stored], vector: list[float], search: Any, metadata: Any
    ) -> list[tuple[Stored, dict[str, float]]]:
        target = self._target(collection, search)
        metric = collection.distance if collection.vectors is None else collection.vectors[target][1]
        if metadata.certainty and metric != "cosine":
            raise Refused("certainty is only supported for cosine")
        measured = []
        for one in found:
            stored = one.vectors.get(target)
            if stored is None:
                continue
            if len(stored) != len(vector):
                raise Refused(f"vector lengths don't match: {len(stored)} vs {len(vector)}")
            away = distance(metric, vector, stored)
            measured.append((one, {"distance": away, "certainty": 1 - away / 2}))
        return sorted(measured, key=lambda pair: (pair[1]["distance"], pair[0].id))

    def _hybrid(
        self, collection: Collection, found: list[Stored], search: Any
    ) -> list[tuple[Stored, dict[str, float]]]:
        alpha = search.alpha_param if search.use_alpha_param else search.alpha
        vector = _vector(search) or _vector(search.near_vector) or embed(search.query)
        dense = self._near(collection, found, vector, search, search_get_pb2.MetadataRequest()) if alpha > 0 else []
        sparse = [(one, score) for one, score in _bm25(collection, found, search) if score > 0] if alpha < 1 else []
        lists = [
            (alpha, [(one, -given["distance"]) for one, given in dense]),
            (1 - alpha, sparse),
        ]
        total: Counter[str] = Counter()
        for weight, ranked in lists:
            scores = [score for _, score in ranked]
            for rank, (one, score) in enumerate(ranked):
                if search.fusion_type == search.FUSION_TYPE_RANKED:
                    total[one.id] += weight / (60 + rank)
                else:
                    spread = max(scores) - min(scores)
                    total[one.id] += weight * ((score - min(scores)) / spread if spread else 1.0)
        by_id = {one.id: one for one in found}
        return [
            (by_id[id], {"score": score}) for id, score in sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))
        ]

    def _result(self, collection: Collection, one: Stored, wanted: Any, given: dict[str, float]) -> Any:
        metadata = search_get_pb2.MetadataResult(id=one.id, id_as_bytes=uuid.UUID(one.id).bytes)
        for name in ("distance", "certainty", "score"):
            if getattr(wanted, name) and name in given:
                setattr(metadata, name, given[name])
                setattr(metadata, f"{name}_present", True)
        for name, vector in one.vectors.items():
            packed = struct.pack(f"<{len(vector)}f", *vector)
            if wanted.vector and collection.vectors is None:
                metadata.vector_bytes = packed
            elif wanted.vector or name in wanted.vectors:
                metadata.vectors.append(
                    base_pb2.Vectors(name=name, vector_bytes=packed, type=base_pb2.Vectors.VECTOR_TYPE_SINGLE_FP32)
                )
        fields = {prop.name: _value(prop, one.properties.get(prop.name)) for prop in collection.props}
        return search_get_pb2.SearchResult(
            properties=search_get_pb2.PropertiesResult(
                non_ref_props=properties_pb2.Properties(fields=fields), target_collection=collection.name
            ),
            metadata=metadata,
        )

    async def BatchObjects(self, request: Any, context: Any) -> Any:
        await self._begin("BatchObjects", request, context)
        errors = []
        for index, one in enumerate(request.objects):
            try:
                collection, _ = self._shelf(one.collection, one.tenant)
                properties = {
                    name: _checked(collection, name, value) for name, value in _written(one.properties).items()
                }
                vectors: Any = {v.name: _floats(v.vector_bytes) for v in one.vectors}
                if one.vector_bytes:
                    vectors = _floats(one.vector_bytes)
                self.put(one.collection, properties, id=one.uuid, vector=vectors, tenant=one.tenant or None)
            except Refused as error:
                errors.append(batch_pb2.BatchObjectsReply.BatchError(index=index, error=str(error)))
        return batch_pb2.BatchObjectsReply(errors=errors)

    async def BatchDelete(self, request: Any, context: Any) -> Any:
        await self._begin("BatchDelete", request, context)
        try:
            collection, shelf = self._shelf(request.collection, request.tenant)
            chosen = self._select(collection, shelf, request.filters)
        except Refused as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        for one in chosen:
            del shelf[one.id]
        return batch_delete_pb2.BatchDeleteReply(matches=len(chosen), successful=len(chosen), failed=0)

    async def TenantsGet(self, request: Any, context: Any) -> Any:
        await self._begin("TenantsGet", request, context)
        names = self.collections[request.collection].tenants or []
        wanted = list(request.names.values) if request.HasField("names") else names
        return tenants_pb2.TenantsGetReply(
            tenants=[
                tenants_pb2.Tenant(name=name, activity_status=tenants_pb2.TENANT_ACTIVITY_STATUS_HOT)
                for name in names
                if name in wanted
            ]
        )


def _floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _vector(search: Any) -> list[float]:
    if search.vector_bytes:
        return _floats(search.vector_bytes)
    if search.vectors:
        return _floats(search.vectors[0].vector_bytes)
    for one in getattr(search, "vector_for_targets", ()):
        return _floats(one.vector_bytes or one.vectors[0].vector_bytes)
    return []


def _bm25(collection: Collection, found: list[Stored], search: Any) -> list[tuple[Stored, float]]:
    """Not BM25, but higher for more: the order is what matters here."""
    names = [one.split("^")[0] for one in search.properties]
    props = [p for p in collection.props if p.base == "text" and p.searchable and (not names or p.name in names)]
    scored = []
    for one in found:
        score = 0.0
        for prop in props:
            value = one.properties.get(prop.name)
            texts = value if isinstance(value, list) else [value] if isinstance(value, str) else []
            counts = Counter(token for text in texts for token in tokenize(prop.tokenizer, text))
            score += sum(math.log1p(counts[token]) for token in tokenize(prop.tokenizer, search.query))
        scored.append((one, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0].id))


def _written(properties: Any) -> dict[str, Any]:
    """What a batch carries: scalars in a Struct (so that every number is a double), lists by their type."""
    found: dict[str, Any] = {}
    for name, value in properties.non_ref_properties.fields.items():
        kind = value.WhichOneof("kind")
        if kind != "null_value":
            found[name] = dict(value.struct_value) if kind == "struct_value" else getattr(value, kind)
    for one in properties.number_array_properties:
        found[one.prop_name] = list(struct.unpack(f"<{len(one.values_bytes) // 8}d", one.values_bytes))
    for kind in ("int", "text", "boolean"):
        for one in getattr(properties, f"{kind}_array_properties"):
            found[one.prop_name] = list(one.values)
    for name in properties.empty_list_props:
        found[name] = []
    for one in properties.object_properties:
        found[one.prop_name] = _written(one.value)
    return found


def _checked(collection: Collection, name: str, value: Any) -> Any:
    """A value as the class has it, or why it is refused."""
    prop = next((prop for prop in collection.props if prop.name == name), None)
    if prop is None:
        if not collection.auto_schema:
            raise Refused(f"invalid object: no such prop with name {name!r} found in class {collection.name!r}")
        return value
    if prop.multi is not isinstance(value, list):
        raise Refused(f"invalid {prop.type} property {name!r}")
    items = value if isinstance(value, list) else [value]
    for item in items:
        number = isinstance(item, int | float) and not isinstance(item, bool)
        fits = {
            "text": isinstance(item, str),
            "uuid": isinstance(item, str),
            "int": number and item == int(item),
            "number": number,
            "boolean": isinstance(item, bool),
            "date": isinstance(item, str),
        }.get(prop.base, True)
        if not fits:
            raise Refused(f"invalid {prop.type} property {name!r}: {type(item).__name__}")
        if prop.base == "date":
            nanoseconds(item)
    convert: dict[str, Callable[[Any], Any]] = {"int": int, "number": float}
    items = [convert.get(prop.base, lambda item: item)(item) for item in items]
    return items if isinstance(value, list) else items[0]


def _value(prop: Prop, value: Any) -> Any:
    Value = properties_pb2.Value
    if value is None:
        return Value(null_value=0)
    if prop.multi:
        lists = properties_pb2.ListValue
        match prop.base:
            case "int":
                packed = struct.pack(f"<{len(value)}q", *(int(one) for one in value))
                return Value(list_value=lists(int_values=properties_pb2.IntValues(values=packed)))
            case "number":
                packed = struct.pack(f"<{len(value)}d", *value)
                return Value(list_value=lists(number_values=properties_pb2.NumberValues(values=packed)))
            case "boolean":
                return Value(list_value=lists(bool_values=properties_pb2.BoolValues(values=value)))
            case "date":
                return Value(list_value=lists(date_values=properties_pb2.DateValues(values=value)))
            case "uuid":
                return Value(list_value=lists(uuid_values=properties_pb2.UuidValues(values=value)))
        return Value(list_value=lists(text_values=properties_pb2.TextValues(values=value)))
    match prop.base:
        case "int":
            return Value(int_value=int(value))
        case "number":
            return Value(number_value=value)
        case "boolean":
            return Value(bool_value=value)
        case "date":
            return Value(date_value=value)
        case "uuid":
            return Value(uuid_value=value)
        case "geoCoordinates":
            return Value(
                geo_value=properties_pb2.GeoCoordinate(latitude=value["latitude"], longitude=value["longitude"])
            )
    return Value(text_value=value)


@asynccontextmanager
async def weaviate_server(server: WeaviateServer) -> AsyncIterator[WeaviateServer]:
    """Serves on two loopback ports until it is left: free ones, unless the server has been given some before."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.rest)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", server.rest_port))
    await web.SockSite(runner, listener).start()
    server.rest_port = listener.getsockname()[1]
    remote = grpc.aio.server()
    weaviate_pb2_grpc.add_WeaviateServicer_to_server(server, remote)
    server.grpc_port = remote.add_insecure_port(f"127.0.0.1:{server.grpc_port}")
    await remote.start()
    try:
        yield server
    finally:
        await remote.stop(None)
        await runner.cleanup()
