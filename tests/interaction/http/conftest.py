"""A real server on the loopback that does what a test scripts, byte by byte, and says who came and who went."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from gateway.spi.http import HttpClient, HttpSettings, open_http


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request):
    """Both event loops: sockets close differently on them, and production runs on uvloop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@dataclass
class Request:
    """One request as it came in. ``gone`` is set once the client has closed the connection."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: str = "200 OK", body: bytes = b"", *headers: str) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        await self.send("\r\n".join(head).encode() + b"\r\n\r\n" + body)

    def reset(self) -> None:
        """Close with a RST, not a FIN."""
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.writer.transport.abort()


Script = Callable[[Request], Awaitable[None]]


class Loopback:
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.script: Script = Request.reply
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def seen(self, count: int) -> list[Request]:
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await self._one(reader, writer, number)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _one(self, reader, writer, number) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(method, target, headers, body, number, writer)
        watch = asyncio.create_task(self._watch(reader, request))
        async with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        try:
            await self.script(request)
        finally:
            watch.cancel()
            await asyncio.wait([watch])

    async def _watch(self, reader: asyncio.StreamReader, request: Request) -> None:
        """A client sends nothing more before its answer: what comes is the end."""
        while not reader.at_eof() and reader.exception() is None and not reader._buffer:
            try:
                await reader._wait_for_data("watch")
            except ConnectionError:
                break
        if not reader._buffer:
            request.gone.set()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


@pytest.fixture
async def server(anyio_backend) -> AsyncIterator[Loopback]:
    loopback = Loopback()
    listening = await asyncio.start_server(loopback.accept, "127.0.0.1", 0)
    loopback.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    yield loopback
    listening.close()
    await loopback.close()


@pytest.fixture(params=["aiohttp", "httpx"])
def library(request) -> str:
    return request.param


@pytest.fixture
def opened(library, server):
    """Open a client of the library under test for the server, or for another URL."""

    @asynccontextmanager
    async def open_one(url: str | None = None, headers=None, **settings) -> AsyncIterator[HttpClient]:
        async with open_http(HttpSettings(client=library, **settings), url or server.url, headers) as client:
            yield client

    return open_one


@pytest.fixture
def blackhole():
    """The URL of a socket whose queue is full: connecting to it neither succeeds nor fails."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
