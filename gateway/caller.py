"""Who is asking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["ANONYMOUS", "Caller"]


@dataclass(frozen=True, slots=True)
class Caller:
    """The party behind a request, as the transport and the access rules established it.

    ``id`` names it in logs and keys state to it. ``engines`` lists the engines it may see, ``None`` for all.
    ``claims`` are facts that a forced filter may refer to.
    """

    id: str = "anonymous"
    engines: frozenset[str] | None = None
    writable: bool = True
    claims: dict[str, Any] = field(default_factory=dict)


ANONYMOUS = Caller()
