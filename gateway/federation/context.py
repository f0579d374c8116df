"""What the host lends to one engine: the production :class:`gateway.spi.engine.EngineContext`."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, TypeVar

from gateway.federation.process import ChildProcess, spawn
from gateway.secret import Secret
from gateway.spi.http import HttpClient, HttpSettings, open_http

__all__ = ["HostContext", "Threads"]

T = TypeVar("T")
_Job = Callable[[], None]


class HostContext:
    """One per engine and opening. ``threads`` bounds how many blocking calls of this engine run at once."""

    def __init__(
        self, id: str, base_dir: Path, *, http: HttpSettings, threads: int = 4, seed: int | None = None
    ) -> None:
        self.id = id
        self.base_dir = base_dir
        self.logger = logging.getLogger(f"gateway.engine.{id}")
        self.random = random.Random(seed)  # noqa: S311  # jitter, not secrets
        self._http = http
        self._threads = Threads(threads)

    def clock(self) -> float:
        return time.monotonic()

    def now(self) -> float:
        return time.time()

    def http(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str | Secret | None] | None = None,
        settings: HttpSettings | None = None,
    ) -> AbstractAsyncContextManager[HttpClient]:
        return open_http(settings or self._http, base_url, headers=headers or {})

    async def run_blocking(self, function: Callable[[], T]) -> T:
        return await self._threads.run(function)

    def spawn(
        self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[ChildProcess]:
        return spawn(argv, cwd=cwd or self.base_dir, env=env, logger=self.logger)


class Threads:
    """At most ``limit`` daemon threads for blocking calls, kept while their owner lives.

    Daemons, unlike the workers of anyio and of the standard library's executor: a vendor's SDK that hangs must not keep
    the gateway from ending.
    """

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        self._idle: list[queue.SimpleQueue[_Job | None]] = []
        weakref.finalize(self, _dismiss, self._idle).atexit = False

    async def run(self, function: Callable[[], T]) -> T:
        """Runs ``function`` in a thread, in a copy of the current context.

        A caller that is cancelled goes at once; the thread cannot, so its place stays taken until it ends: an engine
        that hangs can use up its own places and nobody else's.
        """
        await self._places.acquire()
        # From here to the thread there is no await, so no cancellation can lose the place.
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()
        jobs = self._idle.pop() if self._idle else _start()

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = context.run(function)
            except BaseException as caught:  # noqa: BLE001  # it is raised again, in the task that waits
                error = caught
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._ended, jobs, future, result, error)
            del error  # its traceback refers to this frame

        jobs.put(job)
        return await future

    def _ended(
        self, jobs: queue.SimpleQueue[_Job | None], future: asyncio.Future[T], result: T, error: BaseException | None
    ) -> None:
        self._idle.append(jobs)
        self._places.release()
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # which a future does not take
            future.set_exception(RuntimeError("a blocking call raised StopIteration"))
        else:
            future.set_exception(error)


def _start() -> queue.SimpleQueue[_Job | None]:
    jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
    threading.Thread(target=_work, args=(jobs,), name="engine", daemon=True).start()
    return jobs


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds the result, and what the call closed over


def _dismiss(idle: list[queue.SimpleQueue[_Job | None]]) -> None:
    for jobs in idle:
        jobs.put(None)
