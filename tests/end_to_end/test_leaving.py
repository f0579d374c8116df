"""A client that leaves or cancels takes along what every engine does for it, within a second (RCP section 7.14)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from anyio import fail_after

import gateway_ragrails.plugin
import gateway_rcp.plugin
from gateway.app import open_gateway
from gateway.config import load_text
from gateway.model import Capabilities, Document, IndexAddResult, read_capabilities
from gateway.plugins import load_plugins
from gateway.spi import (
    Call,
    EmbedQuery,
    EmbedReply,
    Engine,
    EngineConfig,
    EngineContext,
    EngineKind,
    EngineQuery,
    EngineReply,
    SparseVector,
    TransformQuery,
    TransformReply,
    hookimpl,
)
from gateway.transports.server import serve
from tests.end_to_end.nodes import chain
from tests.end_to_end.running import HOSTILE, ROOT, Whole, config, peer_over_http, upstream
from tests.engines import Script, hits
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.servers.ragrails import Fault, Server
from tests.servers.ragrails import serve as ragrails
from tests.transports import HANDSHAKE, Wire, connect, notification, request, stdio

pytestmark = pytest.mark.anyio

WAYS = ("http", "sse", "stdio")
QUERY = {"query": "Paris", "k": 10}


OFFERED = {
    "retrieve": {"maxK": 50},
    "embed": {"dimension": 2, "identity": "none"},
    "sparseEmbed": {},
    "rerank": {"methods": ["cross-encoder"]},
    "transform": {"methods": ["rewrite"]},
    "multiVector": {"dimension": 2},
    "graph": {"ops": ["local"]},
    "feedback": {},
    "memory": {},
    "index": {"writable": True},
}


class Holding(Engine):
    """Never answers. ``started`` and ``cancelled`` tell of what it was asked; ``blocking`` holds in a thread."""

    def __init__(self, context: EngineContext, *, blocking: bool) -> None:
        self._context = context
        self._blocking = blocking
        self.started, self.cancelled = asyncio.Event(), asyncio.Event()
        self.running = 0
        self.end = threading.Event()

    def capabilities(self) -> Capabilities:
        return read_capabilities(OFFERED)

    async def _hold(self) -> Any:
        self.running += 1
        self.started.set()
        try:
            if self._blocking:
                await self._context.run_blocking(self.end.wait)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        reply: EngineReply = await self._hold()
        return reply

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        reply: EmbedReply = await self._hold()
        return reply

    async def embed_sparse(self, query: EmbedQuery, call: Call) -> Sequence[SparseVector]:
        reply: Sequence[SparseVector] = await self._hold()
        return reply

    async def rerank(self, query: Any, call: Call) -> Sequence[float | None]:
        reply: Sequence[float | None] = await self._hold()
        return reply

    async def transform(self, query: TransformQuery, call: Call) -> TransformReply:
        reply: TransformReply = await self._hold()
        return reply

    async def embed_multi(self, query: EmbedQuery, call: Call) -> Any:
        return await self._hold()

    async def graph(self, query: Any, call: Call) -> Any:
        return await self._hold()

    async def feedback(self, query: Any, call: Call) -> int:
        reply: int = await self._hold()
        return reply

    async def memory_build(self, query: Any, call: Call) -> Any:
        return await self._hold()

    async def memory_recall(self, query: Any, call: Call) -> Any:
        return await self._hold()

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        reply: IndexAddResult = await self._hold()
        return reply

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        reply: int = await self._hold()
        return reply


class HoldingConfig(EngineConfig, frozen=True):
    blocking: bool = False


class HoldingKind(EngineKind[HoldingConfig]):
    name = "holding"
    config = HoldingConfig

    def __init__(self) -> None:
        self.engines: list[Holding] = []

    def offers(self, config: HoldingConfig) -> Capabilities:
        return read_capabilities(OFFERED)

    @asynccontextmanager
    async def open(self, config: HoldingConfig, context: EngineContext) -> AsyncIterator[Engine]:
        engine = Holding(context, blocking=config.blocking)
        self.engines.append(engine)
        try:
            yield engine
        finally:
            engine.end.set()

    @hookimpl
    def gateway_engine_kinds(self) -> list[EngineKind[Any]]:
        return [self]


@asynccontextmanager
async def holding(*others: Any, blocking: bool = False, **sections: Any) -> AsyncIterator[tuple[Whole, Holding]]:
    kind = HoldingKind()
    held = {"id": "held", "kind": "holding", "with": {"blocking": blocking}}
    plugins = load_plugins([kind, gateway_rcp.plugin, gateway_ragrails.plugin], found=[])
    text = json.dumps(config(held, *others, **sections))
    async with open_gateway(load_text(text, base_dir=ROOT), plugins) as gateway:
        yield Whole(gateway), kind.engines[0]


@asynccontextmanager
async def asking(way: str, gateway: Whole, method: str, params: Any) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A client that has sent a request; what it yields makes it leave, or cancel where there is a session."""
    if way == "stdio":
        async with stdio(gateway) as pipes:
            pipes.send(request("initialize", HANDSHAKE, id=0) + b"\n")
            await pipes.frame()
            pipes.send(request(method, params, id="mine") + b"\n")

            async def cancel() -> None:
                pipes.send(notification("notifications/cancel", {"id": "mine"}) + b"\n")
                while (frame := await pipes.frame()).get("id") != "mine":
                    pass
                assert frame["error"]["code"] == -32006

            yield cancel
    else:
        async with serve(gateway.app()) as address, Wire.to(address) as wire:
            accept = "text/event-stream" if way == "sse" else "application/json"
            await wire.post(f"/rcp/{method}", request(method, params, id="mine"), accept=accept)

            async def leave() -> None:
                wire.hang_up()

            yield leave


