"""Pagination (RCP section 10): a list of hits that is frozen once, and the cursors that walk it.

What a page shows was fused, refined and sealed when the first page was; engines are not asked again, so nothing comes
twice and nothing is passed over, whatever becomes of them in between.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.caller import Caller
from gateway.errors import CallerError, Code, StateUnavailable
from gateway.model import RetrieveRequest
from gateway.secret import Secret
from gateway.spi.codec import DecodeError, Raw, decode, encode
from gateway.state import Shelf, Store, digest

__all__ = ["Binding", "Cursors", "Frozen", "Window"]

_KEY = "cursor-key"
_SHELF = "window"
_FORMAT = struct.Struct(">16sIQ")
"""The window's id, the offset of the page, and when the window expires, in seconds of the epoch."""
_MAC = 32
_TEXT = re.compile(rf"[A-Za-z0-9_-]{{{(_FORMAT.size + _MAC) // 3 * 4}}}")
"""As base64 without padding: the lengths leave no spare bits, so that one cursor has one spelling."""


class Window(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found, best first, and what every page of it says beside the hits.

    ``hits`` are sealed; ``ids`` are theirs, in the same order, ``further`` those under which engines have the same
    document, empty where none has several, and ``sizes`` their texts' in tokens, empty where no budget was given.
    ``vendor`` goes under ``_meta["x-gateway"]``.
    """

    hits: tuple[Raw, ...]
    ids: tuple[str, ...] = ()
    further: tuple[tuple[str, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    candidates: int = 0
    reranked: int = 0
    notes: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    index_version: str | None = None
    rewritten_query: str | None = None
    vendor: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Binding:
    """Who asks, for what, with which rights, each as a digest. A cursor holds for no other."""

    owner: str
    request: str
    rights: str

    @classmethod
    def of(cls, request: RetrieveRequest, caller: Caller, *, forced: str = "") -> Binding:
        """That of a request. ``forced`` stands for the filter that the caller's rights force on it.

        ``k`` may change from page to page; ``_meta`` may too, except for what it asks of this gateway
        (``x-gateway``: the engines to ask).
        """
        own = (request.meta or {}).get("x-gateway")
        asked = msgspec.structs.replace(request, k=None, cursor=None, meta=None if own is None else {"x-gateway": own})
        scope = None if caller.engines is None else sorted(caller.engines)
        return cls(owner=digest(caller.id), request=digest(asked), rights=digest(scope, forced))

    @property
    def sealed(self) -> bytes:
        return f"{self.owner} {self.request} {self.rights}".encode("ascii")


@dataclass(frozen=True, slots=True)
class Frozen:
    """A window that is kept, and the place in it where a page begins."""

    window: Window
    offset: int
    _sign: Callable[[int], str]

    def cursor(self, end: int) -> str | None:
        """The cursor of the page that begins at ``end``; ``None`` if there is none."""
        return self._sign(end) if end < len(self.window.hits) else None


class Cursors:
    """Windows live ``ttl`` seconds, however they are walked. They may take ``size`` bytes, ``caller_size`` for each
    caller; then the longest unused go, and their cursors with them.

    Cursors are signed with ``key``, or with one that all who share the store share. ``workers`` is how many processes
    answer at one address.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl: float = 900.0,
        size: int = 64 * 1024 * 1024,
        caller_size: int = 16 * 1024 * 1024,
        key: Secret | None = None,
        workers: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._size = size
        self._caller_size = caller_size
        self._configured = key.reveal().encode() if key is not None else None
        self._clock = clock
        self.offered = store.shared or workers == 1
        """False where the next page may be asked of a process that knows nothing of the window."""

    async def freeze(self, window: Window, binding: Binding) -> Frozen | None:
        """Keeps a window; ``None`` if it is larger than a caller may have.

        Raises :class:`~gateway.errors.StateUnavailable`.
        """
        key = await self._signing_key()
        id = secrets.token_bytes(16)
        until = int(self._clock() + self._ttl)
        kept = await self._store.shelve(self._shelf(binding), id.hex(), encode(window), ttl=self._ttl)
        return Frozen(window, 0, _signer(key, id, until, binding)) if kept else None

    async def resume(self, cursor: str, binding: Binding) -> Frozen:
        """The page that a cursor stands for.

        Raises ``-32015`` if it does not hold for this request, whatever the reason, and
        :class:`~gateway.errors.StateUnavailable` if that cannot be told.
        """
        if _TEXT.fullmatch(cursor) is None:
            raise _gone()
        signed = base64.urlsafe_b64decode(cursor)
        payload = signed[: _FORMAT.size]
        key = await self._signing_key()
        if not hmac.compare_digest(_mac(key, payload, binding), signed[_FORMAT.size :]):
            raise _gone()
        id, offset, until = _FORMAT.unpack(payload)
        if until <= self._clock():
            raise _gone()
        found = await self._store.take(self._shelf(binding), id.hex())
        if found is None:
            raise _gone()
        try:
            window = decode(found, Window)
        except DecodeError as error:  # kept by another version of this program
            raise _gone() from error
        return Frozen(window, offset, _signer(key, id, until, binding))

    def _shelf(self, binding: Binding) -> Shelf:
        return Shelf(_SHELF, binding.owner, self._size, self._caller_size)

    async def _signing_key(self) -> bytes:
        if self._configured is not None:
            return self._configured
        key = await self._store.get(_KEY)
        if key is None:
            fresh = secrets.token_bytes(32)
            # Of several processes that begin at once, one decides.
            key = fresh if await self._store.add(_KEY, fresh, ttl=None) else await self._store.get(_KEY)
        if key is None:
            raise StateUnavailable
        return key


def _signer(key: bytes, id: bytes, until: int, binding: Binding) -> Callable[[int], str]:
    def sign(offset: int) -> str:
        payload = _FORMAT.pack(id, offset, until)
        return base64.urlsafe_b64encode(payload + _mac(key, payload, binding)).decode("ascii")

    return sign


def _mac(key: bytes, payload: bytes, binding: Binding) -> bytes:
    return hmac.digest(key, b"rcp cursor 1 " + payload + binding.sealed, "sha256")


def _gone() -> CallerError:
    """One answer for all reasons: what is wrong with a cursor is nothing to learn from."""
    told = "the cursor is unknown, has expired, or belongs to another request"
    return CallerError(told, code=Code.NOT_FOUND, data={"field": "cursor"})
