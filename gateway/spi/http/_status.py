"""HTTP statuses of engines that do not speak RCP, as errors of ours."""

from __future__ import annotations

import math
import re
import time
from email.utils import parsedate_to_datetime
from typing import Any

from gateway import _json
from gateway.errors import BackendUnavailable, Code, RateLimited, RcpError, UpstreamError
from gateway.spi.http._message import HttpResponse

__all__ = ["raise_for_status", "retry_after_ms"]

_DAY_MS = 86_400_000
_EXCERPT = 300
_SECONDS = re.compile(r"\d+(?:\.\d+)?")
_CONTROL = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_MESSAGE_KEYS = ("message", "error", "detail", "status", "errors")


def retry_after_ms(value: str | None, *, now: float | None = None) -> int | None:
    """A ``Retry-After`` header, seconds or HTTP-date, in milliseconds from ``now`` (epoch seconds); a day at most.

    ``None`` if there is none or it cannot be read; a date that has passed is 0.
    """
    if value is None:
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return math.ceil(min(float(text) * 1000, _DAY_MS))
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    left = moment - (time.time() if now is None else now)
    return math.ceil(max(0.0, min(left * 1000, _DAY_MS)))


def raise_for_status(response: HttpResponse, *, now: float | None = None) -> None:
    """Return for 2xx, raise for everything else.

    The text is ours alone: what the engine wrote may hold keys or the query. ``detail`` has it, shortened.
    A refusal of our key (401, 403) is never shown as the caller's fault.
    """
    if 200 <= response.status < 300:
        return
    error = _error_for(response, now)
    error.detail = f"HTTP {response.status}: {_excerpt(response.body)}"
    raise error


def _error_for(response: HttpResponse, now: float | None) -> RcpError:
    status = response.status
    data: dict[str, Any] = {"upstreamStatus": status}
    if status == 429 or status >= 500:
        wait = retry_after_ms(response.headers.get("retry-after"), now=now)
        if status == 429:
            return RateLimited("the engine limits our rate", retry_after_ms=wait, data=data)
        if wait is not None:
            data["retryAfterMs"] = wait
        return BackendUnavailable(f"the engine failed (HTTP {status})", data=data)
    if status in (408, 425):
        return BackendUnavailable(f"the engine gave up on the request (HTTP {status})", data=data)
    if status == 413:
        return UpstreamError("the request is too large for the engine", code=Code.PAYLOAD_TOO_LARGE, data=data)
    return UpstreamError(_refusal(status), data=data)


def _refusal(status: int) -> str:
    match status:
        case 401 | 403:
            return f"the engine does not accept the gateway's credentials (HTTP {status})"
        case 404:
            return "the engine knows no such address, collection or index (HTTP 404)"
        case 400 | 422:
            return f"the engine does not accept the gateway's request (HTTP {status})"
        case _ if 300 <= status < 400:
            return f"the engine redirects elsewhere, which is not followed (HTTP {status})"
        case _:
            return f"the engine refused the request (HTTP {status})"


def _excerpt(body: bytes) -> str:
    """The engine's own message where there is one, else how the body begins: one short line."""
    text = ""
    if len(body) <= 64 * 1024:
        try:
            text = _message(_json.loads(body))
        except ValueError:
            text = ""
    text = text or body[: 4 * _EXCERPT].decode("utf-8", "replace")
    return _CONTROL.sub(" ", text).strip()[:_EXCERPT]


def _message(value: Any, depth: int = 4) -> str:
    if isinstance(value, str):
        return value
    if depth and isinstance(value, list) and value:
        return _message(value[0], depth - 1)
    if depth and isinstance(value, dict):
        for key in _MESSAGE_KEYS:
            if text := _message(value.get(key), depth - 1):
                return text
    return ""
