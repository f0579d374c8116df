"""Engines whose behaviour a test scripts, in a real gateway.

``gateway_of`` opens the real composition root over them; nothing between the client's frame and ``Engine.retrieve`` is
replaced.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gateway.app import OpenGateway, open_gateway
from gateway.caller import ANONYMOUS, Caller
from gateway.config import load_text
from gateway.filters import Filter, Pushdown
from gateway.model import Capabilities, Document, EmbedCapability, Hit, IndexAddResult, hit, read_capabilities
from gateway.plugins import Plugins, load_plugins
from gateway.protocol.session import Session
from gateway.spi import (
    Call,
    Cutting,
    EmbedQuery,
    EmbedReply,
    Engine,
    EngineConfig,
    EngineContext,
    EngineKind,
    EngineQuery,
    EngineReply,
    FeedbackQuery,
    GraphQuery,
    GraphReply,
    Matrix,
    MemoryBuilt,
    MemoryRecall,
    MemoryReply,
    MemoryWrite,
    SparseVector,
    TransformQuery,
    TransformReply,
    VectorNeed,
    hookimpl,
)
from tests.schema import check_exchange

T = TypeVar("T")
Retrieve = Callable[[EngineQuery, Call], Awaitable[EngineReply]]


def hits(*given: str | tuple[Any, ...], **meta: Any) -> list[Hit]:
    """Hits from ids, or (id, score[, meta]); scores fall from 1 if they are not given."""
    made = []
    for place, one in enumerate(given):
        id, score, own = (*((one, 1 - place / 100) if isinstance(one, str) else one), {})[:3]
        made.append(hit(str(id), score, text=f"text of {id}", meta={**meta, **own}))
    return made


@dataclass
class Script:
    """What one engine does. ``queries`` and ``calls`` record what reached it; ``cancelled`` tells of a cancellation."""

    hits: Sequence[Hit] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    retrieve: Retrieve | None = None
    opening: Callable[[], Awaitable[None]] | None = None
    push: Callable[[Filter], Pushdown[Any]] | None = None
    need: VectorNeed | None = None
    sparse: VectorNeed | None = None
    document_need: VectorNeed | None = None
    embed: Callable[[EmbedQuery, Call], Awaitable[EmbedReply]] | None = None
    rerank: Callable[[Any, Call], Awaitable[Any]] | None = None
    transform: Callable[[TransformQuery, Call], Awaitable[TransformReply]] | None = None
    multi: Callable[[EmbedQuery, Call], Awaitable[Sequence[Matrix]]] | None = None
    graph: Callable[[GraphQuery, Call], Awaitable[GraphReply]] | None = None
    feedback: Callable[[FeedbackQuery, Call], Awaitable[int]] | None = None
    build: Callable[[MemoryWrite, Call], Awaitable[MemoryBuilt]] | None = None
    recall: Callable[[MemoryRecall, Call], Awaitable[MemoryReply]] | None = None
    vendor: Callable[[str, Mapping[str, Any], Call], Awaitable[Any]] | None = None
    add: Callable[[Sequence[Document], Call], Awaitable[IndexAddResult]] | None = None
    cut: Callable[[Sequence[Document], Cutting, Call], Awaitable[IndexAddResult]] | None = None
    delete: Callable[[Sequence[str], Call], Awaitable[int]] | None = None
    meta_complete: bool = True
    logit: bool = False
    federates: bool = False
    queries: list[EngineQuery] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    embedded: list[EmbedQuery] = field(default_factory=list)
    added: list[Document] = field(default_factory=list)
    told: list[tuple[str, str, int]] = field(default_factory=list)
    """What ``embedded_by`` was told, and how many documents were there then."""
    asked: list[Any] = field(default_factory=list)
    """What reached the methods that have no list of their own."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def offers(self) -> Capabilities:
        return read_capabilities({"retrieve": {"maxK": 100}, **self.capabilities})


