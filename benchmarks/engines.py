"""Fake RCP engines over HTTP, as cheap as they can be: ``python -m benchmarks.engines 8`` serves eight on free ports.

A query that begins with ``20 ms`` is answered after 20 ms. Every engine returns ten hits of about 600 bytes: its own
document ``first-<engine>`` at the head, seven more of its own, and two that all engines return. So an answer of ten
fused hits holds every engine's ``first`` if and only if every engine took part.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Engine", "hits"]

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_DELAY = re.compile(rb'"query": ?"(\d+) ms')
_ID = re.compile(rb'"id": ?(\d+|"[^"]*")')
_FILLER = "Reciprocal rank fusion adds one over rank plus a constant for each list that a document is in. " * 4
_HELLO = {
    "protocolVersion": 1,
    "server": {"name": "fake", "version": "1"},
    "capabilities": {"retrieve": {"maxK": 100, "fusion": ["rrf"]}},
}


def hits(engine: int, count: int = 10) -> list[dict[str, object]]:
    """One engine's list. The last two documents are everybody's."""
    ids = [f"first-{engine}", *(f"doc-{engine}-{rank}" for rank in range(2, count - 1)), "common-a", "common-b"]
    return [
        {
            "id": id,
            "score": round(1 - rank / (2 * count), 6),
            "text": f"{id}: {_FILLER}",
            "meta": {"lang": "en", "path": f"docs/{id}.md", "section": rank, "tags": ["fusion", "rank"]},
        }
        for rank, id in enumerate(ids)
    ]


class Engine(asyncio.Protocol):
    """One connection to an engine."""

    def __init__(self, engine: int) -> None:
        self._results = {
            b"initialize": json.dumps(_HELLO, separators=(",", ":")).encode(),
            b"retrieve": json.dumps(
                {"hits": hits(engine), "usage": {"candidates": 10}}, separators=(",", ":")
            ).encode(),
        }
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            stop = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < stop:
                return
            body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
            self.asked(body)

    def asked(self, body: bytes) -> None:
        id, delay = _ID.search(body), _DELAY.search(body)
        result = self._results[b"retrieve" if b'"retrieve"' in body else b"initialize"]
        answer = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id[1] if id else b"null", result)
        frame = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        if delay:
            asyncio.get_running_loop().call_later(int(delay[1]) / 1000, self._send, frame % (len(answer), answer))
        else:
            self._send(frame % (len(answer), answer))

    def _send(self, frame: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(frame)


async def serve(make: Callable[[int], Engine], count: int) -> tuple[list[asyncio.Server], list[str]]:
    """Engines on free ports, and their URLs."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(lambda n=n: make(n), "127.0.0.1", 0, backlog=1024) for n in range(count)]
    return servers, [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rcp" for server in servers]


async def main(count: int) -> None:
    _, urls = await serve(Engine, count)
    print("serving", *urls, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1])))
