"""The session as a table (spec section 13), and where sessions without a connection of their own are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any, Literal

from gateway.caller import Caller

__all__ = ["Kind", "Session", "Sessions", "State"]

Kind = Literal["strict", "implicit", "peer"]


class State(Enum):
    FRESH = "fresh"
    READY = "ready"
    CLOSED = "closed"


class Session:
    """One client's session.

    ``strict``: a connection, or an HTTP token. ``implicit``: one stateless HTTP request, initialised by nature.
    ``peer``: tokenless HTTP requests that share a state; only :meth:`Sessions.peer` makes those.
    With ``issue`` (usually ``Sessions.issue``) a successful initialize puts a token into ``_meta.session``.
    """

    def __init__(self, kind: Kind, caller: Caller, *, issue: Callable[[Session], str] | None = None) -> None:
        self.kind = kind
        self.caller = caller
        self.issue = issue
        self.state = State.READY if kind == "implicit" else State.FRESH
        self.snapshot: Any = None
        self.client_log_level: str | None = None


class Sessions:
    """Sessions by token, and by peer; bounded, and forgotten when idle."""

    def __init__(
        self, *, capacity: int = 10_000, idle_seconds: float = 1800.0, clock: Callable[[], float] = time.monotonic
    ) -> None: ...

    def issue(self, session: Session) -> str:
        """A new token for the session."""
        raise NotImplementedError

    def find(self, token: str, caller: Caller | None = None) -> Session | None:
        """The open session of the token; ``None`` if unknown, expired, shut down, or (given a caller) another's."""
        raise NotImplementedError

    def peer(self, key: Hashable, caller: Caller, *, issue: Callable[[Session], str] | None = None) -> Session:
        """The shared session of tokenless requests from one peer (DECISIONS D1); made at the first request."""
        raise NotImplementedError
