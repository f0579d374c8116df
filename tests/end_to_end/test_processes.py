"""The processes that users start: how they begin, what they survive, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from anyio import fail_after

from gateway.transports.server import serve
from tests.end_to_end.running import (
    HOSTILE,
    SDK,
    Serving,
    alive,
    child,
    config,
    free_port,
    memory,
    on_stdio,
    opened,
    peer_over_http,
    serving,
    upstream,
    written,
)
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.schema import check_exchange
from tests.transports import Frame, Wire, events, exchange, request

pytestmark = pytest.mark.anyio

QUERY = {"query": "Paris", "k": 10}
HELD = request("retrieve", QUERY, id="held")


async def asked(gateway: Serving, params: object = QUERY) -> Frame:
    """The answer of a serving gateway to a retrieve."""
    sent = request("retrieve", params)
    response = await exchange(gateway.address, "/rcp/retrieve", sent)
    frame: Frame = check_exchange(sent, response.body)
    return frame


def ids(frame: Frame) -> list[str]:
    return [hit["id"] for hit in frame["result"]["hits"]]


def degraded(frame: Frame) -> list[str]:
    told: list[str] = frame["result"].get("_meta", {}).get("degraded", [])
    return told


# A child engine that dies --------------------------------------------------------------------------------------------


@obligation(215)
@pytest.mark.parametrize("front", ["http", "stdio"])
async def test_killing_a_child_engine_ends_its_calls_at_once(front: str, tmp_path: Path, reports: Reports) -> None:
    engine = upstream(own=child(HOSTILE, "hang", reports=reports), timeout=20, retry={"attempts": 1})
    path = written(tmp_path, config(memory(), engine))
    with fail_after(30):
        if front == "http":
            async with serving(path) as gateway:
                call = asyncio.create_task(asked(gateway))
                await reports.frame("retrieve")
                (pid,) = gateway.children()
                started = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                frame = await call
        else:
            async with on_stdio(path) as gateway:
                call = asyncio.create_task(gateway.call("retrieve", QUERY))
                await reports.frame("retrieve")
                (pid,) = gateway.children()
                started = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                frame = await call
    assert time.monotonic() - started < 5  # and not at the deadline
    assert sorted(ids(frame)) == ["m1", "m3"]
    assert degraded(frame) == ["far"]


@obligation(215, 216)
async def test_a_killed_child_engine_comes_back(tmp_path: Path, reports: Reports) -> None:
    engine = upstream(own=child(SDK, reports=reports, restart_delay=0.1))
    with fail_after(30):
        async with serving(written(tmp_path, config(memory(), engine))) as gateway:
            assert {"d1", "d2", "d3"} <= set(ids(await asked(gateway)))
            (old,) = gateway.children()
            os.kill(old, signal.SIGKILL)
            await reports.until("start", 2)
            while degraded(frame := await asked(gateway)):  # until it has shaken hands
                assert ids(frame)
            assert {"d1", "d2", "d3"} <= set(ids(frame))
            (new,) = gateway.children()
    assert new != old


# Engines that are down at the start ----------------------------------------------------------------------------------


@obligation(55, 233)
async def test_a_gateway_starts_without_its_engines_says_so_and_heals(tmp_path: Path) -> None:
    port = free_port()
    missing = upstream("missing", own={"command": [str(tmp_path / "no-such-program")]})
    near = config(memory(), upstream(own={"url": f"http://127.0.0.1:{port}/rcp"}), missing)
    with fail_after(60):
        async with serving(written(tmp_path, near)) as gateway:
            await gateway.says("engine far is not open yet: .+")
            await gateway.says("engine missing is not open yet: .*cannot start")
            frame = await asked(gateway)
            assert sorted(ids(frame)) == ["m1", "m3"]
            assert sorted(degraded(frame)) == ["far", "missing"]
            notes = " ".join(frame["result"]["usage"]["notes"])
            assert "far" in notes
            assert "missing" in notes
            async with opened(memory(documents=[{"id": "f1", "text": "Paris"}]), name="far") as far:
                async with serve(far.app(), port=port):
                    await gateway.says("engine far is open")
                    frame = await asked(gateway)
            assert sorted(ids(frame)) == ["f1", "m1", "m3"]
            assert degraded(frame) == ["missing"]


@obligation(235)
async def test_a_gateway_all_of_whose_engines_are_down_answers_with_an_error(tmp_path: Path) -> None:
    down = upstream(own={"url": f"http://127.0.0.1:{free_port()}/rcp"})
    with fail_after(30):
        async with on_stdio(written(tmp_path, config(down))) as gateway:
            info = await gateway.call("info")
            frame = await gateway.call("retrieve", QUERY)
    assert "retrieve" in info["result"]["capabilities"]
    assert frame["error"]["code"] == -32010


# The end -------------------------------------------------------------------------------------------------------------


@obligation(79, 80)
@pytest.mark.parametrize("behaviour", ["ok", "ignoresshutdown", "stderr", "hang"])
async def test_at_the_end_of_input_nothing_is_left_behind(behaviour: str, tmp_path: Path, reports: Reports) -> None:
    engine = upstream(own=child(HOSTILE, behaviour, reports=reports), timeout=1)
    with fail_after(30):
        async with on_stdio(written(tmp_path, config(memory(), engine))) as gateway:
            call = asyncio.create_task(gateway.call("retrieve", QUERY))
            await reports.frame("retrieve")
            children = gateway.children()
            assert children
            gateway.close_stdin()
            assert {"m1", "m3"} <= set(ids(await call))
            assert await gateway.ended() == 0
    assert not alive(children)


@obligation(80)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_serving_gateway_and_its_children(number: int, tmp_path: Path, reports: Reports) -> None:
    engine = upstream(own=child(HOSTILE, "ok", reports=reports))
    with fail_after(30):
        async with serving(written(tmp_path, config(memory(), engine))) as gateway:
            assert not degraded(await asked(gateway))
            children = gateway.children()
            gateway.process.send_signal(number)
            assert await gateway.ended(5) == 0
            assert gateway.process.stdout is not None
            assert await gateway.process.stdout.read() == b""
    assert children
    assert not alive(children)
    assert not any("Traceback" in line or "jsonrpc" in line for line in gateway.said)


@obligation(102)
@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_call_on_a_hanging_engine_does_not_hold_up_the_end(
    over: str, accept: str, tmp_path: Path, reports: Reports
) -> None:
    async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
        own = child(HOSTILE, "hang", reports=reports)
        if over == "http":
            own = {"url": await stack.enter_async_context(peer_over_http(reports, HOSTILE, "hang"))}
        content = config(memory(), upstream(own=own, timeout=25), http={"drain_timeout": 0.5})
        gateway = await stack.enter_async_context(serving(written(tmp_path, content)))
        wire = await stack.enter_async_context(Wire.to(gateway.address))
        await wire.post("/rcp/retrieve", HELD, accept=accept)
        await reports.frame("retrieve")
        children = gateway.children()
        gateway.terminate()
        response = await wire.response()
        (frame,) = events(response.body) if "event" in accept else [response.json]
        assert frame["id"] == "held"
        assert frame["error"]["code"] in {-32010, -32006}
        assert await gateway.ended(5) == 0
        assert not alive(children)


@obligation(80)
async def test_a_gateway_that_is_still_opening_its_engines_ends_at_once(tmp_path: Path, reports: Reports) -> None:
    engine = upstream(own=child(HOSTILE, "handshakehangs", reports=reports, handshake_timeout=60))
    with fail_after(30):
        async with on_stdio(written(tmp_path, config(memory(), engine)), handshake=False) as gateway:
            await reports.frame("initialize")
            children = gateway.children()
            gateway.terminate()
            assert await gateway.ended(5) == 0
    assert children
    assert not alive(children)


@obligation(81)
async def test_a_gateway_whose_reader_has_gone_ends_and_takes_its_children_along(
    tmp_path: Path, reports: Reports
) -> None:
    engine = upstream(own=child(HOSTILE, "hang", reports=reports))
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "rcp-gateway"), "stdio"),
        *("-c", str(written(tmp_path, config(memory(), engine)))),
        stdin=asyncio.subprocess.PIPE,
        stdout=write,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        os.close(write)
        assert process.stdin is not None
        with fail_after(20):
            process.stdin.write(request("initialize", id=0) + b"\n" + HELD + b"\n")
            pid = (await reports.until("start"))["pid"]
            await reports.frame("retrieve")
            os.close(read)
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert not alive({pid})


# Memory --------------------------------------------------------------------------------------------------------------


@obligation(83, 224)
async def test_a_line_of_a_gibibyte_does_not_fill_the_memory(tmp_path: Path) -> None:
    piece = b"x" * (4 << 20)
    with fail_after(60):
        async with on_stdio(written(tmp_path, config(memory()))) as gateway:
            before = gateway.memory_peak()
            assert gateway.process.stdin is not None
            refused = asyncio.get_running_loop().create_future()
            gateway._waiting["null"] = refused
            for _ in range((1 << 30) // len(piece)):
                gateway.process.stdin.write(piece)
                await gateway.process.stdin.drain()
            gateway.send(b"")
            assert b"-32013" in await refused
            assert sorted(ids(await gateway.call("retrieve", QUERY))) == ["m1", "m3"]
            assert gateway.memory_peak() < before + (100 << 20)


@obligation(224)
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_an_upstreams_answer_of_two_hundred_megabytes_costs_only_that_call(
    over: str, tmp_path: Path, reports: Reports
) -> None:
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        own = child(HOSTILE, "longline", reports=reports)
        if over != "stdio":
            url = await stack.enter_async_context(peer_over_http(reports, HOSTILE, "longline"))
            own = {"url": url}
        engine = upstream(own=own, timeout=3, retry={"attempts": 1})
        gateway = await stack.enter_async_context(serving(written(tmp_path, config(memory(), engine))))
        before = gateway.memory_peak()
        call = asyncio.create_task(asked(gateway, QUERY))
        await reports.frame("retrieve")
        with fail_after(2):
            await exchange(gateway.address, "/rcp/ping", request("ping"))
        frame = await call
        assert sorted(ids(frame)) == ["m1", "m3"]
        assert degraded(frame) == ["far"]
        assert gateway.memory_peak() < before + (150 << 20)
