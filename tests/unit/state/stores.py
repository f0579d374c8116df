"""Every store there is, for tests of what all of them must do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.config import StateSettings
from gateway.state import MemoryStore, Store, open_state
from gateway.state.redis import RedisStore, open_redis
from tests.servers.redis import Server

__all__ = ["Clock", "Kept", "kept_in_memory", "kept_in_redis", "opened"]


class Clock:
    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Kept:
    """A store, and its time, which passes when a test says so."""

    store: Store
    pass_time: Callable[[float], None]


@asynccontextmanager
async def kept_in_memory(**limits: int) -> AsyncIterator[Kept]:
    clock = Clock()

    def pass_time(seconds: float) -> None:
        clock.now += seconds

    yield Kept(MemoryStore(clock=clock, **limits), pass_time)


@asynccontextmanager
async def kept_in_redis(server: Server) -> AsyncIterator[Kept]:
    server.empty()
    async with open_state(StateSettings(kind="redis", url=server.url, timeout=10.0)) as store:
        yield Kept(store, server.pass_time)


@asynccontextmanager
async def opened(server: Server, **settings: Any) -> AsyncIterator[RedisStore]:
    """A client of its own, as another worker has it."""
    given = {"kind": "redis", "url": server.url, "timeout": 10.0, **settings}
    async with open_redis(StateSettings(**given)) as store:
        yield store
