"""What both transports have in common: one exchange of a request for its answer, and the tasks behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from gateway.errors import GatewayError, Timeout
from gateway.protocol.peer import Answer, Log, Noise, Peer, Progress
from gateway.spi.call import Call

__all__ = ["CANCEL_SECONDS", "Link", "Tasks", "call_meta", "note"]

CANCEL_SECONDS = 1.0
"""How long a goodbye may take: ``notifications/cancel``, and ``shutdown`` of a child."""


class Link(Protocol):
    """A connection to one upstream."""

    peer: Peer

    up: bool
    """False while calls would be lost: they fail at once then."""

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        call: Call | None = None,
        progress: bool = False,
        session: str | None = None,
    ) -> Answer:
        """Sends a request and waits for its answer, for as long as the caller lets it.

        ``_meta`` is made of ``call`` when the request goes out, so that no waiting before it is counted as time left.
        With ``progress`` the call hears how far the upstream is, and what it logs of this request. Raises
        :class:`~gateway.errors.RcpError` where there is no answer. When it is cancelled the upstream is told.
        """


class Tasks:
    """Tasks that belong to the engine's host, so that a call that is cancelled does not take them along."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs it until it ends or :meth:`close` ends it."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, GatewayError):
            self._logger.debug("a background task ended: %s", error)
        elif error is not None:
            self._logger.error("a background task failed unexpectedly", exc_info=error)

    async def close(self) -> None:
        """Ends all of them and waits for it."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def note(logger: logging.Logger, event: Log | Noise | Progress) -> None:
    """Writes down what is for nobody but the operator."""
    match event:
        case Log(level, message):
            logger.debug("upstream log (%s): %s", level, message)
        case Noise(reason) if reason != "blank":
            logger.debug("upstream frame ignored: %s", reason)
        case _:
            pass


def call_meta(call: Call) -> dict[str, Any]:
    """``_meta`` of a forwarded request, made here and of nothing that the client sent (RCP section 16.2).

    Raises :class:`Timeout` if there is no time left to hand on.
    """
    left = call.remaining()
    if left <= 0:
        raise Timeout("no time is left for the engine")
    meta: dict[str, Any] = {"federation": {"depth": call.route.depth, "path": list(call.route.path)}}
    # A part is kept back for the way here, but a number that a 53-bit integer cannot hold says nothing.
    milliseconds = left * 950 - 1
    if milliseconds < 2**53:
        meta["deadlineMs"] = max(1, int(milliseconds))
    if call.log_level is not None:
        meta["logLevel"] = call.log_level
    return meta
