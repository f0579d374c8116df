"""What went wrong, in RCP's words.

The client wraps every failure of a gRPC call in one class and keeps the status only in the exception's context, so the
status is looked for along the whole chain. Weaviate's own words go into ``detail``, which stays in the log: they may
hold property values and addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.errors import BackendUnavailable, Code, RateLimited, RcpError, Timeout, UpstreamError

__all__ = ["fault", "refused_documents"]

_KEY = "the Weaviate server does not accept the API key: renew it and check api_key in the engine's settings"
_OURS: Final[Mapping[str, str]] = {
    "UNAUTHENTICATED": _KEY,
    "PERMISSION_DENIED": _KEY,
    "INVALID_ARGUMENT": "the engine refuses the request",
    "NOT_FOUND": "the engine does not know the collection or the tenant",
    "FAILED_PRECONDITION": "the engine refuses the request",
    "OUT_OF_RANGE": "the engine refuses the request",
    "ALREADY_EXISTS": "the engine refuses the request",
    "UNIMPLEMENTED": "the engine is too old for the request",
    "UNKNOWN": "the engine could not answer the request",
}
"""These fail again when they are repeated. UNKNOWN is what Weaviate says of all that is wrong with a query."""


def fault(error: BaseException) -> RcpError:
    """The error for an exception of the client, of gRPC, or of the HTTP library below it."""
    mapped = _mapped(error)
    mapped.detail = f"{type(error).__name__}: {error}"
    return mapped


def refused_documents(positions: Mapping[int, str], total: int) -> RcpError:
    """Some documents of a batch were refused, each for a reason of its own; the others are stored."""
    listed = ", ".join(map(str, sorted(positions)[:20])) + (", …" if len(positions) > 20 else "")
    error = UpstreamError(
        f"the engine refused {len(positions)} of {total} documents (positions {listed})",
        retryable=False,
        data={"refused": sorted(positions)},
    )
    error.detail = "; ".join(f"{position}: {reason}" for position, reason in sorted(positions.items()))[:4_000]
    return error


def _mapped(error: BaseException) -> RcpError:
    for one in _chain(error):
        status = _status(one)
        if status is not None:
            return _of_status(*status)
    for one in _chain(error):
        code = getattr(one, "status_code", None)
        if isinstance(code, int):
            return _of_http(code)
    names = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    if names & {"TimeoutException", "WeaviateTimeoutError", "TimeoutError"}:
        return Timeout("the engine did not answer in time")
    if names & {
        "HTTPError",
        "OSError",
        "WeaviateConnectionError",
        "WeaviateStartUpError",
        "WeaviateClosedClientError",
        "WeaviateGRPCUnavailableError",
    }:
        return BackendUnavailable("the engine cannot be reached")
    return UpstreamError("the client refuses the request or the engine's answer", retryable=False)


def _of_status(name: str, number: int, details: str) -> RcpError:
    if name == "DEADLINE_EXCEEDED" or "deadline exceeded" in details.lower():
        return Timeout("the engine did not answer in time", data={"upstreamCode": number})
    if name == "RESOURCE_EXHAUSTED":
        if "larger than max" in details:
            return UpstreamError(
                "the request or its answer is too large for the engine's messages",
                code=Code.PAYLOAD_TOO_LARGE,
                retryable=False,
                upstream_code=number,
            )
        return RateLimited("the engine has too much to do", data={"upstreamCode": number})
    if name == "UNKNOWN" and "could not find class" in details:
        return UpstreamError(_OURS["NOT_FOUND"], retryable=False, upstream_code=number)
    if name in _OURS:
        return UpstreamError(_OURS[name], retryable=False, upstream_code=number)
    return BackendUnavailable("the engine cannot be reached or broke off", upstream_code=number)


def _of_http(code: int) -> RcpError:
    match code:
        case 401 | 403:
            return UpstreamError(_OURS["UNAUTHENTICATED"], retryable=False, upstream_code=code)
        case 404:
            return UpstreamError(_OURS["NOT_FOUND"], retryable=False, upstream_code=code)
        case 408 | 504:
            return Timeout("the engine did not answer in time", data={"upstreamCode": code})
        case 413:
            return UpstreamError(
                "the request is too large for the engine",
                code=Code.PAYLOAD_TOO_LARGE,
                retryable=False,
                upstream_code=code,
            )
        case 429:
            return RateLimited("the engine has too much to do", data={"upstreamCode": code})
        case _ if 400 <= code < 500:
            return UpstreamError(_OURS["INVALID_ARGUMENT"], retryable=False, upstream_code=code)
        case _:
            return BackendUnavailable("the engine broke off", upstream_code=code)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and all that led to it, each once."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]


def _status(error: BaseException) -> tuple[str, int, str] | None:
    """Name, number and words of a gRPC status, if the exception is one; without importing gRPC to ask."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if not callable(code) or not callable(details):
        return None
    found: Any = code()
    name, value = getattr(found, "name", None), getattr(found, "value", None)
    if not isinstance(name, str) or not isinstance(value, tuple) or not isinstance(value[0], int):
        return None
    return name, value[0], str(details() or "")
