"""Signals, for the programs that want them; nothing else here takes any."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

__all__ = ["stop_on_signals"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.asynccontextmanager
async def stop_on_signals() -> AsyncIterator[asyncio.Event]:
    """An event that the first SIGTERM or SIGINT sets. The second has its usual effect: whoever asks twice means now."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def release() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def on_signal() -> None:
        stop.set()
        release()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        release()
