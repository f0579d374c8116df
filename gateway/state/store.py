"""What must outlive a request: one small interface, whatever keeps it.

Keys are ``purpose:rest``. The rest is made by :func:`digest`, so that no key holds a caller's name, a query or anything
else that somebody sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

from gateway import _json

__all__ = ["Shelf", "Store", "digest", "weight"]

_OVERHEAD = 200
"""About what an entry needs beside its key and its value, in bytes."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Room for values of one purpose, in bytes: ``owner_limit`` for each owner's, ``limit`` for all of them together.

    ``name`` and ``owner`` hold no colon. When it is full, what was longest unused goes: the owner's own first.
    """

    name: str
    owner: str
    limit: int
    owner_limit: int


class Store(ABC):
    """Bytes, sets and counters that expire. ``ttl`` is in seconds, ``None`` for no end.

    Every method raises :class:`~gateway.errors.StateUnavailable` when the backend is gone, and none waits for it long.
    What is ``put`` may go early, when there is no room; what is ``add``\\ ed stays until it expires, since somebody
    relies on its being there.
    """

    shared: ClassVar[bool]
    """True if all workers and replicas see the same."""

    @abstractmethod
    async def get(self, key: str) -> bytes | None: ...

    @abstractmethod
    async def put(self, key: str, value: bytes, *, ttl: float | None) -> None:
        """Sets the value, whatever was there."""

    @abstractmethod
    async def add(self, key: str, value: bytes, *, ttl: float | None) -> bool:
        """Sets the value only if there is none, atomically; whether it did."""

    @abstractmethod
    async def delete(self, key: str) -> None: ...

    @abstractmethod
    async def shelve(self, shelf: Shelf, key: str, value: bytes, *, ttl: float) -> bool:
        """Puts the value on a shelf. ``False`` if it is larger than an owner may have; nothing is kept then."""

    @abstractmethod
    async def take(self, shelf: Shelf, key: str) -> bytes | None:
        """The value, which stays there and counts as used."""

    async def hold(self, shelf: Shelf, key: str, value: object, *, size: int, ttl: float) -> bool:
        """Puts a thing of this process on a shelf as it is; ``size`` is what it takes, in bytes.

        ``False`` where that cannot be, because others are to see it too, and for what is larger than an owner may have.
        """
        return False

    async def held(self, shelf: Shelf, key: str) -> object | None:
        """What :meth:`hold` keeps under the key; it stays there and counts as used."""
        return None

    @abstractmethod
    async def extend(self, key: str, members: Sequence[str], *, ttl: float, cap: int) -> None:
        """Adds to an ordered set. A member that is there already becomes the newest; beyond ``cap`` the oldest go."""

    @abstractmethod
    async def members(self, key: str) -> tuple[str, ...]:
        """The set, oldest first; empty if there is none."""

    @abstractmethod
    async def count(self, key: str, amount: int, *, ttl: float) -> int:
        """Adds to a counter, which ends ``ttl`` after its first use; the sum."""


def digest(*parts: Any) -> str:
    """32 hexadecimal digits that stand for these values, the same in every process. Order matters, case matters."""
    return blake2b(_json.canonical(parts), digest_size=16).hexdigest()


def weight(key: str, value: bytes) -> int:
    """What keeping it takes, in bytes, about."""
    return len(key) + len(value) + _OVERHEAD
