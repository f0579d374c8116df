"""The ``with:`` part of an engine of kind ``rcp``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError
from gateway.filters import DateEncoding
from gateway.secret import Secret
from gateway.spi.engine import EngineConfig

__all__ = ["RcpConfig"]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

FieldName = Literal["keyword", "text", "int", "float", "bool", "date", "geo"]


class RcpConfig(EngineConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of ``url`` and ``command`` says where the server is; README.md explains each setting.

    ``handshake_timeout``, ``restart_delay`` and ``restart_limit`` are seconds, ``max_line_bytes`` bytes.
    """

    url: str | None = None
    headers: dict[str, str | Secret] = msgspec.field(default_factory=dict)
    token: Secret | None = None
    streaming: bool = True

    command: list[str] | None = None
    cwd: Path | None = None
    env: dict[str, str | Secret] = msgspec.field(default_factory=dict)
    serial: bool = False
    max_line_bytes: int = 16 * 1024 * 1024
    restart_delay: float = 0.5
    restart_limit: float = 30.0

    max_k: int | None = None
    fields: dict[str, FieldName] | None = None
    date_encoding: DateEncoding = "rfc3339"
    trust_negation: bool = False
    meta_complete: bool = False
    handshake_timeout: float = 10.0

    def __post_init__(self) -> None:
        if (self.url is None) == (self.command is None):
            raise ConfigError("give either url (HTTP) or command (a child process)")
        if self.url is not None:
            self._check_url(self.url)
            self._refuse(("cwd", "env", "serial"), "is for command, not for url")
        if self.command is not None:
            if not self.command or not self.command[0]:
                raise ConfigError("must name a program", path="command")
            self._refuse(("headers", "token"), "is for url, not for command")
        if self.token is not None and not (self.token.reveal().isascii() and self.token.reveal().isprintable()):
            raise ConfigError("must be printable ASCII", path="token")
        if self.token is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ConfigError("token and an Authorization header exclude each other", path="token")
        for name, value in self.headers.items():
            text = value.reveal() if isinstance(value, Secret) else value
            if not _HEADER_NAME.fullmatch(name) or not text.isascii() or not text.isprintable():
                raise ConfigError("must be a header name with printable ASCII for its value", path=f"headers.{name}")
        for name in ("handshake_timeout", "restart_delay", "restart_limit"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError("must be above 0 seconds", path=name)
        if self.max_k is not None and self.max_k < 1:
            raise ConfigError("must be at least 1", path="max_k")
        if self.max_line_bytes < 1024:
            raise ConfigError("must be at least 1024", path="max_line_bytes")

    def _check_url(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError("must be an http or https URL with a host", path="url")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if getattr(self, name):
                raise ConfigError(why, path=name)