class ScriptedEngine(Engine):
    def __init__(self, script: Script) -> None:
        self.script = script
        self.meta_complete = script.meta_complete  # type: ignore[misc]  # each script its own
        self._capabilities = script.offers()

    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def rerank_logit(self) -> bool:  # type: ignore[override]  # each script its own
        return self.script.logit

    def vector_need(self, mode: str | None) -> VectorNeed | None:
        return self.script.need

    def document_need(self) -> VectorNeed | None:
        return self.script.document_need

    def sparse_need(self, mode: str | None) -> VectorNeed | None:
        return self.script.sparse

    async def embed_sparse(self, query: EmbedQuery, call: Call) -> Sequence[SparseVector]:
        """One term a letter, weighted by how often it occurs."""
        counts = [Counter(map(ord, text)) for text in query.inputs]
        return [SparseVector(tuple(one), tuple(map(float, one.values()))) for one in counts]

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        return self.script.push(filter) if self.script.push is not None else super().push_down(filter)

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        self.script.queries.append(query)
        self.script.calls.append(call)
        self.script.started.set()
        try:
            if self.script.retrieve is not None:
                return await self.script.retrieve(query, call)
        except asyncio.CancelledError:
            self.script.cancelled.set()
            raise
        return EngineReply(hits=list(self.script.hits)[: query.k], exhausted=len(self.script.hits) <= query.k)

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        self.script.embedded.append(query)
        if self.script.embed is not None:
            return await self.script.embed(query, call)
        return EmbedReply(vectors=tuple((float(len(text)), 1.0) for text in query.inputs))

    async def rerank(self, query: Any, call: Call) -> Sequence[float | None]:
        if self.script.rerank is not None:
            found: Sequence[float | None] = await self.script.rerank(query, call)
            return found
        return [float(len(passage)) for passage in query.passages]

    async def transform(self, query: TransformQuery, call: Call) -> TransformReply:
        if self.script.transform is not None:
            return await self.script.transform(query, call)
        return TransformReply(queries=(query.text.upper(),))

    async def embedded_by(self, identity: str, call: Call) -> None:
        self.script.told.append(("embedded_by", identity, len(self.script.added)))

    async def embed_multi(self, query: EmbedQuery, call: Call) -> Sequence[Matrix]:
        """A row a word: its length and 1."""
        if self.script.multi is not None:
            return await self.script.multi(query, call)
        return [tuple((float(len(word)), 1.0) for word in text.split()) for text in query.inputs]

    async def graph(self, query: GraphQuery, call: Call) -> GraphReply:
        return await self._scripted(self.script.graph, GraphReply(), query, call)

    async def feedback(self, query: FeedbackQuery, call: Call) -> int:
        return await self._scripted(self.script.feedback, len(query.signals), query, call)

    async def memory_build(self, query: MemoryWrite, call: Call) -> MemoryBuilt:
        return await self._scripted(self.script.build, MemoryBuilt(id=query.id or "built"), query, call)

    async def memory_recall(self, query: MemoryRecall, call: Call) -> MemoryReply:
        return await self._scripted(self.script.recall, MemoryReply(), query, call)

    async def vendor(self, method: str, params: Mapping[str, Any], call: Call) -> Mapping[str, Any]:
        self.script.asked.append((method, params))
        self.script.calls.append(call)
        if self.script.vendor is not None:
            found: Mapping[str, Any] = await self.script.vendor(method, params, call)
            return found
        return {"method": method, **params}

    async def _scripted(self, script: Any, otherwise: T, query: Any, call: Call) -> T:
        self.script.asked.append(query)
        self.script.calls.append(call)
        self.script.started.set()
        try:
            found: T = otherwise if script is None else await script(query, call)
        except asyncio.CancelledError:
            self.script.cancelled.set()
            raise
        return found

    async def index_cut(self, documents: Sequence[Document], cutting: Cutting, call: Call) -> IndexAddResult:
        self.script.asked.append(cutting)
        if self.script.cut is not None:
            return await self.script.cut(documents, cutting, call)
        self.script.added += documents
        return IndexAddResult(ids=tuple(str(document.id) for document in documents), chunks=7)

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        if self.script.add is not None:
            return await self.script.add(documents, call)
        self.script.added += documents
        return IndexAddResult(ids=tuple(str(document.id) for document in documents), chunks=len(documents))

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        if self.script.delete is not None:
            return await self.script.delete(ids, call)
        known = {str(document.id) for document in self.script.added}
        self.script.added = [document for document in self.script.added if str(document.id) not in set(ids)]
        return len(known & set(ids))


