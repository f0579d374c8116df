"""What the host lends to one engine: the production :class:`gateway.spi.engine.EngineContext`."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TypeVar

import anyio.to_thread

from gateway.errors import Cancelled
from gateway.federation.process import ChildProcess, spawn
from gateway.secret import Secret
from gateway.spi.http import HttpClient, HttpSettings, open_http

__all__ = ["HostContext"]

T = TypeVar("T")


class HostContext:
    """One per engine. ``threads`` bounds how many blocking calls of this engine run at once."""

    def __init__(
        self, id: str, base_dir: Path, *, http: HttpSettings, threads: int = 4, seed: int | None = None
    ) -> None:
        self.id = id
        self.base_dir = base_dir
        self.logger = logging.getLogger(f"gateway.engine.{id}")
        self.random = random.Random(seed)  # noqa: S311  # jitter, not secrets
        self._http = http
        self._threads = asyncio.Semaphore(threads)
        self._unlimited = anyio.CapacityLimiter(10_000)

    def clock(self) -> float:
        return time.monotonic()

    def now(self) -> float:
        return time.time()

    def http(
        self, base_url: str, *, headers: Mapping[str, str | Secret] | None = None, settings: HttpSettings | None = None
    ) -> AbstractAsyncContextManager[HttpClient]:
        return open_http(settings or self._http, base_url, headers=headers or {})

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Runs ``function`` in a daemon thread with the current context.

        A caller that is cancelled goes at once; the thread cannot, so its place stays taken until it ends: a hanging
        vendor SDK can use up its own places and nobody else's.
        """
        loop = asyncio.get_running_loop()
        await self._threads.acquire()
        ticket = [None]  # whoever takes it owes the place back: the thread when it ends, or the caller that left first

        def run() -> T:
            try:
                ticket.pop()
            except IndexError:
                raise Cancelled("the call was cancelled before its thread began") from None
            try:
                return function()
            finally:
                loop.call_soon_threadsafe(self._threads.release)

        try:
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._unlimited)
        finally:
            if ticket:
                with suppress(IndexError):
                    ticket.pop()
                    self._threads.release()

    def spawn(
        self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[ChildProcess]:
        return spawn(argv, cwd=cwd or self.base_dir, env=env, logger=self.logger)
