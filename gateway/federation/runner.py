"""Every call to an engine goes through here: limiter, breaker, deadline, retries and the error boundary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.errors import BackendUnavailable, Busy, Code, InternalError, RcpError, Timeout, UpstreamError
from gateway.federation.fleet import Member
from gateway.federation.loss import Failure
from gateway.spi.call import Call, Route
from gateway.spi.engine import Engine

__all__ = ["Deadline", "EngineCall", "run"]

logger = logging.getLogger("gateway.leg")

T = TypeVar("T")
_RETRIED_ONCE = (Code.INTERNAL_ERROR,)


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a call must be answered, in the event loop's time. ``client`` is true if it was the client who set it."""

    at: float
    client: bool
    reserve: float

    @classmethod
    def after(cls, seconds: float, *, client: bool, reserve: float) -> Deadline:
        # A reserve that eats most of a short deadline would leave the engines nothing.
        return cls(asyncio.get_running_loop().time() + seconds, client, min(reserve, seconds / 4))

    def remaining(self) -> float:
        """Seconds left for engines: the reserve is kept for fusing and answering."""
        return max(0.0, self.at - self.reserve - asyncio.get_running_loop().time())


def _ignore(fraction: float, stage: str) -> None:
    return None


def _silent(level: str, message: str, data: Mapping[str, Any] | None) -> None:
    return None


class EngineCall:
    """The :class:`gateway.spi.call.Call` that an engine is given."""

    __slots__ = ("_ends", "_log", "_progress", "route")

    def __init__(
        self,
        route: Route,
        *,
        progress: Callable[[float, str], None] = _ignore,
        log: Callable[[str, str, Mapping[str, Any] | None], None] = _silent,
    ) -> None:
        self.route = route
        self._progress = progress
        self._log = log
        self._ends = 0.0

    def limit(self, seconds: float) -> None:
        self._ends = asyncio.get_running_loop().time() + seconds

    def remaining(self) -> float:
        return max(0.0, self._ends - asyncio.get_running_loop().time())

    def progress(self, fraction: float, stage: str = "") -> None:
        self._progress(fraction, stage)

    def log(self, level: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._log(level, message, data)


async def run(
    member: Member,
    operation: Callable[[Engine, Call], Awaitable[T]],
    call: EngineCall,
    deadline: Deadline,
    *,
    retry: bool = True,
    whole: bool = False,
) -> T | Failure:
    """Runs one engine's part within ``min(engine timeout, what the call has left)``, or the ``whole`` of the latter.

    The time covers the queue, an embedding it waits for, connecting, retries and the body. Every error comes back as a
    :class:`Failure`; only cancellation passes through, and reaches the engine.
    """
    settings = member.settings
    left = deadline.remaining()
    budget = left if whole else min(settings.timeout, left)
    full = settings.timeout <= left
    call.limit(budget)
    scope: asyncio.Timeout | None = None
    probe = False
    entered = False
    try:
        async with asyncio.timeout(budget) as scope:
            async with member.limiter.slot():
                probe = member.breaker.enter()
                entered = True
                result = await _attempts(member, operation, call, settings.attempts if retry else 1)
        member.breaker.succeeded(probe=probe)
        return result
    except TimeoutError as error:
        ours = scope is not None and scope.expired()
        if entered:
            # A deadline that the client cut short says nothing about the engine.
            judge = member.breaker.failed if full or not ours else member.breaker.neutral
            judge(probe=probe)
        if not ours:
            logger.warning("engine %s raised TimeoutError", settings.id, exc_info=error)
        return Failure(settings.id, Timeout(f"no answer within {budget:.3g} s"), True, not full and deadline.client)
    except RcpError as error:
        if entered:
            _judge(member, error, probe=probe)
        return Failure(settings.id, error, isinstance(error, Timeout))
    except asyncio.CancelledError:
        if entered:
            member.breaker.neutral(probe=probe)
        raise
    except Exception as error:  # one of the five boundaries: an adapter may fail in any way
        if entered:
            member.breaker.failed(probe=probe)
        logger.error("engine %s failed unexpectedly", settings.id, exc_info=error)
        return Failure(settings.id, InternalError("the engine failed unexpectedly"))


def _judge(member: Member, error: RcpError, *, probe: bool) -> None:
    if isinstance(error, Busy) and not isinstance(error, Timeout):
        member.breaker.neutral(probe=probe)
    elif isinstance(error, UpstreamError | Timeout) and error.retryable:
        member.breaker.failed(probe=probe)
    else:
        # It refused, so it is alive.
        member.breaker.succeeded(probe=probe)


async def _attempts(
    member: Member, operation: Callable[[Engine, Call], Awaitable[T]], call: EngineCall, attempts: int
) -> T:
    """Tries again only what may succeed later (RCP section 12.2), and never sooner than the engine asked."""
    delay = member.settings.backoff
    for attempt in range(1, attempts + 1):
        if member.engine is None:
            raise member.fault or BackendUnavailable("it is not open")
        try:
            return await operation(member.engine, call)
        except RcpError as error:
            again = error.retryable or (error.code in _RETRIED_ONCE and attempt == 1)
            if isinstance(error, Timeout) or not again or attempt == attempts:
                raise
            asked = error.data.get("retryAfterMs")
            jittered = delay * member.jitter()
            wait = max(jittered, asked / 1000) if isinstance(asked, int | float) else jittered
            if wait >= call.remaining():
                raise
            await asyncio.sleep(wait)
            delay *= 2
    raise AssertionError("attempts is at least 1")
