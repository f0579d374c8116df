"""Upstreams to put behind the engine, and what they report of what reached them."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.federation.context import HostContext
from gateway.spi.call import Route
from gateway.spi.engine import Engine
from gateway.spi.http import HttpSettings
from gateway_rcp.kind import RcpKind
from gateway_rcp.settings import RcpConfig
from tests.peers.reports import Reports, listening

PEERS = Path(__file__).parents[2] / "peers"
HOSTILE = PEERS / "hostile.py"
SDK = PEERS / "sdk_server.py"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@dataclass
class FakeCall:
    """A call with all the time in the world; ``told`` is the progress it heard of."""

    seconds: float = 30.0
    route: Route = field(default_factory=lambda: Route(2, ("me",)))
    told: list[tuple[float, str]] = field(default_factory=list)
    log_level: str | None = None

    def remaining(self) -> float:
        return self.seconds

    def progress(self, fraction: float, stage: str = "") -> None:
        self.told.append((fraction, stage))

    def log(self, level: str, message: str, data: Any = None) -> None:
        pass


@pytest.fixture
async def reports(tmp_path) -> AsyncIterator[Reports]:
    async with listening(tmp_path) as reports:
        yield reports


@dataclass
class Upstreams:
    """Opens engines over either transport in front of a peer."""

    reports: Reports
    context: HostContext

    @asynccontextmanager
    async def served(self, script: Path, *arguments: str) -> AsyncIterator[str]:
        """The URL of a peer that serves HTTP in a process of its own."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), *arguments, "--http", "--report", self.reports.path
        )
        try:
            listening = await self.reports.until("listening", len(self.reports.all("listening")) + 1)
            yield f"http://127.0.0.1:{listening['port']}/rcp"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def command(self, script: Path, *arguments: str) -> list[str]:
        return [sys.executable, str(script), *arguments, "--report", self.reports.path]

    @asynccontextmanager
    async def engine(self, **settings: Any) -> AsyncIterator[Engine]:
        async with RcpKind().open(RcpConfig(**settings), self.context) as engine:
            yield engine

    @asynccontextmanager
    async def stdio(self, *behaviours: str, script: Path = HOSTILE, **settings: Any) -> AsyncIterator[Engine]:
        async with self.engine(command=self.command(script, *behaviours), **settings) as engine:
            yield engine

    @asynccontextmanager
    async def http(self, *behaviours: str, script: Path = HOSTILE, **settings: Any) -> AsyncIterator[Engine]:
        async with self.served(script, *behaviours) as url, self.engine(url=url, **settings) as engine:
            yield engine


@pytest.fixture
def upstreams(reports, tmp_path) -> Upstreams:
    return Upstreams(reports, HostContext("up", tmp_path, http=HttpSettings(), seed=1))


@pytest.fixture(params=["stdio", "http", "sse"])
def over(request, upstreams) -> Callable[..., Any]:
    """Opens an engine in front of the same peer over each transport in turn."""
    if request.param == "stdio":
        return upstreams.stdio
    return partial(upstreams.http, streaming=request.param == "sse")


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
