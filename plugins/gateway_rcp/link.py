"""What both transports have in common: one exchange of a request for its answer, and the tasks behind it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from gateway.protocol.peer import Answer, Log, Noise, Peer, Progress

__all__ = ["CANCEL_SECONDS", "Link", "Sink", "Tasks", "note"]

CANCEL_SECONDS = 1.0
"""How long a goodbye may take: ``notifications/cancel``, and ``shutdown`` of a child."""

Sink = Callable[[float, str], None]


class Link(Protocol):
    """A connection to one upstream."""

    peer: Peer

    up: bool
    """False while calls would be lost: they fail at once then."""

    async def exchange(
        self, method: str, params: Mapping[str, Any], *, progress: Sink | None = None, session: str | None = None
    ) -> Answer:
        """Sends a request and waits for its answer, for as long as the caller lets it.

        Raises :class:`~gateway.errors.RcpError` where there is no answer. When it is cancelled the upstream is told.
        """


class Tasks:
    """Tasks that belong to the engine's host, so that a call that is cancelled does not take them along."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.debug("a background task ended: %s", error)

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
