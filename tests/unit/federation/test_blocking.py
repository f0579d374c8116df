"""Blocking calls of an engine: bounded, in the caller's context, and never in anybody else's way."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from anyio import fail_after

from gateway.federation.context import HostContext, Threads
from gateway.spi.http import HttpSettings

pytestmark = pytest.mark.anyio


def context(threads: int = 4) -> HostContext:
    return HostContext("engine", Path(), http=HttpSettings(), threads=threads)


async def until(true: Callable[[], bool]) -> None:
    with fail_after(5):
        while not true():
            await asyncio.sleep(0.002)


async def test_the_result_and_the_error_of_a_call_come_back() -> None:
    host = context()
    assert await host.run_blocking(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await host.run_blocking(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await host.run_blocking(lambda: next(iter(())))
    assert await host.run_blocking(lambda: "still works") == "still works"


async def test_a_call_runs_in_a_copy_of_the_callers_context() -> None:
    """R58: spans that begin in the thread have the call's span as their parent."""
    span = contextvars.ContextVar[str]("span")

    def work() -> str:
        seen = span.get()
        span.set("the thread's own")
        return seen

    async def call(name: str) -> str:
        span.set(name)
        seen = await host.run_blocking(work)
        assert span.get() == name
        return seen

    host = context(2)
    names = [f"call {number}" for number in range(8)]
    assert await asyncio.gather(*map(call, names)) == names


async def test_no_more_calls_run_at_once_than_there_are_threads() -> None:
    host = context(3)
    running = peak = 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    await asyncio.gather(*(host.run_blocking(work) for _ in range(20)))
    assert peak == 3


async def test_the_loop_stays_responsive_under_twenty_blocking_calls() -> None:
    """R28: a synchronous SDK that takes 200 ms."""
    host = context(4)
    worst = 0.0

    async def ping() -> None:
        nonlocal worst
        while True:
            asked = time.perf_counter()
            await asyncio.sleep(0)
            worst = max(worst, time.perf_counter() - asked)
            await asyncio.sleep(0.005)

    pinging = asyncio.create_task(ping())
    started = time.monotonic()
    await asyncio.gather(*(host.run_blocking(lambda: time.sleep(0.2)) for _ in range(20)))
    took = time.monotonic() - started
    pinging.cancel()
    assert worst < 0.05
    assert took > 0.99, "four at a time"


async def test_a_caller_that_is_cancelled_goes_at_once_and_its_thread_keeps_the_place() -> None:
    host = context(1)
    began, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        go_on.wait(10)

    first = asyncio.create_task(host.run_blocking(hang))
    await until(began.is_set)
    first.cancel()
    with fail_after(1):
        await asyncio.wait({first})
    assert first.cancelled()

    second = asyncio.create_task(host.run_blocking(lambda: "second"))
    await asyncio.sleep(0.05)
    assert not second.done(), "the orphan still holds the only place"
    assert await context(1).run_blocking(lambda: "another engine") == "another engine"
    go_on.set()
    with fail_after(5):
        assert await second == "second"


async def test_a_caller_that_is_cancelled_while_it_waits_gives_its_place_back() -> None:
    host = context(1)
    go_on = threading.Event()
    ran: list[int] = []
    first = asyncio.create_task(host.run_blocking(lambda: go_on.wait(10)))
    waiting = [asyncio.create_task(host.run_blocking(lambda n=n: ran.append(n))) for n in range(5)]  # type: ignore[misc]
    await asyncio.sleep(0)
    for task in waiting[:4]:
        task.cancel()
    await asyncio.wait(waiting[:4])
    go_on.set()
    with fail_after(5):
        await asyncio.gather(first, waiting[4])
    assert ran == [4]


async def test_no_place_is_lost_whenever_a_caller_is_cancelled() -> None:
    host = context(2)
    for steps in range(40):
        task = asyncio.create_task(host.run_blocking(lambda: time.sleep(0.001)))
        for _ in range(steps % 8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    both = threading.Barrier(2, timeout=5)
    with fail_after(5):
        await asyncio.gather(host.run_blocking(both.wait), host.run_blocking(both.wait))


async def test_threads_are_used_again_and_end_with_their_owner() -> None:
    threads = Threads(2)
    for _ in range(10):
        await threads.run(lambda: None)
    ids = {await threads.run(threading.get_ident) for _ in range(10)}
    assert len(ids) == 1
    del threads
    gc.collect()
    await until(lambda: not ids & {thread.ident for thread in threading.enumerate()})


async def test_a_result_is_not_kept_by_the_thread_that_made_it() -> None:
    class Large:
        alive = 0

        def __init__(self) -> None:
            Large.alive += 1

        def __del__(self) -> None:
            Large.alive -= 1

    threads = Threads(1)
    await threads.run(Large)
    await until(lambda: Large.alive == 0)


def test_a_call_that_hangs_does_not_keep_the_program_from_ending() -> None:
    code = """
        import asyncio, threading
        from pathlib import Path
        from gateway.federation.context import HostContext
        from gateway.spi.http import HttpSettings

        async def main():
            host = HostContext("x", Path(), http=HttpSettings())
            began = threading.Event()
            def hang():
                began.set()
                threading.Event().wait()
            task = asyncio.create_task(host.run_blocking(hang))
            while not began.is_set():
                await asyncio.sleep(0.001)
            task.cancel()

        asyncio.run(main())
        print("ended")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)
