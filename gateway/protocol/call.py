"""The client's call as handlers see it: a :class:`gateway.spi.call.ClientCall` that speaks JSON-RPC."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway import _json
from gateway.caller import Caller
from gateway.protocol import envelope

__all__ = ["LEVELS", "Notifier", "RequestCall", "progress_token"]

_TOKEN = 512

LEVELS = ("debug", "info", "notice", "warning", "error")
"""Section 17.1, mildest first."""


def progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """The request's token, ``None`` if it has none that is a string or an integer (section 9); a boolean is neither."""
    token = meta.get("progressToken")
    if isinstance(token, str) and len(token) > _TOKEN:
        return None  # it is sent back with every frame
    return token if isinstance(token, str | int) and not isinstance(token, bool) else None


_DIGITS = 4
"""Of a fraction: more than a bar shows."""


class Notifier:
    """What one call sends its client before the answer.

    Never waits. Progress is coalesced: of several reports within one turn of the event loop one frame is made, with the
    furthest fraction and the latest words; but a report with hits is a frame of its own, and none of them is lost.
    Fractions never fall. After :meth:`close` nothing more is sent.
    """

    def __init__(
        self,
        emit: Callable[[bytes], None] | None,
        *,
        token: str | int | None,
        log_level: str | None,
        limit: int,
    ) -> None:
        self._emit = emit
        self._token = None if token is None else _json.encode(token)
        self._log_from = LEVELS.index(log_level) if log_level in LEVELS else None
        self._left = limit
        self._fraction = 0.0
        self._stage = ""
        self._message: str | None = None
        self._hits: Sequence[bytes] | None = None
        self._pending: asyncio.Handle | None = None

    @property
    def wants_progress(self) -> bool:
        return self._emit is not None and self._token is not None

    @property
    def log_level(self) -> str | None:
        """The mildest level that is sent, ``None`` if nothing is."""
        return None if self._emit is None or self._log_from is None else LEVELS[self._log_from]

    def progress(self, fraction: float, stage: str, message: str | None, hits: Sequence[bytes] | None) -> None:
        if self._emit is None or self._token is None:
            return
        if self._pending is not None and self._hits is not None:
            self._pending.cancel()
            self._flush()
        if math.isfinite(fraction):
            self._fraction = max(self._fraction, min(1.0, float(fraction)))
        self._stage, self._message = stage, message
        self._hits = hits
        if self._pending is None:
            self._pending = asyncio.get_running_loop().call_soon(self._flush)

    def log(self, level: str, message: str, data: Mapping[str, Any] | None) -> None:
        if self._emit is None or self._log_from is None or level not in LEVELS:
            return
        if LEVELS.index(level) < self._log_from:
            return
        params: dict[str, Any] = {"level": level, "message": _json.mend(message)}
        if data:
            try:
                params["data"] = _json.Raw(_json.encode(data))
            except (TypeError, ValueError):
                params["data"] = {"detail": "not representable"}
        if self._token is not None:
            params["_meta"] = {"progressToken": _json.Raw(self._token)}
        self._send("notifications/log", _json.encode(params), counted=True)

    def close(self) -> None:
        """Sends what is pending; nothing after it."""
        if self._pending is not None:
            self._pending.cancel()
            self._flush()
        self._emit = None

    def _flush(self) -> None:
        self._pending = None
        if self._token is None:
            return
        params: dict[str, Any] = {"progressToken": _json.Raw(self._token), "progress": round(self._fraction, _DIGITS)}
        if self._stage:
            params["stage"] = _json.mend(self._stage)
        if self._message is not None:
            params["message"] = _json.mend(self._message)
        hits, self._hits = self._hits, None
        if hits is not None:
            params["partial"] = {"hits": [_json.Raw(hit) for hit in hits]}
        self._send("notifications/progress", _json.encode(params), counted=hits is None)

    def _send(self, method: str, params: bytes, *, counted: bool) -> None:
        """Sends what is within the limit. Frames with hits, one for each engine, do not count against it."""
        if self._emit is not None and (self._left > 0 or not counted):
            self._left -= counted
            self._emit(envelope.notification(method, params))


class RequestCall:
    """One request, for the service. See :class:`gateway.spi.call.ClientCall`."""

    __slots__ = ("_notifier", "caller", "meta", "snapshot")

    def __init__(self, caller: Caller, snapshot: Any, meta: Mapping[str, Any], notifier: Notifier) -> None:
        self.caller = caller
        self.snapshot = snapshot
        self.meta = meta
        self._notifier = notifier

    @property
    def wants_progress(self) -> bool:
        return self._notifier.wants_progress

    @property
    def log_level(self) -> str | None:
        return self._notifier.log_level

    def progress(
        self, fraction: float, stage: str, message: str | None = None, hits: Sequence[bytes] | None = None
    ) -> None:
        self._notifier.progress(fraction, stage, message, hits)

    def log(self, level: str, message: str, data: Mapping[str, Any] | None = None) -> None:
        self._notifier.log(level, message, data)
