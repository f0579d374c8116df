"""An ASGI app on a socket: uvicorn inside a loop that somebody else runs, with the limits that it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NamedTuple

import uvicorn

from gateway.transports.connection import Connection

__all__ = ["Address", "listen", "serve"]

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
    write_timeout: float = 30.0,
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

    A client that takes nothing of what is written to it for ``write_timeout`` is cut off, which cancels its call.

    Raises ``OSError`` if the address cannot be had.
    """
    sock = listen(host, port)
    bound = Address(*sock.getsockname()[:2])
    config = uvicorn.Config(
        app,
        http=type("Protocol", (Connection,), {"header_timeout": header_timeout, "write_timeout": write_timeout}),
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
