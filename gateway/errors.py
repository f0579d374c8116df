"""Everything the gateway raises on purpose.

::

    GatewayError
    ├── ConfigError                 start-up only; carries .path
    │   ├── ConfigErrors            several of them, all that one load found
    │   └── PluginError             carries .distribution
    └── RcpError                    code, retryable, data: may go on the wire
        ├── CallerError             the request must change
        │   └── Unsupported         the engine or the gateway does not offer this
        ├── Busy                    try again later
        │   ├── RateLimited
        │   └── Timeout
        ├── UpstreamError           an engine is the cause; keeps the engine's own error
        │   └── BackendUnavailable
        │       └── StateUnavailable    what outlives a request cannot be reached
        ├── Cancelled
        └── InternalError           a bug here; fixed message, detail only in the log

Codes are those of the RCP 1.0 specification, section 12; no other code is ever emitted.
An error's text never holds secrets, credentials inside URLs, or query text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

__all__ = [
    "BackendUnavailable",
    "Busy",
    "CallerError",
    "Cancelled",
    "Code",
    "ConfigError",
    "ConfigErrors",
    "GatewayError",
    "InternalError",
    "PluginError",
    "RateLimited",
    "RcpError",
    "StateUnavailable",
    "Timeout",
    "Unsupported",
    "UpstreamError",
    "from_wire",
    "invalid_params",
    "option_unsupported",
]

_FIELD_LIMIT = 120


class Code(IntEnum):
    """RCP 1.0 section 12. ``-32601`` is reserved there and never emitted."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    NOT_INITIALIZED = -32001
    VERSION_UNSUPPORTED = -32002
    CAPABILITY_UNSUPPORTED = -32003
    METHOD_NOT_FOUND = -32004
    OPTION_UNSUPPORTED = -32005
    CANCELLED = -32006
    BACKEND_UNAVAILABLE = -32010
    RATE_LIMITED = -32011
    UNAUTHORIZED = -32012
    PAYLOAD_TOO_LARGE = -32013
    TIMEOUT = -32014
    NOT_FOUND = -32015
    CONFLICT = -32016


class GatewayError(Exception):
    """The root: whatever is not below it is a bug."""


class ConfigError(GatewayError):
    """One fault in the configuration.

    ``path`` is where it stands (``engines[2].with.url``), ``""`` for the file as a whole. ``source`` and ``line`` say
    in which file and on which line, once that is known.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.source = ""
        self.line: int | None = None

    @property
    def place(self) -> str:
        """``gateway.yaml:12``, ``gateway.yaml``, ``line 12`` or nothing."""
        if self.line is None:
            return self.source
        return f"{self.source}:{self.line}" if self.source else f"line {self.line}"

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.path, self.message) if part)


class ConfigErrors(ConfigError):
    """All faults that one load of a configuration found, in file order."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__("\n".join(str(error) for error in errors))
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class PluginError(ConfigError):
    """A plugin could not be found, loaded or used; ``distribution`` is the package that ships it, if known."""

    def __init__(self, message: str, *, path: str = "", distribution: str | None = None) -> None:
        super().__init__(message, path=path)
        self.distribution = distribution


class RcpError(GatewayError):
    """An error that may be sent to a client as a JSON-RPC error object.

    ``data`` must hold JSON values only. ``retryable`` is written into it (RCP section 12.2) when it is true.
    ``detail`` is for the log: what happened underneath, such as an engine's own words. It never goes on the wire.
    """

    default_code: Code = Code.INTERNAL_ERROR
    default_retryable = False
    detail: str = ""

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        retryable: bool | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = int(self.default_code if code is None else code)
        self.retryable = self.default_retryable if retryable is None else retryable
        self.data: dict[str, Any] = dict(data or {})

    def to_wire(self) -> dict[str, Any]:
        """The JSON-RPC error object: ``{code, message, data?}``."""
        data = dict(self.data)
        if self.retryable:
            data.setdefault("retryable", True)
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if data:
            error["data"] = data
        return error


