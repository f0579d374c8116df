"""The little that a transport has to know of a frame."""

from __future__ import annotations

from gateway import _json
from gateway.errors import Code, RcpError
from gateway.protocol import Limits
from gateway.protocol.envelope import Malformed, Notification, Request, parse

__all__ = ["fault", "has_one_answer", "names_method", "too_large"]


def fault(error: RcpError) -> bytes:
    """The answer to a frame that never reached the dispatcher: its id is not known, so it is null."""
    return _json.encode({"jsonrpc": "2.0", "id": None, "error": error.to_wire()})


def too_large(limit: int) -> RcpError:
    return RcpError(f"the message is larger than {limit} bytes", code=Code.PAYLOAD_TOO_LARGE, data={"limit": limit})


def has_one_answer(frame: bytes) -> bool:
    """True if a stream can end in the answer to this frame.

    A notification has none, and must get no body at all; a batch has many. Whoever asks for a stream pays for a second
    parse of its small frame, since the answer must begin before the dispatcher has seen it.
    """
    return isinstance(parse(frame, Limits()), Request | Malformed)


def names_method(frame: bytes, method: str) -> bool:
    """True if the frame is a single one of this method."""
    parsed = parse(frame, Limits())
    return isinstance(parsed, Request | Notification) and parsed.method == method
