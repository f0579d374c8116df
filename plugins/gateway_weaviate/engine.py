"""The engine: one collection of a Weaviate, asked through the official async client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gateway.errors import BackendUnavailable, ConfigError, RcpError, UpstreamError, invalid_params
from gateway.filters import Filter, Op, Pushdown
from gateway.model import (
    Capabilities,
    Document,
    Empty,
    FilterCapability,
    FusionOptions,
    IndexAddResult,
    IndexCapability,
    RetrieveCapability,
)
from gateway.spi.call import Call
from gateway.spi.engine import Engine, EngineContext, EngineKind, EngineQuery, EngineReply, Mode, VectorNeed
from gateway.spi.passage import document_id
from gateway.spi.probe import Probe
from gateway_weaviate.faults import fault, refused_documents
from gateway_weaviate.filters import WeaviateFilters, described
from gateway_weaviate.probes import probes_of
from gateway_weaviate.schema import Collection, Vector, read_collection
from gateway_weaviate.sdk import Sdk, connected, load_sdk, sdk_filter
from gateway_weaviate.settings import WeaviateConfig
from gateway_weaviate.values import HitReader, object_id, properties_of

__all__ = ["WeaviateEngine", "WeaviateKind"]

_OPEN_SECONDS = 20.0
_NOT_FOUND = 404
_TOO_OLD = re.compile(r"Weaviate version (\S+) is not supported")
_SCALES = {"cosine": ("cosine", -1.0), "dot": ("dot", None)}


class WeaviateEngine(Engine):
    """One open collection."""

    # All properties but references and blobs come with every hit, and neither of these can be filtered on.
    meta_complete = True

    def __init__(self, config: WeaviateConfig, sdk: Sdk, client: Any, found: Collection) -> None:
        self._config = config
        self._sdk = sdk
        self._client = client
        self._found = found
        self._modes = _modes(config, found)
        self._vector = _vector(config, found, needed="dense" in self._modes or "hybrid" in self._modes)
        self._filters = WeaviateFilters(found)
        self._reader = HitReader(
            config,
            found.properties,
            None if self._vector is None else self._vector.name,
            None if self._vector is None else self._vector.distance,
        )
        # Tenant and consistency level are bound here, once, so that no call can go without them.
        collection = client.collections.use(config.collection)
        if config.tenant is not None:
            collection = collection.with_tenant(config.tenant)
        if config.consistency is not None:
            collection = collection.with_consistency_level(sdk.consistency[config.consistency.upper()])
        self._collection = collection

    def capabilities(self) -> Capabilities:
        fields = {name: str(one.type) for name, one in self._found.properties.items() if one.type is not None}
        return _capabilities(self._config, self._modes, fields, None if self._vector is None else self._vector.distance)

    def vector_need(self, mode: Mode | None) -> VectorNeed | None:
        return None if (mode or self._default_mode) == "sparse" else self.document_need()

    def document_need(self) -> VectorNeed | None:
        if self._config.embedder is None or self._vector is None:
            return None
        return VectorNeed(self._config.embedder, self._config.dimension, self._config.embedder_identity or "")

    @property
    def _default_mode(self) -> Mode:
        return self._config.default_mode or _preferred(self._modes)

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        return self._filters.push_down(filter)

    def describe(self, native: Any) -> Any:
        return described(native)

    def probes(self, keyword: str | None, date: str | None) -> Sequence[Probe]:
        """What versions and settings of a collection decide."""
        return () if keyword is None else probes_of(self._found, self._found.properties[keyword])

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        mode = query.mode or self._default_mode
        asks_text = mode == "sparse" or (query.vector is None)
        if asks_text and not query.text.strip():
            return EngineReply(hits=(), exhausted=True, notes=("the query has no text to search for",))
        try:
            # The client checks its arguments before it returns anything to await.
            reply = await self._ask(query, mode)
        except self._sdk.errors as error:
            raise fault(error) from error
        found = reply.objects
        hits = [self._reader.read(one, mode, include_text=query.include_text, wanted=query.fields) for one in found]
        return EngineReply(hits=hits, exhausted=len(found) < query.k, notes=self._notes(query, found))

    def _ask(self, query: EngineQuery, mode: Mode) -> Any:
        """The call to make. ``auto_limit`` is never set: a window that Weaviate cuts cannot be fused."""
        search, target = self._collection.query, None if self._vector is None else self._vector.name
        common: dict[str, Any] = {
            "limit": min(query.k, self._config.max_k),
            "filters": None if query.filter is None else sdk_filter(self._sdk, query.filter),
            "include_vector": False if not query.include_vectors else True if target is None else [target],
        }
        if mode == "dense":
            # Certainty exists for cosine only; asking for it elsewhere is an error.
            cosine = self._vector is not None and self._vector.distance == "cosine"
            common["return_metadata"] = self._sdk.metadata(distance=True, certainty=cosine)
            if query.vector is None:
                return search.near_text(query.text, target_vector=target, **common)
            return search.near_vector(list(query.vector), target_vector=target, **common)
        common["return_metadata"] = self._sdk.metadata(score=True)
        common["query_properties"] = list(self._config.search_fields) or None
        if mode == "sparse":
            return search.bm25(query.text, **common)
        return search.hybrid(
            query.text if query.text.strip() else None,
            vector=None if query.vector is None else list(query.vector),
            target_vector=target,
            alpha=_alpha(self._config, query.fusion),
            fusion_type=self._fusion(query.fusion),
            **common,
        )

    def _fusion(self, asked: FusionOptions | None) -> Any:
        method = None if asked is None else asked.method or "rrf"
        ranked = self._config.fusion == "ranked" if method is None else method == "rrf"
        return self._sdk.fusion.RANKED if ranked else self._sdk.fusion.RELATIVE_SCORE

    def _notes(self, query: EngineQuery, found: Sequence[Any]) -> tuple[str, ...]:
        """One sentence for hits without text, however many: the settings may look for it in the wrong place."""
        bare = sum(1 for one in found if self._reader.text(one.properties) is None) if query.include_text else 0
        names = " or ".join(self._config.text_fields)
        return (f"{bare} of {len(found)} hits have no text under {names}",) if bare else ()

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        """Stores in batches; one that fails leaves those before it stored, and the same call again replaces them."""
        ids = [document_id(document) for document in documents]
        # Of documents with the same id the last one stays, as if they had come one after the other.
        latest = {
            id_: (position, document) for position, (id_, document) in enumerate(zip(ids, documents, strict=True))
        }
        # Whatever can be refused is, before the first document is stored.
        objects = [(position, self._object(id_, document, position)) for id_, (position, document) in latest.items()]
        refused: dict[int, str] = {}
        for start in range(0, len(objects), self._config.batch):
            batch = objects[start : start + self._config.batch]
            for index, reason in (await self._insert([one for _, one in batch])).items():
                refused[batch[index][0]] = reason
            call.progress(min(1.0, (start + len(batch)) / len(objects)), "index")
        if refused:
            raise refused_documents(refused, len(documents))
        return IndexAddResult(ids=tuple(ids), chunks=len(objects))

    def _object(self, id_: str, document: Document, position: int) -> Any:
        vector: Any = document.vector
        dimension = self._config.dimension
        if self.document_need() is not None and (not vector or (dimension and len(vector) != dimension)):
            raise UpstreamError(
                f"a document's vector has {len(vector or ())} dimensions, and {dimension or 'some'} are needed"
            )
        if vector is not None and self._vector is not None and self._vector.name is not None:
            vector = {self._vector.name: vector}
        properties = properties_of(document, id_, self._config, self._found.properties, where=f"documents[{position}]")
        return self._sdk.data_object(properties=properties, uuid=object_id(id_), vector=vector)

    async def _insert(self, batch: Sequence[Any]) -> dict[int, str]:
        """Why which objects of the batch were refused."""
        try:
            result = await self._collection.data.insert_many(batch)
        except self._sdk.all_failed as error:
            return dict.fromkeys(range(len(batch)), str(error))
        except self._sdk.errors as error:
            raise fault(error) from error
        return {index: str(error.message) for index, error in result.errors.items()}

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        if any(not id_ for id_ in ids):
            raise invalid_params("an id must not be empty", field="ids")
        objects = list(dict.fromkeys(map(object_id, ids)))
        deleted = failed = 0
        for start in range(0, len(objects), self._config.batch):
            batch = objects[start : start + self._config.batch]
            try:
                result = await self._collection.data.delete_many(where=self._sdk.filter.by_id().contains_any(batch))
            except self._sdk.errors as error:
                raise fault(error) from error
            deleted += result.successful
            failed += result.failed
        if failed:
            raise UpstreamError(
                f"{deleted} documents were deleted and {failed} could not be", data={"deleted": deleted}
            )
        return deleted

    async def ping(self, call: Call) -> None:
        try:
            # Not `is_ready`, which prints what went wrong: on stdio that is where the protocol goes.
            await self._client.get_meta()
        except self._sdk.errors as error:
            raise fault(error) from error


class WeaviateKind(EngineKind[WeaviateConfig]):
    name = "weaviate"
    config = WeaviateConfig
    summary = "a collection of a Weaviate, by its vectors, its words, or both"
    extra = "weaviate"

    def offers(self, config: WeaviateConfig) -> Capabilities:
        modes: tuple[Mode, ...] = ("sparse",) if config.embedder is None else ("dense", "sparse", "hybrid")
        fields = {name: str(kind) for name, kind in config.fields.items() if kind is not None}
        return _capabilities(config, config.modes or modes, fields, None)

    def requires(self, config: WeaviateConfig) -> Sequence[str]:
        return ("weaviate",)

    def embedders(self, config: WeaviateConfig) -> Sequence[str]:
        return () if config.embedder is None else (config.embedder,)

    @asynccontextmanager
    async def open(self, config: WeaviateConfig, context: EngineContext) -> AsyncIterator[Engine]:
        sdk = await context.run_blocking(load_sdk)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_OPEN_SECONDS):
                    client = await stack.enter_async_context(connected(sdk, config))
                    engine = await _described(config, context, sdk, client)
            except sdk.errors as error:
                raise _unopened(error, config) from error
            # Outside of the translation: what the host raises into the open engine is not the client's.
            yield engine


async def _described(config: WeaviateConfig, context: EngineContext, sdk: Sdk, client: Any) -> WeaviateEngine:
    version = str((await client.get_meta()).get("version", ""))
    found, warnings = read_collection(await client.collections.use(config.collection).config.get(), version, config)
    for warning in warnings:
        context.logger.warning("%s", warning)
    await _check_tenant(config, client, found)
    return WeaviateEngine(config, sdk, client, found)


async def _check_tenant(config: WeaviateConfig, client: Any, found: Collection) -> None:
    if found.tenants and config.tenant is None:
        raise ConfigError(f"the collection {found.name!r} has tenants, so one must be named", path="tenant")
    if config.tenant is None:
        return
    if not found.tenants:
        raise ConfigError(f"the collection {found.name!r} has no tenants", path="tenant")
    if not found.tenants_appear and not await client.collections.use(found.name).tenants.exists(config.tenant):
        raise ConfigError(f"the collection {found.name!r} has no tenant {config.tenant!r}", path="tenant")


def _unopened(error: BaseException, config: WeaviateConfig) -> RcpError:
    """Whatever keeps it from opening may pass, so the host tries again; a wrong key too, once it has been put right."""
    too_old = _TOO_OLD.search(str(error))
    if too_old is not None:
        opened = BackendUnavailable(f"it is a Weaviate {too_old[1]}, and the client needs 1.27 or later")
        opened.detail = str(error)
        return opened
    cause = fault(error)
    told = cause.message
    if cause.data.get("upstreamCode") == _NOT_FOUND:
        told = (
            f"the Weaviate server has no collection {config.collection!r}: create it and index documents into it, or "
            "correct collection in the engine's settings"
        )
    opened = BackendUnavailable(f"it did not open: {told}", data=cause.data)
    opened.detail = cause.detail
    return opened


def _modes(config: WeaviateConfig, found: Collection) -> tuple[Mode, ...]:
    """What the collection and the settings allow, hybrid last. Raises ``ConfigError`` if more is asked for."""
    words = {name for name, one in found.properties.items() if one.searchable}
    for name in config.search_fields:
        if name.split("^")[0] not in words:
            raise ConfigError(f"{found.name!r} has no searchable text property {name!r}", path="search_fields")
    searchable = bool(words)
    vectors = [one for one in found.vectors if config.vector in (None, one.name)]
    dense = bool(vectors) and (config.embedder is not None or any(one.vectorizer for one in vectors))
    can: dict[Mode, bool] = {"dense": dense, "sparse": searchable, "hybrid": dense and searchable}
    for mode in config.modes or ():
        if not can[mode]:
            why = (
                "a vector the server makes itself, or an embedder"
                if not dense and mode != "sparse"
                else "a searchable text property"
            )
            raise ConfigError(f"{mode} needs {why}, and {found.name!r} has none", path="modes")
    modes = tuple(mode for mode, offered in can.items() if offered and (config.modes is None or mode in config.modes))
    if config.vector is not None and not any(one.name == config.vector for one in found.vectors):
        raise _no_such_vector(config.vector, found)
    if not modes:
        raise ConfigError(f"nothing in {found.name!r} can be searched: it has no searchable text, and no embedder")
    if config.default_mode is not None and config.default_mode not in modes:
        raise ConfigError(f"must be one of {', '.join(modes)}", path="default_mode")
    if config.writable and config.id_field not in found.properties:
        raise ConfigError(
            f"{found.name!r} needs a text property {config.id_field!r} (tokenization field) to keep documents' ids in",
            path="id_field",
        )
    return modes


def _preferred(modes: tuple[Mode, ...]) -> Mode:
    """What is done when nobody says: both ways of searching, or the vectors, or the words."""
    order: tuple[Mode, ...] = ("hybrid", "dense", "sparse")
    return next(mode for mode in order if mode in modes)


def _vector(config: WeaviateConfig, found: Collection, *, needed: bool) -> Vector | None:
    if not needed:
        return None
    if config.vector is not None:
        return next(one for one in found.vectors if one.name == config.vector)
    if len(found.vectors) > 1:
        raise ConfigError(f"{found.name!r} has several vectors, name one: {_names(found)}", path="vector")
    return found.vectors[0]


def _no_such_vector(name: str, found: Collection) -> ConfigError:
    return ConfigError(f"{found.name!r} has no vector {name!r}; it has: {_names(found)}", path="vector")


def _names(found: Collection) -> str:
    return ", ".join(sorted(one.name or "one without a name" for one in found.vectors)) or "none"


def _alpha(config: WeaviateConfig, asked: FusionOptions | None) -> float:
    """The weight of the vector's side; always sent, because clients and servers differ in what they take it for."""
    if asked is None:
        return config.alpha
    if asked.alpha is not None:
        return min(1.0, max(0.0, asked.alpha))
    weights = asked.weights or {}
    dense, sparse = weights.get("dense", 0.0), weights.get("sparse", 0.0)
    return dense / (dense + sparse) if dense >= 0 and sparse >= 0 and dense + sparse > 0 else config.alpha


