"""The client's half of one RCP connection, without I/O: what to send, and what a frame that came in means.

Real peers are sloppy (NaN for a score, noise on stdout, answers with a foreign id), so reading is liberal: whatever is
not an answer to a request of ours, or progress of one, comes back as :class:`Noise` and costs nobody anything. Sending
is strict: full JSON-RPC 2.0, ids of our own that are never used twice on a connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from gateway import _json
from gateway.errors import BackendUnavailable, Code, RateLimited, RcpError, Timeout, UpstreamError

__all__ = [
    "PROTOCOL_VERSION",
    "Answer",
    "Handshake",
    "Log",
    "Noise",
    "Peer",
    "PeerError",
    "Progress",
    "Request",
    "State",
    "failure",
]

PROTOCOL_VERSION = 1
"""The one version spoken here, highest and lowest (RCP section 7.1)."""

_ABSENT = _json.Raw(b"")
_BOM = b"\xef\xbb\xbf"
_STAGE_LIMIT = 64
_TEXT_LIMIT = 2000
_FORGOTTEN_LIMIT = 1024
_SAFE_INTEGER = 2**53 - 1
_TOKEN = re.compile(r"[\x21-\x7e]{1,1024}")
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
            token, fraction = params.get("progressToken"), _number(params.get("progress"))
            if isinstance(token, bool) or not isinstance(token, int) or not self._waiting.get(token, False):
                return Noise("progress of no request of ours")
            if fraction is None:
                return Noise("progress without a number")
            return Progress(token, min(1.0, max(0.0, fraction)), _text(params.get("stage"), _STAGE_LIMIT))
        if method == "notifications/log":
            return Log(
                _text(params.get("level"), _STAGE_LIMIT),
                _text(params.get("message"), _TEXT_LIMIT),
                self._ours(params.get("_meta")),
            )
        return Noise("a notification nobody asked for")

    def _ours(self, meta: Any) -> int | None:
        """The request that a notification says it belongs to, by the token of our own that it carried (17.1)."""
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        if isinstance(token, bool) or not isinstance(token, int) or not self._waiting.get(token, False):
            return None
        return token


class State(Enum):
    FRESH = "fresh"
    INITIALIZING = "initializing"
    ASKING = "asking"
    READY = "ready"


class _Outcome(Enum):
    ACCEPTED = "accepted"
    ALREADY = "already initialised"
    FAILED = "failed"


# -32600 on initialize means that somebody else holds the one session of an SDK server; its `info` still tells all that
# is needed (DECISIONS D1b). A failed handshake starts again from the beginning.
_NEXT = {
    (State.INITIALIZING, _Outcome.ACCEPTED): State.READY,
    (State.INITIALIZING, _Outcome.ALREADY): State.ASKING,
    (State.INITIALIZING, _Outcome.FAILED): State.FRESH,
    (State.ASKING, _Outcome.ACCEPTED): State.READY,
    (State.ASKING, _Outcome.ALREADY): State.FRESH,
    (State.ASKING, _Outcome.FAILED): State.FRESH,
}


class Handshake:
    """``initialize`` and its answer (RCP sections 7.1 and 13): nothing else is sent before it is through.

    ``step`` says what to send next; ``advance`` takes the answer. ``generation`` counts completed handshakes, so that
    many calls that learn at once that the session is gone start only one new handshake.
    """

    def __init__(self, *, name: str, version: str) -> None:
        self.state = State.FRESH
        self.generation = 0
        self.capabilities: Mapping[str, Any] = {}
        self.server = ""
        self.session: str | None = None
        self._client = {"name": name, "version": version}

    def step(self) -> tuple[str, dict[str, Any]] | None:
        """Method and parameters of the next request, ``None`` once the peer is ready."""
        match self.state:
            case State.READY:
                return None
            case State.ASKING:
                return "info", {}
            case _:
                self.state = State.INITIALIZING
                client: dict[str, Any] = {"streaming": {}, "log": {}}
                return "initialize", {
                    "protocolVersion": PROTOCOL_VERSION,
                    "client": self._client,
                    "capabilities": client,
                    # Each call asks for as much as its client wants to hear.
                    "_meta": {"logLevel": "error"},
                }

    def advance(self, answer: Answer) -> None:
        """Takes the answer to what :meth:`step` said. Raises :class:`RcpError` if there is no way on."""
        if answer.error is not None:
            already = answer.error.code == Code.INVALID_REQUEST and self.state is State.INITIALIZING
            self.state = _NEXT[self.state, _Outcome.ALREADY if already else _Outcome.FAILED]
            if already:
                return
            raise failure(answer.error)
        try:
            self._accept(_json.decode(answer.object(), dict[str, Any]))
        except (RcpError, ValueError, RecursionError) as error:
            self.state = _NEXT[self.state, _Outcome.FAILED]
            if isinstance(error, RcpError):
                raise
            raise BackendUnavailable("the engine's handshake cannot be read") from error
        self.state = _NEXT[self.state, _Outcome.ACCEPTED]
        self.generation += 1

    def lapse(self, generation: int) -> None:
        """The session of that generation is gone (``-32001``). A newer one is left alone."""
        if self.state is State.READY and generation == self.generation:
            self.reset()

    def reset(self) -> None:
        """Starts over: the connection is a new one."""
        self.state = State.FRESH
        self.session = None

    def _accept(self, result: Mapping[str, Any]) -> None:
        version = _number(result.get("protocolVersion", PROTOCOL_VERSION))
        if version is None or not version.is_integer() or version < PROTOCOL_VERSION:
            raise BackendUnavailable("the engine speaks no version of RCP that the gateway does", retryable=False)
        capabilities, server, meta = result.get("capabilities"), result.get("server"), result.get("_meta")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.server = _text(server.get("name"), _STAGE_LIMIT) if isinstance(server, dict) else ""
        if self.state is State.INITIALIZING:
            token = meta.get("session") if isinstance(meta, dict) else None
            # It becomes a header: what could break out of one is not a token.
            self.session = token if isinstance(token, str) and _TOKEN.fullmatch(token) else None


def failure(error: PeerError) -> RcpError:
    """A peer's error as the gateway's own, always with ``data.upstreamCode`` if the peer gave a code.

    What tells of the engine's trouble keeps its code. What speaks of our request, key or session there is our fault or
    nobody's, never the caller's, and becomes ``-32010``; so does a code nobody knows. The peer's text may quote the
    query, so it stays out of the message and goes into ``detail``, for the log.
    """
    code = error.code
    data: dict[str, Any] = {} if code is None else {"upstreamCode": code}
    wait = _number(error.data.get("retryAfterMs"))
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
    code, data = _number(value.get("code")), value.get("data")
    whole = code is not None and code.is_integer() and abs(code) <= _SAFE_INTEGER
    return PeerError(
        int(code) if whole and code is not None else None,
        _text(value.get("message"), _TEXT_LIMIT),
        data if isinstance(data, dict) else {},
    )


def _value(raw: _json.Raw) -> Any:
    if not bytes(raw):
        return None
    try:
        return _json.decode(raw, Any)
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _json.finite(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _text(value: Any, limit: int) -> str:
    if not isinstance(value, str):
        return ""
    return "".join(_printable(value[:limit]))


def _printable(text: str) -> Iterable[str]:
    return (letter if letter.isprintable() else " " for letter in text)
