"""The little that a transport has to know of a frame."""

from __future__ import annotations

import msgspec

from gateway import _json
from gateway.errors import Code, RcpError

__all__ = ["fault", "streams", "too_large"]


class _Peek(msgspec.Struct):
    id: _json.Raw | msgspec.UnsetType = msgspec.UNSET


def fault(error: RcpError) -> bytes:
    """The answer to a frame that never reached the dispatcher: its id is not known, so it is null."""
    return _json.encode({"jsonrpc": "2.0", "id": None, "error": error.to_wire()})


def too_large(limit: int) -> RcpError:
    return RcpError(f"the message is larger than {limit} bytes", code=Code.PAYLOAD_TOO_LARGE, data={"limit": limit})


def streams(frame: bytes) -> bool:
    """True if the frame has exactly one answer, so that a stream can end in it.

    A notification has none (it must get no body), a batch has many. What cannot be read has one: its error.
    """
    if frame.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"["):
        return False
    try:
        return _json.decode(frame, _Peek).id is not msgspec.UNSET
    except (_json.DecodeError, RecursionError):
        return True
