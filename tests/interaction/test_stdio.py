"""RCP over stdio, section 5.1: over pipes in this process, and over those of a real child."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio import fail_after

from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import HANDSHAKE, notification, request, stdio

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
HELLO = request("initialize", HANDSHAKE, id=0) + b"\n"
HOLD = request("retrieve", {"query": "hold"}, id="h") + b"\n"
PING = request("ping", id="p") + b"\n"


@obligation(72, 73)
async def test_a_frame_is_one_compact_line_without_a_mark() -> None:
    with fail_after(5):
        async with stdio(Bench()) as pipes:
            pipes.send(HELLO + request("retrieve", {"query": "a\nb"}) + b"\n")
            lines = [await pipes.line(), await pipes.line()]
    for line in lines:
        assert line.startswith(b"{")
        assert line.endswith(b"}\n")
        assert b'": ' not in line
    assert json.loads(lines[1])["result"]["hits"][0]["text"].startswith("a\nb")


@obligation(74)
async def test_blank_lines_and_carriage_returns_are_nothing() -> None:
    with fail_after(5):
        async with stdio(Bench()) as pipes:
            pipes.send(b"\xef\xbb\xbf\n\r\n  \n" + PING.replace(b"\n", b"\r\n") + b"\n")
            pipes.close_stdin()
            assert [frame["id"] for frame in await pipes.rest()] == ["p"]


@obligation(75)
async def test_a_frame_may_come_in_pieces() -> None:
    with fail_after(5):
        async with stdio(Bench()) as pipes:
            pipes.send(HELLO)
            await pipes.frame()
            for piece in (PING[:5], PING[5:20], PING[20:]):
                pipes.send(piece)
                # An answered line between the pieces would be another session's; a turn of the loop lets them go out.
                await asyncio.sleep(0)
            assert (await pipes.frame())["id"] == "p"


@obligation(82, 65)
async def test_a_fast_call_overtakes_a_slow_one() -> None:
    bench = Bench()
    with fail_after(5):
        async with stdio(bench) as pipes:
            pipes.send(HELLO + HOLD + PING)
            assert (await pipes.frame())["id"] == 0
            assert (await pipes.frame())["id"] == "p"
            bench.release.set()
            assert (await pipes.frame())["id"] == "h"


@obligation(79)
@pytest.mark.parametrize("last", [b"\n", b""])
async def test_at_the_end_of_input_what_was_asked_is_answered(last: bytes) -> None:
    with fail_after(5):
        async with stdio(Bench()) as pipes:
            pipes.send(HELLO + request("retrieve", {"query": "x"}, id=1) + last)
            pipes.close_stdin()
            assert [frame["id"] for frame in await pipes.rest()] == [0, 1]


@obligation(69)
async def test_nothing_behind_a_shutdown_is_processed() -> None:
    bench = Bench()
    with fail_after(5):
        async with stdio(bench) as pipes:
            pipes.send(HELLO + request("shutdown", id="s") + b"\n" + PING + HOLD)
            assert [frame["id"] for frame in await pipes.rest()] == [0, "s"]
            await pipes.serving  # though stdin is still open
    assert not bench.started.is_set()


@obligation(69)
async def test_a_call_in_flight_at_shutdown_is_still_answered() -> None:
    bench = Bench()
    with fail_after(5):
        async with stdio(bench) as pipes:
            pipes.send(HELLO + HOLD)
            await bench.started.wait()
            pipes.send(request("shutdown", id="s") + b"\n")
            assert [(await pipes.frame())["id"] for _ in range(2)] == [0, "s"]
            bench.release.set()
            assert [frame.get("id") for frame in await pipes.rest()] == ["h"]


@obligation(83, 117)
async def test_an_endless_line_is_answered_before_it_ends_and_the_session_survives() -> None:
    with fail_after(20):
        async with stdio(Bench(), line_limit=1 << 20) as pipes:
            pipes.send(HELLO)
            await pipes.frame()
            for _ in range(64):
                pipes.send(b"x" * (1 << 20))
            frame = await pipes.frame()
            assert (frame["id"], frame["error"]["code"]) == (None, -32013)
            pipes.send(b"\n" + PING)
            assert (await pipes.frame())["id"] == "p"


@obligation(83)
async def test_a_frame_larger_than_any_default_buffer_goes_both_ways() -> None:
    nonce = "x" * (3 << 20)
    with fail_after(10):
        async with stdio(Bench()) as pipes:
            pipes.send(request("ping", {"nonce": nonce}) + b"\n")
            assert (await pipes.frame())["result"]["nonce"] == nonce


@obligation(84)
async def test_ten_thousand_pipelined_calls_are_all_answered() -> None:
    count = 10_000
    with fail_after(30):
        async with stdio(Bench()) as pipes:
            pipes.send(HELLO + b"".join(request("retrieve", {"query": "x"}, id=i) + b"\n" for i in range(1, count)))
            pipes.close_stdin()
            frames = await pipes.rest()
    assert sorted(frame["id"] for frame in frames) == list(range(count))


@obligation(84)
async def test_a_client_that_writes_and_never_reads_is_held_back() -> None:
    bench = Bench()
    with fail_after(20):
        async with stdio(bench, in_flight=4, drain_timeout=0.1) as pipes:
            pipes.reader._transport.pause_reading()  # type: ignore[attr-defined]
            pipes.send(HELLO + HOLD * 64 + HOLD.replace(b"hold", b"big") * 4096)
            await bench.started.wait()
            assert bench.running <= 4
            assert pipes.writer.get_write_buffer_size() > 0
            pipes.close_stdout()


@obligation(85, 66)
async def test_frames_of_calls_at_the_same_time_are_never_mixed() -> None:
    with fail_after(10):
        async with stdio(Bench()) as pipes:
            pipes.send(HELLO)
            for id in range(1, 101):
                query = "big" if id % 10 == 0 else "steps"
                params = {"query": query, "_meta": {"progressToken": id}}
                pipes.send(request("retrieve", params, id=id) + b"\n")
            pipes.close_stdin()
            frames = await pipes.rest()
    answered: set[int] = set()
    for frame in frames:
        if "method" in frame:
            assert frame["params"]["progressToken"] not in answered  # no progress behind the answer
        else:
            answered.add(frame["id"])
    assert answered == set(range(101))


@obligation(81)
async def test_an_idle_session_notices_that_nobody_reads_any_more() -> None:
    with fail_after(5):
        async with stdio(Bench()) as pipes:
            pipes.send(HELLO)
            await pipes.frame()
            pipes.close_stdout()
            await pipes.serving


# With a real child ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.interaction.stdio_child", *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        limit=1 << 24,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@obligation(76, 77, 78)
async def test_only_frames_reach_stdout_whoever_writes() -> None:
    with fail_after(20):
        async with child("noise") as process:
            calls = HELLO + request("retrieve", {"query": "noise"}, id=1) + b"\n"
            out, err = await process.communicate(calls)
    assert [json.loads(line)["id"] for line in out.splitlines()] == [0, 1]
    assert b"noise: printed before" in err
    assert b"noise: from a child" in err
    assert b"noise: through the original" in err
    assert b"jsonrpc" not in err
    assert process.returncode == 0


@obligation(79)
async def test_the_process_ends_with_its_input_in_bounded_time() -> None:
    with fail_after(10):
        async with child() as process:
            out, err = await process.communicate(HELLO + PING)
    assert len(out.splitlines()) == 2
    assert (process.returncode, err) == (0, b"")


@obligation(69)
async def test_the_process_ends_after_shutdown_although_its_input_stays_open() -> None:
    with fail_after(10):
        async with child() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(HELLO + request("shutdown", id=1) + b"\n" + PING)
            out = await process.stdout.read()
            assert await process.wait() == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == [0, 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_although_its_input_stays_open(number: int) -> None:
    with fail_after(10):
        async with child() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(HELLO)
            await process.stdout.readline()
            process.send_signal(number)
            assert await process.wait() == 0
            assert process.stderr is not None
            assert await process.stderr.read() == b""


@obligation(81)
async def test_the_process_ends_without_a_word_when_nobody_reads() -> None:
    read, write = os.pipe()
    with fail_after(10):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.interaction.stdio_child"),
            stdin=subprocess.PIPE,
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        os.close(write)
        os.close(read)
        _, err = await process.communicate(HELLO + PING * 100)
    assert (process.returncode, err) == (0, b"")


async def test_a_parent_that_made_the_pipe_non_blocking_loses_nothing() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with fail_after(20):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.interaction.stdio_child"),
            stdin=subprocess.PIPE,
            stdout=write,
            cwd=ROOT,
        )
        os.close(write)
        assert process.stdin is not None
        big = [request("retrieve", {"query": "big"}, id=id) + b"\n" for id in range(1, 20)]
        process.stdin.write(HELLO + b"".join(big) + notification("notifications/x") + b"\n")
        process.stdin.close()
        with os.fdopen(read, "rb") as stream:
            out = await asyncio.to_thread(stream.read)
        assert await process.wait() == 0
    assert sorted(json.loads(line)["id"] for line in out.splitlines()) == list(range(20))
