"""State in this process: bounded, forgotten when it ends."""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import ClassVar

from gateway.errors import StateUnavailable
from gateway.state.store import Shelf, Store, weight

__all__ = ["MemoryStore"]

_MEMBER = 100
"""About what Python needs for a member of a set beside its text, in bytes."""


class _Thing:
    """What is held as it is."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


_Value = bytes | int | dict[str, None] | _Thing


class _Entry:
    __slots__ = ("expires", "kept", "shelf", "size", "value")

    def __init__(self, value: _Value, size: int, expires: float, kept: bool, shelf: Shelf | None = None) -> None:
        self.value = value
        self.size = size
        self.expires = expires
        self.kept = kept
        self.shelf = shelf


class MemoryStore(Store):
    """At most ``entries`` values in ``size`` bytes; the longest unused goes first.

    What was added, not put, does not go before it expires; it may take half of the room, and then no more is added.
    """

    shared: ClassVar[bool] = False

    def __init__(
        self,
        *,
        size: int = 128 * 1024 * 1024,
        entries: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = size
        self._most = entries
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._spare: OrderedDict[str, None] = OrderedDict()
        """What may go, the longest unused first."""
        self._shelves: dict[tuple[str, ...], OrderedDict[str, int]] = {}
        """Key → size, the longest unused first, for each shelf and for each owner's part of it."""
        self._shelved: dict[tuple[str, ...], int] = {}
        self._expiry: list[tuple[float, str]] = []
        self._used = 0
        self._kept = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used(self) -> int:
        """Bytes, about."""
        return self._used

    async def get(self, key: str) -> bytes | None:
        entry = self._live(key)
        return entry.value if entry is not None and isinstance(entry.value, bytes) else None

    async def put(self, key: str, value: bytes, *, ttl: float | None) -> None:
        there = self._live(key)
        self._set(key, _Entry(value, weight(key, value), self._until(ttl), there is not None and there.kept))

    async def add(self, key: str, value: bytes, *, ttl: float | None) -> bool:
        if self._live(key) is not None:
            return False
        self._set(key, _Entry(value, weight(key, value), self._until(ttl), kept=True))
        return True

    async def delete(self, key: str) -> None:
        self._drop(key)

    async def shelve(self, shelf: Shelf, key: str, value: bytes, *, ttl: float) -> bool:
        key = _shelved_key(shelf, key)
        return self._shelve(shelf, key, value, weight(key, value), ttl)

    async def hold(self, shelf: Shelf, key: str, value: object, *, size: int, ttl: float) -> bool:
        key = _shelved_key(shelf, key)
        return self._shelve(shelf, key, _Thing(value), weight(key, b"") + size, ttl)

    def _shelve(self, shelf: Shelf, key: str, value: bytes | _Thing, size: int, ttl: float) -> bool:
        if size > min(shelf.limit, shelf.owner_limit, self._limit):
            return False
        self._sweep()
        self._drop(key)
        for part, limit in ((_part(shelf), shelf.owner_limit), ((shelf.name,), shelf.limit)):
            while self._shelved.get(part, 0) + size > limit:
                self._drop(next(iter(self._shelves[part])))
        self._place(key, _Entry(value, size, self._until(ttl), kept=False, shelf=shelf))
        return True

    async def take(self, shelf: Shelf, key: str) -> bytes | None:
        value = self._taken(shelf, key)
        return value if isinstance(value, bytes) else None

    async def held(self, shelf: Shelf, key: str) -> object | None:
        value = self._taken(shelf, key)
        return value.value if isinstance(value, _Thing) else None

    def _taken(self, shelf: Shelf, key: str) -> _Value | None:
        key = _shelved_key(shelf, key)
        entry = self._live(key)
        if entry is None:
            return None
        for part in (_part(shelf), (shelf.name,)):
            self._shelves[part].move_to_end(key)
        return entry.value

    async def extend(self, key: str, members: Sequence[str], *, ttl: float, cap: int) -> None:
        there = self._live(key)
        ordered = dict(there.value) if there is not None and isinstance(there.value, dict) else {}
        for member in members:
            ordered.pop(member, None)
            ordered[member] = None
        for oldest in list(ordered)[: max(0, len(ordered) - cap)]:
            del ordered[oldest]
        if not ordered:
            return self._drop(key)
        size = weight(key, b"") + sum(len(member) + _MEMBER for member in ordered)
        self._set(key, _Entry(ordered, size, self._until(ttl), kept=False))
        return None

    async def members(self, key: str) -> tuple[str, ...]:
        entry = self._live(key)
        return tuple(entry.value) if entry is not None and isinstance(entry.value, dict) else ()

    async def count(self, key: str, amount: int, *, ttl: float) -> int:
        there = self._live(key)
        if there is not None and isinstance(there.value, int):
            there.value += amount
            return there.value
        self._set(key, _Entry(amount, weight(key, b""), self._until(ttl), kept=False))
        return amount

    # Room and time.

    def _until(self, ttl: float | None) -> float:
        return float("inf") if ttl is None else self._clock() + ttl

    def _live(self, key: str) -> _Entry | None:
        """The entry, which counts as used."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires <= self._clock():
            self._drop(key)
            return None
        if not entry.kept:
            self._spare.move_to_end(key)
        return entry

    def _set(self, key: str, entry: _Entry) -> None:
        """Keeps the entry, in the place of what has the key, and makes room for it. Raises ``StateUnavailable``."""
        self._sweep()
        self._place(key, entry)

    def _place(self, key: str, entry: _Entry) -> None:
        there = self._entries.get(key)
        kept = self._kept - (there.size if there is not None and there.kept else 0)
        if entry.size > (self._limit // 2 if entry.kept else self._limit) - kept or (
            entry.kept and there is None and len(self._entries) - len(self._spare) >= self._most // 2
        ):
            raise StateUnavailable("the gateway's state is full")
        self._drop(key)
        while self._spare and (self._used + entry.size > self._limit or len(self._entries) >= self._most):
            self._drop(next(iter(self._spare)))
        self._entries[key] = entry
        self._used += entry.size
        if entry.kept:
            self._kept += entry.size
        else:
            self._spare[key] = None
        if entry.shelf is not None:
            for part in (_part(entry.shelf), (entry.shelf.name,)):
                if part not in self._shelves:
                    self._shelves[part], self._shelved[part] = OrderedDict(), 0
                self._shelves[part][key] = entry.size
                self._shelved[part] += entry.size
        if entry.expires != float("inf"):
            heapq.heappush(self._expiry, (entry.expires, key))

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self._used -= entry.size
        if entry.kept:
            self._kept -= entry.size
        else:
            del self._spare[key]
        if entry.shelf is not None:
            for part in (_part(entry.shelf), (entry.shelf.name,)):
                del self._shelves[part][key]
                self._shelved[part] -= entry.size
                if not self._shelves[part]:
                    del self._shelves[part], self._shelved[part]

    def _sweep(self) -> None:
        """Drops what has expired, so that it never costs anything that has not."""
        now = self._clock()
        while self._expiry and self._expiry[0][0] <= now:
            key = heapq.heappop(self._expiry)[1]
            entry = self._entries.get(key)
            if entry is not None and entry.expires <= now:
                self._drop(key)
        if len(self._expiry) > 2 * len(self._entries) + 64:  # most of it speaks of what was replaced since
            self._expiry = [
                (entry.expires, key) for key, entry in self._entries.items() if entry.expires != float("inf")
            ]
            heapq.heapify(self._expiry)


def _part(shelf: Shelf) -> tuple[str, str]:
    return (shelf.name, shelf.owner)


def _shelved_key(shelf: Shelf, key: str) -> str:
    return f"{shelf.name}:{shelf.owner}:{key}"
