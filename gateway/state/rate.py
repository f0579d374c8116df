"""How many calls a caller may make, counted by all processes that share the state (RCP section 15.5)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from gateway.errors import RateLimited, StateUnavailable
from gateway.state.memory import MemoryStore
from gateway.state.store import Store, digest

__all__ = ["Rate"]

_MINUTE = 60.0


class Rate:
    """At most ``calls`` calls of each caller in each minute of the clock (``clock`` in seconds of the epoch).

    Where the shared state is gone each process counts for itself: then a caller may make as many more calls as there
    are processes, but never without bound, and never none.
    """

    def __init__(self, store: Store, calls: int, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._calls = calls
        self._clock = clock
        self._own = MemoryStore()

    async def admit(self, caller: str) -> None:
        """Counts a call. Raises :class:`~gateway.errors.RateLimited` (``-32011``) for one too many.

        ``data.retryAfterMs`` is what is left of the minute.
        """
        now = self._clock()
        minute = math.floor(now / _MINUTE)
        key = f"rate:{digest(caller, minute)}"
        try:
            made = await self._store.count(key, 1, ttl=2 * _MINUTE)
        except StateUnavailable:
            made = await self._own.count(key, 1, ttl=2 * _MINUTE)
        if made > self._calls:
            left = (minute + 1) * _MINUTE - now
            raise RateLimited("too many calls in this minute", retry_after_ms=math.ceil(left * 1000))
