"""When Pinecone fails: the right error, within the leg's time, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.errors import RcpError
from gateway.model import Document
from gateway.spi import Engine
from gateway_pinecone import client as client_module
from gateway_pinecone.engine import PineconeKind
from tests.plugins.pinecone.support import call, context, ids, opened, query, settings
from tests.servers.pinecone import Fault, Index

pytestmark = pytest.mark.anyio


def spent() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """No task that was started within is still there a moment after."""
    before = asyncio.all_tasks()
    yield
    for _ in range(20):
        if not (asyncio.all_tasks() - before):
            return
        await asyncio.sleep(0.01)
    assert asyncio.all_tasks() - before == set()


async def failure(fault: Fault, ask: Callable[[Engine], Awaitable[Any]] = query) -> tuple[RcpError, Index]:
    index = Index()
    async with opened(index, writable=True) as engine:
        index.broken = fault
        with pytest.raises(RcpError) as raised:
            await ask(engine)
        index.broken = None
    return raised.value, index


GRPC = b'{"code":7,"message":"the key is s3cr3t","details":[]}'
REST = b'{"error":{"code":"NOT_FOUND","message":"no such index"},"status":404}'


@pytest.mark.parametrize(
    ("fault", "code", "retryable"),
    [
        (Fault(401, b"Invalid API Key", content_type="text/plain"), -32010, False),
        (Fault(403, GRPC), -32010, False),
        (Fault(402, GRPC), -32010, False),
        (Fault(404, REST), -32010, False),
        (Fault(400, GRPC), -32010, False),
        (Fault(422, GRPC), -32010, False),
        (Fault(409, GRPC), -32010, False),
        (Fault(302, b"", {"Location": "http://127.0.0.1:1/"}), -32010, False),
        (Fault(413, b"<html>", content_type="text/html"), -32013, False),
        (Fault(429, GRPC), -32011, True),
        (Fault(500, GRPC), -32010, True),
        (Fault(503, b"<html>upstream connect error</html>", content_type="text/html"), -32010, True),
        (Fault(200, b"not json"), -32010, True),
        (Fault(200, b'{"matches": 5}'), -32010, True),
        (Fault(200, b'{"matches":[{"id":"a","score":NaN}]}'), -32010, True),
        (Fault(200, b"broken", {"Content-Encoding": "gzip"}), -32010, True),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, Fault) else None,
)
async def test_a_refusal_becomes_the_error_that_says_whose_fault_it_is(
    fault: Fault, code: int, retryable: bool
) -> None:
    error, index = await failure(fault)
    assert (error.code, error.retryable) == (code, retryable)
    assert "s3cr3t" not in str(error.to_wire())
    assert "secret" not in str(error.to_wire())
    if fault.status != 200:
        assert error.data["upstreamStatus"] == fault.status
    # The gateway retries within the leg's time; the SDK's own retries would multiply with these.
    assert len(index.requests) == 1


async def test_a_rate_limit_says_how_long_to_wait_instead_of_waiting() -> None:
    started = spent()
    error, _ = await failure(Fault(429, GRPC, {"Retry-After": "7"}))
    assert (error.code, error.data["retryAfterMs"]) == (-32011, 7000)
    assert spent() - started < 6


async def test_our_own_mistake_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gateway.engine.pine"):
        error, _ = await failure(Fault(400, b'{"code":3,"message":"bad filter","details":[]}'))
    assert error.detail == "HTTP 400: bad filter"
    assert "bad filter" in caplog.text


async def test_an_engine_that_is_not_there_cannot_be_reached() -> None:
    index = Index()
    async with opened(index) as engine:
        pass
    with pytest.raises(RcpError) as raised:
        async with PineconeKind().open(settings(host=index.url), context()):
            raise AssertionError("opened")
    assert (raised.value.code, raised.value.retryable) == (-32010, True)
    assert engine is not None


async def test_a_wrong_key_is_told_when_the_engine_opens() -> None:
    with pytest.raises(RcpError) as raised:
        async with opened(Index(key="another")):
            raise AssertionError("opened")
    assert raised.value.code == -32010
    assert "API key" in raised.value.message


@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: query(engine, seconds=0.2),
        lambda engine: engine.index_add([Document(id="a", text="t", vector=[1.0, 0.0])], call(0.2)),
        lambda engine: engine.index_delete(["a"], call(0.2)),
        lambda engine: engine.ping(call(0.2)),
    ],
    ids=["retrieve", "index_add", "index_delete", "ping"],
)
async def test_a_hanging_server_fails_within_the_legs_time(ask: Callable[[Engine], Awaitable[Any]]) -> None:
    async with nothing_left():
        started = spent()
        error, index = await failure(Fault(hang=True), ask)
        assert spent() - started < 6
        assert (error.code, error.retryable) == (-32014, True)
    assert index.hanging == 0


async def test_no_time_left_is_a_timeout_without_a_request() -> None:
    index = Index()
    async with opened(index) as engine:
        with pytest.raises(RcpError) as raised:
            await query(engine, seconds=0)
    assert raised.value.code == -32014
    assert index.requests == []


async def test_retries_inside_the_sdk_end_with_the_legs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a later SDK keep its retries to itself, the deadline still holds."""
    monkeypatch.setattr(client_module, "_ask_once", lambda index, sdk: False)
    for fault in (Fault(503), Fault(429, GRPC, {"Retry-After": "30"}), Fault(hang=True)):
        async with nothing_left():
            index = Index()
            async with opened(index) as engine:
                index.broken = fault
                started = spent()
                with pytest.raises(RcpError) as raised:
                    await query(engine, seconds=0.3)
                assert spent() - started < 6
                assert raised.value.code == -32014
                index.broken = None


