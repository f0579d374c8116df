"""Clients that read slowly, or not at all: what is kept for them is bounded, and so is the time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from anyio import fail_after

from gateway.caller import ANONYMOUS
from gateway.model import hit
from gateway.protocol.session import Session, Sessions
from gateway.spi import Call, EngineQuery, EngineReply
from gateway.transports.connection import Connection
from gateway.transports.http import HttpApp
from gateway.transports.server import Address, serve
from tests.engines import Script, gateway_of, hits
from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import HANDSHAKE, Response, Wire, events, exchange, head, request, stdio

pytestmark = pytest.mark.anyio

EVENTS = {"accept": "text/event-stream"}
MIB = 1 << 20
REPORTS = 100_000


@contextlib.asynccontextmanager
async def served(script: Script, **options: float) -> AsyncIterator[Address]:
    """A gateway over HTTP whose engine ``slow`` has the script; ``quick`` answers at once."""
    scripts = {"slow": script, "quick": Script(hits=hits("q1"))}
    async with gateway_of(scripts, engines={"slow": {"timeout": 60}}, limits={"deadline": 60}) as running:
        async with serve(HttpApp(running.gateway.dispatcher, Sessions()), **options) as address:
            yield address


class Deaf:
    """A client that has read exactly what it was told to read."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._read = bytearray()

    async def post(self, body: bytes, **headers: str) -> None:
        fields = {"connection": "close", **headers, "content_length": str(len(body))}
        await self.send(head("/rcp/retrieve", **fields) + body)

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def read(self, size: int) -> bytes:
        """Up to this many bytes, less only at the end; the whole so far is kept."""
        start = len(self._read)
        while len(self._read) < start + size:
            data = await self._loop.sock_recv(self._sock, min(1 << 16, start + size - len(self._read)))
            if not data:
                break
            self._read += data
        return bytes(self._read[start:])

    async def response(self) -> Response:
        """All that comes, as one response."""
        while await self.read(MIB):
            pass
        reader = asyncio.StreamReader(limit=1 << 26)
        reader.feed_data(bytes(self._read))
        reader.feed_eof()
        return await Wire(reader, None).response()  # type: ignore[arg-type]  # it only reads


@contextlib.asynccontextmanager
async def deaf(address: Address) -> AsyncIterator[Deaf]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        yield Deaf(sock)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when the server has lost a connection."""
    event, connection_lost = asyncio.Event(), Connection.connection_lost

    def noted(self: Connection, exc: Exception | None) -> None:
        connection_lost(self, exc)
        event.set()

    monkeypatch.setattr(Connection, "connection_lost", noted)
    return event


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set whenever the server has looked whether a client takes what is written to it."""
    event, look = asyncio.Event(), Connection._look

    def noted(self: Connection) -> None:
        look(self)
        event.set()

    monkeypatch.setattr(Connection, "_look", noted)
    return event


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


class Flood:
    """An engine that reports progress and logs without end, and then holds until ``release``."""

    def __init__(self, reports: int = REPORTS) -> None:
        self.reports = reports
        self.flooded, self.release = asyncio.Event(), asyncio.Event()

    async def __call__(self, query: EngineQuery, call: Call) -> EngineReply:
        detail = {"text": "x" * 20_000}
        for number in range(self.reports):
            call.progress(number / self.reports, "recall")
            if number % 10 == 0:
                call.log("info", f"report {number}", detail)
                await asyncio.sleep(0)
        self.flooded.set()
        await self.release.wait()
        return EngineReply(hits=hits("s1"), exhausted=True)


def asked(engine: str, *, k: int = 10, **meta: Any) -> bytes:
    return request("retrieve", {"query": "q", "k": k, "_meta": {"x-gateway": {"engines": [engine]}, **meta}})


LOUD = {"progressToken": 1, "logLevel": "debug"}


@obligation(199)
async def test_100_000_reports_to_a_client_that_reads_nothing_keep_little_and_hold_up_nobody(traced: None) -> None:
    flood = Flood()
    with fail_after(60):
        async with served(Script(retrieve=flood), write_timeout=60) as address, deaf(address) as client:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            await client.post(asked("slow", **LOUD), **EVENTS)
            await flood.flooded.wait()
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 2 * MIB  # of 20 MB of frames
            response = await exchange(address, "/rcp/retrieve", asked("quick"))
            assert [hit["id"] for hit in response.json["result"]["hits"]] == ["q1"]
            flood.release.set()
            frames = events((await client.response()).body)
    assert [frame.get("id") for frame in frames] == [None] * (len(frames) - 1) + [1]
    assert [hit["id"] for hit in frames[-1]["result"]["hits"]] == ["s1"]
    told = [frame["params"]["progress"] for frame in frames if frame.get("method") == "notifications/progress"]
    assert told == sorted(told)
    assert "s1" in str(frames[-2])  # what was found is told even where much else was dropped


