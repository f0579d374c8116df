"""What the tests of the Weaviate plugin share: a call, a host, a server, and an open engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gateway.federation.context import HostContext
from gateway.filters import Filter
from gateway.spi.call import Route
from gateway.spi.engine import Engine
from gateway.spi.http import HttpSettings
from gateway_weaviate.engine import WeaviateKind
from gateway_weaviate.settings import Endpoint, WeaviateConfig
from tests.plugins.weaviate.corpora import all_leaves, random_trees
from tests.servers.weaviate import WeaviateServer, weaviate_server

# Examples are bounded by number, never by time: a busy machine must not fail a law.
settings.register_profile(
    "weaviate", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
if settings.get_current_profile_name() == "default":
    settings.load_profile("weaviate")

TREES = 2_000

Opener = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class StubCall:
    """A call with a fixed budget that keeps what it was told."""

    budget: float = 10.0
    route: Route = field(default_factory=Route)
    told: list[tuple[float, str]] = field(default_factory=list)
    log_level: str | None = None

    def remaining(self) -> float:
        return self.budget

    def progress(self, fraction: float, stage: str = "") -> None:
        self.told.append((fraction, stage))

    def log(self, level: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        pass


@pytest.fixture
def call() -> StubCall:
    return StubCall()


@pytest.fixture
def host(tmp_path: Path) -> HostContext:
    return HostContext("w", tmp_path, http=HttpSettings())


@pytest.fixture
async def server() -> AsyncIterator[WeaviateServer]:
    async with weaviate_server(WeaviateServer()) as running:
        yield running


@pytest.fixture
def opened(host: HostContext) -> Opener:
    """Opens an engine on a server's collection: ``async with opened(server, collection="Doc", ...) as engine``."""

    @asynccontextmanager
    async def open_(server: WeaviateServer, **given: Any) -> AsyncIterator[Engine]:
        async with WeaviateKind().open(settings_for(server, **given), host) as engine:
            yield engine

    return open_


def settings_for(server: WeaviateServer, **given: Any) -> WeaviateConfig:
    given.setdefault("collection", "Doc")
    return WeaviateConfig(
        http=Endpoint(host="127.0.0.1", port=server.rest_port),
        grpc=Endpoint(host="127.0.0.1", port=server.grpc_port),
        **given,
    )


@pytest.fixture(scope="session")
def trees() -> list[Filter]:
    """Random trees, the same in every world, so that what is pushed of them can be compared."""
    return random_trees(TREES)


@pytest.fixture(scope="session")
def leaves() -> list[Filter]:
    """Every operator on every field with every hard literal, and its negation."""
    return all_leaves()