class ScriptedConfig(EngineConfig, frozen=True):
    name: str = ""


class ScriptedKind(EngineKind[ScriptedConfig]):
    """Kind ``scripted``: ``with: {name: …}`` names the script. ``scripted-upstream`` is one that federates."""

    name = "scripted"
    config = ScriptedConfig

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.scripts = scripts

    def offers(self, config: ScriptedConfig) -> Capabilities:
        return self.scripts[config.name].offers()

    @asynccontextmanager
    async def open(self, config: ScriptedConfig, context: EngineContext) -> AsyncIterator[Engine]:
        script = self.scripts[config.name]
        if script.opening is not None:
            await script.opening()
        yield ScriptedEngine(script)


class UpstreamKind(ScriptedKind):
    name = "scripted-upstream"
    federates = True


class _Plugin:
    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts

    @hookimpl
    def gateway_engine_kinds(self) -> list[EngineKind[Any]]:
        return [ScriptedKind(self._scripts), UpstreamKind(self._scripts)]


def scripted_plugin(scripts: Mapping[str, Script]) -> object:
    """A plugin that brings the scripted kinds, to be loaded beside others."""
    return _Plugin(scripts)


def plugins_of(scripts: Mapping[str, Script]) -> Plugins:
    return load_plugins([_Plugin(scripts)], found=[])


EMBEDDER = EmbedCapability(dimension=2, identity="length", batch_limit=4)


@dataclass
class Running:
    """A gateway over scripts; asks it as a client would, frame by frame."""

    gateway: OpenGateway
    scripts: Mapping[str, Script]
    caller: Caller = ANONYMOUS

    async def call(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """The response frame of one request."""
        frame = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), **more}}
        sent = json.dumps(frame).encode()
        answer = await self.gateway.dispatcher.answer(sent, Session("implicit", self.caller))
        assert answer is not None
        checked: dict[str, Any] = check_exchange(sent, answer)
        return checked

    async def retrieve(self, query: Any = "q", **params: Any) -> dict[str, Any]:
        """The result of a retrieve that must succeed."""
        answer = await self.call("retrieve", {"query": query, **params})
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def refused(self, query: Any = "q", **params: Any) -> dict[str, Any]:
        """The error of a retrieve that must fail."""
        answer = await self.call("retrieve", {"query": query, **params})
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        return error


@asynccontextmanager
async def gateway_of(
    scripts: Mapping[str, Script], *, engines: Mapping[str, Mapping[str, Any]] | None = None, **config: Any
) -> AsyncIterator[Running]:
    """A gateway whose engines are these scripts, by id; ``engines`` adds host settings, ``config`` other sections."""
    listed = [
        {
            "id": id,
            "kind": "scripted-upstream" if script.federates else "scripted",
            "with": {"name": id},
            **((engines or {}).get(id) or {}),
        }
        for id, script in scripts.items()
    ]
    loaded = load_text(json.dumps({"name": "under-test", "engines": listed, **config}), base_dir=Path.cwd())
    async with open_gateway(loaded, plugins_of(scripts)) as gateway:
        yield Running(gateway, scripts)


def ids(result: Mapping[str, Any]) -> list[str]:
    return [one["id"] for one in result["hits"]]


def notes(result: Mapping[str, Any]) -> str:
    return "\n".join(result["usage"].get("notes", []))
