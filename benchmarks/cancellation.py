"""A client that leaves must stop the engines: of 100 calls that are cancelled, how many does the engine see end?"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from urllib.parse import urlsplit

from benchmarks import load
from benchmarks.engines import Engine, serve
from benchmarks.fan_out import gateway
from benchmarks.table import show

CALLS = 100
WITHIN = 0.1


class Holding(Engine):
    """Answers a query that begins with ``hold`` never, and says when its connection ends."""

    held: asyncio.Queue[Holding]

    def asked(self, body: bytes) -> None:
        if b'"hold' not in body:
            super().asked(body)
            return
        self.ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.held.put_nowait(self)

    def connection_lost(self, exc: Exception | None) -> None:
        ended = getattr(self, "ended", None)
        if ended is not None and not ended.done():
            ended.set_result(time.perf_counter())


async def _one(url: str) -> float:
    """Seconds from the client's leaving to the engine's knowing; infinite if it never knew."""
    parts = urlsplit(url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(load.request(url, "hold on"))
    engine = await asyncio.wait_for(Holding.held.get(), 5)
    writer.close()
    left = time.perf_counter()
    try:
        return await asyncio.wait_for(engine.ended, 2) - left
    except TimeoutError:
        return float("inf")


async def _measured(calls: int) -> None:
    Holding.held = asyncio.Queue()
    servers, urls = await serve(Holding, 1)
    opened = gateway(urls)
    running = await asyncio.to_thread(opened.__enter__)
    try:
        found = [await _one(running.url) for _ in range(calls)]
    finally:
        await asyncio.to_thread(opened.__exit__, None, None, None)
        for server in servers:
            server.close()
    seen = sum(seconds <= WITHIN for seconds in found)
    show(
        "Cancelled calls that the engine saw end",
        ("calls", f"within {WITHIN * 1000:.0f} ms", "median ms", "slowest ms"),
        [(calls, f"{seen / calls:.0%}", f"{statistics.median(found) * 1e3:.1f}", f"{max(found) * 1e3:.1f}")],
    )


def main(quick: bool = False) -> None:
    asyncio.run(_measured(CALLS // 5 if quick else CALLS))


if __name__ == "__main__":
    main(bool(os.environ.get("QUICK")))
