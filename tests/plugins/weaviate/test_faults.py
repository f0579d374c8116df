"""Errors by their status, deadlines, and what cancelling leaves behind: nothing."""

from __future__ import annotations

import asyncio
import time

import grpc
import httpx
import pytest

from gateway.errors import BackendUnavailable, Code, RateLimited, RcpError, Timeout, UpstreamError
from gateway.model import Document
from gateway.spi.engine import Engine, EngineQuery
from gateway_weaviate.faults import fault
from tests.plugins.weaviate.conftest import Opener, StubCall
from tests.servers.weaviate import Collection, Prop, WeaviateServer

S = grpc.StatusCode
PROPS = [Prop("text", "text"), Prop("rcp_id", "text", "field")]
FATES: list[tuple[grpc.StatusCode, str, type[RcpError], int, bool]] = [
    (S.UNAUTHENTICATED, "anonymous", UpstreamError, Code.BACKEND_UNAVAILABLE, False),
    (S.PERMISSION_DENIED, "forbidden", UpstreamError, Code.BACKEND_UNAVAILABLE, False),
    (S.DEADLINE_EXCEEDED, "too slow", Timeout, Code.TIMEOUT, True),
    (S.RESOURCE_EXHAUSTED, "too many", RateLimited, Code.RATE_LIMITED, True),
    (S.RESOURCE_EXHAUSTED, "Received message larger than max (5 vs. 4)", UpstreamError, Code.PAYLOAD_TOO_LARGE, False),
    (S.INVALID_ARGUMENT, "bad", UpstreamError, Code.BACKEND_UNAVAILABLE, False),
    (S.NOT_FOUND, "no shard", UpstreamError, Code.BACKEND_UNAVAILABLE, False),
    (S.UNKNOWN, "could not find class", UpstreamError, Code.BACKEND_UNAVAILABLE, False),
    (S.UNKNOWN, "context deadline exceeded", Timeout, Code.TIMEOUT, True),
    (S.UNIMPLEMENTED, "unknown method", UpstreamError, Code.BACKEND_UNAVAILABLE, False),
    (S.INTERNAL, "panic", BackendUnavailable, Code.BACKEND_UNAVAILABLE, True),
]
DOES = {
    "Search": lambda engine, call: engine.retrieve(EngineQuery(text="fox", k=1), call),
    "BatchObjects": lambda engine, call: engine.index_add([Document(id="a", text="fox")], call),
    "BatchDelete": lambda engine, call: engine.index_delete(["a"], call),
}


def ours(tasks: set[asyncio.Task[object]]) -> list[str]:
    """Those that are not the test server's own, which runs in the same loop."""
    servers = ("RequestHandler", "rpc_task", "HandleExceptions")
    return [told for one in tasks if not any(name in (told := repr(one)) for name in servers)]


@pytest.fixture
async def engine(server: WeaviateServer, opened: Opener) -> Engine:  # type: ignore[misc]
    server.create(Collection("Doc", PROPS))
    async with opened(server, writable=True) as engine:
        yield engine  # type: ignore[misc]


@pytest.mark.anyio
@pytest.mark.parametrize("rpc", DOES)
@pytest.mark.parametrize(
    ("status", "details", "kind", "code", "retryable"), FATES, ids=lambda one: one.name if isinstance(one, S) else ""
)
async def test_a_status_becomes_the_right_error_at_once(
    rpc: str,
    status: grpc.StatusCode,
    details: str,
    kind: type[RcpError],
    code: int,
    retryable: bool,
    server: WeaviateServer,
    engine: Engine,
    call: StubCall,
) -> None:
    """R50: what can never succeed fails at once and is asked once."""
    server.fail(rpc, status, details)
    started = time.monotonic()
    with pytest.raises(RcpError) as raised:
        await DOES[rpc](engine, call)
    assert time.monotonic() - started < 5.0
    error = raised.value
    assert (type(error), error.code, error.retryable) == (kind, code, retryable)
    assert error.data["upstreamCode"] == status.value[0]
    assert details not in error.message
    assert details in error.detail or "failed" in error.detail
    assert sum(name == rpc for name, _ in server.requests) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("rpc", ["Search", "BatchObjects"])
async def test_the_clients_long_retries_end_with_the_leg(
    rpc: str, server: WeaviateServer, engine: Engine, call: StubCall
) -> None:
    """The client repeats UNAVAILABLE for a minute, asleep in between; cancelling it is clean."""
    server.fail(rpc, S.UNAVAILABLE, "gone")
    before = asyncio.all_tasks()
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await DOES[rpc](engine, call)
    assert time.monotonic() - started < 5.0  # of the 63 that the client would take
    assert not ours(asyncio.all_tasks() - before)
    asked = sum(name == rpc for name, _ in server.requests)
    server.failures.clear()
    await DOES[rpc](engine, call)
    assert sum(name == rpc for name, _ in server.requests) == asked + 1


