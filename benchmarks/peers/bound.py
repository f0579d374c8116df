"""How fast Python can be: no framework, no client library, no features, no checks. The bound, not a peer.

A raw protocol on each side, one connection an engine and call in flight, hits left encoded, rank fusion by a dict.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


class _Params(msgspec.Struct):
    query: str
    k: int = 10


class _Asked(msgspec.Struct):
    id: msgspec.Raw
    params: _Params


class _Hits(msgspec.Struct):
    hits: list[dict[str, msgspec.Raw]]


class _Answer(msgspec.Struct):
    result: _Hits


_ASKED = msgspec.json.Decoder(_Asked)
_ANSWER = msgspec.json.Decoder(_Answer)
_encode = msgspec.json.Encoder().encode


class _Http(asyncio.Protocol):
    """Cuts a stream into messages with a Content-Length."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._buffer, 0, end)
        stop = end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) >= stop:
            body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
            self.message(body)

    def message(self, body: bytes) -> None:
        raise NotImplementedError


class Upstream(_Http):
    """One connection to an engine, in the pool while nobody uses it."""

    answered: Any

    def message(self, body: bytes) -> None:
        self.answered(body)


class Pool:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._at = (parts.hostname, parts.port)
        self._head = f"POST {parts.path}/retrieve HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: ".encode()
        self._idle: list[Upstream] = []

    async def ask(self, body: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        upstream = self._idle.pop() if self._idle else (await loop.create_connection(Upstream, *self._at))[1]
        answer: asyncio.Future[bytes] = loop.create_future()
        upstream.answered = answer.set_result
        upstream.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        found = await answer
        self._idle.append(upstream)
        return found


pools = [Pool(url) for url in sys.argv[1:]]


class Client(_Http):
    def message(self, body: bytes) -> None:
        self._task = asyncio.ensure_future(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        asked = _ASKED.decode(body)
        frame = _encode({"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": asked.params})
        bodies = await asyncio.gather(*(pool.ask(frame) for pool in pools))
        answer = b'{"jsonrpc":"2.0","id":%b,"result":{"hits":%b}}' % (asked.id, _fused(bodies, asked.params.k))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        self.transport.write(head % (len(answer), answer))


def _fused(bodies: list[bytes], k: int) -> bytes:
    scores: dict[str, float] = {}
    kept: dict[str, dict[str, msgspec.Raw]] = {}
    for body in bodies:
        for rank, hit in enumerate(_ANSWER.decode(body).result.hits, 61):
            id = _TEXT.decode(hit["id"])
            if id in scores:
                scores[id] += 1 / rank
            else:
                scores[id] = 1 / rank
                kept[id] = hit
    best = sorted(scores, key=lambda id: (-scores[id], id))[:k]
    return _encode([kept[id] for id in best])


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Client, "127.0.0.1", 0, backlog=1024)
    print(f"serving http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rcp", flush=True)
    await asyncio.Event().wait()


uvloop.run(main())