@obligation(105, 203)
async def test_a_client_that_takes_nothing_is_cut_off_in_time_and_its_engine_call_cancelled(
    lost: asyncio.Event,
) -> None:
    flood = Flood(20_000)
    script = Script(retrieve=flood)
    loop = asyncio.get_running_loop()
    with fail_after(30):
        async with served(script, write_timeout=0.5) as address, deaf(address) as client:
            await client.post(asked("slow", **LOUD), **EVENTS)
            await flood.flooded.wait()
            since = loop.time()
            await script.cancelled.wait()
            assert loop.time() - since < 1.0
            await lost.wait()
            response = await exchange(address, "/rcp/retrieve", asked("quick"))
            assert [hit["id"] for hit in response.json["result"]["hits"]] == ["q1"]


def large(size: int) -> Script:
    """An engine whose answer is of about this many bytes."""
    return Script(hits=[hit(f"s{number}", 1 - number / 100, text="x" * (size // 20)) for number in range(20)])


async def test_a_whole_answer_that_nobody_takes_is_not_kept(lost: asyncio.Event, traced: None) -> None:
    script = Script()
    with fail_after(30):
        async with served(script, write_timeout=0.5) as address, deaf(address) as client:
            before, _ = tracemalloc.get_traced_memory()

            async def answer(query: EngineQuery, call: Call) -> EngineReply:
                return EngineReply(hits=large(20 * MIB).hits, exhausted=True)

            script.retrieve = answer
            tracemalloc.reset_peak()
            await client.post(asked("slow", k=20))
            await lost.wait()
            held, peak = tracemalloc.get_traced_memory()
            assert peak - before > 20 * MIB
            assert held - before < MIB
            assert (await exchange(address, "/rcp/ping", request("ping"))).status == 200


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_that_reads_slowly_is_not_cut_off_and_has_its_answer_whole(
    accept: str, looked: asyncio.Event
) -> None:
    """It takes a little between any two looks of the server, and longer in all than it may stand still."""
    with fail_after(20):
        async with served(large(20 * MIB), write_timeout=0.4) as address, deaf(address) as client:
            await client.post(asked("slow", k=20, progressToken=1), accept=accept)
            for _ in range(12):  # a look is an eighth of the time-out
                looked.clear()
                await looked.wait()
                assert len(await client.read(MIB)) == MIB
            response = await client.response()
    frame = events(response.body)[-1] if "event" in accept else response.json
    assert [len(hit["text"]) for hit in frame["result"]["hits"]] == [MIB] * 20


async def test_requests_without_end_on_one_connection_wait_outside_while_no_answer_is_read() -> None:
    ping = request("ping", {"nonce": "n" * 400})
    requests = (head("/rcp/ping", content_length=str(len(ping))) + ping) * 100
    sent = 0
    with fail_after(30):
        async with serve(Bench().app(), write_timeout=0.5) as address, deaf(address) as client:
            with pytest.raises(ConnectionError):
                while sent < 24 * MIB:
                    await client.send(requests)
                    sent += len(requests)
    # What was sent is in the system's buffers, or was answered; without bound it would be 24 MiB in any case.


class _Entered(Session):
    """Counts the calls that were admitted, and are made as soon as there is a place and room for their answers."""

    entered = 0

    async def slot(self, concurrent: int, queued: int) -> asyncio.Semaphore:
        self.entered += 1
        return await super().slot(concurrent, queued)


@obligation(84)
async def test_answers_are_not_made_ahead_for_a_stdio_client_that_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, made, session = Bench(), 0, _Entered("strict", ANONYMOUS)
    work = bench._work

    async def counting(query: str, call: Any) -> None:
        nonlocal made
        made += 1
        await work(query, call)

    monkeypatch.setattr(bench, "_work", counting)
    monkeypatch.setattr(bench, "session", lambda: session)
    big = [request("retrieve", {"query": "big"}, id=id) + b"\n" for id in range(300)]
    with fail_after(30):
        async with stdio(bench) as pipes:
            pipes.send(request("initialize", HANDSHAKE, id="hello") + b"\n")
            assert (await pipes.frame())["id"] == "hello"
            pipes.reader._transport.pause_reading()  # type: ignore[attr-defined]
            pipes.send(b"".join(big))
            pipes.close_stdin()
            while session.entered < 300:
                await asyncio.sleep(0)
            for _ in range(1000):  # turns in which a call could begin
                await asyncio.sleep(0)
            assert made <= 64  # of 60 MB of answers a fifth at most is held
            pipes.reader._transport.resume_reading()  # type: ignore[attr-defined]
            frames = await pipes.rest()
    assert made == 300
    assert sorted(frame["id"] for frame in frames) == list(range(300))
