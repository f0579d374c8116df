"""Every call to an engine goes through here: limiter, breaker, deadline, retries, the error boundary, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gateway.errors import BackendUnavailable, Code, InternalError, RcpError, Timeout, UpstreamError
from gateway.federation.fleet import Member
from gateway.federation.loss import Failure
from gateway.spi.call import Call, Route
from gateway.spi.engine import Engine

__all__ = ["Deadline", "EngineCall", "end_all", "run", "run_alone"]

logger = logging.getLogger("gateway.leg")

T = TypeVar("T")
# Retries after -32603, over all engines of one call: a fault that many have at once is not mended by asking again.
_CALL_RETRIES = 2


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a call must be answered, in the event loop's time. ``client`` is true if it was the client who set it.

    ``usual`` is how many seconds engines have in a call whose client sets none. One object serves a whole call, so that
    ``retries``, those after an engine's internal error, are shared by all that it asks.
    """

    at: float
    client: bool
    reserve: float
    usual: float
    retries: list[None]

    @classmethod
    def after(cls, seconds: float, *, client: bool, reserve: float, limit: float | None = None) -> Deadline:
        # A reserve that eats most of a short deadline would leave the engines nothing.
        reserve = min(reserve, seconds / 4)
        usual = (seconds if limit is None else limit) - reserve
        return cls(asyncio.get_running_loop().time() + seconds, client, reserve, usual, [None] * _CALL_RETRIES)

    def remaining(self) -> float:
        """Seconds left for engines: the reserve is kept for fusing and answering."""
        return max(0.0, self.at - self.reserve - asyncio.get_running_loop().time())

    def left(self) -> float:
        """Seconds until the answer is due, the reserve counted in: for what comes after the engines."""
        return max(0.0, self.at - asyncio.get_running_loop().time())

    def leaving(self, seconds: float) -> Deadline:
        """The same for engines that others come after: ``seconds`` are kept for those, but at most a third."""
        kept = min(seconds, self.remaining() / 3)
        return replace(self, reserve=self.reserve + kept, usual=self.usual - kept)

    def cuts(self, timeout: float) -> bool:
        """True if what is left is less than an engine with this timeout usually has: being late says little of it."""
        return self.remaining() < min(timeout, 0.9 * self.usual)


def _ignore(fraction: float, stage: str) -> None:
    return None


def _silent(level: str, message: str, data: Mapping[str, Any] | None) -> None:
    return None


class EngineCall:
    """The :class:`gateway.spi.call.Call` that an engine is given."""

    __slots__ = ("_ends", "_log", "_progress", "log_level", "route")

    def __init__(
        self,
        route: Route,
        *,
        progress: Callable[[float, str], None] = _ignore,
        log: Callable[[str, str, Mapping[str, Any] | None], None] = _silent,
        log_level: str | None = None,
    ) -> None:
        self.route = route
        self.log_level = log_level
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
    prepare: Callable[[], Awaitable[None]] | None = None,
    retry: bool = True,
    whole: bool = False,
) -> T | Failure:
    """Runs one engine's part within ``min(engine timeout, what the call has left)``, or the ``whole`` of the latter.

    The time covers what ``prepare`` waits for (an embedding), the queue, connecting, retries and the body. Every error
    comes back as a :class:`Failure`; only cancellation from outside passes through, and reaches the engine. Nothing
    that happens before the engine is asked counts for or against it.
    """
    settings = member.settings
    left = deadline.remaining()
    budget = left if whole else min(settings.timeout, left)
    cut = deadline.cuts(settings.timeout)
    call.limit(budget)
    task = asyncio.current_task()
    cancelled = task.cancelling() if task is not None else 0
    scope: asyncio.Timeout | None = None
    asked = probe = False
    try:
        async with asyncio.timeout(budget) as scope:
            if prepare is not None:
                await prepare()
            async with member.limiter.slot():
                probe = member.breaker.enter()
                asked = True
                result = await _attempts(member, operation, call, deadline, settings.attempts if retry else 1)
        member.breaker.succeeded(probe=probe)
        return result
    except TimeoutError as error:
        if asked:
            # A deadline that the client cut short says nothing about the engine.
            (member.breaker.neutral if cut else member.breaker.failed)(probe=probe)
        if scope is None or not scope.expired():
            logger.warning("engine %s raised TimeoutError", settings.id, exc_info=error)
        told = f"no answer within {budget:.3g} s" if asked else f"it could not be asked within {budget:.3g} s"
        return Failure(settings.id, Timeout(told), True, cut and deadline.client)
    except RcpError as error:
        late = error.code == Code.TIMEOUT
        if asked:
            _judge(member, error, cut=cut, probe=probe)
        return Failure(settings.id, error, late, late and cut and deadline.client)
    except asyncio.CancelledError as error:
        outside = task is None or task.cancelling() > cancelled
        if asked:
            (member.breaker.neutral if outside else member.breaker.failed)(probe=probe)
        if outside:
            raise
        logger.error("engine %s was cancelled from within", settings.id, exc_info=error)
        return Failure(settings.id, BackendUnavailable("it broke off"))
    except Exception as error:  # a boundary: an adapter may fail in any way
        if asked:
            member.breaker.failed(probe=probe)
        logger.error("engine %s failed unexpectedly", settings.id, exc_info=error)
        return Failure(settings.id, InternalError("the engine failed unexpectedly"))


