"""One request in flight, as an engine sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Call", "Route"]


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

    def remaining(self) -> float:
        """Seconds until this engine's part must be done; never negative. The gateway enforces it by cancelling."""

    def progress(self, fraction: float, stage: str = "") -> None:
        """Says how far this engine is, in [0, 1]. A hint: values may be merged or dropped."""

    def log(self, level: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Says something to the operator, and to the client if it asked for logs (section 17.1)."""
