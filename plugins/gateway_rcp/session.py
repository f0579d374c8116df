"""One session with an upstream: a handshake that concurrent calls share, and a new one when the upstream forgot it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.errors import BackendUnavailable, Code, Timeout
from gateway.protocol.peer import Answer, Handshake, State
from gateway.spi.call import Call
from gateway_rcp.link import Link, Tasks

__all__ = ["Session", "call_meta"]


class Session:
    """``handshake_timeout`` is in seconds. Tasks run for the engine's host: they outlive the call that started them."""

    def __init__(
        self, link: Link, handshake: Handshake, tasks: Tasks, *, handshake_timeout: float, logger: logging.Logger
    ) -> None:
        self.handshake = handshake
        self._link = link
        self._tasks = tasks
        self._timeout = handshake_timeout
        self._logger = logger
        self._opening: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Waits until the handshake is through, starting it if nobody has. Raises what it failed with."""
        if self.handshake.state is State.READY:
            return
        if self._opening is None:
            self._opening = self._tasks.start(self._open())
        await asyncio.shield(self._opening)

    async def call(self, method: str, params: Mapping[str, Any], call: Call, *, progress: bool = False) -> Answer:
        """One request of a call, made again once if the upstream says that it does not know the session."""
        answer = await self._once(method, params, call, progress=progress)
        if answer.error is not None and answer.error.code == Code.NOT_INITIALIZED:
            # It refused before doing anything, so this is safe for writes too.
            answer = await self._once(method, params, call, progress=progress)
        return answer

    async def _once(self, method: str, params: Mapping[str, Any], call: Call, *, progress: bool) -> Answer:
        if not self._link.up:
            raise BackendUnavailable("the engine's process is being restarted")
        await self.ready()
        generation = self.handshake.generation
        answer = await self._link.exchange(
            method,
            {**params, "_meta": call_meta(call)},
            progress=call.progress if progress else None,
            session=self.handshake.session,
        )
        if answer.error is not None:
            self._logger.debug("%s: upstream error %s: %s", method, answer.error.code, answer.error.message)
            if answer.error.code == Code.NOT_INITIALIZED:
                self.handshake.lapse(generation)
        return answer

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while (step := self.handshake.step()) is not None:
                    self.handshake.advance(await self._link.exchange(*step))
        except TimeoutError:
            raise BackendUnavailable("the engine did not answer the handshake in time") from None
        finally:
            self._opening = None
            if self.handshake.state is not State.READY:
                self.handshake.reset()


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
    return meta
