"""One write for one idempotency key, however often and wherever it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from gateway import _json
from gateway.errors import BackendUnavailable, RateLimited, RcpError, StateUnavailable, invalid_params
from gateway.state.store import Store, digest

__all__ = ["Idempotency"]

_FIELD = "_meta.idempotencyKey"
_RETRY_MS = 500

_logger = logging.getLogger("gateway.state")


class _Record(msgspec.Struct, frozen=True):
    """What is known of a key. ``begun``: the write may have happened. ``done``: it has, and this was the answer."""

    request: str
    state: Literal["begun", "done"]
    result: bytes = b""


class Idempotency:
    """Remembers writes for ``ttl`` seconds. ``lease`` is longer than any write takes, in seconds.

    Two entries for a key: its record, which says what is known, and beside it a lease, which says that somebody is at
    it. A record that has begun, without a lease, is a write of which nobody knows how it ended.
    """

    def __init__(self, store: Store, *, ttl: float = 86_400.0, lease: float = 60.0) -> None:
        self._store = store
        self._ttl = ttl
        self._lease = lease

    async def once(
        self,
        caller: str,
        method: str,
        key: str,
        request: str,
        operation: Callable[[], Awaitable[bytes]],
        *,
        untouched: Callable[[RcpError], bool],
    ) -> bytes:
        """What the operation gave, now or when it was first asked for under this key.

        ``request`` is the digest of the parameters. ``untouched`` says of the operation's error that certainly nothing
        was written; then the key is free again, and otherwise it stays taken, since nobody may write twice.

        Raises ``-32602`` if the key came with another request; ``-32011``, retryable, while the first call is still
        going on (the client need not change anything, so it is no ``-32016``); ``-32010``, not retryable, if it is not
        known whether the first call wrote; and ``StateUnavailable`` if that cannot be looked up.
        """
        record, lease = (f"{part}:{digest(caller, method, key)}" for part in ("once", "lease"))
        known = await self._known(record, lease, request)
        if known is not None:
            return known
        if not await self._store.add(lease, b"1", ttl=self._lease):
            raise _in_flight()
        try:
            begun = _json.encode(_Record(request, "begun"))
            if not await self._store.add(record, begun, ttl=self._ttl):
                # Somebody was faster from beginning to end; with no lease but ours it is known how that went.
                return await self._read(record, request)
            return await self._run(record, request, operation, untouched)
        finally:
            await self._tidy(lease)

    async def _run(
        self,
        record: str,
        request: str,
        operation: Callable[[], Awaitable[bytes]],
        untouched: Callable[[RcpError], bool],
    ) -> bytes:
        try:
            result = await operation()
        except RcpError as error:
            if untouched(error):
                await self._tidy(record)
            raise
        try:
            await self._store.put(record, _json.encode(_Record(request, "done", result)), ttl=self._ttl)
        except StateUnavailable:
            # It is written, and the client is told so; asked again, it will be told that nobody knows.
            _logger.warning("the answer to an idempotent write could not be kept")
        return result

    async def _known(self, record: str, lease: str, request: str) -> bytes | None:
        """The answer there is already; ``None`` if nobody has begun."""
        found = await self._store.get(record)
        if found is None:
            return None
        begun = _read(found, request)
        if begun is not None:
            return begun
        if await self._store.get(lease) is not None:
            raise _in_flight()
        return await self._read(record, request)  # it may have ended between the two looks

    async def _read(self, record: str, request: str) -> bytes:
        found = await self._store.get(record)
        if found is None:
            raise _in_flight()  # it has just been given up; the next call may begin
        answer = _read(found, request)
        if answer is None:
            raise BackendUnavailable(
                "an earlier call with this idempotency key may have written: its outcome is not known. "
                "Look before writing again under another key",
                retryable=False,
                data={"field": _FIELD},
            )
        return answer

    async def _tidy(self, key: str) -> None:
        """Deletes what would expire by itself in the end."""
        try:
            await self._store.delete(key)
        except StateUnavailable:
            _logger.warning("an idempotency key stays taken until it expires")


def _read(found: bytes, request: str) -> bytes | None:
    """The answer a record holds; ``None`` if it has only begun. Raises ``-32602`` if it is another request's."""
    try:
        record = _json.decode(found, _Record)
    except _json.DecodeError:  # kept by another version of this program: somebody has begun, nobody knows what
        return None
    if record.request != request:
        raise invalid_params("this idempotency key came with another request before", field=_FIELD)
    return record.result if record.state == "done" else None


def _in_flight() -> RateLimited:
    return RateLimited("a call with this idempotency key is under way", retry_after_ms=_RETRY_MS)
