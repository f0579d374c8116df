from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.redis import Server, redis_server
from tests.unit.state.stores import Kept, kept_in_memory, kept_in_redis


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that leave it as it is."""
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that a test may stop and kill."""
    with redis_server(tmp_path) as running:
        yield running


@pytest.fixture(params=["memory", "redis"])
async def kept(request: pytest.FixtureRequest, anyio_backend: Any) -> AsyncIterator[Kept]:
    opening = kept_in_memory() if request.param == "memory" else kept_in_redis(request.getfixturevalue("server"))
    async with opening as one:
        yield one
