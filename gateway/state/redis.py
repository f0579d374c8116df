"""State in a Redis or Valkey server, shared by all workers and replicas.

One server, or one primary under one address; no Redis Cluster. Only this module knows the client library, and it is
imported when a configuration asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from gateway.config import StateSettings
from gateway.errors import ConfigError, StateUnavailable
from gateway.secret import Secret
from gateway.state.scripts import EXTEND, SHELVE, TAKE
from gateway.state.store import Shelf, Store, weight

__all__ = ["RedisStore", "open_redis"]

_CONNECTIONS = 32
_Argument = bytes | str | int
_logger = logging.getLogger("gateway.state")


class RedisStore(Store):
    """Every call ends within ``timeout`` seconds. After one that did not get through, none is tried for ``pause``
    seconds: a server that is gone costs one wait, not one for each call.
    """

    shared: ClassVar[bool] = True

    def __init__(
        self,
        client: Redis,
        *,
        prefix: str = "",
        timeout: float = 0.5,
        pause: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._prefix = f"rcp:{prefix}:" if prefix else "rcp:"
        self._timeout = timeout
        self._pause = pause
        self._clock = clock
        self._resting_until = float("-inf")
        self._extend = client.register_script(EXTEND)
        self._shelve = client.register_script(SHELVE)
        self._take = client.register_script(TAKE)

    async def ping(self) -> None:
        """Raises ``StateUnavailable`` if the server does not answer."""
        await self._command("PING")

    async def get(self, key: str) -> bytes | None:
        found: bytes | None = await self._command("GET", self._prefix + key)
        return found

    async def put(self, key: str, value: bytes, *, ttl: float | None) -> None:
        await self._command("SET", self._prefix + key, value, *_expiring(ttl))

    async def add(self, key: str, value: bytes, *, ttl: float | None) -> bool:
        return await self._command("SET", self._prefix + key, value, "NX", *_expiring(ttl)) is not None

    async def delete(self, key: str) -> None:
        await self._command("DEL", self._prefix + key)

    async def shelve(self, shelf: Shelf, key: str, value: bytes, *, ttl: float) -> bool:
        size = weight(f"{shelf.name}:{shelf.owner}:{key}", value)
        if size > min(shelf.limit, shelf.owner_limit):
            return False
        arguments: list[_Argument] = [shelf.owner, key, value, size, shelf.limit, shelf.owner_limit, _milliseconds(ttl)]
        await self._guarded(lambda: self._shelve(keys=[self._prefix + shelf.name], args=arguments))
        return True

    async def take(self, shelf: Shelf, key: str) -> bytes | None:
        found: bytes | None = await self._guarded(
            lambda: self._take(keys=[self._prefix + shelf.name], args=[shelf.owner, key])
        )
        return found

    async def extend(self, key: str, members: Sequence[str], *, ttl: float, cap: int) -> None:
        arguments: list[_Argument] = [_milliseconds(ttl), cap, *members]
        await self._guarded(lambda: self._extend(keys=[self._prefix + key], args=arguments))

    async def members(self, key: str) -> tuple[str, ...]:
        found = await self._command("ZRANGE", self._prefix + key, 0, -1)
        return tuple(member.decode() for member in found)

    async def count(self, key: str, amount: int, *, ttl: float) -> int:
        async def counted() -> int:
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.set(self._prefix + key, 0, px=_milliseconds(ttl), nx=True)
                pipe.incrby(self._prefix + key, amount)
                return int((await pipe.execute())[1])

        total: int = await self._guarded(counted)
        return total

    async def _command(self, *command: Any) -> Any:
        execute: Callable[..., Awaitable[Any]] = self._client.execute_command
        return await self._guarded(lambda: execute(*command))

    async def _guarded(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What the call gives, in time; whatever goes wrong with the server is ``StateUnavailable``."""
        if self._clock() < self._resting_until:
            raise StateUnavailable
        try:
            async with asyncio.timeout(self._timeout):
                return await call()
        except (RedisError, OSError, TimeoutError) as error:
            if not isinstance(error, ResponseError):
                self._resting_until = self._clock() + self._pause
            unavailable = StateUnavailable()
            # The library's own words may hold an address, or what was stored.
            unavailable.detail = _told(error)
            _logger.warning("state is not available: %s", unavailable.detail)
            raise unavailable from None


@asynccontextmanager
async def open_redis(settings: StateSettings) -> AsyncIterator[RedisStore]:
    """A store on the configured server. One that is not there yet is no error: calls fail until it is.

    Raises :class:`~gateway.errors.ConfigError` for a URL that the client does not understand.
    """
    url = settings.url.reveal() if isinstance(settings.url, Secret) else settings.url or ""
    options: dict[str, Any] = {"ssl_ca_certs": str(settings.ca)} if settings.ca is not None else {}
    if settings.password is not None:
        options["password"] = settings.password.reveal()
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=settings.timeout,
            socket_timeout=settings.timeout,
            socket_connect_timeout=settings.timeout,
            # A lost answer to "only if absent" must not be taken for a refusal by a second try.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            **options,
        )
    except ValueError:
        raise ConfigError("must be a redis, rediss or unix URL", path="state.url") from None
    client = Redis(connection_pool=pool)
    store = RedisStore(client, prefix=settings.prefix, timeout=settings.timeout)
    try:
        with contextlib.suppress(StateUnavailable):  # it has been logged
            await store.ping()
        yield store
    finally:
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(settings.timeout):
                await client.aclose()
                await pool.aclose()


def _told(error: Exception) -> str:
    """The kind of the error, and of a server's refusal the code it begins with."""
    code = str(error).split(" ", 1)[0] if isinstance(error, ResponseError) else ""
    kind = type(error).__name__
    return f"{kind} ({code})" if code.isalpha() and code.isupper() else kind


def _milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))


def _expiring(ttl: float | None) -> tuple[Any, ...]:
    return () if ttl is None else ("PX", _milliseconds(ttl))