async def test_the_host_is_the_one_who_ends_a_leg() -> None:
    """Its timeout comes first, so that it can tell an impatient client from a slow engine."""
    index = Index()
    async with opened(index) as engine:
        index.broken = Fault(hang=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2) as scope:
                await query(engine, seconds=0.2)
        assert scope.expired()


async def test_a_cancelled_call_leaves_no_task_and_no_connection_behind() -> None:
    index = Index()
    index.fill({"a": ((1.0, 0.0), {})})
    async with opened(index) as engine:
        await query(engine)
        async with nothing_left():
            index.broken = Fault(hang=True)
            asking = asyncio.create_task(query(engine))
            async with asyncio.timeout(5):
                await index.arrived.wait()
            started = spent()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert spent() - started < 6
            # The server sees the client go, so it can stop too.
            async with asyncio.timeout(5):
                await index.gone.wait()
        assert index.hanging == 0
        index.broken = None
        assert ids(await query(engine)) == ["a"]


async def test_many_cancelled_calls_do_not_use_up_the_pool() -> None:
    index = Index()
    index.fill({"a": ((1.0, 0.0), {})})
    async with opened(index) as engine:
        index.broken = Fault(hang=True)
        for _ in range(3):
            asking = [asyncio.create_task(query(engine, seconds=5)) for _ in range(25)]
            await asyncio.sleep(0.1)
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        index.broken = None
        replies = await asyncio.gather(*(query(engine) for _ in range(40)))
    assert all(ids(reply) == ["a"] for reply in replies)


async def test_closing_an_engine_leaves_nothing_open() -> None:
    async with nothing_left():
        async with opened(Index()) as engine:
            await asyncio.gather(*(query(engine) for _ in range(10)))


async def test_a_batch_that_fails_leaves_those_before_it_stored() -> None:
    index = Index()
    async with opened(index, writable=True, batch=2) as engine:
        documents = [Document(id=f"d{n}", text="t", vector=[1.0, 0.0]) for n in range(4)]
        first = index.upsert

        def once(body: dict[str, Any]) -> Any:
            index.broken = Fault(503)
            return first(body)

        index.upsert = once  # type: ignore[method-assign]
        with pytest.raises(RcpError):
            await engine.index_add(documents, call())
        index.upsert, index.broken = first, None  # type: ignore[method-assign]
        assert sorted(index.rows[""]) == ["d0", "d1"]
        assert (await engine.index_add(documents, call())).chunks == 4
    assert len(index.rows[""]) == 4


async def test_a_request_that_the_sdk_itself_refuses_is_our_fault_not_the_callers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = Index()
    async with opened(index) as engine:

        async def wrong(sdk: Any, timeout: float) -> Any:
            return await sdk.query(top_k=0, vector=[1.0, 0.0], timeout=timeout)

        with caplog.at_level(logging.ERROR, "gateway.engine.pine"), pytest.raises(RcpError) as raised:
            await engine._client.ask(wrong, 1.0)  # type: ignore[attr-defined]
    assert (raised.value.code, raised.value.retryable) == (-32010, False)
    assert "top_k" in caplog.text
    assert index.requests == []
