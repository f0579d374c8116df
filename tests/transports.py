"""One client over every transport, so that one test body holds for all of them.

``connect(kind, gateway)`` runs a gateway's dispatcher behind a real socket or real pipes and gives back a client with
``call``, ``send_raw``, ``notify`` and ``frames``, whatever the transport; every frame that comes is held against the
schema and our own rules. For tests where the bytes are the point there
are ``Wire`` (one HTTP connection) and ``Pipes`` (a stdio session).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.transports.http import HttpApp
from gateway.transports.server import Address, serve
from gateway.transports.stdio import serve_stdio
from tests.schema import check_exchange, check_notification

KINDS = ("http", "sse", "stdio")
HANDSHAKE = {"protocolVersion": 1, "client": {"name": "test", "version": "1"}, "capabilities": {}}

Frame = dict[str, Any]


class Gateway(Protocol):
    """What ``connect`` needs of whatever is under test."""

    dispatcher: Any

    def app(self, **options: Any) -> HttpApp: ...

    def session(self) -> Any:
        """A new strict session, as a stdio process has it."""


class Client(Protocol):
    frames: list[Frame]
    """The notifications that came, in order."""

    async def call(self, method: str, params: Any = None, *, id: Any = None) -> Frame:
        """The whole response frame."""

    async def send_raw(self, data: bytes, *, silent: bool = False) -> Any:
        """One frame as it stands; its answer. ``silent``: there must be none."""

    async def notify(self, method: str, params: Any = None) -> None: ...


def request(method: str, params: Any = None, id: Any = 1) -> bytes:
    frame: Frame = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        frame["params"] = params
    return json.dumps(frame).encode()


def notification(method: str, params: Any = None) -> bytes:
    frame: Frame = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        frame["params"] = params
    return json.dumps(frame).encode()


@contextlib.asynccontextmanager
async def connect(kind: str, gateway: Gateway, *, handshake: bool = True, **options: Any) -> AsyncIterator[Client]:
    """A client of the gateway over ``http``, ``sse`` or ``stdio``."""
    client: _HttpClient | _StdioClient
    if kind == "stdio":
        async with stdio(gateway, **options) as pipes:
            client = _StdioClient(pipes)
            if handshake:
                assert "result" in await client.call("initialize", HANDSHAKE)
            try:
                yield client
            finally:
                client.close()
    else:
        async with serve(gateway.app(**options)) as address:
            yield _HttpClient(address, events=kind == "sse")


# HTTP ----------------------------------------------------------------------------------------------------------------


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One HTTP connection, at the level of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @contextlib.asynccontextmanager
    async def to(cls, address: Address) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1 << 24)
        wire = cls(reader, writer)
        try:
            yield wire
        finally:
            wire.hang_up()

    def hang_up(self) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: bytes, method: str = "POST", **headers: str) -> None:
        await self.send(head(path, method=method, content_length=str(len(body)), **headers) + body)

    async def head(self) -> Response:
        """Status and headers of the next response."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines[1:] if line)
        return Response(int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in fields}, b"")

    async def response(self) -> Response:
        """The next response, whole."""
        response = await self.head()
        if response.headers.get("transfer-encoding") == "chunked":
            response.body = b"".join([chunk async for chunk in self.chunks()])
        else:
            response.body = await self.reader.readexactly(int(response.headers.get("content-length", "0")))
        return response

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of a chunked body, as they come."""
        while size := int(await self.reader.readline(), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)

    async def closed(self) -> bytes:
        """What still comes until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


