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
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s]*@"), r"\1***@"),
    (re.compile(r"(?i)\b(https?://[^\s?#\"']+)\?[^\s\"']*"), r"\1?***"),
    (
        re.compile(
            r"(?i)\b((?:proxy-)?authorization|[a-z-]*api[-_]?key|[a-z_-]*token|password|passwd|[a-z_-]*secret)"
            r"([\"']?\s*[:=]\s*[\"']?)((?:bearer|basic|token)\s+)?[^\s,;\"'}]+"
        ),
        r"\1\2***",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}"), r"\1 ***"),
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def redact(text: str) -> str:
    """The text without credentials in addresses, query strings and headers."""
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is logging's
        # A message is one line, whatever an engine put into it; a traceback follows on lines of its own.
        record.message = record.message.replace("\n", "\\n")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(" ", redact(super().format(record)))


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


class _Stderr(logging.StreamHandler[Any]):
    """Writes to what ``sys.stderr`` is when it writes."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def configure_logging(level: str, format: Literal["text", "json"] = "text") -> None:
    """Sends the log to stderr. Called by the command line only; a library user keeps their own logging.

    ``level`` is that of the gateway; what the libraries below it have to say is shown, masked as well, if it is a
    warning.
    """
    handler = _Stderr()
    handler.setFormatter(_Json() if format == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [*(other for other in root.handlers if not isinstance(other, _Stderr)), handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger("gateway").setLevel(level.upper())