METHODS: dict[str, Any] = {
    "retrieve": QUERY,
    "embed": {"inputs": ["a"], "kind": "query"},
    "embed/sparse": {"inputs": ["a"]},
    "rerank": {"query": "a", "passages": ["b", "c"], "method": "cross-encoder"},
    "query/transform": {"query": "a", "method": "rewrite"},
    "embed/multi": {"inputs": ["a"]},
    "graph": {"op": "local", "query": "a"},
    "feedback": {"signals": [{"hitId": "d", "relevant": True}]},
    "memory/build": {"documents": [{"id": "d", "text": "t"}]},
    "memory/recall": {"query": "a"},
    "index/add": {"documents": [{"id": "d", "text": "t"}]},
    "index/delete": {"ids": ["d"]},
}


@obligation(105, 203)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", WAYS)
async def test_leaving_ends_what_the_engine_does_for_any_method(way: str, method: str) -> None:
    async with AsyncExitStack() as stack:
        with fail_after(20):
            gateway, engine = await stack.enter_async_context(holding(writes="held"))
            leave = await stack.enter_async_context(asking(way, gateway, method, METHODS[method]))
            await engine.started.wait()
            assert not engine.cancelled.is_set()
        with fail_after(1):
            await leave()
            await engine.cancelled.wait()


@obligation(105, 203)
@pytest.mark.parametrize("way", WAYS)
async def test_leaving_ends_three_engines_of_three_kinds(way: str, reports: Reports) -> None:
    store = Server()
    async with AsyncExitStack() as stack:
        with fail_after(30):
            url = await stack.enter_async_context(peer_over_http(reports, HOSTILE, "halfway,ssehangs"))
            await stack.enter_async_context(ragrails(store))
            others = [
                upstream("sse", own={"url": url}),
                {"id": "store", "kind": "ragrails", "with": {"url": store.url, "collection": "docs"}},
            ]
            gateway, engine = await stack.enter_async_context(holding(*others, blocking=True))
            store.faults.append(Fault(hang=True))
            params = {**QUERY, "_meta": {"progressToken": 1}}
            leave = await stack.enter_async_context(asking(way, gateway, "retrieve", params))
            await engine.started.wait()
            await store.arrived.wait()
            await reports.until("hanging")
            assert not store.gone.is_set()
        with fail_after(1):
            await leave()
            await engine.cancelled.wait()
            await store.gone.wait()
            await reports.until("gone")


@obligation(105, 203)
@pytest.mark.parametrize("way", WAYS)
async def test_leaving_passes_through_every_gateway_on_the_way(way: str) -> None:
    started = asyncio.Event()

    async def hold(query: EngineQuery, call: Call) -> EngineReply:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    last = Script(retrieve=hold)
    scripts = {"one": Script(hits=hits("h1")), "two": Script(hits=hits("h2")), "three": last}
    async with AsyncExitStack() as stack:
        with fail_after(30):
            gateway, _ = await stack.enter_async_context(chain(scripts))
            params = {**QUERY, "_meta": {"progressToken": 1}}
            leave = await stack.enter_async_context(asking(way, gateway, "retrieve", params))
            await started.wait()
        with fail_after(1):
            await leave()
            await last.cancelled.wait()


@obligation(202, 203)
async def test_of_two_calls_only_the_cancelled_one_ends() -> None:
    async with AsyncExitStack() as stack:
        with fail_after(20):
            gateway, engine = await stack.enter_async_context(holding())
            client = await stack.enter_async_context(connect("stdio", gateway))
            calls = [asyncio.create_task(client.call("retrieve", QUERY, id=id)) for id in ("a", "b")]
            while engine.running < 2:
                await asyncio.sleep(0)
            await client.notify("notifications/cancel", {"id": "a"})
            assert (await calls[0])["error"]["code"] == -32006
            await client.call("ping")
            assert not calls[1].done()
            await client.notify("notifications/cancel", {"id": "b"})
            assert (await calls[1])["error"]["code"] == -32006
