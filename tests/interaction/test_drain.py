"""The end of a gateway that is at work (report R32)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from anyio import fail_after

from gateway.transports.server import Address, serve
from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import Wire, events, exchange, request, stdio

pytestmark = pytest.mark.anyio

HOLD = request("retrieve", {"query": "hold"}, id="h")


@contextlib.asynccontextmanager
async def stopping(bench: Bench, to: list[Address], **options: float) -> AsyncIterator[asyncio.Event]:
    app = bench.app()
    stop, up = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with serve(app, draining=app.drain, **options) as address:
            to.append(address)
            up.set()
            await stop.wait()

    server = asyncio.create_task(run())
    await up.wait()
    try:
        yield stop
        await server
    finally:
        server.cancel()


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_what_is_in_flight_is_finished_while_nothing_new_is_accepted(accept: str) -> None:
    bench, to = Bench(), list[Address]()
    with fail_after(10):
        async with stopping(bench, to) as stop, Wire.to(to[0]) as wire:
            await wire.post("/rcp/retrieve", HOLD, accept=accept)
            await bench.started.wait()
            stop.set()
            while True:
                try:
                    await exchange(to[0], "/rcp/ping", request("ping"))
                except (ConnectionError, asyncio.IncompleteReadError):
                    break
            assert bench.running == 1
            bench.release.set()
            response = await wire.response()
            (frame,) = events(response.body) if "event" in accept else [response.json]
            assert "result" in frame
            assert await wire.closed() == b""


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_what_does_not_end_in_time_gets_its_final_frame_all_the_same(accept: str) -> None:
    bench, to = Bench(), list[Address]()
    with fail_after(5):
        async with stopping(bench, to, drain_timeout=0.1) as stop, Wire.to(to[0]) as wire:
            await wire.post("/rcp/retrieve", HOLD, accept=accept)
            await bench.started.wait()
            stop.set()
            response = await wire.response()
            (frame,) = events(response.body) if "event" in accept else [response.json]
            assert frame["id"] == "h"
            assert frame["error"]["code"] in {-32010, -32006}
    assert bench.cancelled.is_set()


async def test_an_idle_connection_does_not_hold_up_the_end() -> None:
    bench, to = Bench(), list[Address]()
    with fail_after(5):
        async with stopping(bench, to) as stop, Wire.to(to[0]) as idle, Wire.to(to[0]) as silent:
            del silent
            await idle.post("/rcp/ping", request("ping"))
            await idle.response()
            stop.set()
            assert await idle.closed() == b""


async def test_a_client_that_never_reads_does_not_hold_up_the_end() -> None:
    bench, to = Bench(), list[Address]()
    with fail_after(8):
        async with stopping(bench, to, drain_timeout=0.1) as stop, Wire.to(to[0]) as wire:
            wire.writer.transport.pause_reading()
            params = {"query": "flood", "_meta": {"progressToken": "t" * 2000}}
            for _ in range(5):
                await wire.post("/rcp/retrieve", request("retrieve", params), accept="text/event-stream")
            await bench.started.wait()
            stop.set()


@obligation(79)
async def test_a_stdio_session_that_is_told_to_stop_answers_first() -> None:
    bench = Bench()
    with fail_after(5):
        async with stdio(bench) as pipes:
            pipes.send(request("initialize", id=0) + b"\n" + HOLD + b"\n")
            await bench.started.wait()
            pipes.stop.set()
            bench.release.set()
            assert [frame["id"] for frame in await pipes.rest()] == [0, "h"]


@obligation(79)
async def test_a_stdio_call_that_does_not_end_in_time_is_answered_with_an_error() -> None:
    bench = Bench()
    with fail_after(5):
        async with stdio(bench, drain_timeout=0.1) as pipes:
            pipes.send(request("initialize", id=0) + b"\n" + HOLD + b"\n")
            await bench.started.wait()
            pipes.close_stdin()
            frames = await pipes.rest()
    assert [frame["id"] for frame in frames] == [0, "h"]
    assert frames[1]["error"]["code"] in {-32010, -32006}
    assert bench.cancelled.is_set()
