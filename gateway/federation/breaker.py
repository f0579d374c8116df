"""Two guards in front of an engine: a circuit breaker and a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import BackendUnavailable, RateLimited

__all__ = ["Breaker", "Limiter"]


class Breaker:
    """Stops asking an engine that keeps failing; lets one probe through from time to time.

    Closed → open after ``threshold`` failures in a row, for ``pause`` seconds, doubled each time a probe fails, at most
    ``longest``. Half-open, one call at a time is a probe. What counts as a failure is the caller's judgement: a refusal
    (4xx), a cancelled call and a deadline that the client cut short are neutral. ``told`` hears once when it opens
    (true) and once when the engine is back (false).
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        threshold: int = 5,
        pause: float = 1.0,
        longest: float = 30.0,
        told: Callable[[bool], None] = lambda failing: None,
    ) -> None:
        self._clock = clock
        self._told = told
        self._threshold = threshold
        self._first_pause = pause
        self._longest = longest
        self._failures = 0
        self._pause = pause
        self._open_until: float | None = None
        self._probing = False

    @property
    def state(self) -> str:
        """``closed``, ``open`` or ``half-open``."""
        if self._open_until is None:
            return "closed"
        return "half-open" if self._clock() >= self._open_until else "open"

    def enter(self) -> bool:
        """Admits a call; true if it is the probe. Raises ``BackendUnavailable`` if the call must not run."""
        if self._open_until is None:
            return False
        wait = self._open_until - self._clock()
        if wait > 0 or self._probing:
            raise BackendUnavailable(
                "not asked: it failed too often in a row", data={"retryAfterMs": max(1, round(wait * 1000))}
            )
        self._probing = True
        return True

    def succeeded(self, *, probe: bool) -> None:
        """The engine answered, be it with a refusal: it is alive."""
        self._failures = 0
        self._pause = self._first_pause
        self._probing = self._probing and not probe
        if self._open_until is not None:
            self._open_until = None
            self._told(False)

    def failed(self, *, probe: bool) -> None:
        """The engine did not answer as it should."""
        if probe:
            self._probing = False
            self._pause = min(self._pause * 2, self._longest)
            self._open_until = self._clock() + self._pause
            return
        self._failures += 1
        if self._open_until is None and self._failures >= self._threshold:
            self._open_until = self._clock() + self._pause
            self._told(True)

    def neutral(self, *, probe: bool) -> None:
        """The call says nothing about the engine."""
        self._probing = self._probing and not probe


class Limiter:
    """At most ``limit`` calls at once; at most ``queue`` wait for their turn, further ones are refused (``-32011``)."""

    def __init__(self, limit: int, queue: int) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._queue = queue
        self._waiting = 0

    def slot(self) -> Limiter:
        """A turn, for ``async with``."""
        return self

    async def __aenter__(self) -> None:
        if self._slots.locked():
            if self._waiting >= self._queue:
                raise RateLimited("too many calls are waiting for this engine")
            self._waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self._waiting -= 1
        else:
            await self._slots.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()
