"""The session as a table (spec section 13), and where sessions without a connection of their own are kept.

Three kinds, by who shares one: ``strict`` is one client on one connection (stdio) or behind one token (HTTP);
``implicit`` is one stateless HTTP request, initialised by nature; ``peer`` is all that comes without a token from one
address with one credential, which may be several clients at once (DECISIONS D1).

All that changes a session's state is in :data:`TABLE`. What is not in it is refused.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal

from gateway.caller import Caller
from gateway.errors import CallerError, Code, RateLimited, RcpError
from gateway.model import PeerInfo
from gateway.protocol.envelope import IdKey

__all__ = ["TABLE", "Event", "Kind", "Running", "Session", "Sessions", "State"]

_NAME, _CLIENTS = 200, 1000
"""How much of a client's name is told apart, and how many of one peer are remembered."""

Kind = Literal["strict", "implicit", "peer"]


class State(Enum):
    FRESH = "fresh"
    READY = "ready"
    CLOSED = "closed"


class Event(Enum):
    INITIALIZE = "initialize succeeded"
    SHUTDOWN = "shutdown"
    LAST_SHUTDOWN = "shutdown of the last client that shares the session"


TABLE: Mapping[Kind, Mapping[State, Mapping[Event, State]]] = MappingProxyType(
    {
        "strict": {
            State.FRESH: {
                Event.INITIALIZE: State.READY,
                Event.SHUTDOWN: State.CLOSED,
                Event.LAST_SHUTDOWN: State.CLOSED,
            },
            State.READY: {Event.SHUTDOWN: State.CLOSED, Event.LAST_SHUTDOWN: State.CLOSED},
            State.CLOSED: {},
        },
        "implicit": {
            State.READY: {
                Event.INITIALIZE: State.READY,
                Event.SHUTDOWN: State.READY,
                Event.LAST_SHUTDOWN: State.READY,
            },
        },
        "peer": {
            State.FRESH: {
                Event.INITIALIZE: State.READY,
                Event.SHUTDOWN: State.FRESH,
                Event.LAST_SHUTDOWN: State.FRESH,
            },
            State.READY: {
                Event.INITIALIZE: State.READY,
                Event.SHUTDOWN: State.READY,
                Event.LAST_SHUTDOWN: State.FRESH,
            },
        },
    }
)


