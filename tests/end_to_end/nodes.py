"""Gateways behind each other in this process, over real HTTP, whose engines are scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import gateway_rcp.plugin
from gateway.app import open_gateway
from gateway.config import load_text
from gateway.plugins import load_plugins
from gateway.spi import Call, EngineQuery, EngineReply
from gateway.transports.server import Address, serve
from tests.end_to_end.running import ROOT, Whole, config, upstream
from tests.engines import Script, hits, scripted_plugin

__all__ = ["Stages", "chain", "node"]


@dataclass
class Stages:
    """An engine that tells of one stage after the other, each only once the one before was ``released``."""

    count: int
    found: tuple[str, ...] = ("s1",)
    reached: int = 0
    gates: list[asyncio.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gates = [asyncio.Event() for _ in range(self.count)]

    async def __call__(self, query: EngineQuery, call: Call) -> EngineReply:
        for number, gate in enumerate(self.gates, 1):
            self.reached = number
            call.progress(number / (self.count + 1), f"stage {number}")
            await gate.wait()
        return EngineReply(hits=hits(*self.found), exhausted=True)


@asynccontextmanager
async def node(
    name: str, scripts: Mapping[str, Script], *, next: str | None = None, **sections: Any
) -> AsyncIterator[tuple[Whole, Address]]:
    """A gateway over these scripts and, if given, the RCP endpoint ``next``, at an address of its own."""
    engines: list[Mapping[str, Any]] = [{"id": id, "kind": "scripted", "with": {"name": id}} for id in scripts]
    if next is not None:
        engines.append(upstream(f"{name}-next", own={"url": next}))
    text = json.dumps(config(*engines, name=name, **sections))
    plugins = load_plugins([scripted_plugin(scripts), gateway_rcp.plugin], found=[])
    async with open_gateway(load_text(text, base_dir=ROOT), plugins) as gateway:
        whole = Whole(gateway)
        async with serve(whole.app()) as address:
            yield whole, address


@asynccontextmanager
async def chain(scripts: Mapping[str, Script]) -> AsyncIterator[tuple[Whole, Address]]:
    """The first of a row of gateways, one for each script and called after it, each with the next one behind it."""
    async with AsyncExitStack() as stack:
        found: tuple[Whole, Address] | None = None
        for name in reversed(scripts):
            url = None if found is None else f"{found[1].url}/rcp"
            found = await stack.enter_async_context(node(name, {f"{name}-own": scripts[name]}, next=url))
        assert found is not None
        yield found
