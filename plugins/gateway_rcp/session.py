"""One session with an upstream: a handshake that concurrent calls share, and a new one when the upstream forgot it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.errors import BackendUnavailable, Code
from gateway.protocol.handshake import Handshake, State
from gateway.protocol.peer import Answer
from gateway.spi.call import Call
from gateway_rcp.link import Link, Tasks

__all__ = ["Session"]


class Session:
    """``handshake_timeout`` is in seconds; ``streaming`` says that progress is wanted of an upstream that streams.

    Tasks run for the engine's host: they outlive the call that started them.
    """

    def __init__(
        self,
        link: Link,
        handshake: Handshake,
        tasks: Tasks,
        *,
        handshake_timeout: float,
        streaming: bool,
        logger: logging.Logger,
    ) -> None:
        self.handshake = handshake
        self._streaming = streaming
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
            params,
            call=call,
            progress=(progress and self._streams()) or self._logs(call),
            session=self.handshake.session,
        )
        if answer.error is not None:
            self._logger.debug("%s: upstream error %s: %s", method, answer.error.code, answer.error.message)
            if answer.error.code == Code.NOT_INITIALIZED:
                self.handshake.lapse(generation)
        return answer

    def _streams(self) -> bool:
        return self._streaming and self.handshake.capabilities.get("streaming") not in (None, False)

    def _logs(self, call: Call) -> bool:
        """What an upstream logs of a request comes back beside its progress, and only if somebody wants it."""
        offered = self.handshake.capabilities.get("log") not in (None, False)
        return self._streaming and offered and call.log_level is not None

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