async def run_alone(
    member: Member,
    operation: Callable[[Engine, Call], Awaitable[T]],
    call: EngineCall,
    deadline: Deadline,
    *,
    retry: bool = True,
    whole: bool = False,
) -> T | Failure:
    """:func:`run` for a call that waits for this engine only: it ends in time though the engine may not."""
    left = deadline.remaining()
    budget = left if whole else min(member.settings.timeout, left)
    cut = deadline.cuts(member.settings.timeout) and deadline.client
    task = asyncio.create_task(
        run(member, operation, call, deadline, retry=retry, whole=whole), name=f"ask {member.settings.id}"
    )
    try:
        # It ends itself in time; the wait is bounded for the one that swallows its cancellation.
        await asyncio.wait({task}, timeout=budget + deadline.reserve / 2)
    finally:
        await end_all({task}, deadline)
    if task.done() and not task.cancelled():
        return task.result()
    return Failure(member.settings.id, Timeout("no answer in time"), True, cut)


async def end_all(tasks: Iterable[asyncio.Task[Any]], deadline: Deadline) -> None:
    """Cancels what still runs and waits for it: at most the reserve, and not beyond the deadline."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
    if running:
        _, stubborn = await asyncio.wait(running, timeout=max(0.005, min(deadline.reserve, deadline.left() / 2)))
        for task in stubborn:
            logger.warning("%s ignores its cancellation and is left to itself", task.get_name())


def _judge(member: Member, error: RcpError, *, cut: bool, probe: bool) -> None:
    if error.code in (Code.RATE_LIMITED, Code.CANCELLED) or (error.code == Code.TIMEOUT and cut):
        member.breaker.neutral(probe=probe)
    elif error.code in (Code.TIMEOUT, Code.INTERNAL_ERROR) or (isinstance(error, UpstreamError) and error.retryable):
        member.breaker.failed(probe=probe)
    else:
        # It refused, so it is alive.
        member.breaker.succeeded(probe=probe)


async def _attempts(
    member: Member,
    operation: Callable[[Engine, Call], Awaitable[T]],
    call: EngineCall,
    deadline: Deadline,
    attempts: int,
) -> T:
    """Tries again only what may succeed later (RCP section 12.2), and never sooner than the engine asked."""
    delay = member.settings.backoff
    faulty = False
    for attempt in range(1, attempts + 1):
        if member.engine is None:
            raise member.fault or BackendUnavailable("it is not open")
        try:
            return await operation(member.engine, call)
        except RcpError as error:
            if attempt == attempts or not _again(error, faulty=faulty, deadline=deadline):
                raise
            faulty = faulty or error.code == Code.INTERNAL_ERROR
            asked = error.data.get("retryAfterMs")
            jittered = delay * member.jitter()
            # Loops round their timers to milliseconds, and never sooner means never.
            wait = max(jittered, asked / 1000 + 0.002) if isinstance(asked, int | float) else jittered
            if wait >= call.remaining():
                raise
            await asyncio.sleep(wait)
            delay *= 2
    raise AssertionError("attempts is at least 1")


def _again(error: RcpError, *, faulty: bool, deadline: Deadline) -> bool:
    if error.code == Code.INTERNAL_ERROR:
        if faulty or not deadline.retries:
            return False
        deadline.retries.pop()
        return True
    return error.retryable and error.code != Code.TIMEOUT
