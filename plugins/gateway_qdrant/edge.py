"""The engine inside this process: ``qdrant-edge-py``, one folder, one owner.

Its calls block and hold the interpreter for part of their time, so all of them run in the engine's own threads and
writes come in small batches. It raises bare ``Exception``; what happened is told by how the message begins.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from gateway.errors import (
    BackendUnavailable,
    ConfigError,
    GatewayError,
    InternalError,
    PluginError,
    RcpError,
    UpstreamError,
)
from gateway.spi import EngineContext
from gateway.spi.codec import dumps, loads
from gateway_qdrant.collection import Collection, Vector, index_type, key_of
from gateway_qdrant.settings import Distance, QdrantConfig, SparseSettings
from gateway_qdrant.wire import Point

__all__ = ["EdgeWire", "bm25", "load_edge", "open_edge"]

T = TypeVar("T")

_DENSE, _SPARSE = "dense", "sparse"
_CONFIG_FILE = "edge_config.json"
_MADE_BY_FILE = "embedder.json"
"""Ours, beside the engine's own: whose vectors these are."""
_DISTANCES: Mapping[Distance, str] = {"cosine": "Cosine", "dot": "Dot", "euclid": "Euclid", "manhattan": "Manhattan"}
_INDEXES = {
    "keyword": "Keyword",
    "integer": "Integer",
    "float": "Float",
    "geo": "Geo",
    "text": "Text",
    "bool": "Bool",
    "datetime": "Datetime",
    "uuid": "Uuid",
}


def load_edge() -> Any:
    """The package, imported when an engine opens. Raises ``PluginError`` naming the extra if it is not there."""
    try:
        import qdrant_edge
    except ImportError:
        raise PluginError(
            'the embedded Qdrant engine needs qdrant-edge-py, which is not installed: pip install "rcp-gateway[local]"'
        ) from None
    return qdrant_edge


def bm25(edge: Any, settings: SparseSettings) -> Any:
    """The engine's BM25 tokenizer and weights; no model, no download."""
    try:
        config = edge.Bm25Config(
            k=settings.k, b=settings.b, avg_len=settings.average_length, language=settings.language.lower()
        )
        return edge.Bm25(config)
    except ValueError as error:
        raise ConfigError(str(error), path="vectors.sparse") from None


@asynccontextmanager
async def open_edge(config: QdrantConfig, context: EngineContext) -> AsyncIterator[EdgeWire]:
    """Opens the folder, or makes it; on leaving everything is on disk and the folder is free."""
    edge = load_edge()
    path = config.path
    if path is None:
        raise InternalError
    shard = await context.run_blocking(lambda: _opened(edge, path, config))
    try:
        yield EdgeWire(edge, shard, path, context)
    finally:
        try:
            await context.run_blocking(lambda: _closed(shard))
        except asyncio.CancelledError:
            _closed(shard)
            raise


