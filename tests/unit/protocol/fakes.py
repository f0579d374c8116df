"""A server with scripted handlers, and a client that speaks to a dispatcher in plain values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.caller import ANONYMOUS, Caller
from gateway.model import Capabilities, PeerInfo, RetrieveResult, Usage, read_capabilities
from gateway.protocol import Dispatcher, Limits, Session
from tests.schema import check_frame

OFFER = {
    "retrieve": {"maxK": 50, "modes": ["sparse"]},
    "embed": {"dimension": 2},
    "sparseEmbed": {},
    "rerank": {"methods": ["cross-encoder"]},
    "index": {"writable": True},
    "catalog": {"engines": 1},
    "streaming": {},
    "log": {"levels": ["debug", "info", "notice", "warning", "error"]},
    "x-acme": {},
}


@dataclass(frozen=True)
class Offer:
    capabilities: Capabilities


class Server:
    """Keeps what its handlers were given; a handler may be replaced."""

    def __init__(self, offer: Mapping[str, Any] = OFFER, **handlers: Callable[[Any, Any], Awaitable[Any]]) -> None:
        self.info = PeerInfo(name="fake", version="1")
        self.offer: Mapping[str, Any] = offer
        self.seen: list[tuple[str, Any, Any]] = []
        self.handlers: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {
            "retrieve": self._retrieve,
            "embed": self._keeps("embed", {"vectors": []}),
            "embed/sparse": self._keeps("embed/sparse", {"sparse": []}),
            "rerank": self._keeps("rerank", {"scores": []}),
            "index/add": self._keeps("index/add", {"ids": []}),
            "index/delete": self._keeps("index/delete", {"deleted": 0}),
            "catalog/list": self._keeps("catalog/list", {"engines": []}),
            "x-acme/dance": self._keeps("x-acme/dance", {"danced": True}),
            "x-other/dance": self._keeps("x-other/dance", {"danced": True}),
            **handlers,
        }

    def conformance(self, snapshot: Any) -> str:
        return "L1"

    def snapshot(self, caller: Caller) -> Offer:
        return Offer(read_capabilities(self.offer))

    @property
    def last(self) -> Any:
        """The parameters of the last call."""
        return self.seen[-1][1]

    async def _retrieve(self, request: Any, call: Any) -> RetrieveResult:
        self.seen.append(("retrieve", request, call))
        return RetrieveResult(hits=(), usage=Usage(candidates=0, latency_ms=0.0))

    def _keeps(self, method: str, result: dict[str, Any]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handler(request: Any, call: Any) -> Any:
            self.seen.append((method, request, call))
            return result

        return handler


class Gate:
    """A handler that says when it is reached and waits until it is let through."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.cancelled = False
        self.entered = 0
        self.inside = 0
        self.most_inside = 0

    async def __call__(self, request: Any, call: Any) -> Any:
        self.entered += 1
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.reached.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.inside -= 1
        return {"hits": []}


@dataclass
class Client:
    """One session's client. Every answer it gets is held against the schema."""

    server: Server = field(default_factory=Server)
    kind: Any = "strict"
    limits: Limits = field(default_factory=Limits)
    dispatcher: Dispatcher = field(init=False)
    session: Session = field(init=False)
    frames: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(self.server, limits=self.limits)
        self.session = Session(self.kind, ANONYMOUS)

    async def raw(self, frame: bytes | str, **options: Any) -> bytes | None:
        data = frame.encode() if isinstance(frame, str) else frame
        return await self.dispatcher.answer(data, self.session, emit=self.frames.append, **options)

    async def send(self, frame: Any, **options: Any) -> Any:
        """The answer to any JSON value as plain values, unchecked; ``None`` for silence."""
        answer = await self.raw(json.dumps(frame), **options)
        return None if answer is None else json.loads(answer)

    async def call(self, method: str, params: Any = None, *, id: Any = 1, **options: Any) -> dict[str, Any]:
        frame = {"jsonrpc": "2.0", "id": id, "method": method}
        if params is not None:
            frame["params"] = params
        answer = await self.raw(json.dumps(frame), **options)
        assert answer is not None
        return check_frame(method, answer, id=id)

    async def result(self, method: str, params: Any = None, **options: Any) -> dict[str, Any]:
        answer = await self.call(method, params, **options)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    async def error(self, method: str, params: Any = None, **options: Any) -> tuple[int, dict[str, Any]]:
        """The code and the data of an expected error."""
        answer = await self.call(method, params, **options)
        assert "error" in answer, answer
        return answer["error"]["code"], answer["error"].get("data", {})

    async def initialize(self, **params: Any) -> dict[str, Any]:
        return await self.result("initialize", {"protocolVersion": 1, **params})


async def ready(*, offer: Mapping[str, Any] = OFFER, limits: Limits | None = None, **handlers: Any) -> Client:
    """A client after a good handshake."""
    client = Client(Server(offer, **handlers), limits=limits or Limits())
    await client.initialize()
    return client
