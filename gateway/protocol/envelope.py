"""JSON-RPC frames, apart from what they mean (spec sections 4, 11 and 12).

A frame is read without looking into ``params``: ids, methods and parameters stay raw bytes until somebody needs them,
so an id goes back digit for digit. What the strict parser refuses gets one salvage pass, which mends lone surrogates
and bad UTF-8 and nothing else. Nesting is counted before any parser recurses into it.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from gateway import _json
from gateway._json import Raw
from gateway.errors import CallerError, Code, RcpError, invalid_params
from gateway.protocol.limits import Limits

__all__ = [
    "NULL",
    "Batch",
    "Frame",
    "IdKey",
    "Ignored",
    "Malformed",
    "Member",
    "Notification",
    "Request",
    "batch_of",
    "failure",
    "id_key",
    "notification",
    "one_line",
    "parse",
    "success",
]

NULL = b"null"

IdKey = tuple[str, str | int | float]
"""An id to look up by: ``1`` and ``1.0`` are one number, ``"1"`` is another id than ``1``."""


class Request(msgspec.Struct, frozen=True):
    """A call to answer. ``id`` is the client's own spelling; ``params`` is one JSON value, perhaps no object."""

    id: bytes
    method: str
    params: bytes


class Notification(msgspec.Struct, frozen=True):
    """A frame without an id, whatever its method: never answered."""

    method: str
    params: bytes


class Malformed(msgspec.Struct, frozen=True):
    """Not a request; answered by ``error`` under ``id``, which is null where none could be read."""

    error: RcpError
    id: bytes = NULL


class Ignored(msgspec.Struct, frozen=True):
    """A response. We asked this peer nothing."""


Member = Request | Notification | Malformed | Ignored


class Batch(msgspec.Struct, frozen=True):
    members: tuple[Member, ...]


Frame = Member | Batch


class _Envelope(msgspec.Struct):
    jsonrpc: Raw = Raw(b"")
    id: Raw = Raw(b"")
    method: Raw = Raw(b"")
    params: Raw = Raw(b"")
    result: Raw = Raw(b"")
    error: Raw = Raw(b"")


def parse(frame: bytes, limits: Limits) -> Frame:
    """What a frame is. Raises nothing: whatever it is, it is one of the five things above."""
    if len(frame) > limits.frame_bytes:
        return Malformed(
            RcpError("the frame is too large", code=Code.PAYLOAD_TOO_LARGE, data={"limit": limits.frame_bytes})
        )
    is_batch = frame.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"[")
    fault = _bounds(frame, is_batch, limits)
    if fault is not None:
        return Malformed(fault)
    try:
        return _read(frame, is_batch, limits)
    except (ValueError, RecursionError):
        pass
    try:
        return _read(_json.encode(_json.salvage(frame, allow_nan=False)), is_batch, limits)
    except (ValueError, RecursionError):
        return Malformed(CallerError("the frame is not valid JSON", code=Code.PARSE_ERROR))


def _read(frame: bytes, is_batch: bool, limits: Limits) -> Frame:
    if is_batch:
        members = _json.decode(frame, list[Raw])
        if not members:
            return _invalid("a batch must not be empty")
        return Batch(tuple(_member(member, limits) for member in members))
    return _member(frame, limits)


def _member(data: bytes | Raw, limits: Limits) -> Member:
    try:
        envelope = _json.decode(data, _Envelope)
    except _json.ValidationError:
        _json.decode(data, Any)  # "42 x" stops at the 42: is it JSON at all?
        return _invalid("a request must be an object")
    raw_id, raw_method = bytes(envelope.id), bytes(envelope.method)
    method = _json.decode(raw_method, str) if raw_method.startswith(b'"') else None
    if not raw_id:
        if method is not None:
            return Notification(method, bytes(envelope.params))
        return Ignored() if _is_response(envelope) else _invalid("a request needs a method, which is a string")
    if method is None and not raw_method and _is_response(envelope):
        return Ignored()
    try:
        raw_id = raw_id.decode("utf-8", "replace").encode()
        id_key(raw_id, limits.id_bytes)
    except ValueError:
        return _invalid("an id must be a string or a finite number, and not a long one")
    if envelope.jsonrpc and _plain(envelope.jsonrpc) != "2.0":
        return _invalid('jsonrpc must be "2.0"', raw_id)
    if method is None:
        return _invalid("a request needs a method, which is a string", raw_id)
    return Request(raw_id, method, bytes(envelope.params))


