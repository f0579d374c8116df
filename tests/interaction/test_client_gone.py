"""A client that goes away takes its work with it, within a second (RCP sections 7.14 and 13.1)."""

from __future__ import annotations

import asyncio

import pytest
from anyio import fail_after

from gateway.transports.server import serve
from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import Wire, connect, exchange, head, notification, request, stdio

pytestmark = pytest.mark.anyio

HOLD = request("retrieve", {"query": "hold", "_meta": {"progressToken": 1}})


@obligation(105, 203)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_closing_the_connection_cancels_the_call(accept: str) -> None:
    bench = Bench()
    async with serve(bench.app()) as address, Wire.to(address) as wire:
        with fail_after(5):
            await wire.post("/rcp/retrieve", HOLD, accept=accept)
            await bench.started.wait()
        wire.hang_up()
        with fail_after(1):
            await bench.cancelled.wait()
        assert bench.running == 0
        with fail_after(5):
            assert (await exchange(address, "/rcp/ping", request("ping"))).status == 200


@obligation(105)
async def test_closing_in_an_orderly_way_is_leaving_too() -> None:
    bench = Bench()
    async with serve(bench.app()) as address, Wire.to(address) as wire:
        with fail_after(5):
            await wire.post("/rcp/retrieve", HOLD)
            await bench.started.wait()
        wire.writer.close()
        with fail_after(1):
            await bench.cancelled.wait()


@obligation(105)
async def test_leaving_amid_a_stream_whose_events_nobody_read_cancels_the_call() -> None:
    bench = Bench()
    async with serve(bench.app(silence=0.001)) as address, Wire.to(address) as wire:
        with fail_after(5):
            await wire.post("/rcp/retrieve", HOLD, accept="text/event-stream")
            await bench.started.wait()
            await wire.head()
        wire.hang_up()
        with fail_after(1):
            await bench.cancelled.wait()


async def test_leaving_before_the_body_is_whole_runs_nothing() -> None:
    bench = Bench()
    with fail_after(5):
        async with serve(bench.app()) as address:
            async with Wire.to(address) as wire:
                await wire.send(head("/rcp/retrieve", content_length=str(len(HOLD))) + HOLD[:-1])
            assert (await exchange(address, "/rcp/ping", request("ping"))).status == 200
    assert not bench.started.is_set()


@obligation(110)
async def test_one_clients_leaving_does_not_touch_the_other_with_the_same_id() -> None:
    bench = Bench()
    async with serve(bench.app()) as address, Wire.to(address) as stays:
        with fail_after(5):
            async with Wire.to(address) as leaves:
                await stays.post("/rcp/retrieve", HOLD)
                await bench.started.wait()
                bench.started.clear()
                await leaves.post("/rcp/retrieve", HOLD)
                await bench.started.wait()
            await bench.cancelled.wait()
            bench.release.set()
            assert "result" in (await stays.response()).json


@obligation(110)
async def test_a_cancel_without_a_session_reaches_nobody_elses_call() -> None:
    bench = Bench()
    with fail_after(5):
        async with serve(bench.app()) as address, Wire.to(address) as wire:
            await wire.post("/rcp/retrieve", HOLD)
            await bench.started.wait()
            cancel = notification("notifications/cancel", {"id": 1})
            assert (await exchange(address, "/rcp/notifications/cancel", cancel)).status == 204
            assert bench.running == 1
            bench.release.set()
            assert "result" in (await wire.response()).json


@obligation(202, 203)
async def test_with_a_session_a_cancel_on_another_connection_ends_the_call() -> None:
    bench = Bench()
    with fail_after(5):
        async with serve(bench.app()) as address, Wire.to(address) as wire:
            hello = (await exchange(address, "/rcp", request("initialize"))).json
            session = {"rcp_session": hello["result"]["_meta"]["session"]}
            await wire.post("/rcp/retrieve", HOLD, **session)
            await bench.started.wait()
            await exchange(address, "/rcp", notification("notifications/cancel", {"id": 1}), **session)
            assert (await wire.response()).json["error"]["code"] == -32006
    assert bench.cancelled.is_set()


@obligation(202)
async def test_on_stdio_a_cancelled_call_is_still_answered_once() -> None:
    bench = Bench()
    async with connect("stdio", bench) as client:
        with fail_after(5):
            call = asyncio.create_task(client.call("retrieve", {"query": "hold"}, id=5))
            await bench.started.wait()
            await client.notify("notifications/cancel", {"id": 5})
            frame = await call
        assert frame["error"]["code"] == -32006
        assert bench.cancelled.is_set()


@obligation(81)
async def test_a_reader_that_goes_away_ends_a_stdio_session_and_its_calls() -> None:
    bench = Bench()
    with fail_after(5):
        async with stdio(bench) as pipes:
            pipes.send(request("initialize") + b"\n")
            await pipes.frame()
            pipes.send(HOLD + b"\n")
            await bench.started.wait()
            pipes.close_stdout()
            await bench.cancelled.wait()
            await pipes.serving
