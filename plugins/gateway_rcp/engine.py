"""The engine: other people's RCP, asked politely and read with care."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.errors import Code, RcpError
from gateway.filters import FieldType, Filter, Pushdown
from gateway.model import (
    Capabilities,
    Document,
    EmbedCapability,
    FilterCapability,
    IndexAddResult,
    RerankCapability,
    read_capabilities,
)
from gateway.protocol.peer import Answer
from gateway.spi.call import Call
from gateway.spi.codec import mend
from gateway.spi.engine import Engine, EngineQuery, EngineReply
from gateway.spi.methods import (
    Cutting,
    EmbedQuery,
    EmbedReply,
    FeedbackQuery,
    GraphQuery,
    GraphReply,
    Matrix,
    MemoryBuilt,
    MemoryRecall,
    MemoryReply,
    MemoryWrite,
    RerankQuery,
    SparseVector,
    TransformQuery,
    TransformReply,
)
from gateway.spi.probe import Probe
from gateway.spi.versions import check_pin
from gateway_rcp import further, replies, requests
from gateway_rcp.probes import probes_of
from gateway_rcp.pushdown import WireFilters
from gateway_rcp.session import Session
from gateway_rcp.settings import RcpConfig

__all__ = ["CompleteRcpEngine", "RcpEngine", "observed"]

_EMBED_KEYS = ("inputs", "texts", "input")
_RERANK_KEYS = ("passages", "documents")
_KNOWN_TYPES = frozenset(FieldType)


def observed(config: RcpConfig, advertised: Mapping[str, Any]) -> Capabilities:
    """What of an upstream's advertisement this engine can use, with impossible values left out.

    ``fields`` of the settings take the place of the advertised ones: the gateway checks such a field by itself where
    the upstream does not filter by it.
    """
    claimed = read_capabilities(advertised)
    fields = claimed.filter.fields if claimed.filter is not None else {}
    fields = {name: kind for name, kind in (config.fields or fields).items() if kind in _KNOWN_TYPES}
    operators = claimed.filter.operators if claimed.filter is not None else ()
    retrieve = claimed.retrieve
    if retrieve is not None:
        bounds = [bound for bound in (retrieve.max_k, config.max_k) if bound is not None and bound > 0]
        retrieve = replace(retrieve, max_k=min(bounds, default=None))
    writable = claimed.index is not None and claimed.index.writable is True
    return Capabilities(
        retrieve=retrieve,
        embed=_bounded(claimed.embed),
        sparse_embed=claimed.sparse_embed,
        multi_vector=claimed.multi_vector,
        rerank=_countable(claimed.rerank),
        transform=claimed.transform,
        graph=claimed.graph,
        feedback=claimed.feedback,
        memory=claimed.memory,
        index=replace(claimed.index, writable=True) if claimed.index is not None and writable else None,
        filter=FilterCapability(fields=fields, operators=operators) if fields else None,
        citations=claimed.citations,
        # What a gateway says of itself is not said of this one.
        vendor={name: value for name, value in claimed.vendor.items() if name != "x-gateway"},
    )


def _bounded(embed: EmbedCapability | None) -> EmbedCapability | None:
    if embed is None or embed.batch_limit is None or embed.batch_limit > 0:
        return embed
    return replace(embed, batch_limit=None)


def _countable(rerank: RerankCapability | None) -> RerankCapability | None:
    if rerank is None or rerank.max_candidates is None or rerank.max_candidates > 0:
        return rerank
    return replace(rerank, max_candidates=None)


class RcpEngine(Engine):
    """``session`` is open. What it learned in its latest handshake is what this engine offers."""

    def __init__(self, config: RcpConfig, session: Session) -> None:
        self._config = config
        self._session = session
        self._seen = -1
        self._offer = Capabilities()
        self._filters: WireFilters | None = None
        # Which of several spellings of a parameter this upstream wants (DECISIONS D4, D8).
        self._embed_key = _EMBED_KEYS[0]
        self._rerank_keys: tuple[str, ...] = _RERANK_KEYS

    def capabilities(self) -> Capabilities:
        handshake = self._session.handshake
        if self._seen != handshake.generation:
            self._seen = handshake.generation
            self._offer = observed(self._config, handshake.capabilities)
            self._filters = self._compiler(handshake.capabilities)
        return self._offer

    def _compiler(self, advertised: Mapping[str, Any]) -> WireFilters | None:
        claimed = read_capabilities(advertised).filter
        ours = self._offer.filter
        if claimed is None or ours is None:
            return None
        fields = {name: FieldType(kind) for name, kind in ours.fields.items() if name in claimed.fields}
        return WireFilters(
            fields,
            claimed.operators,
            dates=self._config.date_encoding,
            trust_negation=self._config.trust_negation,
        )

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        self.capabilities()
        return Pushdown.unpushed(filter) if self._filters is None else self._filters.push_down(filter)

    def probes(self, keyword: str | None, date: str | None) -> Sequence[Probe]:
        """What the spec leaves open, on fields that the upstream itself filters by."""
        self.capabilities()
        if self._filters is None:
            return ()
        claimed = read_capabilities(self._session.handshake.capabilities).filter
        if claimed is None:
            return ()
        keyword, date = (name if name in claimed.fields else None for name in (keyword, date))
        return probes_of(keyword, date, frozenset(claimed.operators))

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        params = requests.retrieve_params(query, self.capabilities())
        answer = await self._session.call("retrieve", params, call, progress=True)
        reply = replies.hits(answer, k=params["k"])
        if "indexVersion" in params and reply.index_version is not None:
            check_pin(params["indexVersion"], reply.index_version)  # never silently another (section 7.7.1)
        return reply

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        offered = self.capabilities().embed
        size = (offered.batch_limit if offered is not None else None) or len(query.inputs) or 1
        vectors: list[tuple[float, ...]] = []
        for start in range(0, len(query.inputs), size):
            texts = [mend(text) for text in query.inputs[start : start + size]]
            answer = await self._embedded(texts, query.kind, call)
            vectors += replies.embeddings(answer, count=len(texts)).vectors
        return EmbedReply(vectors=tuple(vectors))

    async def _embedded(self, texts: Sequence[str], kind: str, call: Call) -> Answer:
        answer = await self._session.call("embed", {self._embed_key: texts, "kind": kind}, call)
        wanted = _refused_key(answer, _EMBED_KEYS)
        if wanted is None or wanted == self._embed_key:
            return answer
        answer = await self._session.call("embed", {wanted: texts, "kind": kind}, call)
        if answer.error is None:
            self._embed_key = wanted
        return answer

    async def embed_sparse(self, query: EmbedQuery, call: Call) -> Sequence[SparseVector]:
        """Both spellings of the inputs are sent: the spec has one and the SDKs the other (DECISIONS D8)."""
        texts = [mend(text) for text in query.inputs]
        answer = await self._session.call("embed/sparse", {"inputs": texts, "texts": texts}, call)
        wanted = _refused_key(answer, _EMBED_KEYS)
        if wanted is not None:
            answer = await self._session.call("embed/sparse", {wanted: texts}, call)
        return replies.sparse_vectors(answer, count=len(texts))

    async def rerank(self, query: RerankQuery, call: Call) -> Sequence[float | None]:
        capabilities = self.capabilities()
        if not query.passages:
            return []
        answer = await self._session.call(
            "rerank", requests.rerank_params(query, capabilities, self._rerank_keys), call
        )
        refused = _refused_key(answer, _RERANK_KEYS)
        if refused is not None and len(self._rerank_keys) > 1:
            # Both spellings were sent, so it is this one that is one too many.
            keys = tuple(key for key in _RERANK_KEYS if key != refused)
            answer = await self._session.call("rerank", requests.rerank_params(query, capabilities, keys), call)
            if answer.error is None:
                self._rerank_keys = keys
        return replies.scores(answer, count=len(query.passages))

    async def embed_multi(self, query: EmbedQuery, call: Call) -> Sequence[Matrix]:
        texts = [mend(text) for text in query.inputs]
        answer = await self._session.call("embed/multi", {"inputs": texts, "kind": query.kind}, call)
        wanted = _refused_key(answer, _EMBED_KEYS)
        if wanted is not None:
            answer = await self._session.call("embed/multi", {wanted: texts, "kind": query.kind}, call)
        return further.matrices(answer, count=len(texts))

    async def transform(self, query: TransformQuery, call: Call) -> TransformReply:
        params = {"query": mend(query.text), "method": query.method, "n": query.n}
        return further.transformed(await self._session.call("query/transform", params, call))

    async def graph(self, query: GraphQuery, call: Call) -> GraphReply:
        answer = await self._session.call("graph", further.graph_params(query), call, progress=True)
        return further.traversed(answer)

    async def feedback(self, query: FeedbackQuery, call: Call) -> int:
        return further.taken(await self._session.call("feedback", further.feedback_params(query), call))

    async def memory_build(self, query: MemoryWrite, call: Call) -> MemoryBuilt:
        return further.built(await self._session.call("memory/build", further.build_params(query), call))

    async def memory_recall(self, query: MemoryRecall, call: Call) -> MemoryReply:
        return further.recalled(await self._session.call("memory/recall", further.recall_params(query), call))

    async def vendor(self, method: str, params: Mapping[str, Any], call: Call) -> Mapping[str, Any]:
        """The client's own parameters, but for ``_meta``, which is ours (RCP section 6.2)."""
        own = {name: value for name, value in requests.mended(params).items() if name != "_meta"}
        return replies.result(await self._session.call(method, own, call))

    async def index_cut(self, documents: Sequence[Document], cutting: Cutting, call: Call) -> IndexAddResult:
        return await self._add(
            documents, {name: True for name in ("chunk", "contextual") if getattr(cutting, name)}, call
        )

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        return await self._add(documents, {}, call)

    async def _add(self, documents: Sequence[Document], options: Mapping[str, bool], call: Call) -> IndexAddResult:
        given = [None if document.id is None else str(document.id) for document in documents]
        params = {**requests.add_params(documents), **options}
        try:
            return replies.ids(await self._session.call("index/add", params, call), given=given)
        except RcpError as error:
            if None in given:
                # Without an id a second try may add a second copy (section 7.10).
                error.retryable = False
                error.data["retryable"] = False
            raise

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        answer = await self._session.call("index/delete", {"ids": [mend(id) for id in ids]}, call)
        return replies.deleted(answer)

    async def ping(self, call: Call) -> None:
        (await self._session.call("ping", {}, call)).object()


class CompleteRcpEngine(RcpEngine):
    """For an upstream of which the settings say that its hits carry all their metadata."""

    meta_complete = True


def _refused_key(answer: Answer, keys: Sequence[str]) -> str | None:
    """The spelling an upstream complains about: the one it misses, or the one it does not know."""
    if answer.error is None or answer.error.code != Code.INVALID_PARAMS:
        return None
    field = answer.error.data.get("field")
    return field if isinstance(field, str) and field in keys else None
