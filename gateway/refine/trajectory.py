"""What a session has been given already, so that its next requests bring something new (RCP section 7.7.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from gateway.errors import StateUnavailable
from gateway.state import Store, digest

__all__ = ["UNKNOWN", "Seen", "Trajectories"]

UNKNOWN = "what this session has been given already is not known at the moment"
_REQUEST = 32
"""How long a request's digest is; an id's follows it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The ids that *other* requests of the session have brought. ``id in seen`` tells, ``len(seen)`` how many they are.

    What this very request brought is not among them, so that asking again repeats the answer. ``notes`` says what could
    not be told.
    """

    _digests: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    def __contains__(self, id: object) -> bool:
        return bool(self._digests) and isinstance(id, str) and _of(id) in self._digests

    def __len__(self) -> int:
        return len(self._digests)


class Trajectories:
    """Sessions end ``ttl`` seconds after their last answer. Of each the last ``cap`` ids are known."""

    def __init__(self, store: Store, *, ttl: float = 1800.0, cap: int = 10_000) -> None:
        self._store = store
        self._ttl = ttl
        self._cap = cap

    async def seen(self, caller: str, session: str, request: str) -> Seen:
        """``request`` is the digest of the parameters. Without state nothing counts as seen, which a note says."""
        try:
            members = await self._store.members(_key(caller, session))
        except StateUnavailable:
            return Seen(notes=(UNKNOWN,))
        own = _request(request)
        return Seen(frozenset(member[_REQUEST:] for member in members if member[:_REQUEST] != own))

    async def delivered(self, caller: str, session: str, request: str, ids: Iterable[str]) -> tuple[str, ...]:
        """Remembers what an answer, or a page of it, brings; notes if that was not possible."""
        own = _request(request)
        members = [own + _of(id) for id in ids]
        if not members:
            return ()
        try:
            await self._store.extend(_key(caller, session), members, ttl=self._ttl, cap=self._cap)
        except StateUnavailable:
            return (UNKNOWN,)
        return ()


def _key(caller: str, session: str) -> str:
    return f"seen:{digest(caller, session)}"


def _request(request: str) -> str:
    """Of fixed length, whatever the caller of this module takes for a digest."""
    return digest(request)


def _of(id: str) -> str:
    """An id may be long; this is not."""
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
