"""The engine: one namespace of one Pinecone index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.errors import ConfigError, RcpError, UpstreamError, option_unsupported
from gateway.filters import Filter, Op, Pushdown
from gateway.model import (
    Capabilities,
    Document,
    Empty,
    FilterCapability,
    Hit,
    IndexAddResult,
    IndexCapability,
    RetrieveCapability,
)
from gateway.spi import (
    Call,
    Engine,
    EngineContext,
    EngineKind,
    EngineQuery,
    EngineReply,
    Mode,
    VectorNeed,
)
from gateway.spi.codec import dumps
from gateway.spi.probe import Probe, finding
from gateway_pinecone.client import Client, open_client
from gateway_pinecone.filters import PineconeFilters
from gateway_pinecone.hits import HitReader, best_first
from gateway_pinecone.records import Record, Records, batches, is_id
from gateway_pinecone.settings import FieldSettings, PineconeConfig, modes_of

if TYPE_CHECKING:
    from pinecone import AsyncIndex

__all__ = ["PineconeEngine", "PineconeKind"]

_PLAIN: Final = FieldSettings(type="keyword")
_OPEN_TIMEOUT: Final = 10.0
_FETCH_IDS: Final = 100
_FETCH_CHARACTERS: Final = 4_000
"""Ids to fetch go into the address, which servers and proxies bound at about 8 KB."""


class PineconeEngine(Engine):
    """One open index."""

    meta_complete = True  # the whole metadata comes with every hit

    def __init__(self, config: PineconeConfig, client: Client) -> None:
        self._config = config
        self._client = client
        self._filters = PineconeFilters(config.field)
        self._records = Records(config)
        self._reader = HitReader(config.fields, config.field, config.text_fields, negated=config.metric == "euclidean")
        # Unset is left to the SDK, which does not send it.
        self._namespace: dict[str, Any] = {} if config.namespace is None else {"namespace": config.namespace}

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    def vector_need(self, mode: Mode | None) -> VectorNeed | None:
        if self._config.inference or self._mode(mode) == "sparse":
            return None
        config = self._config
        return VectorNeed(config.embedder or "", config.dimension, config.embedder_identity or "")

    def sparse_need(self, mode: Mode | None) -> VectorNeed | None:
        if self._config.inference or self._mode(mode) == "dense":
            return None
        return VectorNeed(embedder=self._config.sparse_embedder or "")

    def document_need(self) -> VectorNeed | None:
        return self.vector_need("dense") if self._config.writable else None

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        return self._filters.push_down(filter)

    def probes(self, keyword: str | None, date: str | None) -> Sequence[Probe]:
        """What the vendor leaves open and what has been seen to change. Nothing is emitted that depends on it."""
        return () if keyword is None else _probes(keyword, self._config.field(keyword) or _PLAIN)

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        k = min(query.k, self._config.max_k)
        if self._config.inference:
            return await self._search(query, k, call)
        vectors = self._vectors(query)
        if vectors is None:
            return EngineReply(hits=(), exhausted=True, notes=("the query has no term that is searched for",))

        async def ask(index: AsyncIndex, timeout: float) -> Any:
            return await index.query(
                top_k=k,
                filter=query.filter,
                include_metadata=True,
                include_values=query.include_vectors,
                timeout=timeout,
                **vectors,
                **self._namespace,
            )

        matches = (await self._client.ask(ask, call.remaining())).matches
        found = [
            self._reader.read(one.id, one.score, one.metadata, one.values, include_text=query.include_text)
            for one in matches
        ]
        return self._reply(found, query, k, [one.metadata or {} for one in matches])

    async def _search(self, query: EngineQuery, k: int, call: Call) -> EngineReply:
        """Integrated inference: Pinecone embeds the text. It gives no vectors back."""
        self._mode(query.mode)
        config = self._config
        more: dict[str, Any] = {}
        if config.return_fields is not None:
            more["fields"] = list(dict.fromkeys((*config.return_fields, *config.text_fields, *sorted(query.fields))))
        if query.rerank and config.rerank is not None:
            # Without top_n it might drop hits, which is for the gateway to do.
            more["rerank"] = {"model": config.rerank.model, "rank_fields": [config.text_fields[0]], "top_n": k}

        async def ask(index: AsyncIndex, timeout: float) -> Any:
            return await index.search(
                namespace=config.namespace or "",
                top_k=k,
                inputs={"text": query.text},
                filter=query.filter,
                timeout=timeout,
                **more,
            )

        matches = (await self._client.ask(ask, call.remaining())).result.hits
        found = [
            self._reader.read(
                one.id, one.score, one.fields, is_distance="rerank" not in more, include_text=query.include_text
            )
            for one in matches
        ]
        notes = ("integrated search returns no vectors",) if query.include_vectors else ()
        return self._reply(found, query, k, [one.fields for one in matches], notes)

    def _reply(
        self,
        hits: Sequence[Hit],
        query: EngineQuery,
        k: int,
        metadata: Sequence[Mapping[str, Any]],
        notes: tuple[str, ...] = (),
    ) -> EngineReply:
        bare = sum(1 for one in metadata if self._reader.text_key(one) is None) if query.include_text else 0
        if bare:
            # One sentence, however many: the settings may look for the text in the wrong place.
            keys = " or ".join(self._config.text_fields)
            notes = (*notes, f"{bare} of {len(hits)} hits have no text under {keys}")
        return EngineReply(hits=best_first(hits)[:k], exhausted=len(hits) < k, notes=notes)

    def _mode(self, mode: Mode | None) -> Mode:
        chosen = mode or _default_mode(self._config)
        if chosen not in modes_of(self._config):
            raise option_unsupported(
                f"this index has no {chosen} search: its metric and vectors forbid it", option=chosen
            )
        return chosen

    def _vectors(self, query: EngineQuery) -> dict[str, Any] | None:
        """The vectors to ask with; ``None`` if a sparse one is empty, for which nothing can be found."""
        mode = self._mode(query.mode)
        dense: list[float] = []
        if mode != "sparse":
            dense = list(query.vector or ())
            expected = self._config.dimension
            if not dense or (expected and len(dense) != expected):
                raise UpstreamError(
                    f"the query vector has {len(dense)} dimensions and the index {expected or 'at least one'}: use the "
                    "embedder that the index was filled with"
                )
        if mode == "dense":
            return {"vector": dense}
        sparse = query.sparse_vector
        if sparse is None:
            raise option_unsupported(f"{mode} search needs a sparse query vector, and there is none", option=mode)
        if mode == "sparse":
            values = {"indices": list(sparse.indices), "values": list(sparse.values)}
            return {"sparse_vector": values} if sparse.indices else None
        alpha = self._config.alpha
        weighted = {"indices": list(sparse.indices), "values": [(1 - alpha) * weight for weight in sparse.values]}
        vectors: dict[str, Any] = {"vector": [alpha * number for number in dense]}
        return {**vectors, "sparse_vector": weighted} if sparse.indices else vectors

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        """Stores in batches; one that fails leaves those before it stored, and the same call again replaces them."""
        ids, records = self._records.read(documents)
        done = 0
        for batch in batches(records, self._config.batch):
            await self._write(batch, call)
            done += len(batch)
            call.progress(done / len(records), "index")
        return IndexAddResult(ids=tuple(ids), chunks=len(records))

    async def _write(self, batch: list[Record], call: Call) -> None:
        async def ask(index: AsyncIndex, timeout: float) -> None:
            if self._config.inference:
                await index.upsert_records(records=batch, namespace=self._config.namespace or "", timeout=timeout)
            else:
                await index.upsert(vectors=batch, timeout=timeout, **self._namespace)

        await self._client.ask(ask, call.remaining())

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        """Looks which are there before it deletes, since Pinecone does not say what a deletion removed."""
        deleted = 0
        for batch in _id_batches(ids):

            async def fetch(index: AsyncIndex, timeout: float, batch: list[str] = batch) -> int:
                return len((await index.fetch(ids=batch, timeout=timeout, **self._namespace)).vectors)

            async def delete(index: AsyncIndex, timeout: float, batch: list[str] = batch) -> None:
                await index.delete(ids=batch, timeout=timeout, **self._namespace)

            found = await self._client.ask(fetch, call.remaining())
            try:
                # All of them: what was written a moment ago may not be seen yet.
                await self._client.ask(delete, call.remaining())
            except RcpError as error:
                # The index is there, it has just been asked: so it is the namespace that is not.
                if found or error.data.get("upstreamStatus") != 404:
                    raise
            deleted += found
        return deleted

    async def ping(self, call: Call) -> None:
        await self._client.ask(_stats, call.remaining())


class _PartialEngine(PineconeEngine):
    """An index that is asked for some of its metadata only."""

    meta_complete = False


class PineconeKind(EngineKind[PineconeConfig]):
    name = "pinecone"
    config = PineconeConfig
    summary = "a namespace of a Pinecone index, dense, sparse, hybrid or with integrated inference"
    extra = "pinecone"

    def offers(self, config: PineconeConfig) -> Capabilities:
        return _capabilities(config)

    def requires(self, config: PineconeConfig) -> Sequence[str]:
        return ("pinecone",)

    def embedders(self, config: PineconeConfig) -> Sequence[str]:
        return tuple(id for id in (config.embedder, config.sparse_embedder) if id is not None)

    @asynccontextmanager
    async def open(self, config: PineconeConfig, context: EngineContext) -> AsyncIterator[Engine]:
        async with open_client(config, context) as client:
            found = await client.ask(_stats, _OPEN_TIMEOUT)
            _check(config, found, context)
            seen = msgspec.structs.replace(config, dimension=found.dimension or config.dimension)
            yield (PineconeEngine if config.return_fields is None else _PartialEngine)(seen, client)


def _probes(key: str, field: FieldSettings) -> list[Probe]:
    needless = "; that is asked for separately, so nothing depends on it"
    both = finding("other absent", f"yes{needless}"), finding("other", f"no{needless}")
    asked = [
        Probe.ask("does $ne select records without the field?", {key: {"$ne": "alpha"}}, "same other absent", *both),
        Probe.ask(
            "does $nin select records without the field?", {key: {"$nin": ["alpha"]}}, "same other absent", *both
        ),
        Probe.ask(
            "does $exists: false select just the records without the field?",
            {key: {"$exists": False}},
            "same other blank absent",
            finding("absent", "yes"),
        ),
    ]
    if not field.multi:
        return asked

    unclean = f"fields: {{{dumps(key).decode()}: {{type: {field.type}, multi: true, clean: false}}}}"

    return [
        *asked,
        Probe.ask(
            "does a condition hold if one element of a list satisfies it?",
            {key: {"$in": ["beta"]}},
            "same other both",
            finding("other both", "yes, as documented"),
        ),
        Probe.ask(
            "what does $ne say of a list?",
            {key: {"$ne": "alpha"}},
            "same other both",
            finding("other", "no element may be equal, as documented"),
            finding(
                "other both",
                "one element that differs is enough: leave clean off for fields with lists",
                unclean,
            ),
        ),
        Probe.ask(
            "what does $nin say of a list?",
            {key: {"$nin": ["alpha"]}},
            "same other both",
            finding("other", "no element may be equal, as documented"),
            finding(
                "other both",
                "one element that differs is enough: leave clean off for fields with lists",
                unclean,
            ),
        ),
        Probe.ask(
            "does $exists see a list?",
            {key: {"$exists": True}},
            "same both absent",
            finding("same both", "yes"),
            finding("same", "no: leave clean off for fields with lists", unclean),
        ),
        Probe.ask(
            "does [] exist?",
            {key: {"$exists": True}},
            "same empty absent",
            finding(
                "same",
                "index/add leaves it out, so it is absent; of what others write that is not documented, and without "
                "clean nothing depends on it",
            ),
        ),
    ]


async def _stats(index: AsyncIndex, timeout: float) -> Any:
    return await index.describe_index_stats(timeout=timeout)


def _check(config: PineconeConfig, found: Any, context: EngineContext) -> None:
    """What the index says of itself against what was configured: a wrong metric would turn every ranking round."""
    for name, configured, actual in (
        ("metric", config.metric, found.metric),
        ("vector_type", config.vector_type, found.vector_type),
        ("dimension", config.dimension, found.dimension),
    ):
        if configured and actual and configured != actual:
            raise ConfigError(f"the index has {name} {actual} and the configuration says {configured}", path=name)
    if config.namespace and config.namespace != "__default__" and config.namespace not in found.namespaces:
        context.logger.warning("the index has no namespace %r yet", config.namespace)


def _id_batches(ids: Sequence[str]) -> list[list[str]]:
    """Each id once, without those that no record can have, in batches that fit into an address."""
    found: list[list[str]] = []
    size = 0
    for id in dict.fromkeys(ids):
        if not is_id(id):
            continue
        length = 3 * len(id) + 5
        if not found or len(found[-1]) == _FETCH_IDS or size + length > _FETCH_CHARACTERS:
            found.append([])
            size = 0
        found[-1].append(id)
        size += length
    return found


def _default_mode(config: PineconeConfig) -> Mode:
    return config.default_mode or modes_of(config)[0]


def _capabilities(config: PineconeConfig) -> Capabilities:
    modes = modes_of(config)
    scales = {mode: _scale(config, mode) for mode in modes}
    # With several modes there is no one scale to advertise.
    scale, floor = scales[modes[0]] if len(modes) == 1 else (None, None)
    return Capabilities(
        retrieve=RetrieveCapability(
            max_k=config.max_k,
            modes=modes,
            modalities=("text",),
            rerank_builtin=True if config.rerank is not None else None,
            score_scale=scale,
            score_floor=floor,
            default_mode=_default_mode(config),
        ),
        index=IndexCapability(writable=True) if config.writable else None,
        filter=FilterCapability(
            fields={name: field.type for name in config.fields if (field := config.field(name)) is not None},
            operators=tuple(op.value for op in Op),
        )
        if config.fields
        else None,
        citations=Empty(),
        vendor={"x-pinecone": {"scores": {mode: _told(*scale) for mode, scale in scales.items()}}},
    )


def _scale(config: PineconeConfig, mode: Mode) -> tuple[str, float | None]:
    """The scale and least score of a mode. A dot product of sparse or of both vectors has no bounds of its own."""
    if mode != "dense":
        return "unbounded", None
    match config.metric:
        case "cosine":
            return "cosine", -1.0
        case "dotproduct":
            return "dot", None
        case _:
            # A squared distance turned round: 0 is the best, and there is no worst.
            return "unbounded", None


def _told(scale: str, floor: float | None) -> dict[str, Any]:
    return {"scoreScale": scale} if floor is None else {"scoreScale": scale, "scoreFloor": floor}