def _guarded(function: Callable[[], T], told: Callable[[BaseException], Exception] | None = None) -> T:
    """Calls the engine, whose only exceptions are bare ``Exception`` and, for a panic, one that is not even that."""
    try:
        return function()
    except (GatewayError, OSError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise (told or _classified)(error) from None


def _closed(shard: Any) -> None:
    """Puts everything on disk and frees the folder, which must happen even if the first does not work."""
    try:
        _guarded(shard.flush)
    except BackendUnavailable as error:
        if "not initialized" not in error.detail:  # closed already is as good
            raise
    finally:
        _guarded(shard.close)


def _opened(edge: Any, path: Path, config: QdrantConfig) -> Any:
    def shard_there() -> Any:
        if (path / _CONFIG_FILE).exists():
            return edge.EdgeShard.load(str(path))
        path.mkdir(parents=True, exist_ok=True)
        return edge.EdgeShard.create(str(path), _layout(edge, config))

    try:
        shard = _guarded(shard_there, lambda error: _not_opened(error, path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be used as a folder: {error.strerror}", path="path") from None
    try:
        if config.manage_indexes:
            _guarded(lambda: _index(edge, shard, config))
    except BaseException:
        _closed(shard)
        raise
    return shard


def _not_opened(error: BaseException, path: Path) -> Exception:
    text = str(error)
    if "WouldBlock" in text:
        fault = BackendUnavailable(
            f"the embedded collection in {path.name} is open elsewhere, in another process or as another engine, and "
            "has one owner at a time: send requests to that one (--url), or run a Qdrant server and use url"
        )
        fault.detail = f"{path}: {text}"
        return fault
    return ConfigError(f"the embedded collection in {path} cannot be opened: {text}", path="path")


def _layout(edge: Any, config: QdrantConfig) -> Any:
    dense, sparse = config.vectors.dense, config.vectors.sparse
    vectors = None
    if dense is not None:
        if not dense.dimension:
            raise ConfigError("is needed to create the embedded collection", path="vectors.dense.dimension")
        distance = getattr(edge.Distance, _DISTANCES[dense.distance or "cosine"])
        vectors = {
            _DENSE if dense.name is None else dense.name: edge.EdgeVectorParams(size=dense.dimension, distance=distance)
        }
    weights = (
        None if sparse is None else {sparse.name or _SPARSE: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf)}
    )
    return edge.EdgeConfig(vectors=vectors, sparse_vectors=weights)


def _index(edge: Any, shard: Any, config: QdrantConfig) -> None:
    """Gives every declared field the payload index of its type. The collection is ours, so one of another type goes."""
    there = {key: _index_name(info.data_type) for key, info in shard.info().payload_schema.items()}
    for name in config.fields:
        field = config.field(name)
        if field is None:
            continue
        home = (config.payload.meta, name) if config.payload.meta else (name,)
        key = key_of(tuple(field.path.split(".")) if field.path is not None else home)
        wanted = index_type(field.type, epoch_ms=field.dates == "epoch_ms")
        if key is None or there.get(key) == wanted:
            continue
        if key in there:
            shard.update(edge.UpdateOperation.delete_field_index(key))
        # Booleans are read as integers by this engine; nothing is pushed for them, so nothing is indexed.
        if wanted != "bool":
            schema = getattr(edge.PayloadSchemaType, _INDEXES[wanted])
            if field.type == "text":
                schema = edge.KeywordIndexParams(prefix=True)  # from whose keys substrings are answered
            shard.update(edge.UpdateOperation.create_field_index(key, schema))


def _index_name(data_type: Any) -> str:
    name = repr(data_type).rpartition(".")[2]
    return next((ours for ours, theirs in _INDEXES.items() if theirs == name), name)


def _classified(error: BaseException) -> RcpError:
    """The engine's fault by the beginning of its message, which is fixed text; what follows may hold a query."""
    text = str(error)
    fault: RcpError
    if text.startswith("Vector dimension error"):
        fault = UpstreamError(
            "the vectors are not of the collection's dimension: use the embedder that the collection was filled with, "
            "or index the documents anew"
        )
    elif text.startswith("Not existing vector name"):
        fault = UpstreamError("the collection has no vector of the configured name: correct vectors in the settings")
    elif "not initialized" in text:
        fault = BackendUnavailable("the embedded collection is closed")
    elif text.startswith("Service runtime error") or not isinstance(error, Exception):
        fault = BackendUnavailable("the embedded Qdrant engine failed")
    else:
        fault = UpstreamError("the embedded Qdrant engine refused the request")
    fault.detail = f"{type(error).__name__}: {text[:300]}"
    return fault


class EdgeWire:
    """One open folder."""

    def __init__(self, edge: Any, shard: Any, path: Path, context: EngineContext) -> None:
        self._edge = edge
        self._shard = shard
        self._path = path
        self._context = context
        self._noting = asyncio.Lock()

    async def describe(self) -> Collection:
        return await self._run(self._described)

    async def query(self, body: Mapping[str, Any], timeout: float) -> Sequence[Point]:
        from gateway_qdrant.convert import query_request

        def run() -> list[Point]:
            return [_point(found) for found in self._shard.query(query_request(self._edge, body))]

        return await self._run(run)

    async def upsert(self, points: Sequence[Point], timeout: float) -> None:
        from gateway_qdrant.convert import point

        def run() -> None:
            self._shard.update(self._edge.UpdateOperation.upsert_points([point(self._edge, one) for one in points]))

        await self._run(run)

    async def delete(self, ids: Sequence[int | str], timeout: float) -> int:
        def run() -> int:
            there = [record.id for record in self._shard.retrieve(list(ids), False, False)]
            if there:
                self._shard.update(self._edge.UpdateOperation.delete_points(there))
            return len(there)

        return await self._run(run)

    async def remember(self, made_by: str) -> None:
        """Written whole or not at all, and before the first vector: a kill in between leaves an empty collection."""

        def write() -> None:
            if self._shard.info().points_count and not _made_by(self._path):
                self._context.logger.warning(
                    "nothing says which embedder made the vectors in %s: they are taken to be of %s",
                    self._path.name,
                    made_by,
                )
            new = self._path / f"{_MADE_BY_FILE}.new"
            with new.open("wb") as file:
                file.write(dumps({"identity": made_by}))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path / _MADE_BY_FILE)

        try:
            async with self._noting:  # writers share the name of the new file
                await self._run(write)
        except OSError as error:
            raise BackendUnavailable(f"the embedded collection cannot be written: {error.strerror}") from None

    async def ping(self, timeout: float) -> None:
        await self._run(lambda: self._shard.info())

    async def _run(self, function: Callable[[], T]) -> T:
        return await self._context.run_blocking(lambda: _guarded(function))

    def _described(self) -> Collection:
        """The vectors are not told by the engine itself, only by the file it keeps beside the data."""
        layout = loads((self._path / _CONFIG_FILE).read_bytes())
        names = {theirs: ours for ours, theirs in _DISTANCES.items()}
        info = self._shard.info()
        return Collection(
            dense={
                name: Vector(size=one["size"], distance=names[one["distance"]])
                for name, one in (layout.get("vectors") or {}).items()
            },
            sparse={name: one.get("modifier") == "idf" for name, one in (layout.get("sparse_vectors") or {}).items()},
            indexes={key: _index_name(one.data_type) for key, one in info.payload_schema.items()},
            booleans=False,
            made_by=_made_by(self._path) if info.points_count else "",
        )


def _made_by(path: Path) -> str:
    """The identity that was remembered, ``""`` if none was. Raises ``ConfigError`` if that cannot be read."""
    file = path / _MADE_BY_FILE
    try:
        identity = loads(file.read_bytes())["identity"]
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, TypeError, KeyError):
        identity = None
    if not isinstance(identity, str):
        raise ConfigError(
            f"{file} does not say which embedder made the vectors: remove the file if it is the one configured now",
            path="path",
        )
    return identity


def _point(found: Any) -> Point:
    id_ = found.id
    return {
        "id": str(id_) if isinstance(id_, UUID) else id_,
        "score": found.score,
        "payload": found.payload,
        "vector": found.vector,
    }
