"""The client's half of one RCP connection, without I/O: what to send, and what a frame that came in means.

Real peers are sloppy (NaN for a score, noise on stdout, answers with a foreign id), so reading is liberal: whatever is
not an answer to a request of ours, or progress of one, comes back as :class:`Noise` and costs nobody anything. Sending
is strict: full JSON-RPC 2.0, ids of our own that are never used twice on a connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway import _json
from gateway.errors import BackendUnavailable, Code, RateLimited, RcpError, Timeout, UpstreamError

__all__ = [
    "NAME_LIMIT",
    "Answer",
    "Log",
    "Noise",
    "Peer",
    "PeerError",
    "Progress",
    "Request",
    "failure",
    "printable",
]

_ABSENT = _json.Raw(b"")
_BOM = b"\xef\xbb\xbf"
NAME_LIMIT = 64
"""Characters of a stage, or of a server's name, that are shown."""
_TEXT_LIMIT = 2000
_FORGOTTEN_LIMIT = 1024
_SAFE_INTEGER = 2**53 - 1
_ANSWER = re.compile(
    rb'\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*'
    rb'(?:"id"\s*:\s*(?P<id>[1-9][0-9]{0,15})\s*,\s*"(?:result|error)"|"(?:result|error)"\s*:)'
)
_FIELD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,80}")
# An engine's own trouble. Its other codes speak about our request, our key or our session there.
_SURFACING = {Code.BACKEND_UNAVAILABLE, Code.RATE_LIMITED, Code.TIMEOUT, Code.INTERNAL_ERROR}
_TRANSIENT = {Code.BACKEND_UNAVAILABLE, Code.RATE_LIMITED, Code.TIMEOUT}


@dataclass(frozen=True, slots=True)
class Request:
    """A frame to send and the id its answer will bear."""

    id: int
    method: str
    data: bytes


@dataclass(frozen=True, slots=True)
class PeerError:
    """A JSON-RPC error as the peer sent it; ``code`` is ``None`` if it was no integer."""

    code: int | None
    message: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to request ``id``: an error, or a result that is still encoded."""

    id: int
    result: _json.Raw
    error: PeerError | None = None

    def object(self) -> _json.Raw:
        """The result, which must be a JSON object.

        Raises what the peer's error means (:func:`failure`), or :class:`BackendUnavailable` for a result of another
        shape: an answer nobody can read is no answer.
        """
        if self.error is not None:
            raise failure(self.error)
        if bytes(memoryview(self.result)[:1]) != b"{":
            raise BackendUnavailable("the engine's answer is not a JSON object")
        return self.result


@dataclass(frozen=True, slots=True)
class Progress:
    """How far request ``id`` is, in [0, 1]. The peer's partial hits are dropped: nobody has checked them."""

    id: int
    fraction: float
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """``notifications/log`` of the peer: for the operator, and for whose request ``id`` is if it names one."""

    level: str
    message: str
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Noise:
    """A frame that means nothing here."""

    reason: str


Event = Answer | Progress | Log | Noise


class _Frame(msgspec.Struct):
    id: _json.Raw = _ABSENT
    method: _json.Raw = _ABSENT
    params: _json.Raw = _ABSENT
    result: _json.Raw = _ABSENT
    error: _json.Raw = _ABSENT


class Peer:
    """One connection's requests in flight.

    ``serial`` says that the connection carries one request at a time, so that an error without an id can only be the
    answer to the oldest request that has none yet.
    """

    def __init__(self, *, serial: bool = False) -> None:
        self.serial = serial
        self._last = 0
        # In the order sent; False once the caller no longer waits, but the answer may still come.
        self._waiting: dict[int, bool] = {}

    @property
    def in_flight(self) -> int:
        """How many requests somebody still waits for."""
        return sum(self._waiting.values())

    def request(self, method: str, params: Mapping[str, Any], *, progress: bool = False) -> Request:
        """A request with a fresh id. With ``progress`` it carries a progress token of our own: the id."""
        self._last += 1
        id = self._last
        if progress:
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": id}}
        self._waiting[id] = True
        data = _json.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        return Request(id, method, data)

    def cancel(self, id: int) -> bytes | None:
        """Nobody waits for ``id`` any more: the notification that tells the peer so, ``None`` if it has answered."""
        if id not in self._waiting:
            return None
        self._waiting[id] = False
        if len(self._waiting) > _FORGOTTEN_LIMIT:
            stale = next((old for old, wanted in self._waiting.items() if not wanted), id)
            del self._waiting[stale]
        return _json.encode({"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": id}})

    def forget(self, id: int) -> None:
        """The exchange with this id is over and no answer to it can come any more."""
        self._waiting.pop(id, None)

    def abandon(self) -> None:
        """The connection died, and with it every request on it."""
        self._waiting.clear()

    def receive(self, frame: bytes, *, only: int | None = None) -> Event:
        """What a frame means. Never raises.

        ``only`` is for transports that pair a frame with its request themselves (HTTP): answers to other ids are noise,
        and an error without an id answers this one.
        """
        frame = frame.removeprefix(_BOM).strip()
        if not frame:
            return Noise("blank")
        read = _read(frame)
        if read is None:
            return self._broken(frame, only)
        if bytes(read.method) not in (b"", b"null"):
            return self._notification(read)
        error = _error(read.error)
        id = self._correlate(read.id, error, only)
        if id is None:
            return Noise("an answer to no request of ours")
        wanted = self._waiting.pop(id)
        return Answer(id, read.result, error) if wanted else Noise("a late answer")

    def _broken(self, frame: bytes, only: int | None) -> Event:
        """A frame that cannot be read. One that began as an answer was one, and no other will come for its request.

        Its id, if it came first, says whose it was; else it is only known if a single request waits. Whatever else
        stands on a line is noise: programs print there.
        """
        begun = _ANSWER.match(frame)
        if begun is None or only is not None:
            return Noise("not a JSON object")
        id = int(begun["id"]) if begun["id"] else None
        if id is None and len(self._waiting) == 1:
            id = next(iter(self._waiting))
        wanted = None if id is None else self._waiting.pop(id, None)
        return Answer(id, _ABSENT) if id is not None and wanted else Noise("a broken answer to no request of ours")

    def _correlate(self, raw: _json.Raw, error: PeerError | None, only: int | None) -> int | None:
        value = _value(raw)
        if value is None and error is not None:
            if only is not None:
                return only if only in self._waiting else None
            return next(iter(self._waiting), None) if self.serial else None
        if isinstance(value, bool) or not isinstance(value, int | float) or value not in self._waiting:
            return None
        id = int(value)
        return id if only is None or id == only else None

    def _notification(self, frame: _Frame) -> Event:
        method, params = _value(frame.method), _value(frame.params)
        if not isinstance(params, dict):
            return Noise("a notification without parameters")
        if method == "notifications/progress":
            token, fraction = params.get("progressToken"), _json.finite_float(params.get("progress"))
            if isinstance(token, bool) or not isinstance(token, int) or not self._waiting.get(token, False):
                return Noise("progress of no request of ours")
            if fraction is None:
                return Noise("progress without a number")
            return Progress(token, min(1.0, max(0.0, fraction)), printable(params.get("stage"), NAME_LIMIT))
        if method == "notifications/log":
            return Log(
                printable(params.get("level"), NAME_LIMIT),
                printable(params.get("message"), _TEXT_LIMIT),
                self._ours(params.get("_meta")),
            )
        return Noise("a notification nobody asked for")

    def _ours(self, meta: Any) -> int | None:
        """The request that a notification says it belongs to, by the token of our own that it carried (17.1)."""
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if isinstance(token, bool) or not isinstance(token, int) or not self._waiting.get(token, False):
            return None
        return token


