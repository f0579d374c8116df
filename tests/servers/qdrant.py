"""A Qdrant server for tests: its REST interface over the real engine (``qdrant-edge-py``), on a free loopback port.

Bodies are validated with the official client's strict models, so an adapter that sends what a server would refuse is
refused here. The engine is Qdrant's own, so payload indexes change answers here as they do there. It reads booleans as
integers, which a server does not: conditions on booleans are therefore answered from the payloads.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import qdrant_edge as edge
import uvicorn
from pydantic import TypeAdapter, ValidationError
from qdrant_client.http import models
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

__all__ = ["QdrantServer", "memory_folder", "qdrant_server"]

_QUERY = TypeAdapter(models.QueryRequest)
_COUNT = TypeAdapter(models.CountRequest)
_SCROLL = TypeAdapter(models.ScrollRequest)
_UPSERT = TypeAdapter(models.PointInsertOperations)
_DELETE = TypeAdapter(models.PointsSelector)
_CREATE = TypeAdapter(models.CreateCollection)
_PATCH = TypeAdapter(models.UpdateCollection)
_INDEX = TypeAdapter(models.CreateFieldIndex)
_RETRIEVE = TypeAdapter(models.PointRequest)

_KINDS = {
    "keyword": "Keyword",
    "integer": "Integer",
    "float": "Float",
    "geo": "Geo",
    "text": "Text",
    "bool": "Bool",
    "datetime": "Datetime",
    "uuid": "Uuid",
}
_PREFIX = {"query": "Bad request: ", "json": "Format error in JSON body: "}


def memory_folder() -> str | None:
    """A file system in memory if there is one with room: on a disk a collection costs half a second of waiting."""
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2**31
    return str(shm) if roomy else None


class _Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Collection:
    def __init__(self, folder: Path, created: models.CreateCollection) -> None:
        self.folder = folder
        self.params = created
        self.strict: dict[str, Any] = _plain(created.strict_mode_config) or {}
        vectors = created.vectors or {}
        unnamed = isinstance(vectors, models.VectorParams)
        self.unnamed = unnamed
        self.dense = {"": vectors} if isinstance(vectors, models.VectorParams) else dict(vectors)
        self.sparse = dict(created.sparse_vectors or {})
        self.shard = edge.EdgeShard.create(
            str(folder),
            edge.EdgeConfig(
                vectors={
                    name: edge.EdgeVectorParams(one.size, getattr(edge.Distance, one.distance.value))
                    for name, one in self.dense.items()
                }
                or None,
                sparse_vectors={
                    name: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf if one.modifier else None)
                    for name, one in self.sparse.items()
                }
                or None,
            ),
        )

    def schema(self) -> dict[str, str]:
        names = {theirs: ours for ours, theirs in _KINDS.items()}
        found = self.shard.info().payload_schema
        return {key: names[repr(info.data_type).rpartition(".")[2]] for key, info in found.items()}

    def info(self) -> dict[str, Any]:
        vectors = {name: _plain(one) for name, one in self.dense.items()}
        params: dict[str, Any] = {
            "vectors": vectors[""] if self.unnamed else vectors,
            "shard_number": 1,
            "replication_factor": 1,
            "write_consistency_factor": 1,
            "on_disk_payload": True,
        }
        if self.sparse:
            params["sparse_vectors"] = {name: _plain(one) for name, one in self.sparse.items()}
        count = self.shard.info().points_count
        config: dict[str, Any] = {
            "params": params,
            "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10000},
            "optimizer_config": {"deleted_threshold": 0.2, "vacuum_min_vector_number": 1000,
                                 "default_segment_number": 0, "flush_interval_sec": 5},
            "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0},
        }  # fmt: skip
        if self.strict:
            config["strict_mode_config"] = self.strict
        return {
            "status": "green",
            "optimizer_status": "ok",
            "indexed_vectors_count": 0,
            "segments_count": 1,
            "points_count": count,
            "config": config,
            "payload_schema": {key: {"data_type": kind, "points": count} for key, kind in self.schema().items()},
        }


class QdrantServer:
    """The server as a test sees it.

    ``fault`` answers every request below ``/collections`` in place of the server, ``root`` those for its version;
    ``hang`` never answers a query.
    ``requests`` are the ones that came in: method, path with query, headers, body.
    """

    def __init__(self, *, version: str = "1.20.0", api_key: str | None = None) -> None:
        self.version = version
        self.api_key = api_key
        self.fault: Response | None = None
        self.root: Response | None = None
        self.hang = False
        self.hung = threading.Event()
        self.left = threading.Event()
        self.requests: list[tuple[str, str, Mapping[str, str], Any]] = []
        self.url = ""
        self._collections: dict[str, _Collection] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="qdrant-test-", dir=memory_folder()))

    def queries(self) -> list[Any]:
        """The bodies of the queries so far."""
        return [body for _, path, _, body in self.requests if path.split("?")[0].endswith("/points/query")]

    def app(self) -> Starlette:
        def route(path: str, **methods: Any) -> Route:
            async def endpoint(request: Request) -> Response:
                return await self._answer(request, methods[request.method.lower()])

            return Route(path, endpoint, methods=[name.upper() for name in methods])

        one = "/collections/{name}"
        return Starlette(
            routes=[
                Route("/", self._root),
                route("/collections", get=self._list),
                route(one, get=self._info, put=self._create, patch=self._patch, delete=self._drop),
                route(f"{one}/exists", get=self._exists),
                route(f"{one}/index", put=self._index),
                route(f"{one}/index/{{field}}", delete=self._unindex),
                route(f"{one}/points", put=self._upsert, post=self._retrieve),
                route(f"{one}/points/delete", post=self._delete),
                route(f"{one}/points/query", post=self._query),
                route(f"{one}/points/count", post=self._count),
                route(f"{one}/points/scroll", post=self._scroll),
            ]
        )

    def close(self) -> None:
        for one in self._collections.values():
            one.shard.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _root(self, request: Request) -> Response:
        if self.root is not None:
            return self.root
        return _json({"title": "qdrant - vector search engine", "version": self.version, "commit": ""})

    async def _answer(self, request: Request, handle: Any) -> Response:
        raw = await request.body()
        path = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        self.requests.append((request.method, path, request.headers, orjson.loads(raw) if raw else None))
        if self.api_key is not None and request.headers.get("api-key") != self.api_key:
            return PlainTextResponse("Must provide an API key or an Authorization bearer token", 401)
        if self.fault is not None:
            return self.fault
        if self.hang and path.split("?")[0].endswith("/query"):
            self.hung.set()
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
            self.left.set()
            return _error(500, "nobody is left to answer")
        try:
            return _json({"result": handle(request, raw), "status": "ok", "time": 0.0})
        except _Refusal as error:
            return _error(error.status, error.message)
        except ValidationError as error:
            first = error.errors()[0]
            return _error(400, f"{_PREFIX['json']}{first['msg']} at {'.'.join(map(str, first['loc']))}")
        except Exception as error:  # the engine raises bare exceptions
            text = str(error)
            refused = re.match(r"Vector dimension|Not existing vector|failed to parse|invalid JSON path", text)
            if refused:
                return _error(400, f"Wrong input: {text}")
            return _error(500, f"Service internal error: {text}")

    def _get(self, request: Request) -> _Collection:
        name = request.path_params["name"]
        if name not in self._collections:
            raise _Refusal(404, f"Not found: Collection `{name}` doesn't exist!")
        return self._collections[name]

    def _list(self, request: Request, raw: bytes) -> Any:
        return {"collections": [{"name": name} for name in self._collections]}

    def _exists(self, request: Request, raw: bytes) -> Any:
        return {"exists": request.path_params["name"] in self._collections}

    def _info(self, request: Request, raw: bytes) -> Any:
        return self._get(request).info()

    def _create(self, request: Request, raw: bytes) -> Any:
        created = _CREATE.validate_json(raw)
        name = request.path_params["name"]
        if name in self._collections:
            raise _Refusal(409, f"Wrong input: Collection `{name}` already exists!")
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir()
        self._collections[name] = _Collection(folder, created)
        return True

    def _patch(self, request: Request, raw: bytes) -> Any:
        patch = _PATCH.validate_json(raw)
        if patch.strict_mode_config is not None:
            self._get(request).strict.update(_plain(patch.strict_mode_config))
        return True

    def _drop(self, request: Request, raw: bytes) -> Any:
        gone = self._collections.pop(request.path_params["name"], None)
        if gone is not None:
            gone.shard.close()
        return gone is not None

    def _index(self, request: Request, raw: bytes) -> Any:
        wanted = _INDEX.validate_json(raw)
        schema = wanted.field_schema
        kind = getattr(schema, "value", None) or str(getattr(schema, "type", ""))
        kind = kind.rpartition(".")[2].lower()
        update = edge.UpdateOperation.create_field_index(
            wanted.field_name, getattr(edge.PayloadSchemaType, _KINDS[kind])
        )
        self._get(request).shard.update(update)
        return {"operation_id": 0, "status": "completed"}

    def _unindex(self, request: Request, raw: bytes) -> Any:
        self._get(request).shard.update(edge.UpdateOperation.delete_field_index(request.path_params["field"]))
        return {"operation_id": 0, "status": "completed"}

    def _upsert(self, request: Request, raw: bytes) -> Any:
        collection = self._get(request)
        given = _UPSERT.validate_json(raw)
        if not isinstance(given, models.PointsList):
            raise _Refusal(400, "only lists of points are served here")
        limit = _limit(collection, "upsert_max_batchsize")
        if limit is not None and len(given.points) > limit:
            raise _Refusal(400, f"Bad request: Upsert limit exceeded {len(given.points)} > {limit}. Help: reduce it.")
        collection.shard.update(edge.UpdateOperation.upsert_points([_stored(one) for one in given.points]))
        return {"operation_id": 0, "status": "completed"}

    def _delete(self, request: Request, raw: bytes) -> Any:
        given = _DELETE.validate_json(raw)
        if not isinstance(given, models.PointIdsList):
            raise _Refusal(400, "only ids are served here")
        self._get(request).shard.update(edge.UpdateOperation.delete_points([_id(one) for one in given.points]))
        return {"operation_id": 0, "status": "completed"}

    def _retrieve(self, request: Request, raw: bytes) -> Any:
        given = _RETRIEVE.validate_json(raw)
        found = self._get(request).shard.retrieve([_id(one) for one in given.ids], True, bool(given.with_vector))
        return [_record(one) for one in found]

    def _count(self, request: Request, raw: bytes) -> Any:
        given, collection = _COUNT.validate_json(raw), self._get(request)
        return {"count": collection.shard.count(edge.CountRequest(filter=self._filter(collection, given.filter)))}

    def _scroll(self, request: Request, raw: bytes) -> Any:
        given, collection = _SCROLL.validate_json(raw), self._get(request)
        found, after = collection.shard.scroll(
            edge.ScrollRequest(
                offset=None if given.offset is None else _id(given.offset),
                limit=given.limit,
                filter=self._filter(collection, given.filter),
                with_payload=True,
            )
        )
        return {"points": [_record(one) for one in found], "next_page_offset": None if after is None else _id(after)}

    def _query(self, request: Request, raw: bytes) -> Any:
        given, collection = _QUERY.validate_json(raw), self._get(request)
        limit = given.limit or 10
        most = _limit(collection, "max_query_limit")
        if most is not None and limit > most:
            raise _Refusal(
                400,
                f'Bad request: Limit exceeded {limit} > {most} for "limit". '
                f'Help: Reduce the "limit" parameter to or below {most}.',
            )
        exclude = given.with_payload.exclude if isinstance(given.with_payload, models.PayloadSelectorExclude) else None
        payload = edge.PayloadSelector.Exclude(exclude) if exclude is not None else given.with_payload
        found = collection.shard.query(
            edge.QueryRequest(
                limit=limit,
                with_payload=payload if payload is not None else False,
                with_vector=given.with_vector if given.with_vector is not None else False,
                **self._stage(collection, given),
            )
        )
        return {"points": [{**_record(one), "version": 0, "score": one.score} for one in found]}

    def _stage(self, collection: _Collection, given: Any) -> dict[str, Any]:
        prefetch = given.prefetch
        stages = [] if prefetch is None else prefetch if isinstance(prefetch, list) else [prefetch]
        return {
            "query": self._scoring(collection, given.query, given.using),
            "prefetches": [edge.Prefetch(limit=one.limit or 10, **self._stage(collection, one)) for one in stages],
            "filter": self._filter(collection, given.filter),
            "params": None
            if given.params is None
            else edge.SearchParams(hnsw_ef=given.params.hnsw_ef, exact=bool(given.params.exact)),
        }

    def _scoring(self, collection: _Collection, query: Any, using: str | None) -> Any:
        match query:
            case None:
                return None
            case list() | models.SparseVector() | models.Document():
                return edge.Query.Nearest(_vector(query, document=False), using=using)
            case models.NearestQuery(nearest=vector, mmr=None):
                return edge.Query.Nearest(_vector(vector, document=False), using=using)
            case models.NearestQuery(nearest=vector, mmr=mmr):
                keep = 0.5 if mmr.diversity is None else 1 - mmr.diversity
                return edge.Mmr(_vector(vector, document=False), keep, mmr.candidates_limit or 10, using=using)
            case models.FusionQuery(fusion=models.Fusion.RRF):
                return edge.Fusion.Rrf(k=2)
            case models.FusionQuery():
                return edge.Fusion.Dbsf()
            case models.RrfQuery(rrf=rrf):
                return edge.Fusion.Rrf(k=2 if rrf.k is None else rrf.k, weights=rrf.weights)
            case models.FormulaQuery():
                return edge.Formula(_expression(query.formula), query.defaults or {})
            case _:
                raise _Refusal(400, f"{type(query).__name__} is not served here")

    def _filter(self, collection: _Collection, given: models.Filter | None) -> Any:
        if given is None:
            return None
        limit = _limit(collection, "filter_max_conditions")
        if limit is not None and (count := _leaf_count(given)) > limit:
            raise _Refusal(400, f"Bad request: Filter condition limit reached ({count} > {limit})")
        return edge.Filter(
            **{
                clause: [self._condition(collection, one) for one in (parts if isinstance(parts, list) else [parts])]
                for clause in ("must", "should", "must_not")
                if (parts := getattr(given, clause)) is not None
            }
        )

    def _condition(self, collection: _Collection, one: Any) -> Any:
        match one:
            case models.Filter():
                return self._filter(collection, one)
            case models.HasIdCondition(has_id=ids):
                return edge.HasIdCondition({_id(id_) for id_ in ids})
            case models.IsEmptyCondition(is_empty=field):
                self._allowed(collection, field.key)
                return edge.IsEmptyCondition(field.key)
            case models.IsNullCondition(is_null=field):
                return edge.IsNullCondition(field.key)
            case models.FieldCondition(key=key, match=None, range=bounds) if bounds is not None:
                self._allowed(collection, key)
                kind = edge.RangeFloat if isinstance(bounds, models.Range) else edge.RangeDateTime
                given = {name: value for name, value in bounds if value is not None}
                return edge.FieldCondition(
                    key, range=kind(**{k: v if isinstance(v, float) else v.isoformat() for k, v in given.items()})
                )
            case models.FieldCondition(key=key, match=match):
                self._allowed(collection, key)
                return self._match(collection, key, match)
            case _:
                raise _Refusal(400, f"{type(one).__name__} is not served here")

    def _match(self, collection: _Collection, key: str, match: Any) -> Any:
        match match:
            case models.MatchValue(value=bool() as value):
                return edge.HasIdCondition(_holding(collection, key, value))
            case models.MatchValue(value=value):
                return edge.FieldCondition(key, match=edge.MatchValue(value))
            case models.MatchAny(any=values):
                limit = _limit(collection, "condition_max_size")
                if limit is not None and len(values) > limit:
                    raise _Refusal(400, f"Bad request: Limit exceeded {len(values)} > {limit} for match any")
                return edge.FieldCondition(key, match=edge.MatchAny(list(values)))
            case models.MatchExcept(except_=values):
                return edge.FieldCondition(key, match=edge.MatchExcept(list(values)))
            case models.MatchSubstring(substring=text) if _version(self.version) >= (1, 20):
                return edge.FieldCondition(key, match=edge.MatchSubstring(text))
            case models.MatchText(text=text):
                return edge.FieldCondition(key, match=edge.MatchText(text))
            case _:
                raise _Refusal(400, f"{_PREFIX['json']}data did not match any variant of untagged enum Match")

    def _allowed(self, collection: _Collection, key: str) -> None:
        strict = collection.strict
        if not strict.get("enabled") or strict.get("unindexed_filtering_retrieve") is not False:
            return
        if key not in collection.schema():
            raise _Refusal(
                400,
                f'Bad request: Index required but not found for "{key}" of one of the following types: [keyword]. '
                "Help: Create an index for this key or use a different filter.",
            )


def _limit(collection: _Collection, name: str) -> int | None:
    return collection.strict.get(name) if collection.strict.get("enabled") else None


def _leaf_count(given: models.Filter) -> int:
    total = 0
    for clause in ("must", "should", "must_not"):
        parts = getattr(given, clause) or []
        for one in parts if isinstance(parts, list) else [parts]:
            total += _leaf_count(one) if isinstance(one, models.Filter) else 1
    return total


def _holding(collection: _Collection, key: str, value: bool) -> set[Any]:
    names = [quoted or bare for quoted, bare in re.findall(r'"([^"]+)"|([^".]+)', key)]
    points, _ = collection.shard.scroll(edge.ScrollRequest(limit=100_000, with_payload=True))
    found = set()
    for one in points:
        at: Any = one.payload
        for name in names:
            at = at.get(name) if isinstance(at, dict) else None
        if any(item is value for item in (at if isinstance(at, list) else [at])):
            found.add(one.id)
    return found


def _vector(given: Any, *, document: bool) -> Any:
    match given:
        case models.SparseVector(indices=indices, values=values):
            return edge.SparseVector(indices, values)
        case models.Document(text=text, model=model, options=options):
            if model.lower() != "qdrant/bm25":
                raise _Refusal(400, f"Bad request: model {model} is not available")
            bm25 = edge.Bm25(edge.Bm25Config(**(options or {})))
            return bm25.embed_document(text) if document else bm25.embed_query(text)
        case _:
            return [float(number) for number in given]


def _stored(given: models.PointStruct) -> Any:
    vector = given.vector
    named = vector if isinstance(vector, dict) else {"": vector}
    return edge.Point(
        _id(given.id), {name: _vector(one, document=True) for name, one in named.items()}, given.payload or {}
    )


def _record(found: Any) -> dict[str, Any]:
    vector = found.vector
    if isinstance(vector, dict):
        vector = {
            name: {"indices": one.indices, "values": one.values} if isinstance(one, edge.SparseVector) else one
            for name, one in vector.items()
        }
        if set(vector) == {""}:
            vector = vector[""]
    return {"id": _id(found.id), "payload": found.payload, "vector": vector}


def _id(given: Any) -> Any:
    return str(given) if isinstance(given, uuid.UUID) else given


def _expression(given: Any) -> Any:
    make = edge.Expression
    match given:
        case int() | float():
            return make.Constant(float(given))
        case str():
            return make.Variable(given)
        case models.MultExpression(mult=parts):
            return make.Mult([_expression(one) for one in parts])
        case models.SumExpression(sum=parts):
            return make.Sum([_expression(one) for one in parts])
        case models.DatetimeExpression(datetime=text):
            return make.Datetime(text)
        case models.DatetimeKeyExpression(datetime_key=key):
            return make.DatetimeKey(key)
        case models.ExpDecayExpression(exp_decay=decay):
            target = None if decay.target is None else _expression(decay.target)
            return make.Decay(edge.DecayKind.Exp, _expression(decay.x), target, decay.midpoint, decay.scale)
        case _:
            raise _Refusal(400, f"{type(given).__name__} is not served here")


def _plain(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    return _json({"status": {"error": message}, "time": 0.0}, status)


@contextmanager
def qdrant_server(*, version: str = "1.20.0", api_key: str | None = None) -> Iterator[QdrantServer]:
    """The server on a free loopback port, in a thread of its own."""
    server = QdrantServer(version=version, api_key=api_key)
    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    # A test may think for seconds between two requests; a connection closed meanwhile is another test's subject.
    settings = uvicorn.Config(
        server.app(), log_level="error", lifespan="off", timeout_graceful_shutdown=1, timeout_keep_alive=600
    )
    running = uvicorn.Server(settings)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        running.should_exit = True
        thread.join(10)
        listener.close()
        server.close()
