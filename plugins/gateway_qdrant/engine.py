"""The engine: one adapter, two wires.

Everything that decides what is asked and what an answer means (:mod:`.filters`, :mod:`.request`, :mod:`.hits`) works on
REST's JSON, so a server and the embedded engine cannot drift apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gateway.errors import UpstreamError, invalid_params
from gateway.filters import Filter, Op, Pushdown
from gateway.model import (
    Capabilities,
    Document,
    Empty,
    FilterCapability,
    IndexAddResult,
    IndexCapability,
    RetrieveCapability,
)
from gateway.secret import Secret
from gateway.spi import (
    Call,
    Engine,
    EngineContext,
    EngineKind,
    EngineQuery,
    EngineReply,
    Mode,
    Probe,
    VectorNeed,
    document_id,
)
from gateway_qdrant.collection import Binding, Collection, Vector, bind, resolve, vector_of
from gateway_qdrant.edge import bm25, load_edge, open_edge
from gateway_qdrant.filters import QdrantFilters
from gateway_qdrant.hits import HitReader, payload_of, point_id
from gateway_qdrant.probes import probes_of
from gateway_qdrant.request import Requests, default_mode
from gateway_qdrant.rest import RestWire
from gateway_qdrant.settings import QdrantConfig, SparseSettings, modes_of
from gateway_qdrant.wire import Wire

__all__ = ["QdrantEngine", "QdrantKind"]

_MODEL = "qdrant/bm25"
_SCALES = {
    "cosine": ("cosine", -1.0),
    "dot": ("dot", None),
    "euclid": ("unbounded", None),
    "manhattan": ("unbounded", None),
}
_Texts = Callable[[str], Mapping[str, Any]]


class QdrantEngine(Engine):
    """One open collection."""

    meta_complete = True  # the whole payload comes with every hit

    def __init__(
        self,
        config: QdrantConfig,
        context: EngineContext,
        wire: Wire,
        found: Collection,
        encoders: tuple[_Texts, _Texts] | None,
    ) -> None:
        self._config = config
        self._context = context
        self._wire = wire
        self._found = found
        self._vector = vector_of(config, found)
        self._made_by = found.made_by
        self._bindings, warnings = bind(config, found)
        for warning in warnings:
            context.logger.warning("%s", warning)
        self._encode_document = None if encoders is None else encoders[1]
        self._filters = QdrantFilters(self._bindings, found)
        self._requests = Requests(
            config,
            self._vector,
            None if encoders is None else encoders[0],
            self._bindings,
            context.now,
            found.strict.max_limit,
        )
        dense = config.vectors.dense
        self._reader = HitReader(
            config.payload,
            self._bindings,
            None if dense is None else dense.name,
            None if self._vector is None else self._vector.distance,
        )

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config, self._bindings, self._vector, self._found.strict.max_limit)

    def vector_need(self, mode: Mode | None) -> VectorNeed | None:
        return None if (mode or default_mode(self._config)) == "sparse" else self.document_need()

    def document_need(self) -> VectorNeed | None:
        if self._vector is None or self._config.embedder is None:
            return None
        return VectorNeed(self._config.embedder, self._vector.size, self._config.embedder_identity or self._made_by)

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        return self._filters.push_down(filter)

    def probes(self, keyword: str | None, date: str | None) -> Sequence[Probe]:
        """What depends on the payload index, and the complement that every negation rests on."""
        return probes_of(self._config, self._found, keyword, date)

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        mode = self._requests.mode(query)
        if self._vector is not None and query.vector is not None and len(query.vector) != self._vector.size:
            raise UpstreamError(
                f"the query vector has {len(query.vector)} dimensions and the collection {self._vector.size}: use the "
                "embedder that the collection was filled with, or index the documents anew"
            )
        body = self._requests.body(query)
        if body is None:
            return EngineReply(hits=(), exhausted=True, notes=("the query has no word that is searched for",))
        points = await self._points(body, query.k, call)
        is_distance = mode == "dense" and query.recency is None
        hits = [self._reader.read(one, is_distance=is_distance, include_text=query.include_text) for one in points]
        return EngineReply(hits=hits, exhausted=len(points) < query.k, notes=self._notes(query, points))

    async def _points(self, body: dict[str, Any], k: int, call: Call) -> Sequence[Mapping[str, Any]]:
        """The first ``k``. Of merged lists Qdrant returns equal scores in any order, so they are put in one here."""
        points = await self._wire.query(body, call.remaining())
        if "prefetch" not in body:
            return points
        whole = self._requests.whole(body)
        if body["limit"] < whole["limit"] and len(points) == body["limit"] and self._reader.cuts_a_tie(points, k):
            points = await self._wire.query(whole, call.remaining())
        return self._reader.ordered(points)[:k]

    def _notes(self, query: EngineQuery, points: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """One sentence for hits without text, however many: the settings may look for it in the wrong place."""
        if not query.include_text:
            return ()
        keys = self._config.payload.text
        bare = sum(1 for one in points if not any(isinstance((one.get("payload") or {}).get(key), str) for key in keys))
        return (f"{bare} of {len(points)} hits have no text under {' or '.join(keys)}",) if bare else ()

    async def embedded_by(self, identity: str, call: Call) -> None:
        if self._vector is not None and self._made_by != identity:
            await self._wire.remember(identity)
            self._made_by = identity

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        """Stores in batches; one that fails leaves those before it stored, and the same call again replaces them."""
        ids = [document_id(document) for document in documents]
        # Of documents with the same id the last one stays, as if they had come one after the other.
        latest = dict(zip(ids, documents, strict=True))
        points = [(id_, document, self._checked(document, id_)) for id_, document in latest.items()]
        size = min(self._config.batch, self._found.strict.max_batch or self._config.batch)
        for start in range(0, len(points), size):
            batch = points[start : start + size]
            await self._wire.upsert(await self._pointed(batch), call.remaining())
            call.progress(min(1.0, (start + size) / len(points)), "index")
        return IndexAddResult(ids=tuple(ids), chunks=len(points))

    def _checked(self, document: Document, id_: str) -> dict[str, Any]:
        """The payload; everything that can be refused is, before the first document is stored."""
        if self._vector is not None and len(document.vector or ()) != self._vector.size:
            raise UpstreamError(
                f"a document's vector has {len(document.vector or ())} dimensions and the collection "
                f"{self._vector.size}: use the embedder that the collection was filled with"
            )
        return payload_of(document, id_, self._config.payload)

    async def _pointed(self, batch: Sequence[tuple[str, Document, dict[str, Any]]]) -> list[dict[str, Any]]:
        """The points of a batch. Making BM25 weights is work for a thread."""
        dense, sparse, encode = self._config.vectors.dense, self._config.vectors.sparse, self._encode_document

        def build() -> list[dict[str, Any]]:
            points = []
            for id_, document, payload in batch:
                vectors: dict[str, Any] = {}
                if dense is not None:
                    vectors[dense.name or ""] = document.vector
                # A text without a word to index has no sparse vector, which Qdrant allows and an empty one it may not.
                if sparse is not None and encode is not None and (weights := encode(document.text)):
                    vectors[sparse.name or ""] = weights
                points.append({"id": point_id(id_), "vector": vectors, "payload": payload})
            return points

        return await self._context.run_blocking(build)

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        if any(not id_ for id_ in ids):
            raise invalid_params("an id must not be empty", field="ids")
        points = list(dict.fromkeys(map(point_id, ids)))
        size = self._config.batch
        count = sum(
            [await self._wire.delete(points[at : at + size], call.remaining()) for at in range(0, len(points), size)]
        )
        if count and self._made_by:
            # An empty collection is nobody's.
            self._made_by = (await self._wire.describe()).made_by
        return count

    async def ping(self, call: Call) -> None:
        await self._wire.ping(call.remaining())


class QdrantKind(EngineKind[QdrantConfig]):
    name = "qdrant"
    config = QdrantConfig
    summary = "a Qdrant collection: on a server (url) or embedded in this process (path)"
    extra = "local"

    def offers(self, config: QdrantConfig) -> Capabilities:
        bindings = {
            name: Binding(type=field.type, key=None)
            for name in config.fields
            if (field := config.field(name)) is not None
        }
        dense = config.vectors.dense
        vector = (
            None if dense is None or dense.distance is None else Vector(size=dense.dimension, distance=dense.distance)
        )
        return _capabilities(config, bindings, vector, None)

    def requires(self, config: QdrantConfig) -> Sequence[str]:
        sparse = config.vectors.sparse
        local = config.path is not None or (sparse is not None and sparse.encoder == "local")
        return ("qdrant_edge",) if local else ()

    def embedders(self, config: QdrantConfig) -> Sequence[str]:
        return () if config.embedder is None or config.vectors.dense is None else (config.embedder,)

    @asynccontextmanager
    async def open(self, config: QdrantConfig, context: EngineContext) -> AsyncIterator[Engine]:
        if config.url is None:
            async with open_edge(config, context) as wire:
                yield await _opened(config, context, wire)
        else:
            headers: dict[str, str | Secret] = {} if config.api_key is None else {"api-key": config.api_key}
            async with context.http(config.url, headers=headers) as http:
                yield await _opened(config, context, RestWire(http, config.collection or ""))


async def _opened(config: QdrantConfig, context: EngineContext, wire: Wire) -> QdrantEngine:
    found = await wire.describe()
    config = resolve(config, found)
    sparse = config.vectors.sparse
    engine = QdrantEngine(config, context, wire, found, None if sparse is None else _encoders(config, sparse))
    if sparse is not None and not found.sparse[sparse.name or ""]:
        context.logger.warning("sparse vector %r has no IDF modifier: rare words will not count for more", sparse.name)
    return engine


def _encoders(config: QdrantConfig, sparse: SparseSettings) -> tuple[_Texts, _Texts]:
    """How the text of a query and that of a document become sparse vectors."""
    if sparse.encoder == "server" or (sparse.encoder == "auto" and config.path is None):
        options = {"language": sparse.language, "k": sparse.k, "b": sparse.b, "avg_len": sparse.average_length}

        def hand_over(text: str) -> Mapping[str, Any]:
            return {"text": text, "model": _MODEL, "options": options}

        return hand_over, hand_over
    model = bm25(load_edge(), sparse)
    return lambda text: _weights(model.embed_query(text)), lambda text: _weights(model.embed_document(text))


def _weights(vector: Any) -> Mapping[str, Any]:
    indices = list(vector.indices)
    return {"indices": indices, "values": list(vector.values)} if indices else {}


def _capabilities(
    config: QdrantConfig, bindings: Mapping[str, Binding], vector: Vector | None, max_limit: int | None
) -> Capabilities:
    modes = modes_of(config)
    scales = {mode: _scale(config, mode, vector) for mode in modes}
    alone = scales[modes[0]] if len(modes) == 1 else (None, None)
    return Capabilities(
        retrieve=RetrieveCapability(
            max_k=min(config.max_k, max_limit or config.max_k),
            modes=modes,
            modalities=("text",),
            fusion=("rrf",) if "hybrid" in modes else None,
            mmr=True if "mmr" in config.native else None,
            score_scale=alone[0],
            score_floor=alone[1],
            default_mode=default_mode(config),
        ),
        index=IndexCapability(writable=True) if config.is_writable else None,
        filter=FilterCapability(
            fields={name: field.type for name, field in bindings.items()}, operators=tuple(op.value for op in Op)
        )
        if bindings
        else None,
        citations=Empty(),
        vendor={"x-qdrant": {"scores": {mode: _told(*scale) for mode, scale in scales.items()}}},
    )


def _scale(config: QdrantConfig, mode: Mode, vector: Vector | None) -> tuple[str | None, float | None]:
    """The scale and least score of a mode; an engine with several modes has no one scale to advertise."""
    if "recency" in config.native:
        return "unbounded", None
    match mode:
        case "dense":
            return _SCALES[vector.distance] if vector is not None else (None, None)
        case "sparse":
            return "bm25", 0.0
        case _:
            return "unbounded", 0.0 if config.hybrid.fusion == "rrf" else None


def _told(scale: str | None, floor: float | None) -> dict[str, Any]:
    return {name: value for name, value in (("scoreScale", scale), ("scoreFloor", floor)) if value is not None}
