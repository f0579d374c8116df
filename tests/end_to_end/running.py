"""Whole gateways: in this process over real engines, and as the processes that users start.

Whatever the transport, every frame that comes back is held against the schema and our own rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.app import OpenGateway, open_gateway
from gateway.caller import ANONYMOUS
from gateway.config import load_text
from gateway.plugins import load_plugins
from gateway.protocol.session import Session, Sessions
from gateway.transports.http import HttpApp
from gateway.transports.server import Address
from tests.peers.reports import Reports
from tests.schema import check_exchange, check_notification
from tests.transports import HANDSHAKE, Frame, request

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = ROOT / "tests" / "peers" / "hostile.py"
SDK = ROOT / "tests" / "peers" / "sdk_server.py"
COMMAND = Path(sys.executable).parent / "rcp-gateway"

DOCUMENTS = [
    {"id": "m1", "text": "Paris is the capital of France", "meta": {"lang": "en"}},
    {"id": "m2", "text": "Berlin is the capital of Germany", "meta": {"lang": "en"}},
    {"id": "m3", "text": "Rome est la capitale, Paris aussi", "meta": {"lang": "fr"}},
]


# Configurations ------------------------------------------------------------------------------------------------------


def memory(id: str = "memory", *, documents: Sequence[Mapping[str, Any]] = DOCUMENTS, **host: Any) -> dict[str, Any]:
    """A healthy engine in the gateway itself."""
    own = {"documents": list(documents), "fields": {"lang": "keyword"}}
    return {"id": id, "kind": "memory", "with": own, **host}


def upstream(id: str = "far", *, own: Mapping[str, Any] | None = None, **host: Any) -> dict[str, Any]:
    return {"id": id, "kind": "rcp", "with": dict(own or {}), **host}


def child(script: Path, *arguments: str, reports: Reports | None = None, **own: Any) -> dict[str, Any]:
    """Settings of an RCP upstream over stdio."""
    report = ["--report", reports.path] if reports is not None else []
    return {"command": [sys.executable, str(script), *arguments, *report], **own}


def config(*engines: Mapping[str, Any], name: str = "under-test", **sections: Any) -> dict[str, Any]:
    return {**({"name": name} if name else {}), "engines": list(engines), **sections}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# In this process -----------------------------------------------------------------------------------------------------


@dataclass
class Whole:
    """An open gateway in the form that ``tests.transports.connect`` takes."""

    gateway: OpenGateway
    sessions: Sessions = field(default_factory=Sessions)

    @property
    def dispatcher(self) -> Any:
        return self.gateway.dispatcher

    def app(self, **options: Any) -> HttpApp:
        return HttpApp(self.gateway.dispatcher, self.sessions, **options)

    def session(self) -> Session:
        return Session("strict", ANONYMOUS)


_plugins = functools.cache(load_plugins)


@asynccontextmanager
async def opened(*engines: Mapping[str, Any], **sections: Any) -> AsyncIterator[Whole]:
    """The gateway of a configuration, in this process."""
    text = json.dumps(config(*engines, **sections))
    async with open_gateway(load_text(text, base_dir=ROOT), _plugins()) as gateway:
        yield Whole(gateway)


@asynccontextmanager
async def peer_over_http(reports: Reports, script: Path, *arguments: str) -> AsyncIterator[str]:
    """The URL of a peer that serves HTTP in a process of its own."""
    before = len(reports.all("listening"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), *arguments, "--http", "--report", reports.path
    )
    try:
        listening = await reports.until("listening", before + 1)
        yield f"http://127.0.0.1:{listening['port']}/rcp"
    finally:
        await _killed(process)


# As processes --------------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A gateway process. What it says on stderr can be waited for."""

    process: asyncio.subprocess.Process
    said: list[str] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def listen(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            async with self._news:
                self.said.append(line.decode("utf-8", "replace").rstrip())
                self._news.notify_all()

    async def says(self, pattern: str, *, count: int = 1) -> re.Match[str]:
        """Waits for a line of stderr."""
        expression = re.compile(pattern)

        def found() -> list[re.Match[str]]:
            return [match for line in self.said if (match := expression.search(line))]

        try:
            async with asyncio.timeout(20), self._news:
                await self._news.wait_for(lambda: len(found()) >= count)
        except TimeoutError:
            raise AssertionError(f"it never said {pattern!r}: {self.said}") from None
        return found()[count - 1]

    def children(self) -> set[int]:
        """The pids of its child processes, and of theirs."""
        return _descendants(self.pid)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def ended(self, seconds: float = 10.0) -> int:
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    def memory_peak(self) -> int:
        """The most memory it ever had resident, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        kibibytes = re.search(r"VmHWM:\s*(\d+) kB", status)
        assert kibibytes is not None
        return int(kibibytes[1]) << 10


@dataclass
class Serving(Running):
    """A gateway process that serves HTTP."""

    address: Address = field(default_factory=lambda: Address("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"{self.address.url}/rcp"


@dataclass
class OnStdio(Running):
    """A gateway process on stdin and stdout."""

    frames: list[Frame] = field(default_factory=list)
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _waiting: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def call(self, method: str, params: Any = None, *, id: Any = None) -> Frame:
        id = next(self._ids) if id is None else id
        sent = request(method, params, id)
        self._waiting[json.dumps(id)] = answer = asyncio.get_running_loop().create_future()
        self.send(sent)
        frame: Frame = check_exchange(sent, await answer)
        return frame

    async def read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            frame = json.loads(line)
            if "method" in frame:
                check_notification(frame["method"].removeprefix("notifications/"), line.rstrip(b"\n"))
                self.frames.append(frame)
            else:
                self._waiting.pop(json.dumps(frame["id"])).set_result(line.rstrip(b"\n"))
        for answer in self._waiting.values():
            answer.set_exception(EOFError("stdout ended"))


async def _killed(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()
    for stream in (process.stdout, process.stderr):
        with contextlib.suppress(RuntimeError):  # somebody reads it already
            while stream is not None and await stream.read(1 << 16):  # a pipe is open until it was read to its end
                pass


def _descendants(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: set[int] = set()
    while more := {one for one, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that still run; one that is only not yet reaped does not."""
    running = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                running.add(pid)
    return running


def written(folder: Path, content: Mapping[str, Any], name: str = "gateway.yaml") -> Path:
    """JSON is YAML."""
    path = folder / name
    path.write_text(json.dumps(content), "utf-8")
    return path


@asynccontextmanager
async def serving(path: Path, *arguments: str, port: int = 0) -> AsyncIterator[Serving]:
    """``rcp-gateway serve`` on this configuration."""
    process = await asyncio.create_subprocess_exec(
        *(str(COMMAND), "serve", "-c", str(path), "--port", str(port), *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    gateway = Serving(process)
    listener = asyncio.create_task(gateway.listen())
    try:
        told = await gateway.says(r"serving http://([\d.]+):(\d+)")
        gateway.address = Address(told[1], int(told[2]))
        yield gateway
    finally:
        await _killed(process)
        await listener


@asynccontextmanager
async def on_stdio(path: Path, *, handshake: bool = True, limit: int = 1 << 26) -> AsyncIterator[OnStdio]:
    """``rcp-gateway stdio`` on this configuration."""
    process = await asyncio.create_subprocess_exec(
        *(str(COMMAND), "stdio", "-c", str(path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=limit,
    )
    gateway = OnStdio(process)
    tasks = [asyncio.create_task(gateway.listen()), asyncio.create_task(gateway.read())]
    try:
        if handshake:
            assert "result" in await gateway.call("initialize", HANDSHAKE)
        yield gateway
    finally:
        await _killed(process)
        await asyncio.gather(*tasks)