@pytest.mark.anyio
async def test_what_the_client_does_not_repeat_is_unavailable_at_once(
    server: WeaviateServer, engine: Engine, call: StubCall
) -> None:
    server.fail("BatchDelete", S.UNAVAILABLE, "gone")
    with pytest.raises(BackendUnavailable) as raised:
        await engine.index_delete(["a"], call)
    assert raised.value.retryable


@pytest.mark.anyio
@pytest.mark.parametrize("rpc", DOES)
async def test_a_hanging_server_is_told_that_nobody_waits(
    rpc: str, server: WeaviateServer, engine: Engine, call: StubCall
) -> None:
    server.hang(rpc)
    server.reached.clear()
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(DOES[rpc](engine, call))
    async with asyncio.timeout(5):
        await server.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.cancelled.wait()
    assert not ours(asyncio.all_tasks() - before)
    server.hanging.clear()
    await DOES[rpc](engine, call)


@pytest.mark.anyio
async def test_opening_can_be_cancelled_and_leaves_nothing(server: WeaviateServer, opened: Opener) -> None:
    server.create(Collection("Doc", PROPS))
    server.hanging.add("schema")
    before = asyncio.all_tasks()

    async def enter() -> None:
        async with opened(server):
            raise AssertionError("it opened")

    task = asyncio.ensure_future(enter())
    async with asyncio.timeout(5):
        await server.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.cancelled.wait()
    assert not ours(asyncio.all_tasks() - before)


@pytest.mark.anyio
async def test_a_ping_says_whether_the_server_is_there(
    server: WeaviateServer, engine: Engine, call: StubCall, capsys: pytest.CaptureFixture[str]
) -> None:
    await engine.ping(call)
    server.rest_failures["meta"] = 503
    with pytest.raises(BackendUnavailable):
        await engine.ping(call)
    server.rest_failures["meta"] = 429
    with pytest.raises(RateLimited):
        await engine.ping(call)
    assert capsys.readouterr().out == ""  # on stdio that is where the protocol goes


@pytest.mark.anyio
async def test_a_server_that_went_away_is_unavailable_to_a_ping(opened: Opener, call: StubCall) -> None:
    from tests.servers.weaviate import weaviate_server

    async with weaviate_server(WeaviateServer()) as server:
        server.create(Collection("Doc", PROPS))
        opening = opened(server)
        engine = await opening.__aenter__()
    try:
        with pytest.raises(BackendUnavailable):
            await engine.ping(call)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await engine.retrieve(EngineQuery(text="fox", k=1), call)
    finally:
        await opening.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ConnectTimeout("x"), Timeout),
        (httpx.PoolTimeout("x"), Timeout),
        (httpx.ReadError("x"), BackendUnavailable),
        (TimeoutError(), Timeout),
        (ConnectionRefusedError(), BackendUnavailable),
        (ValueError("unconverted data remains"), UpstreamError),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_what_escapes_the_client_is_mapped_too(error: Exception, kind: type[RcpError]) -> None:
    mapped = fault(error)
    assert type(mapped) is kind
    assert mapped.retryable is (kind is not UpstreamError)


def test_an_argument_that_the_client_refuses_is_not_retried() -> None:
    from weaviate.exceptions import WeaviateInvalidInputError, WeaviateStartUpError, WeaviateTimeoutError

    assert fault(WeaviateInvalidInputError("near_vector")).retryable is False
    assert isinstance(fault(WeaviateStartUpError("x")), BackendUnavailable)
    assert isinstance(fault(WeaviateTimeoutError("x")), Timeout)


@pytest.mark.anyio
async def test_an_argument_refused_before_the_await_is_an_error_of_ours(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    """``WeaviateInvalidInputError`` is raised when the client's method is called, not when it is awaited."""
    server.create(Collection("Doc", PROPS))
    async with opened(server, embedder="e") as engine:
        with pytest.raises(UpstreamError) as raised:
            await engine.retrieve(EngineQuery(text="fox", k=1, mode="dense", vector=()), call)
    assert raised.value.retryable is False


@pytest.mark.anyio
async def test_many_calls_share_one_client(server: WeaviateServer, engine: Engine, call: StubCall) -> None:
    server.put("Doc", {"text": "fox", "rcp_id": "a"})
    replies = await asyncio.gather(*(engine.retrieve(EngineQuery(text="fox", k=1), call) for _ in range(50)))
    assert all(reply.hits[0].id == "a" for reply in replies)