def head(path: str, method: str = "POST", **headers: str) -> bytes:
    fields = {"host": "127.0.0.1", "content-type": "application/json"} | headers
    lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def exchange(address: Address, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Response:
    """One request on a connection of its own."""
    async with Wire.to(address) as wire:
        await wire.post(path, body, method, **headers)
        return await wire.response()


def events(body: bytes) -> list[Frame]:
    """The frames of an event stream, which must hold nothing else (comments aside)."""
    frames = []
    blocks = body.split(b"\n\n")
    assert blocks.pop() == b"", body
    for block in blocks:
        if block.startswith(b":"):
            continue
        assert block.startswith(b"data: {"), block
        assert block.endswith(b"}"), block
        assert b"\n" not in block, block
        assert b"\r" not in block, block
        frames.append(json.loads(block[6:]))
    return frames


class _HttpClient:
    def __init__(self, address: Address, *, events: bool) -> None:
        self.address = address
        self.frames: list[Frame] = []
        self._events = events
        self._ids = itertools.count(1)

    async def call(self, method: str, params: Any = None, *, id: Any = None) -> Frame:
        id = next(self._ids) if id is None else id
        answer: Frame = await self._send(f"/rcp/{method}", request(method, params, id))
        return answer

    async def send_raw(self, data: bytes, *, silent: bool = False) -> Any:
        answer = await self._send("/rcp", data)
        assert (answer is None) == silent
        return answer

    async def notify(self, method: str, params: Any = None) -> None:
        assert await self._send(f"/rcp/{method}", notification(method, params)) is None

    async def _send(self, path: str, body: bytes) -> Any:
        wish = {"accept": "text/event-stream"} if self._events else {}
        response = await exchange(self.address, path, body, **wish)
        if response.status == 204:
            assert response.body == b""
            return None
        if response.headers["content-type"].startswith("text/event-stream"):
            *frames, last = (line[6:] for line in response.body.split(b"\n\n") if line.startswith(b"data: "))
            assert len(events(response.body)) == len(frames) + 1
            self.frames += map(_notification, frames)
            return check_exchange(body, last)
        assert response.headers["content-type"] == "application/json"
        return check_exchange(body, response.body)


def _notification(frame: bytes) -> Frame:
    """A frame without an id, checked."""
    found: Frame = json.loads(frame)
    check_notification(found["method"].removeprefix("notifications/"), frame)
    return found


# stdio ---------------------------------------------------------------------------------------------------------------


@dataclass
class Pipes:
    """The client's ends of a stdio session, and the session's task."""

    reader: asyncio.StreamReader
    writer: asyncio.WriteTransport
    serving: asyncio.Task[None]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _read_transport: asyncio.BaseTransport | None = None

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        """The next line; ``b""`` at the end of the stream."""
        return await self.reader.readline()

    async def frame(self) -> Any:
        line = await self.line()
        assert line.endswith(b"\n"), line
        return json.loads(line)

    def close_stdin(self) -> None:
        """After everything sent so far was written."""
        self.writer.write_eof()

    def close_stdout(self) -> None:
        assert self._read_transport is not None
        self._read_transport.close()

    async def rest(self) -> list[Any]:
        """All frames until the server closes its end."""
        return [json.loads(line) for line in (await self.reader.read()).splitlines()]


@contextlib.asynccontextmanager
async def stdio(gateway: Gateway, **options: Any) -> AsyncIterator[Pipes]:
    """A stdio session over two real pipes, inside this process."""
    loop = asyncio.get_running_loop()
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    reader = asyncio.StreamReader(limit=1 << 26)
    read_end, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(client_in, "rb", 0)
    )
    write_end, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(client_out, "wb", 0))
    stop = asyncio.Event()

    async def serving() -> None:
        try:
            await serve_stdio(gateway.dispatcher, gateway.session(), server_in, server_out, stop=stop, **options)
        finally:
            os.close(server_in)
            os.close(server_out)

    pipes = Pipes(reader, write_end, asyncio.create_task(serving()), stop, read_end)
    try:
        yield pipes
    finally:
        write_end.close()
        with contextlib.suppress(asyncio.CancelledError):
            stop.set()
            await pipes.serving
        read_end.close()


class _StdioClient:
    def __init__(self, pipes: Pipes) -> None:
        self.pipes = pipes
        self.frames: list[Frame] = []
        self._ids = itertools.count(1)
        self._waiting: list[tuple[Callable[[Any], bool], asyncio.Future[bytes]]] = []
        self._reading = asyncio.create_task(self._read())

    def close(self) -> None:
        self._reading.cancel()

    async def call(self, method: str, params: Any = None, *, id: Any = None) -> Frame:
        id = next(self._ids) if id is None else id
        # Ids are told apart by type as well: "1" is not 1.
        answer = self._expect(lambda frame: isinstance(frame, dict) and json.dumps(frame.get("id")) == json.dumps(id))
        sent = request(method, params, id)
        self.pipes.send(sent + b"\n")
        frame: Frame = check_exchange(sent, await answer)
        return frame

    async def send_raw(self, data: bytes, *, silent: bool = False) -> Any:
        answer = self._expect(lambda frame: True)
        fence = request("ping", id="fence")
        # If the server says nothing, the next thing it says is the answer to the ping behind.
        self.pipes.send(data + b"\n" + (fence + b"\n" if silent else b""))
        frame = check_exchange(fence if silent else data, await answer)
        if silent:
            assert frame["id"] == "fence"
            return None
        return frame

    async def notify(self, method: str, params: Any = None) -> None:
        self.pipes.send(notification(method, params) + b"\n")

    def _expect(self, wanted: Callable[[Any], bool]) -> asyncio.Future[bytes]:
        """The line of the next answer that is wanted."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((wanted, answer))
        return answer

    async def _read(self) -> None:
        while line := await self.pipes.line():
            frame = json.loads(line)
            if isinstance(frame, dict) and "method" in frame:
                self.frames.append(_notification(line.rstrip(b"\n")))
                continue
            for entry in self._waiting:
                if entry[0](frame):
                    self._waiting.remove(entry)
                    entry[1].set_result(line.rstrip(b"\n"))
                    break