class Running:
    """One call in flight: a scope around its handler that can be cancelled from beside it.

    ``cancel(reason)`` makes the handler's task see ``CancelledError``, which leaves the scope as ``reason``. A
    cancellation of the whole task passes through untouched; the book-keeping is that of ``asyncio.timeout``. A handler
    that lets a ``CancelledError`` of its own making escape has a bug, and must not end the task that serves others.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._before = 0
        self._reason: RcpError | None = None

    def __enter__(self) -> Running:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a call runs inside a task")
        self._before = self._task.cancelling()
        return self

    def cancel(self, reason: RcpError) -> None:
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        left = task.cancelling() if self._reason is None else task.uncancel()
        if left <= self._before and isinstance(error, asyncio.CancelledError):
            raise self._reason or RuntimeError("the handler was cancelled from within") from error


class Session:
    """One client's session, or the shared one of a peer; see the module.

    With ``issue`` (usually ``Sessions.issue``) a successful initialize puts a token into ``_meta.session``.
    ``snapshot`` is what ``initialize`` told the client, ``None`` before that and always for ``implicit``.
    ``client_log_level`` is the lowest level the client wants to see, ``None`` if it did not ask for logs.
    ``room`` is the transport's: it returns once the client takes answers, and until then no further call starts.
    """

    def __init__(self, kind: Kind, caller: Caller, *, issue: Callable[[Session], str] | None = None) -> None:
        self.kind: Kind = kind
        self.caller = caller
        self.issue = issue
        self.state = State.READY if kind == "implicit" else State.FRESH
        self.snapshot: Any = None
        self.protocol_version = 1
        self.client_log_level: str | None = None
        self.room: Callable[[], Awaitable[None]] | None = None
        self._clients: dict[tuple[str, str] | None, IdKey] = {}
        self._opened = 0
        self._in_flight: dict[IdKey, list[Running]] = {}
        self._slots: asyncio.Semaphore | None = None
        self._waiting = 0

    @property
    def initialized(self) -> bool:
        return self.state is State.READY

    # Life.

    def may_initialize(self) -> None:
        """Raises ``-32600`` where the table has no way on from here."""
        if Event.INITIALIZE not in TABLE[self.kind][self.state]:
            raise CallerError("the session is already initialized", code=Code.INVALID_REQUEST)

    def initialize(
        self, snapshot: Any, *, version: int, client: PeerInfo | None, request_id: IdKey, log_level: str | None
    ) -> None:
        """A successful initialize. Raises ``-32600`` where it comes a second time.

        On a shared session the same client under a new id comes a second time; the same id is what every new process
        of an SDK client sends, and another client is another client.
        """
        self.may_initialize()
        if self.kind == "peer":
            name = (client.name[:_NAME], (client.version or "")[:_NAME]) if client else None
            if self.initialized and self._clients.get(name, request_id) != request_id:
                raise CallerError("this client is already initialized", code=Code.INVALID_REQUEST)
            if len(self._clients) >= _CLIENTS:
                del self._clients[next(iter(self._clients))]
            self._clients[name] = request_id
            self._opened += 1
        self.state = TABLE[self.kind][self.state][Event.INITIALIZE]
        if self.kind == "strict":
            self.client_log_level = log_level
        if self.kind != "implicit" and self.snapshot is None:
            self.snapshot, self.protocol_version = snapshot, version

    def shutdown(self) -> None:
        """A strict session is closed for good; a shared one is locked again once every client has left."""
        self._opened = max(0, self._opened - 1)
        event = Event.SHUTDOWN if self._opened else Event.LAST_SHUTDOWN
        self.state = TABLE[self.kind][self.state].get(event, State.CLOSED)
        if self.state is State.FRESH:
            self.snapshot = None
            self._clients.clear()

    # Calls.

    def start(self, request_id: IdKey, running: Running) -> None:
        self._in_flight.setdefault(request_id, []).append(running)

    def finish(self, request_id: IdKey, running: Running) -> None:
        same = self._in_flight[request_id]
        same.remove(running)
        if not same:
            del self._in_flight[request_id]

    def cancel(self, request_id: IdKey, reason: RcpError) -> None:
        """Cancels the call of this id, if there is one; the type of an id matters.

        Only where ids are one client's: elsewhere all clients use the same few, and one could end another's call. An id
        that is in flight twice (two connections under one token) names neither.
        """
        same = self._in_flight.get(request_id, ())
        if self.kind == "strict" and len(same) == 1:
            same[0].cancel(reason)

    async def slot(self, concurrent: int, queued: int) -> asyncio.Semaphore:
        """Waits for a turn and returns what to release. Raises ``-32011`` if too many wait already."""
        if self._slots is None:
            self._slots = asyncio.Semaphore(concurrent)
        if self._slots.locked():
            if self._waiting >= queued:
                raise RateLimited("too many calls in flight on this session")
            self._waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self._waiting -= 1
        else:
            await self._slots.acquire()
        if self.room is not None:
            try:
                await self.room()
            except BaseException:
                self._slots.release()
                raise
        return self._slots


class Sessions:
    """Sessions by token and by peer; bounded in number, forgotten when idle.

    A token that was never used is the first to go: stateless clients are given one with every initialize and ignore
    it, and must not push out those of others.
    """

    def __init__(
        self, *, capacity: int = 10_000, idle_seconds: float = 1800.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._unclaimed = _Shelf(capacity, idle_seconds, clock)
        self._claimed = _Shelf(capacity, idle_seconds, clock)
        self._peers = _Shelf(capacity, idle_seconds, clock)

    def issue(self, session: Session) -> str:
        """A new token for the session."""
        token = secrets.token_urlsafe(32)
        self._unclaimed.put(token, session)
        return token

    def find(self, token: str, caller: Caller | None = None) -> Session | None:
        """The open session of the token; ``None`` if unknown, expired, shut down, or (given a caller) another's.

        A caller whose rights have changed since is another one: what the session was told no longer holds.
        """
        session = self._claimed.get(token)
        if session is None:
            session = self._unclaimed.get(token)
            if session is None or (caller is not None and session.caller != caller):
                return None
            self._unclaimed.drop(token)
            self._claimed.put(token, session)
        if session.state is State.CLOSED:
            self._claimed.drop(token)
            return None
        return session if caller is None or session.caller == caller else None

    def peer(self, key: Hashable, caller: Caller, *, issue: Callable[[Session], str] | None = None) -> Session:
        """The session that tokenless requests of one peer share (DECISIONS D1); made at the first request.

        ``key`` is the peer's address and credential. A caller whose rights have changed starts afresh.
        """
        session = self._peers.get(key)
        if session is None or session.caller != caller:
            session = Session("peer", caller, issue=issue)
            self._peers.put(key, session)
        return session


class _Shelf:
    """Sessions in order of last use."""

    def __init__(self, capacity: int, idle_seconds: float, clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._items: OrderedDict[Hashable, tuple[float, Session]] = OrderedDict()

    def get(self, key: Hashable) -> Session | None:
        self._expire()
        item = self._items.get(key)
        if item is None:
            return None
        self.put(key, item[1])
        return item[1]

    def put(self, key: Hashable, session: Session) -> None:
        self._items[key] = (self._clock(), session)
        self._items.move_to_end(key)
        self._expire()
        while len(self._items) > self._capacity:
            self._items.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        self._items.pop(key, None)

    def _expire(self) -> None:
        horizon = self._clock() - self._idle_seconds
        while self._items:
            key = next(iter(self._items))
            if self._items[key][0] > horizon:
                return
            del self._items[key]
