"""A retrieve in process against the same one over HTTP on loopback, and against the handler alone, without a boundary.

One process and one loop for all of them: CPU is that of the process, so the HTTP figure holds the (cheap) client's part
too. Rounds alternate.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.engines import hits
from benchmarks.load import request
from benchmarks.table import show

ENGINES = 3
QUERY = "rank fusion"


def _config() -> dict[str, object]:
    return {
        "name": "bench",
        "http": {"port": 0},
        "engines": [
            {
                "id": f"e{n}",
                "kind": "memory",
                "with": {"documents": [{key: hit[key] for key in ("id", "text", "meta")} for hit in hits(n)]},
            }
            for n in range(ENGINES)
        ],
    }


async def _microseconds(ask: Callable[[], Awaitable[object]], rounds: int) -> float:
    began = time.process_time()
    for _ in range(rounds):
        await ask()
    return (time.process_time() - began) / rounds * 1e6


async def _measure(quick: bool) -> None:
    from gateway import Gateway
    from gateway.app import open_gateway
    from gateway.caller import ANONYMOUS
    from gateway.cli.serve import over_http
    from gateway.config import load_value
    from gateway.model import RetrieveRequest
    from gateway.protocol.call import Notifier, RequestCall

    config = load_value(_config(), base_dir=Path())
    async with Gateway(config) as gateway, open_gateway(config) as opened, over_http(opened, port=0) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        sent = request(f"{address.url}/rcp", QUERY)

        async def handler() -> object:
            notifier = Notifier(None, token=None, log_level=None, limit=0)
            call = RequestCall(ANONYMOUS, opened.service.snapshot(ANONYMOUS), {}, notifier)
            return await opened.service.handlers["retrieve"](RetrieveRequest(query=QUERY, k=10), call)

        async def typed() -> object:
            return await gateway.retrieve(QUERY, k=10)

        async def plain() -> object:
            return await gateway.call("retrieve", {"query": QUERY, "k": 10})

        async def http() -> object:
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            return await reader.readexactly(length)

        ways = {"the handler alone": handler, "retrieve(…)": typed, "call(…)": plain, "HTTP, keep-alive": http}
        rounds = 100 if quick else 500
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3 if quick else 9):
            for name, ask in ways.items():
                found[name].append(await _microseconds(ask, rounds))
        writer.close()
    base = statistics.median(found["the handler alone"])
    rows = [
        (name, f"{statistics.median(took):.0f}", f"{statistics.median(took) / base:.2f}")
        for name, took in found.items()
    ]
    show(f"One retrieve at a time over {ENGINES} memory engines, k = 10", ("", "CPU µs", "× handler"), rows)


def main(quick: bool = False) -> None:
    import uvloop

    uvloop.run(_measure(quick))
