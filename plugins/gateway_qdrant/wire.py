"""What the adapter needs of Qdrant, whichever way it is reached. Requests and points are REST's own JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway_qdrant.collection import Collection

__all__ = ["Point", "Wire"]

Point = Mapping[str, Any]
"""``id``, ``payload``, ``vector`` by name; a point that was found has a ``score`` too."""


class Wire(Protocol):
    """One open collection. ``timeout`` is in seconds. Errors are below ``gateway.errors.RcpError``."""

    async def describe(self) -> Collection:
        """The collection as it is now. Raises ``ConfigError`` if there is none."""

    async def query(self, body: Mapping[str, Any], timeout: float) -> Sequence[Point]:
        """Points in the order of their scores."""

    async def upsert(self, points: Sequence[Point], timeout: float) -> None:
        """Stores points; what was under their ids is replaced. Visible to the next query."""

    async def delete(self, ids: Sequence[int | str], timeout: float) -> int:
        """Removes points; returns how many of them were there."""

    async def remember(self, made_by: str) -> None:
        """Keeps the identity of the embedder beside the data, where that can be done."""

    async def ping(self, timeout: float) -> None:
        """Raises if the collection cannot be reached."""
