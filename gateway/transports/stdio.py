"""RCP over stdin and stdout (section 5.1): one frame a line, one session a process.

Reading and writing have a thread each. A pipe that the parent shares with us must not be made non-blocking under its
feet, a wrapped ``sys.stdin`` keeps a process alive after SIGTERM, and neither asyncio's reader nor ``readline`` can
recover from a line that is too long.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.protocol import Dispatcher, Session, State
from gateway.transports.frames import fault, too_large
from gateway.transports.lines import Lines

__all__ = ["claim", "serve_stdio"]

_CHUNK = 64 << 10
_HIGH_WATER = 1 << 20
_LAST_WORDS = 1.0  # seconds for the answers of calls that were cut short


def claim() -> tuple[int, int]:
    """Takes stdin and stdout for the protocol alone: the two file descriptors to give to :func:`serve_stdio`.

    Afterwards file descriptor 0 reads nothing, 1 is stderr and so is ``sys.stdout``: no ``print``, no library and no
    child process can write between two frames or read a request away. Not undone, since what is still buffered
    somewhere would come out at exit.
    """
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without stderr
        os.dup2(nothing, 1)
    os.close(nothing)
    sys.stdout.flush()  # what was printed before now goes to stderr as well
    sys.stdout = sys.stderr
    return stdin, stdout


async def serve_stdio(
    dispatcher: Dispatcher,
    session: Session,
    stdin: int,
    stdout: int,
    *,
    line_limit: int = 16 << 20,
    in_flight: int = 1024,
    drain_timeout: float = 10.0,
    stop: asyncio.Event | None = None,
) -> None:
    """Serves one client until its end of the pipe closes, it sends ``shutdown``, or ``stop`` is set.

    Then nothing more is read, what is in flight has ``drain_timeout`` seconds to be answered, the answers are flushed,
    and the function returns. If nobody reads stdout any more, what is in flight is cancelled instead.

    ``line_limit`` is in bytes. At most ``in_flight`` frames are worked on at a time; the client's further writes wait
    in the pipe.
    """
    await _Serving(dispatcher, session, stdin, stdout, line_limit, in_flight).run(
        drain_timeout, asyncio.Event() if stop is None else stop
    )


class _Serving:
    def __init__(
        self, dispatcher: Dispatcher, session: Session, stdin: int, stdout: int, line_limit: int, in_flight: int
    ) -> None:
        self._dispatcher = dispatcher
        self._session = session
        self._line_limit = line_limit
        self._slots = asyncio.Semaphore(in_flight)
        self._calls: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()
        self._peer_gone = False
        loop = asyncio.get_running_loop()
        self._writer = _Writer(stdout, loop, self._lost_peer)
        session.room = self._writer.room
        self._reader = _Reader(stdin, stdout, line_limit, loop, self._accept, self._over.set, self._lost_peer)

    async def run(self, drain_timeout: float, stop: asyncio.Event) -> None:
        self._writer.start()
        self._reader.start()
        stopped = asyncio.create_task(stop.wait())
        stopped.add_done_callback(lambda _: self._over.set())
        try:
            await self._over.wait()
            if not self._peer_gone:
                await self._drain(drain_timeout)
        finally:
            self._over.set()
            stopped.cancel()
            unfinished = [*self._calls, *self._accepting]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
            await self._reader.close()
            await self._writer.close(0.0 if self._peer_gone else drain_timeout)

    async def _drain(self, timeout: float) -> None:
        """Lets the calls in flight end, then has the dispatcher answer those that did not."""
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=timeout)
        if self._calls:
            await self._dispatcher.close(0)
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=_LAST_WORDS)

    async def _accept(self, lines: list[bytes | None]) -> bool:
        """Starts a call for each line; false once nothing more is wanted. Waits while too much is in flight."""
        me = asyncio.current_task()
        assert me is not None
        self._accepting.add(me)
        me.add_done_callback(self._accepting.discard)
        for line in lines:
            if line is None:
                await self._writer.write(fault(too_large(self._line_limit)))
                continue
            await self._slots.acquire()
            if self._over.is_set():
                return False
            call = asyncio.create_task(self._serve(line))
            self._calls.add(call)
            call.add_done_callback(self._ended)
            if self._session.state is State.FRESH:
                # Clients pipeline `initialize` and their first call; what depends on it must find it done.
                await asyncio.wait({call})
        return not self._over.is_set()

    async def _serve(self, line: bytes) -> None:
        if self._shut_down():  # came behind `shutdown`
            return
        answered = False

        def emit(frame: bytes) -> None:
            if not answered:
                self._writer.offer(frame)

        answer = await self._dispatcher.answer(line, self._session, emit=emit, path_method=None)
        answered = True
        if answer is not None:
            await self._writer.write(answer)
        if self._shut_down():
            self._over.set()

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._slots.release()
        if not call.cancelled() and (error := call.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a stdio call failed", "exception": error, "task": call}
            )

    def _shut_down(self) -> bool:
        return self._session.state is State.CLOSED

    def _lost_peer(self) -> None:
        self._peer_gone = True
        self._over.set()


class _Reader(threading.Thread):
    """Reads stdin, hands lines to the loop and waits until it has taken them: the pipe is the only queue."""

    def __init__(
        self,
        stdin: int,
        stdout: int,
        line_limit: int,
        loop: asyncio.AbstractEventLoop,
        accept: Callable[[list[bytes | None]], Coroutine[Any, Any, bool]],
        ended: Callable[[], object],
        peer_gone: Callable[[], object],
    ) -> None:
        super().__init__(name="rcp-stdin", daemon=True)
        self._stdin = stdin
        self._stdout = stdout
        self._lines = Lines(line_limit)
        self._loop = loop
        self._accept = accept
        self._tell_ended = ended
        self._tell_gone = peer_gone
        self._wake_read, self._wake_write = os.pipe()
        self._ended = asyncio.Event()

    async def close(self) -> None:
        """Ends the thread, also while it waits for input."""
        os.write(self._wake_write, b"x")
        await self._ended.wait()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def run(self) -> None:
        tell = self._tell_ended
        try:
            if self._read() == "gone":
                tell = self._tell_gone
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(tell)
                self._loop.call_soon_threadsafe(self._ended.set)

    def _read(self) -> str:
        poll = select.poll()
        poll.register(self._stdin, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._stdout, 0)  # reports only that its reader is gone
        while True:
            events = dict(poll.poll())
            if self._wake_read in events:
                return "stopped"
            if self._stdin in events:
                try:
                    chunk = os.read(self._stdin, _CHUNK)
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError:
                    chunk = b""
                if not self._hand_over(self._lines.feed(chunk) if chunk else self._lines.end()) or not chunk:
                    return "ended"
            elif self._stdout in events:
                return "gone"

    def _hand_over(self, lines: list[bytes | None]) -> bool:
        if not lines:
            return True
        try:
            return asyncio.run_coroutine_threadsafe(self._accept(lines), self._loop).result()
        except (RuntimeError, asyncio.CancelledError, concurrent.futures.CancelledError):
            return False


class _Writer(threading.Thread):
    """Writes whole frames to stdout, in order. Whoever writes waits only while the client does not read."""

    def __init__(self, stdout: int, loop: asyncio.AbstractEventLoop, peer_gone: Callable[[], object]) -> None:
        super().__init__(name="rcp-stdout", daemon=True)
        self._stdout = stdout
        self._loop = loop
        self._tell_gone = peer_gone
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._backlog = 0  # bytes given to the thread and not yet written; touched by the loop only
        self._room = asyncio.Event()
        self._room.set()
        self._ended = asyncio.Event()

    def offer(self, frame: bytes) -> None:
        """Writes an advisory frame, or drops it if the client does not keep up."""
        if self._room.is_set():
            self._put(frame)

    async def write(self, frame: bytes) -> None:
        """Writes a frame that must arrive, once the client has read most of what went before."""
        await self.room()
        self._put(frame)

    async def room(self) -> None:
        """Waits while the client does not read: a call that began now would only leave one more answer to keep."""
        await self._room.wait()

    async def close(self, timeout: float) -> None:
        """Ends the thread after all that was written, or gives it up after ``timeout`` seconds."""
        self._queue.put(None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._ended.wait()

    def _put(self, frame: bytes) -> None:
        self._backlog += len(frame)
        if self._backlog > _HIGH_WATER:
            self._room.clear()
        self._queue.put(frame)

    def _written(self, size: int) -> None:
        self._backlog -= size
        if self._backlog <= _HIGH_WATER // 2:
            self._room.set()

    def run(self) -> None:
        last = False
        try:
            while not last:
                frames = [self._queue.get()]
                with contextlib.suppress(queue.Empty):
                    while True:
                        frames.append(self._queue.get_nowait())
                last = frames[-1] is None
                whole = [frame for frame in frames if frame is not None]
                if whole:
                    self._write(b"\n".join([*whole, b""]))
                    self._tell(self._written, sum(map(len, whole)))
        except OSError:
            self._tell(self._tell_gone)
        finally:
            self._tell(self._ended.set)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdout, view) :]
            except BlockingIOError:  # the parent made the pipe non-blocking
                poll = select.poll()
                poll.register(self._stdout, select.POLLOUT)
                poll.poll()

    def _tell(self, what: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what, *args)
