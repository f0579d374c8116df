"""The ``with:`` part of an engine of kind ``llamacloud``; README.md has it as a table."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from math import isfinite
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError
from gateway.secret import Secret
from gateway.spi import EngineConfig, Mode
from gateway_llamacloud.wire import FILE_FIELD, MAX_TOP_K

__all__ = ["FieldSettings", "FieldType", "LlamaCloudConfig"]

FieldType = Literal["keyword", "text", "int", "float", "bool", "date", "geo"]


class FieldSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metadata field that can be filtered on. LlamaCloud does not tell what its metadata holds, so it is declared.

    ``dates`` is how dates are stored: RFC 3339 text, which cannot be ordered there, or milliseconds since 1970.
    ``multi`` says that lists may be stored; without it none may be. ``clean`` promises that every stored value is of
    the declared type: then more is filtered by LlamaCloud and less by the gateway.
    """

    type: FieldType
    dates: Literal["rfc3339", "epoch_ms"] = "rfc3339"
    multi: bool = False
    clean: bool = False


class LlamaCloudConfig(EngineConfig, frozen=True, kw_only=True):
    """One index.

    ``vector_weight`` and ``text_weight`` are those of a hybrid search that names none. ``num_candidates`` and
    ``score_threshold`` are sent as they are. ``id_field`` names metadata that holds the chunk's id, since the service
    gives none. ``meta_complete``: metadata comes whole, so that what is missing is absent.
    """

    index_id: str
    api_key: Secret
    base_url: str = "https://api.cloud.llamaindex.ai"
    organization_id: str | None = None
    project_id: str | None = None
    fields: Mapping[str, FieldType | FieldSettings] = {}
    negation_includes_missing: bool = False
    meta_complete: bool = False
    default_mode: Mode = "hybrid"
    vector_weight: float | None = None
    text_weight: float | None = None
    num_candidates: int | None = None
    score_threshold: float | None = None
    rerank: bool = True
    max_k: int = MAX_TOP_K
    id_field: str | None = None
    attachment_uris: bool = False

    def __post_init__(self) -> None:
        if self.index_id in ("", ".", ".."):
            raise ConfigError("must be the id of an index", path="index_id")
        key = self.api_key.reveal()
        if not key.strip() or not (key.isascii() and key.isprintable()):
            raise ConfigError("must be printable ASCII", path="api_key")
        _check_url(self.base_url)
        if FILE_FIELD in self.fields:
            raise ConfigError("is built in; take it out", path=f"fields.{FILE_FIELD}")
        for name in ("vector_weight", "text_weight"):
            weight = getattr(self, name)
            if weight is not None and not (isfinite(weight) and 0 <= weight <= 1):
                raise ConfigError("must lie in [0, 1]", path=name)
        if self.num_candidates is not None and self.num_candidates < 1:
            raise ConfigError("must be at least 1", path="num_candidates")
        if not 1 <= self.max_k <= MAX_TOP_K:
            raise ConfigError(f"must lie in [1, {MAX_TOP_K}]", path="max_k")

    def field(self, name: str) -> FieldSettings | None:
        """The declared field, in its long form; the built-in one too."""
        if name == FILE_FIELD:
            return FieldSettings(type="keyword", clean=True)
        declared = self.fields.get(name)
        return FieldSettings(type=declared) if isinstance(declared, str) else declared


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        name, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("is not a URL", path="base_url") from None
    if parts.scheme not in ("http", "https") or not name:
        raise ConfigError("must be an http or https URL with a host", path="base_url")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("takes no user, password, query or fragment", path="base_url")
    if parts.scheme == "http" and not _is_loopback(name):
        raise ConfigError("http would send the key in the clear: https, or a loopback address", path="base_url")


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
