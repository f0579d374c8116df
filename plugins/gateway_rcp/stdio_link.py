"""RCP over a child's stdin and stdout: one line per message (RCP section 5.1), many requests in flight.

The child belongs to the engine's host: one task starts it, shakes hands, reads what it says and starts it again when it
has died. Calls only write a line and wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

from gateway.errors import BackendUnavailable, Code, RcpError, UpstreamError
from gateway.protocol.peer import Answer, Log, Peer, Progress
from gateway.spi.call import Call
from gateway.spi.engine import EngineContext, Process
from gateway_rcp.link import CANCEL_SECONDS, Tasks, call_meta, note
from gateway_rcp.session import Session

__all__ = ["StdioLink"]

_STABLE_SECONDS = 30.0
"""A child that lived this long did not die of being started."""


class _Waiting:
    """A request in flight: who waits, and whose it is."""

    __slots__ = ("answer", "call")

    def __init__(self, call: Call | None) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.call = call

    def drop(self) -> None:
        """Nobody waits any more. An error that nobody saw is no mistake here, so asyncio need not warn of it."""
        if not self.answer.cancel() and not self.answer.cancelled():
            self.answer.exception()


class StdioLink:
    """``spawn`` starts a child. ``max_line`` is in bytes, ``delay`` and ``limit`` of the restarts in seconds."""

    def __init__(
        self,
        spawn: Callable[[], AbstractAsyncContextManager[Process]],
        context: EngineContext,
        tasks: Tasks,
        *,
        serial: bool,
        max_line: int,
        delay: float,
        limit: float,
    ) -> None:
        self.peer = Peer(serial=serial)
        self.up = False
        """Whether the child has shaken hands and lives."""
        self._spawn = spawn
        self._context = context
        self._logger: logging.Logger = context.logger
        self._tasks = tasks
        self._max_line = max_line
        self._delay = delay
        self._limit = limit
        self._turn = asyncio.Lock() if serial else None
        self._pen = asyncio.Lock()
        self._process: Process | None = None
        self._calls: dict[int, _Waiting] = {}

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        call: Call | None = None,
        progress: bool = False,
        session: str | None = None,
    ) -> Answer:
        async with self._turn or nullcontext():
            return await self._sent(method, params, call, progress=progress)

    async def _sent(self, method: str, params: Mapping[str, Any], call: Call | None, *, progress: bool) -> Answer:
        id: int | None = None
        try:
            async with self._pen:
                process = await self._writable()
                if call is not None:
                    params = {**params, "_meta": call_meta(call)}
                request = self.peer.request(method, params, progress=progress)
                id = request.id
                waiting = self._calls[id] = _Waiting(call)
                if len(request.data) > self._max_line:
                    self.peer.forget(id)
                    raise UpstreamError(
                        f"the request is over the engine's limit of {self._max_line} bytes", code=Code.PAYLOAD_TOO_LARGE
                    )
                await process.write(request.data + b"\n")
            return await waiting.answer
        except BaseException:
            if id is not None:
                self._take_back(id)
            raise
        finally:
            if id is not None:
                self._calls.pop(id).drop()

    async def _writable(self) -> Process:
        """The child, once it has room: one that reads nothing must not be handed ever more."""
        process = self._process
        if process is None:
            raise BackendUnavailable("the engine's process is not running")
        await process.write(b"")
        if self._process is not process:
            raise BackendUnavailable("the engine's process ended")
        return process

    def _take_back(self, id: int) -> None:
        frame = self.peer.cancel(id)
        if frame is not None and self._process is not None:
            self._tasks.start(self._say(frame))

    async def _say(self, frame: bytes) -> None:
        with suppress(TimeoutError, BackendUnavailable):
            async with asyncio.timeout(CANCEL_SECONDS), self._pen:
                if self._process is not None:
                    await self._process.write(frame + b"\n")

    async def run(self, session: Session, opened: asyncio.Future[None]) -> None:
        """Keeps a child running until cancelled. ``opened`` learns how the first did; a failure there is the end."""
        failures = 0
        while True:
            started = self._context.clock()
            try:
                async with self._spawn() as process:
                    await self._serve(process, session, opened)
                fault: RcpError = BackendUnavailable("the engine's process ended")
            except RcpError as error:
                fault = error
            if not opened.done():
                opened.set_exception(fault)
            if opened.exception() is not None:
                return
            failures = 0 if self._context.clock() - started >= _STABLE_SECONDS else failures
            wait = min(self._limit, self._delay * 2**failures) * self._context.random.uniform(0.5, 1.0)
            failures = min(failures + 1, 30)
            self._logger.warning("%s; starting it again in %.1f s", fault.message, wait)
            await asyncio.sleep(wait)

    async def _serve(self, process: Process, session: Session, opened: asyncio.Future[None]) -> None:
        session.handshake.reset()
        self._process = process
        reader = self._tasks.start(self._read(process))
        try:
            await session.ready()
            self.up = True
            if not opened.done():
                opened.set_result(None)
            await asyncio.wait([reader])
        finally:
            self._down(process)
            reader.cancel()

    async def _read(self, process: Process) -> None:
        try:
            while (line := await process.read_line(self._max_line)) is not None:
                self._heard(line)
        finally:
            self._down(process)

    def _heard(self, line: bytes) -> None:
        match self.peer.receive(line):
            case Answer() as answer:
                waiting = self._calls.get(answer.id)
                if waiting is not None and not waiting.answer.done():
                    waiting.answer.set_result(answer)
            case Progress(id, fraction, stage):
                waiting = self._calls.get(id)
                if waiting is not None and waiting.call is not None:
                    waiting.call.progress(fraction, stage)
            case event:
                waiting = self._calls.get(event.id) if isinstance(event, Log) and event.id is not None else None
                if isinstance(event, Log) and waiting is not None and waiting.call is not None:
                    waiting.call.log(event.level, event.message)
                note(self._logger, event)

    def _down(self, process: Process) -> None:
        """The child is gone: whoever waits for it learns so now, not at the deadline."""
        if self._process is not process:
            return
        self.up = False
        self._process = None
        self.peer.abandon()
        for waiting in self._calls.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(BackendUnavailable("the engine's process ended"))

    async def farewell(self) -> None:
        """Asks the child to end by itself, bounded to a second; what comes then is the context's business."""
        if not self.up:
            return
        with suppress(TimeoutError, RcpError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._sent("shutdown", {}, None, progress=False)
