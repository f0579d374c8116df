"""Event streams: RCP sections 5.2 and 9, and what proxies do to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anyio import fail_after

from gateway.transports.server import Address, serve
from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import Wire, events, exchange, request

pytestmark = pytest.mark.anyio

EVENTS = {"accept": "text/event-stream"}


@contextlib.asynccontextmanager
async def running(bench: Bench, **options: Any) -> AsyncIterator[Address]:
    with fail_after(15):
        async with serve(bench.app(**options)) as address:
            yield address


def retrieve(query: str, token: Any = None, **params: Any) -> bytes:
    meta = {} if token is None else {"_meta": {"progressToken": token}}
    return request("retrieve", {"query": query, **meta, **params}, id="r")


@obligation(99, 104)
async def test_the_headers_come_before_the_work_and_forbid_holding_events_back() -> None:
    bench = Bench()
    async with running(bench) as address, Wire.to(address) as wire:
        await wire.post("/rcp/retrieve", retrieve("hold"), **EVENTS, accept_encoding="gzip")
        response = await wire.head()  # no engine has answered, and none will before it is told to
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in response.headers
        bench.release.set()
        assert "result" in json.loads((await wire.chunks().__anext__())[6:])


@obligation(100, 101, 104, 199)
async def test_each_frame_is_sent_at_once_and_the_final_one_is_the_last() -> None:
    bench = Bench()
    async with running(bench) as address, Wire.to(address) as wire:
        await wire.post("/rcp/retrieve", retrieve("hold", 1), **EVENTS)
        await wire.head()
        chunks = wire.chunks()
        first = await anext(chunks)  # the call still runs
        assert events(first)[0]["params"]["progress"] == 0.1
        bench.release.set()
        rest = events(b"".join([chunk async for chunk in chunks]))
        assert [frame.get("id") for frame in rest] == [None] * (len(rest) - 1) + ["r"]
        await wire.post("/rcp/ping", request("ping"))
        assert (await wire.response()).status == 200  # the stream ended, the connection did not


@obligation(102)
@pytest.mark.parametrize(
    ("body", "code"), [(retrieve("x", 1, k=0), -32602), (b"{", -32700), (b"7", -32600), (request("no/such"), -32004)]
)
async def test_a_failure_is_one_final_frame(body: bytes, code: int) -> None:
    async with running(Bench()) as address:
        response = await exchange(address, "/rcp", body, **EVENTS)
    (frame,) = events(response.body)
    assert frame["error"]["code"] == code


@obligation(103)
async def test_without_a_token_the_stream_is_one_frame() -> None:
    async with running(Bench()) as address:
        response = await exchange(address, "/rcp/retrieve", retrieve("steps"), **EVENTS)
    assert [frame["id"] for frame in events(response.body)] == ["r"]


@obligation(101)
async def test_a_text_with_every_kind_of_line_end_stays_on_one_line() -> None:
    query = "a\nb\rc\u2028d\u2029e\x85f"
    async with running(Bench()) as address:
        response = await exchange(address, "/rcp/retrieve", retrieve(query), **EVENTS)
    assert response.body.count(b"\n") == 2
    assert response.body.count(b"\r") == 0
    assert events(response.body)[0]["result"]["hits"][0]["text"].startswith(query)


@obligation(101)
async def test_silence_is_broken_by_comments_only() -> None:
    bench = Bench()
    async with running(bench, silence=0.02) as address, Wire.to(address) as wire:
        await wire.post("/rcp/retrieve", retrieve("hold"), **EVENTS)
        await wire.head()
        chunks = wire.chunks()
        for _ in range(3):
            assert await anext(chunks) == b":\n\n"
        bench.release.set()
        assert len(events(b"".join([chunk async for chunk in chunks]))) == 1


@obligation(101)
async def test_where_nothing_is_silent_there_are_no_comments() -> None:
    async with running(Bench()) as address:
        response = await exchange(address, "/rcp/retrieve", retrieve("steps", 1), **EVENTS)
    assert b"\n:" not in b"\n" + response.body


@obligation(98)
@pytest.mark.parametrize("accept", ["application/json", "*/*", "text/event-stream;q=0"])
async def test_who_does_not_ask_for_a_stream_gets_one_json_body(accept: str) -> None:
    async with running(Bench()) as address:
        response = await exchange(address, "/rcp/retrieve", retrieve("steps", 1), accept=accept)
    assert response.headers["content-type"] == "application/json"
    assert response.json["id"] == "r"


@obligation(99)
async def test_a_gateway_that_does_not_advertise_streams_sends_none() -> None:
    async with running(Bench(), streaming=False) as address:
        response = await exchange(address, "/rcp/retrieve", retrieve("steps", 1), **EVENTS)
    assert response.headers["content-type"] == "application/json"


async def test_a_batch_is_answered_in_one_body_also_to_who_asks_for_a_stream() -> None:
    async with running(Bench()) as address:
        response = await exchange(address, "/rcp", b" [" + request("ping") + b"]", **EVENTS)
    assert response.headers["content-type"] == "application/json"
    assert len(response.json) == 1


@obligation(199)
async def test_a_reader_that_stops_reading_holds_up_no_call_and_gets_the_final_frame_in_the_end() -> None:
    bench = Bench()
    async with running(bench) as address, Wire.to(address) as wire:
        await wire.post("/rcp/retrieve", retrieve("flood", "t" * 1000), **EVENTS)
        await bench.started.wait()  # 20 MB of progress were emitted, and nothing was read yet
        response = await wire.response()
    frames = events(response.body)
    assert len(frames) < 2000
    assert frames[-1]["id"] == "r"
