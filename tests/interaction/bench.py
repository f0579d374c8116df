"""A gateway with one method worth calling, which does what its query says. Its engine room is a set of events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway import _json
from gateway.caller import ANONYMOUS, Caller
from gateway.model import (
    Capabilities,
    Empty,
    PeerInfo,
    RetrieveCapability,
    RetrieveRequest,
    RetrieveResult,
    Usage,
)
from gateway.protocol import Dispatcher, Handler, Session, Sessions
from gateway.spi.call import ClientCall
from gateway.transports.http import HttpApp

__all__ = ["Bench"]


@dataclass(frozen=True)
class _Snapshot:
    capabilities: Capabilities


class Bench:
    """``hold`` runs until ``release``; ``steps`` and ``flood`` report progress; ``big`` is 200 KiB;
    ``noise`` prints; ``bug`` is one."""

    info = PeerInfo(name="bench", version="1")

    def conformance(self, snapshot: Any) -> str:
        return "L1"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.running = 0
        self.dispatcher = Dispatcher(self)
        self.sessions = Sessions()

    def app(self, **options: Any) -> HttpApp:
        return HttpApp(self.dispatcher, self.sessions, **options)

    def session(self) -> Session:
        return Session("strict", ANONYMOUS)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"retrieve": self.retrieve}

    def snapshot(self, caller: Caller) -> _Snapshot:
        return _Snapshot(Capabilities(retrieve=RetrieveCapability(), streaming=Empty()))

    async def retrieve(self, request: RetrieveRequest, call: ClientCall) -> RetrieveResult:
        query = str(request.query)
        self.running += 1
        try:
            await self._work(query, call)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1
        text = "x" * (200 << 10) if query == "big" else f"{query}\n\u2028"
        hit = _json.encode({"id": "d1", "score": 1.0, "text": text})
        return RetrieveResult(hits=(_json.Raw(hit),), usage=Usage(candidates=1, latency_ms=1.0))

    async def _work(self, query: str, call: ClientCall) -> None:
        match query:
            case "hold":
                call.progress(0.1, "recall")
                self.started.set()
                await self.release.wait()
                call.progress(0.9, "fuse")
            case "steps":
                for step in range(1, 5):
                    call.progress(step / 5, "recall")
                    await asyncio.sleep(0)
            case "flood":
                for step in range(20_000):
                    call.progress(step / 20_000, "recall")
                self.started.set()
            case "noise":
                print("noise")
            case "bug":
                raise ZeroDivisionError("secret detail")
