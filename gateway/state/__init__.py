"""What must outlive a request, behind one small interface. See :class:`~gateway.state.store.Store`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.config import StateSettings
from gateway.errors import ConfigError
from gateway.state.idempotency import Idempotency
from gateway.state.memory import MemoryStore
from gateway.state.rate import Rate
from gateway.state.store import Shelf, Store, digest

__all__ = ["Idempotency", "MemoryStore", "Rate", "Shelf", "Store", "digest", "open_state"]


@asynccontextmanager
async def open_state(settings: StateSettings) -> AsyncIterator[Store]:
    """The configured store. Raises :class:`~gateway.errors.ConfigError` if it cannot be had at all."""
    if settings.kind == "memory":
        yield MemoryStore(size=settings.bytes, entries=settings.entries)
        return
    try:
        from gateway.state.redis import open_redis
    except ImportError as error:
        told = "kind redis needs the extra 'redis': pip install 'rcp-gateway[redis]'"
        raise ConfigError(told, path="state.kind") from error
    async with open_redis(settings) as store:
        yield store
