"""Frames in, answers out: who may call what, in which order, and the one place where exceptions become errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from gateway.caller import Caller
from gateway.model import Capabilities, PeerInfo
from gateway.protocol.limits import Limits
from gateway.protocol.session import Session
from gateway.spi.call import ClientCall

__all__ = ["Dispatcher", "Emit", "Handler", "Limits", "Server", "Snapshot"]

Handler = Callable[[Any, ClientCall], Awaitable[Any]]
Emit = Callable[[bytes], None]


class Snapshot(Protocol):
    """What a caller was told we offer. More may be in it; that is between the service and itself."""

    @property
    def capabilities(self) -> Capabilities: ...


class Server(Protocol):
    """What is served."""

    info: PeerInfo
    conformance: str

    @property
    def handlers(self) -> Mapping[str, Handler]: ...

    def snapshot(self, caller: Caller) -> Snapshot: ...


class Dispatcher:
    def __init__(
        self,
        server: Server,
        *,
        limits: Limits = Limits(),  # noqa: B008
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
    ) -> None: ...

    async def answer(
        self, frame: bytes, session: Session, *, emit: Emit | None = None, path_method: str | None = None
    ) -> bytes | None:
        """The encoded answer to one frame, single or batch; ``None`` where nothing is answered.

        ``emit`` gets encoded notification frames before this returns; it must not wait, and may drop what a slow
        client does not take. Without it no notification is made. ``path_method`` is the method named in an HTTP path,
        ``None`` or ``""`` if it names none. Raises nothing but ``asyncio.CancelledError``, when cancelled from
        outside; the handlers it runs are cancelled then.
        """
        raise NotImplementedError

    async def close(self, timeout: float = 10.0) -> None:
        """Refuses new calls (``-32010``, retryable), waits ``timeout`` seconds for running ones, cancels the rest."""
        raise NotImplementedError
