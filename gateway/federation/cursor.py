"""Pagination (RCP section 10): a list of hits that is frozen once, and the cursors that walk it.

What a page shows was decided when the first page was; engines are not asked again, so nothing comes twice and nothing
is passed over, whatever becomes of them in between.
"""

from __future__ import annotations

import base64
import hmac
import itertools
import re
import secrets
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.caller import Caller
from gateway.errors import CallerError, Code, StateUnavailable
from gateway.federation.loss import Loss
from gateway.model import RetrieveRequest
from gateway.secret import Secret
from gateway.spi.codec import DecodeError, Raw, decode, encode
from gateway.state import Shelf, Store, digest

__all__ = ["Binding", "Cursors", "Frozen", "Unsealed", "Window"]

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

    def telling(self, told: Sequence[str]) -> Window:
        """The window with more that is said of it, structured and as prose, each thing once."""
        told = [one for one in told if one not in self.notes]
        if not told:
            return self
        losses = [*self.vendor.get("losses", ()), *(Loss(kind="note", message=one) for one in told)]
        vendor = {**self.vendor, "losses": losses}
        return msgspec.structs.replace(self, notes=(*self.notes, *told), vendor=vendor)


class Unsealed(ABC):
    """A window of which no page but the first has been made yet, but which holds all that the others will be made of.

    For the memory of this process alone. ``size`` is what it takes, in bytes.
    """

    size: int

    @abstractmethod
    def open(self) -> tuple[Window, Callable[[Sequence[int]], tuple[Raw, ...]]]:
        """The window without its hits, and what seals those at some places. Nothing of it depends on when."""


class Binding(msgspec.Struct, frozen=True):
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
        return cls(owner=_owner(caller.id), request=digest(asked), rights=_rights(caller.engines, forced))

    @property
    def sealed(self) -> bytes:
        return f"{self.owner} {self.request} {self.rights}".encode("ascii")


class Frozen(msgspec.Struct, frozen=True):
    """A window that is kept, and the place in it where a page begins."""

    window: Window
    offset: int
    _sign: Callable[[int], str]
    _seal: Callable[[Sequence[int]], tuple[Raw, ...]] | None = None

    def __len__(self) -> int:
        return len(self.window.hits) if self._seal is None else len(self.window.ids)

    def hits(self, places: Sequence[int]) -> tuple[Raw, ...]:
        """The sealed hits at these places of the window."""
        if self._seal is not None:
            return self._seal(places)
        return tuple([self.window.hits[place] for place in places])

    def cursor(self, end: int) -> str | None:
        """The cursor of the page that begins at ``end``; ``None`` if there is none."""
        return self._sign(end) if end < len(self) else None


class Cursors:
    """Windows live ``ttl`` seconds, however they are walked. They may take ``size`` bytes, ``caller_size`` for each
    caller; then the longest unused go, and their cursors with them.

    Cursors are signed with ``key``, or with one that all who share the store share. ``processes`` is how many
    gateways answer at one address.
    """

    def __init__(
        self,
        store: Store,
        *,
        ttl: float = 900.0,
        size: int = 64 * 1024 * 1024,
        caller_size: int = 16 * 1024 * 1024,
        key: Secret | None = None,
        processes: int = 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._size = size
        self._caller_size = caller_size
        self._configured = key.reveal().encode() if key is not None else None
        self._clock = clock
        # A name has to be unlike any other, and need not be a secret: cursors are signed.
        self._names = _names(secrets.token_bytes(8))
        self.offered = store.shared or processes == 1
        """False where the next page may be asked of a process that knows nothing of the window."""

    async def freeze(self, window: Window, binding: Binding) -> Frozen | None:
        """Keeps a window; ``None`` if it is larger than a caller may have.

        Raises :class:`~gateway.errors.StateUnavailable`.
        """
        key = await self._signing_key()
        id = next(self._names)
        until = int(self._clock() + self._ttl)
        kept = await self._store.shelve(self._shelf(binding), id.hex(), encode(window), ttl=self._ttl)
        return Frozen(window, 0, _signer(key, id, until, binding)) if kept else None

    async def hold(self, window: Unsealed, binding: Binding, end: int) -> str | None:
        """Keeps a window that is not sealed yet; the cursor of the page that begins at ``end``.

        ``None`` if it is larger than a caller may have, or may be asked for elsewhere. Raises
        :class:`~gateway.errors.StateUnavailable`.
        """
        key = await self._signing_key()
        id = next(self._names)
        until = int(self._clock() + self._ttl)
        kept = await self._store.hold(self._shelf(binding), id.hex(), window, size=window.size, ttl=self._ttl)
        return _signer(key, id, until, binding)(end) if kept else None

    @property
    def holds(self) -> bool:
        """False where only what is sealed can be kept, since other processes will be asked for it."""
        return not self._store.shared

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
        shelf, sign = self._shelf(binding), _signer(key, id, until, binding)
        held = await self._store.held(shelf, id.hex())
        if isinstance(held, Unsealed):
            window, seal = held.open()
            return Frozen(window, offset, sign, seal)
        found = await self._store.take(shelf, id.hex())
        if found is None:
            raise _gone()
        try:
            window = decode(found, Window)
        except DecodeError as error:  # kept by another version of this program
            raise _gone() from error
        return Frozen(window, offset, sign)

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
        if not self._store.shared:
            self._configured = key  # nobody else can replace it
        return key


def _names(own: bytes) -> Iterator[bytes]:
    return (own + count.to_bytes(8, "big") for count in itertools.count())


@lru_cache(1024)
def _owner(caller: str) -> str:
    return digest(caller)


@lru_cache(1024)
def _rights(engines: frozenset[str] | None, forced: str) -> str:
    return digest(None if engines is None else sorted(engines), forced)


def _signer(key: bytes, id: bytes, until: int, binding: Binding) -> Callable[[int], str]:
    def sign(offset: int) -> str:
        payload = _FORMAT.pack(id, offset, until)
        return base64.urlsafe_b64encode(payload + _mac(key, payload, binding)).decode("ascii")

    return sign


def _mac(key: bytes, payload: bytes, binding: Binding) -> bytes:
    # Keyed BLAKE2b is a MAC as HMAC is, and a tenth of its price. It takes keys of at most 64 bytes.
    key = key if len(key) <= blake2b.MAX_KEY_SIZE else blake2b(key).digest()
    return blake2b(payload + binding.sealed, digest_size=_MAC, key=key, person=b"rcp cursor 2").digest()


def _gone() -> CallerError:
    """One answer for all reasons: what is wrong with a cursor is nothing to learn from."""
    told = "the cursor is unknown, has expired, or belongs to another request"
    return CallerError(told, code=Code.NOT_FOUND, data={"field": "cursor"})
