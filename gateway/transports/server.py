"""An ASGI app on a socket: uvicorn inside a loop that somebody else runs, with the limits that it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import TimerHandle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["Address", "listen", "serve"]

_HEADER_BYTES = 64 << 10
_CHUNK_OVERHEAD = 8
"""Bytes of framing that a byte of a chunked body may cost: chunks of one byte cost six."""
_LAST_WORDS = 1.0  # seconds for the answers of calls that were cut short


class Address(NamedTuple):
    """Where a server really listens; ``port`` is the one the system chose if 0 was asked for."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def listen(host: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A listening socket. Raises ``OSError`` if the address cannot be had."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.asynccontextmanager
async def serve(
    app: Callable[..., Awaitable[None]],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    header_timeout: float = 10.0,
    keep_alive: float = 60.0,
    drain_timeout: float = 10.0,
    draining: Callable[[float], Awaitable[None]] | None = None,
    max_connections: int | None = None,
    access_log: bool = False,
) -> AsyncIterator[Address]:
    """Serves the app while the block runs; yields the address it is reached at.

    On leaving the block: no new connections, idle ones are closed, and ``draining`` (``HttpApp.drain``) is awaited with
    ``drain_timeout``: there the app turns unready and ends its calls, so that each request in flight, open event
    streams among them, still gets its last frame. What is left a moment later is cancelled. Takes no signals. All times
    in seconds.

    Raises ``OSError`` if the address cannot be had.
    """
    sock = listen(host, port)
    bound = Address(*sock.getsockname()[:2])
    config = uvicorn.Config(
        app,
        http=type("Protocol", (_Protocol,), {"header_timeout": header_timeout}),
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        proxy_headers=False,  # or any client could choose the address that it is known by
        server_header=False,
        timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # call_later takes a float
        timeout_graceful_shutdown=drain_timeout + _LAST_WORDS,  # type: ignore[arg-type]  # so does wait_for
        limit_concurrency=max_connections,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        await server.wait_started(running)
        yield bound
    finally:
        server.stop()
        drain = None if draining is None else asyncio.ensure_future(draining(drain_timeout))
        await running
        if drain is not None:
            await drain


class _Server(uvicorn.Server):
    """Leaves the signals alone, says when it listens, and stops at once when told to rather than at the next tick."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def wait_started(self, running: asyncio.Task[None]) -> None:
        waiting = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            running.result()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    async def main_loop(self) -> None:
        seconds = 0
        while not await self.on_tick(seconds * 10):
            seconds += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # asyncio before 3.12 loses a connection that was just accepted when its server is closed: it stays open, and
        # nobody reads it. So accepting stops first, and what was accepted is let in; uvicorn then closes it properly.
        for sock in sockets or []:
            asyncio.get_running_loop().remove_reader(sock)
        for _ in range(3):
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """uvicorn's connection with a limit on how long and how large the head of a request may be.

    Whenever data came and no request is being worked on, a timer runs: it ends a head that trickles in, the silence
    before the first request, and the rest of a body that was refused. uvicorn's own keep-alive timer covers only the
    time in which nothing comes at all.
    """

    header_timeout: float = 10.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._overhead = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.header_timeout, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._overhead += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > _HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("Request header too large.")
        elif self._overhead > _HEADER_BYTES + _CHUNK_OVERHEAD * self._body_bytes:
            # Neither head nor body: chunk extensions or trailers without end.
            self.transport.close()
            return
        if self._head_timer is None and self._idle() and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.header_timeout, self._give_up)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = self._body_bytes = self._overhead = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes after the body is a trailer; nobody here reads those
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._overhead -= len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def _idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # whatever its annotation says
        return cycle is None or cycle.response_complete

    def _give_up(self) -> None:
        self._head_timer = None
        if self._idle() and not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
