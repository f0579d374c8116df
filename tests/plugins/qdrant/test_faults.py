"""What goes wrong at a server, and what is said of it: one error with its cause and remedy, within the leg's budget."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response

from gateway.errors import BackendUnavailable, ConfigError, RateLimited, RcpError, Timeout, UpstreamError
from gateway.secret import Secret
from gateway.spi.engine import Engine
from gateway_qdrant.settings import DenseSettings, QdrantConfig, VectorSettings
from tests.plugins.qdrant.conftest import Opened, StubCall, asked, collection, documents
from tests.plugins.qdrant.test_rest import DENSE, DENSE_PARAMS, config
from tests.servers.qdrant import QdrantServer, _error, qdrant_server

pytestmark = pytest.mark.anyio

QUERY = asked(mode="dense", vector=(1.0, 0.0), text="confidential words")


@pytest.fixture
async def engine(server: QdrantServer, opened: Opened) -> AsyncIterator[Engine]:
    async with collection(server.url, vectors=DENSE_PARAMS) as (name, _):
        async with opened(config(server.url, name)) as engine:
            await engine.index_add(documents([{}]), StubCall())
            yield engine
            server.fault = None
            server.hang = False


async def test_a_hanging_server_fails_within_the_budget_and_is_hung_up_on(server: QdrantServer, engine: Engine) -> None:
    server.hang = True
    clock = asyncio.get_running_loop().time
    started = clock()
    with pytest.raises(Timeout) as caught:
        await engine.retrieve(QUERY, StubCall(budget=0.2))
    assert clock() - started < 1.0
    assert (caught.value.code, caught.value.retryable) == (-32014, True)
    assert await asyncio.to_thread(server.left.wait, 5)


async def test_cancelling_a_call_reaches_the_server_and_leaves_the_engine_usable(
    server: QdrantServer, engine: Engine, call: StubCall
) -> None:
    server.hang = True
    task = asyncio.create_task(engine.retrieve(QUERY, call))
    assert await asyncio.to_thread(server.hung.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(server.left.wait, 5)
    server.hang = False
    assert len((await engine.retrieve(QUERY, call)).hits) == 1


@pytest.mark.parametrize(
    ("response", "error", "code", "retryable", "told"),
    [
        (PlainTextResponse("Invalid API key", 401), UpstreamError, -32010, False, "renew it and check api_key"),
        (PlainTextResponse("Forbidden", 403), UpstreamError, -32010, False, "renew it and check api_key"),
        (
            _error(404, "Not found: Collection `gone` doesn't exist!"),
            UpstreamError,
            -32010,
            False,
            "has no collection 'gateway-test-.*': create it .* or correct collection",
        ),
        (
            _error(
                400,
                'Bad request: Index required but not found for "meta.lang" of one of the following types: [keyword].',
            ),
            UpstreamError,
            -32010,
            False,
            "strict mode and has no payload index on 'meta.lang': create the index",
        ),
        (
            _error(400, "Wrong input: Vector dimension error: expected dim: 3, got 2"),
            UpstreamError,
            -32010,
            False,
            "not of the collection's dimension: use the embedder",
        ),
        (
            _error(400, "Wrong input: Not existing vector name error: dense"),
            UpstreamError,
            -32010,
            False,
            "no vector of the configured name: correct vectors",
        ),
        (
            _error(400, "Bad request: confidential words"),
            UpstreamError,
            -32010,
            False,
            "does not accept the gateway's request",
        ),
        (_error(413, "Payload too large"), UpstreamError, -32013, False, "too large"),
        (Response(status_code=429, headers={"Retry-After": "2"}), RateLimited, -32011, True, "rate"),
        (_error(500, "Service internal error: disk"), BackendUnavailable, -32010, True, "failed"),
        (PlainTextResponse("<html>bad gateway</html>", 502), BackendUnavailable, -32010, True, "failed"),
        (PlainTextResponse("no JSON at all", 200), UpstreamError, -32010, False, "not JSON"),
        (
            Response(b'{"result": {"points": [{"score": 1}]}}', 200),
            BackendUnavailable,
            -32010,
            True,
            "not a list of points",
        ),
        (Response(b'{"result": null}', 200), BackendUnavailable, -32010, True, "not a list of points"),
        (Response(b"[]", 200), BackendUnavailable, -32010, True, "not a list of points"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_each_refusal_is_one_error_that_says_what_to_do(
    server: QdrantServer,
    engine: Engine,
    call: StubCall,
    response: Response,
    error: type[RcpError],
    code: int,
    retryable: bool,
    told: str,
) -> None:
    server.fault = response
    with pytest.raises(error, match=told) as caught:
        await engine.retrieve(QUERY, call)
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert "confidential" not in str(caught.value.to_wire())
    if response.status_code == 429:
        assert caught.value.data["retryAfterMs"] == 2000


async def test_a_collection_that_is_missing_at_start_is_named(server: QdrantServer, opened: Opened) -> None:
    with pytest.raises(UpstreamError, match="has no collection 'nowhere': create it"):
        async with opened(config(server.url, "nowhere")):
            pass


async def test_a_key_that_is_refused_at_start_says_which_setting(opened: Opened) -> None:
    with qdrant_server(api_key="right") as server:
        for key in (None, Secret("wrong")):
            with pytest.raises(UpstreamError, match="check api_key") as caught:
                async with opened(config(server.url, "c", api_key=key)):
                    pass
            assert "wrong" not in str(caught.value)


async def test_a_server_that_is_not_there_can_be_retried(opened: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BackendUnavailable) as caught:
        async with opened(config(f"http://127.0.0.1:{port}", "c")):
            pass
    assert caught.value.retryable


async def test_something_else_at_the_address_is_recognised(server: QdrantServer, opened: Opened) -> None:
    for body in (b'{"result": {}}', b"[1]", b'{"result": {"config": {"params": {"vectors": 5}}}}'):
        server.fault = Response(body, 200)
        with pytest.raises(ConfigError, match="does not look like a Qdrant server"):
            async with opened(config(server.url, "c")):
                pass


async def test_a_write_that_fails_half_way_can_be_repeated(
    server: QdrantServer, opened: Opened, call: StubCall
) -> None:
    async with collection(server.url, vectors=DENSE_PARAMS) as (name, client):
        async with opened(config(server.url, name, batch=2)) as engine:
            added = documents([{"n": n} for n in range(5)])

            class Breaking(StubCall):
                def progress(self, fraction: float, stage: str = "") -> None:
                    server.fault = _error(500, "Service internal error: disk")

            with pytest.raises(BackendUnavailable):
                await engine.index_add(added, Breaking())
            server.fault = None
            assert (await client.count(name)).count == 2
            await engine.index_add(added, call)
            assert (await client.count(name)).count == 5


@pytest.mark.parametrize(
    ("given", "path", "told"),
    [
        ({}, "", "path .* or url"),
        ({"url": "http://h", "path": "p", "collection": "c"}, "", "path .* or url"),
        ({"url": "http://h"}, "collection", "required"),
        ({"path": "p", "collection": "c"}, "", "neither collection nor api_key"),
        ({"path": "p", "vectors": VectorSettings()}, "vectors", "dense, sparse or both"),
        ({"path": "p", "embedder": None}, "embedder", "engine that embeds"),
        ({"path": "p", "default_mode": "sparse"}, "default_mode", "one of dense"),
        ({"path": "p", "fields": {"lang": "keywrd"}}, "fields.lang", "one of keyword, text"),
        ({"path": "p", "max_k": 0}, "max_k", "at least 1"),
        ({"path": "p", "batch": 0}, "batch", "lie in"),
    ],
)
def test_settings_that_cannot_work_are_named(given: dict[str, Any], path: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        QdrantConfig(**{"embedder": "e", "vectors": DENSE, **given})
    assert caught.value.path == path


def test_the_vector_of_a_setting_may_not_be_negative() -> None:
    with pytest.raises(ConfigError):
        DenseSettings(dimension=-1)
