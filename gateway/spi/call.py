"""One request in flight, as an engine sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.caller import Caller

__all__ = ["Call", "ClientCall", "Route"]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a federated request has been and how much further it may go (RCP section 16.2).

    ``depth`` is what an upstream is told: how many more hops it may make. ``path`` are the identities of the gateways
    passed so far, this one last.
    """

    depth: int = 0
    path: tuple[str, ...] = field(default=())


class Call(Protocol):
    """What an engine may know of the call it serves. Nothing here ever waits, and nothing carries hits."""

    @property
    def route(self) -> Route:
        """The route to hand on, for engines that federate further."""

    @property
    def log_level(self) -> str | None:
        """The mildest level of :meth:`log` that the client asked for, ``None`` if it wants no logs."""

    def remaining(self) -> float:
        """Seconds until this engine's part must be done; never negative. The gateway enforces it by cancelling."""

    def progress(self, fraction: float, stage: str = "") -> None:
        """Says how far this engine is, in [0, 1]. A hint: values may be merged or dropped."""

    def log(self, level: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Says something to the operator, and to the client if it asked for logs (section 17.1)."""


class ClientCall(Protocol):
    """What the service knows of the client's request it serves. Nothing here ever waits."""

    @property
    def caller(self) -> Caller: ...

    @property
    def snapshot(self) -> Any:
        """What the session was told at ``initialize``; stateless calls get the current one. Opaque to the protocol."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's ``_meta`` as it came: nothing in it has been checked."""

    @property
    def wants_progress(self) -> bool:
        """True if the client sent a progress token, so that making hits ready for :meth:`progress` is worth it."""

    @property
    def log_level(self) -> str | None:
        """The mildest level that the client asked for, ``None`` if it wants no logs."""

    def progress(
        self, fraction: float, stage: str, message: str | None = None, hits: Sequence[bytes] | None = None
    ) -> None:
        """Tells the client how far the call is, if it asked (section 9). ``hits`` are sealed, encoded hits."""

    def log(self, level: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Sends ``notifications/log``, if the client asked for that level (section 17.1)."""