class CallerError(RcpError):
    """The request is at fault; the same request will fail again."""

    default_code = Code.INVALID_PARAMS


class Unsupported(CallerError):
    """A capability that is not offered (``-32003``), or an option of one that is (``-32005``)."""

    default_code = Code.CAPABILITY_UNSUPPORTED


class Busy(RcpError):
    """Nothing is wrong with the request; later it may succeed."""

    default_code = Code.RATE_LIMITED
    default_retryable = True


class RateLimited(Busy):
    """``-32011``. ``data.retryAfterMs`` says how long to wait, in milliseconds, where that is known."""

    def __init__(
        self, message: str, *, retry_after_ms: int | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        merged = dict(data or {})
        if retry_after_ms is not None:
            merged["retryAfterMs"] = retry_after_ms
        super().__init__(message, data=merged)


class Timeout(Busy):
    """``-32014``: a deadline passed."""

    default_code = Code.TIMEOUT


class UpstreamError(RcpError):
    """An engine answered with an error of its own, or not at all.

    ``upstream_code`` is the engine's code where it gave one; it is never shown as the gateway's.
    """

    default_code = Code.BACKEND_UNAVAILABLE

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        retryable: bool | None = None,
        upstream_code: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        merged = dict(data or {})
        if upstream_code is not None:
            merged["upstreamCode"] = upstream_code
        super().__init__(message, code=code, retryable=retryable, data=merged)
        self.upstream_code = upstream_code


class BackendUnavailable(UpstreamError):
    """``-32010``: the engine cannot be reached, is not open, or broke off."""

    default_retryable = True


class StateUnavailable(BackendUnavailable):
    """``-32010``: what the gateway keeps between requests cannot be reached, or has no room. It names no engine."""

    def __init__(self, message: str = "the gateway's state cannot be reached") -> None:
        super().__init__(message)


class Cancelled(RcpError):
    """``-32006``: the client took the request back."""

    default_code = Code.CANCELLED


class InternalError(RcpError):
    """``-32603``: a fault of ours. The message is fixed; what happened is in the log only."""

    def __init__(self, message: str = "internal error", *, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, data=data)


def invalid_params(message: str, *, field: str, **data: Any) -> CallerError:
    """``-32602`` with ``data.field``, the path inside ``params`` (spec section 12.1), cut to a bounded length."""
    return CallerError(message, data={"field": field[:_FIELD_LIMIT], **data})


def option_unsupported(message: str, *, option: str, **data: Any) -> Unsupported:
    """``-32005`` with ``data.option``, the value that is not offered (spec section 12.1)."""
    return Unsupported(message, code=Code.OPTION_UNSUPPORTED, data={"option": option[:_FIELD_LIMIT], **data})


_CLASSES: Mapping[int, type[RcpError]] = {
    Code.CAPABILITY_UNSUPPORTED: Unsupported,
    Code.OPTION_UNSUPPORTED: Unsupported,
    Code.CANCELLED: Cancelled,
    Code.TIMEOUT: Timeout,
    Code.BACKEND_UNAVAILABLE: BackendUnavailable,
}


def from_wire(error: Mapping[str, Any]) -> RcpError:
    """The error that a JSON-RPC error object tells of, as the class that stands for its code."""
    code, message, given = error.get("code"), str(error.get("message") or ""), error.get("data")
    data = given if isinstance(given, Mapping) else {}
    made: RcpError
    if not isinstance(code, int) or code == Code.INTERNAL_ERROR:
        made = InternalError(message, data=data)
    elif code == Code.RATE_LIMITED:
        made = RateLimited(message, data=data)
    else:
        made = _CLASSES.get(code, CallerError)(message, code=code, data=data)
    made.retryable = data.get("retryable") is True
    if isinstance(made, UpstreamError):
        made.upstream_code = data.get("upstreamCode")
    return made