def failure(error: PeerError) -> RcpError:
    """A peer's error as the gateway's own, always with ``data.upstreamCode`` if the peer gave a code.

    What tells of the engine's trouble keeps its code. What speaks of our request, key or session there is our fault or
    nobody's, never the caller's, and becomes ``-32010``; so does a code nobody knows. The peer's text may quote the
    query, so it stays out of the message and goes into ``detail``, for the log.
    """
    code = error.code
    data: dict[str, Any] = {} if code is None else {"upstreamCode": code}
    wait = _json.finite_float(error.data.get("retryAfterMs"))
    if wait is not None and wait >= 0:
        data["retryAfterMs"] = int(min(wait, _SAFE_INTEGER))
    said = error.data.get("retryable")
    retryable = code in _SURFACING and (said if isinstance(said, bool) else code in _TRANSIENT)
    if not retryable:
        # Clients take -32010 as worth a retry unless they are told otherwise (section 12.2).
        data["retryable"] = False
    place = error.data.get("field", error.data.get("option"))
    at = f" at {place!r}" if isinstance(place, str) and _FIELD.fullmatch(place) else ""
    message = f"the engine answered with error {code}{at}" if code is not None else "the engine answered with an error"
    found: RcpError
    match code:
        case Code.RATE_LIMITED:
            found = RateLimited(message, data=data)
        case Code.TIMEOUT:
            found = Timeout(message, data=data)
        case Code.INTERNAL_ERROR:
            found = UpstreamError(message, code=code, retryable=retryable, upstream_code=code, data=data)
        case _:
            found = BackendUnavailable(message, upstream_code=code, data=data)
    found.retryable = retryable
    found.detail = error.message
    return found


def _read(frame: bytes) -> _Frame | None:
    try:
        if not frame.isascii():
            # Skipped members are not checked by the parser, so bad UTF-8 would travel on in a hit.
            frame = frame.decode("utf-8", "replace").encode()
        return _json.decode(frame, _Frame)
    except msgspec.ValidationError:
        return None
    except (ValueError, RecursionError):
        return _salvaged(frame)


def _salvaged(frame: bytes) -> _Frame | None:
    """NaN, infinities and lone surrogates cost a hit its score or a letter, not the whole answer."""
    try:
        value = _json.salvage(frame, allow_nan=True)
        if not isinstance(value, dict):
            return None
        names = _Frame.__struct_fields__
        return _Frame(**{name: _json.Raw(_json.encode(value[name])) for name in names if name in value})
    except (ValueError, RecursionError):
        return None


def _error(raw: _json.Raw) -> PeerError | None:
    if bytes(raw) in (b"", b"null"):
        return None
    value = _value(raw)
    if not isinstance(value, dict):
        return PeerError(None)
    code, data = _json.finite_float(value.get("code")), value.get("data")
    whole = code is not None and code.is_integer() and abs(code) <= _SAFE_INTEGER
    return PeerError(
        int(code) if whole and code is not None else None,
        printable(value.get("message"), _TEXT_LIMIT),
        data if isinstance(data, dict) else {},
    )


def _value(raw: _json.Raw) -> Any:
    if not bytes(raw):
        return None
    try:
        return _json.decode(raw, Any)
    except (ValueError, RecursionError):
        return None


def printable(value: Any, limit: int) -> str:
    """A peer's text fit for a log; ``""`` for what is no text."""
    if not isinstance(value, str):
        return ""
    return "".join(_printable(value[:limit]))


def _printable(text: str) -> Iterable[str]:
    return (letter if letter.isprintable() else " " for letter in text)
