"""A gateway behind real HTTP, with facades, as a test asks it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.app import OpenGateway, open_gateway
from gateway.cli.serve import over_http
from gateway.config import load_text
from gateway.federation.context import HostContext
from gateway.federation.runner import EngineCall
from gateway.plugins import load_plugins
from gateway.spi import HttpSettings, Route
from tests.engines import Script, plugins_of

__all__ = ["Served", "call", "context", "served"]


def context(id: str = "e") -> HostContext:
    return HostContext(id, Path(), http=HttpSettings())


def call(seconds: float = 10.0) -> EngineCall:
    """Needs a running loop, whose time it counts."""
    one = EngineCall(Route())
    one.limit(seconds)
    return one


@dataclass
class Served:
    gateway: OpenGateway
    url: str
    http: httpx.AsyncClient

    async def post(self, path: str, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(path, content=content, headers={"Content-Type": "application/json"})


@asynccontextmanager
async def served(
    facade: str,
    settings: Mapping[str, Any],
    *,
    engines: Sequence[Mapping[str, Any]] = (),
    scripts: Mapping[str, Script] | None = None,
    **config: Any,
) -> AsyncIterator[Served]:
    """A gateway over ``engines`` as configured and ``scripts`` by id, serving one facade on a free port."""
    scripts = scripts or {}
    listed = [*engines, *({"id": id, "kind": "scripted", "with": {"name": id}} for id in scripts)]
    text = json.dumps({"name": "served", "engines": listed, "facades": [{"kind": facade, "with": settings}], **config})
    plugins = plugins_of(scripts)
    found = load_plugins()
    plugins.kinds |= found.kinds
    plugins.facades |= found.facades
    async with open_gateway(load_text(text, base_dir=Path.cwd()), plugins) as gateway:
        async with over_http(gateway, port=0) as address, httpx.AsyncClient(base_url=address.url) as http:
            yield Served(gateway, address.url, http)
