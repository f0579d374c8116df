"""The one load client: keeps a number of connections busy, each with one request at a time, and reads the answers."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Load", "ask", "request", "run"]

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_FIRST = re.compile(rb'"id": ?"first-(\d+)"')


@dataclass
class Load:
    """What came of it. ``complete`` counts the answers in which every engine took part."""

    answers: int = 0
    complete: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return self.answers / self.seconds

    @property
    def completeness(self) -> float:
        return self.complete / self.answers if self.answers else 0.0


def request(url: str, query: str, k: int = 10) -> bytes:
    """A whole HTTP request for one retrieve."""
    parts = urlsplit(url)
    body = b'{"jsonrpc":"2.0","id":1,"method":"retrieve","params":{"query":"%b","k":%d}}' % (query.encode(), k)
    head = f"POST {parts.path}/retrieve HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self, frame: bytes, engines: int, load: Load) -> None:
        self._frame = frame
        self._engines = engines
        self._load = load
        self._buffer = b""
        self._need: int | None = None
        self.active = True
        self.idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self.transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._need is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._buffer, 0, end)
            self._need = end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < self._need:
            return
        self._load.latencies.append(time.perf_counter() - self._sent)
        self._load.answers += 1
        self._load.complete += len(set(_FIRST.findall(self._buffer))) == self._engines
        self._buffer, self._need = b"", None
        if self.active:
            self._send()
        elif not self.idle.done():
            self.idle.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.idle.done():
            self.idle.set_result(None)


async def _run(url: str, query: str, engines: int, clients: int, seconds: float) -> Load:
    loop, load = asyncio.get_running_loop(), Load()
    parts = urlsplit(url)
    frame = request(url, query)
    began = time.perf_counter()
    made = [
        (await loop.create_connection(lambda: _Connection(frame, engines, load), parts.hostname, parts.port))[1]
        for _ in range(clients)
    ]
    await asyncio.sleep(seconds)
    for one in made:
        one.active = False
    await asyncio.wait([one.idle for one in made], timeout=10)
    load.seconds = time.perf_counter() - began
    for one in made:
        one.transport.close()
    return load


def run(url: str, query: str, *, engines: int, clients: int, seconds: float) -> Load:
    """Load for ``seconds``, and until the last answer."""
    import uvloop

    return uvloop.run(_run(url, query, engines, clients, seconds))


def ask(url: str, query: str, engines: int) -> bool:
    """One request; true if its answer is complete."""
    return run(url, query, engines=engines, clients=1, seconds=0).complete == 1
