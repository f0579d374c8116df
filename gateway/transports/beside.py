"""Work for a client that may go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

__all__ = ["ClientGone", "beside"]

T = TypeVar("T")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed its connection before it had its answer. Never leaves the transport."""


async def beside(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled as soon as ``receive`` reports that the client has left.

    Raises :class:`ClientGone` in that case. A handler that only awaits its work never learns of a disconnect, and the
    engines behind it go on working for nobody.

    The same technique as :func:`asyncio.timeout`: one task watches and cancels the task that works, once. A cancel
    scope would repeat the cancellation in every cycle of the loop while the work behind cleans up.
    """
    worker = asyncio.current_task()
    assert worker is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        worker.cancel()

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if gone and worker.uncancel() == 0:
            raise ClientGone from None
        raise
    finally:
        watcher.cancel()