def _is_response(envelope: _Envelope) -> bool:
    return bool(envelope.result or envelope.error)


def _plain(raw: Raw) -> Any:
    return _json.decode(raw, Any)


def _invalid(message: str, id: bytes = NULL) -> Malformed:
    return Malformed(CallerError(message, code=Code.INVALID_REQUEST), id)


def id_key(raw: bytes, limit: int = 512) -> IdKey:
    """What an encoded id means. Raises ``ValueError`` for what may not be an id, or is longer than ``limit`` bytes."""
    if len(raw) > limit:
        raise ValueError("the id is too long")
    if raw.startswith(b'"'):
        return "string", _json.decode(raw, str)
    if not raw or raw[:1] not in b"-0123456789":
        raise ValueError("an id is a string or a number")
    if raw.lstrip(b"-").isdigit():
        return "number", int(raw)
    value = float(raw)
    if not math.isfinite(value):
        raise ValueError("an id must be finite")
    return "number", value


# Bounds, before any parser sees the frame.

_OPEN, _CLOSE, _COMMA = 1, 255, 2
_STRUCTURE = bytes.maketrans(b"[{]},", bytes([_OPEN, _OPEN, _CLOSE, _CLOSE, _COMMA]))
_NOISE = bytes(set(range(256)) - set(b'[{]},"'))
_STRING = re.compile(rb'"[^"]*"?')


def _bounds(frame: bytes, is_batch: bool, limits: Limits) -> RcpError | None:
    deep = frame.count(b"[") + frame.count(b"{") > limits.depth
    long = is_batch and frame.count(b",") >= limits.batch
    if not deep and not long:
        return None
    structure = _structure(frame, commas=long)
    if deep and _depth_exceeds(structure, limits.depth):
        return CallerError("the frame is nested too deeply", code=Code.PARSE_ERROR, data={"limit": limits.depth})
    if long and _members_exceed(structure, limits.batch):
        return invalid_params("the batch has too many members", field="batch", limit=limits.batch)
    return None


def _structure(frame: bytes, *, commas: bool) -> bytes:
    """The brackets (and commas) outside strings. Linear, and nearly all of it in C: the frame may be hostile."""
    # A run of backslashes starts an escape, so pairs are counted from its left.
    bare = frame.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in frame else frame
    # Two quotes side by side may go, be they one empty string or the seam of two: what was inside stays inside.
    bare = bare.translate(_STRUCTURE, _NOISE if commas else _NOISE + b",").replace(b'""', b"")
    return _STRING.sub(b"", bare) if b'"' in bare else bare


def _depth_exceeds(structure: bytes, limit: int) -> bool:
    if bytes([_OPEN]) * (limit + 1) in structure:
        return True
    # As signed bytes an opening bracket is +1 and a closing one -1.
    return max(accumulate(array("b", structure.replace(bytes([_COMMA]), b""))), default=0) > limit


def _members_exceed(structure: bytes, limit: int) -> bool:
    """True if the outer array has more members; without building a list that might be of millions."""
    depth, commas = 0, 0
    for byte in structure:
        if byte == _COMMA:
            if depth == 1:
                commas += 1
                if commas >= limit:
                    return True
        else:
            depth += 1 if byte == _OPEN else -1
    return False


# Writing.


def success(id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result)


def failure(id: bytes, error: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, error)


def notification(method: str, params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (_json.encode(method), one_line(params))


def one_line(encoded: bytes) -> bytes:
    """The same JSON without line breaks, which would end a frame on stdio.

    What we encode has none; an encoded part that somebody spliced in might.
    """
    if b"\n" not in encoded and b"\r" not in encoded:
        return encoded
    return _json.encode(_json.decode(encoded, Any))


def batch_of(answers: Sequence[bytes]) -> bytes:
    return b"[%b]" % b",".join(answers)
