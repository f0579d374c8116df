"""One call answered as a stream of server-sent events (RCP section 5.2).

Zero or more progress frames, then exactly one final frame, then the end. Each frame is one ``data:`` line.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from gateway.transports.beside import Receive, beside

__all__ = ["Outbox", "accepts_events", "stream"]

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Emit = Callable[[bytes], None]

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx holds events back without it
]
_COMMENT = b":\n\n"
_PARTIAL = b'"partial":{'
"""In a frame that holds hits, and in no other: inside a string its quotes would be escaped."""


def accepts_events(accept: bytes | None) -> bool:
    """True if an Accept header names ``text/event-stream``. A wildcard is not a wish for a stream."""
    if accept is None or b"event-stream" not in accept.lower():
        return False
    for part in accept.lower().split(b","):
        media, *parameters = (piece.strip() for piece in part.split(b";"))
        if media == b"text/event-stream":
            return not any(parameter.replace(b" ", b"") in {b"q=0", b"q=0.0"} for parameter in parameters)
    return False


class Outbox:
    """Frames on their way to a reader that may be slow. Putting never waits; what does not fit pushes out the oldest.

    Only progress and logs are ever lost, which are advisory (section 9): the newest says all that the older ones said,
    except for the hits in them, so frames with hits go last. ``frames`` and ``size``, in bytes, bound what waits.
    """

    def __init__(self, *, frames: int = 64, size: int = 256 << 10) -> None:
        self._frames = frames
        self._limit = size
        self._plain: deque[tuple[int, bytes]] = deque()
        self._partial: deque[tuple[int, bytes]] = deque()
        self._order = 0
        self._size = 0
        self._final: bytes | None = None
        self._done = False
        self._filled = asyncio.Event()

    @property
    def size(self) -> int:
        """Bytes that wait, the final frame aside."""
        return self._size

    def put(self, frame: bytes) -> None:
        if self._done:
            return
        self._order += 1
        (self._partial if _PARTIAL in frame else self._plain).append((self._order, frame))
        self._size += len(frame)
        while len(self._plain) + len(self._partial) > 1 and self._over():
            self._size -= len((self._plain or self._partial).popleft()[1])
        self._filled.set()

    def finish(self, final: bytes | None) -> None:
        """The last frame; nothing put after it is sent."""
        self._final = final
        self._done = True
        self._filled.set()

    def _over(self) -> bool:
        return self._size > self._limit or len(self._plain) + len(self._partial) > self._frames

    async def filled(self, patience: float) -> bool:
        """Waits until there is something to take; false if ``patience`` seconds bring nothing."""
        if not self._filled.is_set():
            try:
                async with asyncio.timeout(patience):
                    await self._filled.wait()
            except TimeoutError:
                return False
        return True

    def take(self) -> tuple[list[bytes], bool]:
        """All that waits, in the order it was put, and whether it ends with the final frame."""
        self._filled.clear()
        frames = [frame for _, frame in heapq.merge(self._plain, self._partial)]
        self._plain.clear()
        self._partial.clear()
        self._size = 0
        if self._done and self._final is not None:
            frames.append(self._final)
        return frames, self._done


async def stream(
    receive: Receive,
    send: Send,
    answer: Callable[[Emit], Awaitable[bytes | None]],
    *,
    headers: Iterable[tuple[bytes, bytes]] = (),
    silence: float = 15.0,
) -> None:
    """Runs ``answer`` and sends what it emits, then what it returns.

    The headers go out before the work starts, so that client and proxies see a live answer at once; after ``silence``
    seconds without a frame a comment keeps idle proxies from cutting the connection. Raises
    :class:`~gateway.transports.beside.ClientGone`, after the work was cancelled.
    """
    await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *headers]})
    outbox = Outbox()

    async def write() -> None:
        last = False
        while not last:
            body = _COMMENT
            if await outbox.filled(silence):
                # Returns once the client has taken most of what went before. Until then frames wait where newer ones
                # can replace them.
                await send({"type": "http.response.body", "body": b"", "more_body": True})
                frames, last = outbox.take()
                body = b"".join([b"data: %b\n\n" % frame for frame in frames])
            await send({"type": "http.response.body", "body": body, "more_body": not last})

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            outbox.finish(await answer(outbox.put))

    await beside(receive, work())
