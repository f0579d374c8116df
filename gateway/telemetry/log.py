"""Logging for operators: to stderr, as text or JSON lines, with secrets masked."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any, Literal

__all__ = ["configure_logging", "redact"]

_MASKS = (
    # user:password@ in an address, a query string, and the usual ways to write a credential
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@"), r"\1***@"),
    (re.compile(r"(?i)\b(https?://[^\s?#]+)\?[^\s]*"), r"\1?***"),
    (
        re.compile(r"(?i)\b(authorization|api[-_]?key|token|password|secret)(\"?\s*[:=]\s*\"?)(bearer\s+)?[^\s,;\"}]+"),
        r"\1\2***",
    ),
    (re.compile(r"(?i)\bbearer\s+[a-z0-9._~+/=-]{8,}"), "Bearer ***"),
)


def redact(text: str) -> str:
    """The text without credentials in addresses, query strings and headers."""
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def configure_logging(level: str, format: Literal["text", "json"] = "text") -> None:
    """Sends the gateway's log to stderr. Called once, by the command line; a library user keeps their own logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if format == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("gateway")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
