"""What the tests of the Qdrant plugin share: a call, a host, and engines filled with documents."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import AsyncQdrantClient, models

from gateway.federation.context import HostContext
from gateway.model import Document
from gateway.spi.call import Route
from gateway.spi.engine import Engine, EngineQuery
from gateway.spi.http import HttpSettings
from gateway_qdrant.engine import QdrantKind
from gateway_qdrant.settings import QdrantConfig
from tests.servers.qdrant import QdrantServer, memory_folder, qdrant_server

LIVE = os.environ.get("GATEWAY_TEST_QDRANT_URL")


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
def tmp_path() -> Iterator[Path]:
    """In memory where that is possible, and gone after the test: every collection preallocates its files."""
    with tempfile.TemporaryDirectory(prefix="qdrant-test-", dir=memory_folder()) as folder:
        yield Path(folder)


@pytest.fixture
def call() -> StubCall:
    return StubCall()


@pytest.fixture
def host(tmp_path: Path) -> HostContext:
    return HostContext("q", tmp_path, http=HttpSettings())


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with qdrant_server() as running:
        yield running


Opened = Callable[[QdrantConfig], AbstractAsyncContextManager[Engine]]


@pytest.fixture
def opened(host: HostContext) -> Opened:
    return lambda config: QdrantKind().open(config, host)


@asynccontextmanager
async def collection(
    url: str,
    *,
    vectors: Any = None,
    sparse: Any = None,
    indexes: Mapping[str, str] | None = None,
    strict: models.StrictModeConfig | None = None,
    api_key: str | None = None,
) -> AsyncIterator[tuple[str, AsyncQdrantClient]]:
    """A collection of its own, made by the official client and dropped at the end."""
    name = f"gateway-test-{uuid.uuid4().hex[:12]}"
    client = AsyncQdrantClient(url=url, api_key=api_key, check_compatibility=False)
    try:
        await client.create_collection(
            name, vectors_config=vectors, sparse_vectors_config=sparse, strict_mode_config=strict
        )
        for key, kind in (indexes or {}).items():
            await client.create_payload_index(name, key, field_schema=models.PayloadSchemaType(kind), wait=True)
        try:
            yield name, client
        finally:
            await client.delete_collection(name)
    finally:
        await client.close()


@pytest.fixture
def collections() -> Callable[..., AbstractAsyncContextManager[tuple[str, AsyncQdrantClient]]]:
    return collection


def asked(**given: Any) -> EngineQuery:
    return EngineQuery(**{"text": "fox", "k": 10, **given})


def documents(metas: Sequence[Mapping[str, Any]], vector: Sequence[float] = (1.0, 0.0)) -> list[Document]:
    return [
        Document(text=f"document {number}", id=f"d{number}", meta=dict(meta), vector=list(vector))
        for number, meta in enumerate(metas)
    ]