def _capabilities(
    config: WeaviateConfig, modes: tuple[Mode, ...], fields: dict[str, str], distance: str | None
) -> Capabilities:
    scales: dict[str, dict[str, Any]] = {}
    for mode in modes:
        scale, floor = _scale(mode, distance)
        scales[mode] = {
            name: value for name, value in (("scoreScale", scale), ("scoreFloor", floor)) if value is not None
        }
    alone = scales[modes[0]] if len(modes) == 1 else {}
    return Capabilities(
        retrieve=RetrieveCapability(
            max_k=config.max_k,
            modes=modes,
            modalities=("text",),
            fusion=("rrf", "weighted", "convex") if "hybrid" in modes else None,
            score_scale=alone.get("scoreScale"),
            score_floor=alone.get("scoreFloor"),
            default_mode=config.default_mode or _preferred(modes),
        ),
        index=IndexCapability(writable=True) if config.writable else None,
        filter=FilterCapability(fields=fields, operators=tuple(op.value for op in Op)) if fields else None,
        citations=Empty(),
        vendor={"x-weaviate": {"scores": scales}},
    )


def _scale(mode: Mode, distance: str | None) -> tuple[str | None, float | None]:
    match mode:
        case "dense":
            return (None, None) if distance is None else _SCALES.get(distance, ("unbounded", None))
        case "sparse":
            return "bm25", 0.0
        case _:
            return "unbounded", 0.0
