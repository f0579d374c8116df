"""The ``with:`` part of an engine of kind ``weaviate``; README.md has it as a table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError
from gateway.filters import FieldType
from gateway.secret import Secret
from gateway.spi.engine import EngineConfig, Mode

__all__ = ["Endpoint", "WeaviateConfig", "endpoint"]

_GRPC_PORT = 50051
_PORTS = {"http": 80, "https": 443}
_COLLECTION = re.compile(r"[A-Za-z][_0-9A-Za-z]{0,255}")
_TENANT = re.compile(r"[-_0-9A-Za-z]{1,64}")
MAX_RESULTS = 10_000
"""``QUERY_MAXIMUM_RESULTS`` of a Weaviate that nobody has changed."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one of Weaviate's two doors is; ``secure`` is TLS."""

    host: str
    port: int
    secure: bool = False

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("must not be empty", path="host")
        if not 0 < self.port < 65536:
            raise ConfigError("must lie in [1, 65535]", path="port")


class WeaviateConfig(EngineConfig, frozen=True, kw_only=True):
    """``url`` (or ``http``) is the REST door, ``grpc`` the other one: a URL, ``host:port``, or its parts.

    ``grpc`` defaults to port 50051 of the same host. ``vector`` names the vector to search by, ``embedder`` the engine
    that makes vectors where the collection has no vectorizer, ``dimension`` their length (0: not checked) and
    ``embedder_identity`` whose vectors the collection holds, which the embedder must then be.
    ``text_fields`` are looked through for a hit's text, the first is written. ``fields`` overrides the types that the
    schema gives; null hides a field. ``single_line`` and ``trimmed`` are promises about stored values, and
    ``null_index_complete`` one about the null index (README.md).
    """

    url: str | None = None
    http: Endpoint | None = None
    grpc: str | Endpoint | None = None
    api_key: Secret | None = None
    headers: Mapping[str, Secret] = {}
    collection: str
    tenant: str | None = None
    vector: str | None = None
    embedder: str | None = None
    embedder_identity: str | None = None
    dimension: int = 0
    modes: tuple[Mode, ...] | None = None
    default_mode: Mode | None = None
    alpha: float = 0.7
    fusion: Literal["ranked", "relative"] = "relative"
    search_fields: tuple[str, ...] = ()
    id_field: str = "rcp_id"
    text_fields: tuple[str, ...] = ("text",)
    title_field: str = "title"
    uri_field: str = "uri"
    fields: Mapping[str, FieldType | None] = {}
    single_line: tuple[str, ...] = ()
    trimmed: tuple[str, ...] = ()
    null_index_complete: bool = False
    consistency: Literal["one", "quorum", "all"] | None = None
    max_k: int = 1_000
    writable: bool = False
    batch: int = 100

    def __post_init__(self) -> None:
        if (self.url is None) == (self.http is None):
            raise ConfigError("give either url or http")
        rest, grpc = self.rest, self.remote  # both are read here so that their faults are found here
        if rest == grpc:
            raise ConfigError("must be another address than the REST one", path="grpc")
        # Both become part of an address, and the client does not escape them.
        if not _COLLECTION.fullmatch(self.collection):
            raise ConfigError("must be a name: a letter, then letters, digits and _", path="collection")
        if self.tenant is not None and not _TENANT.fullmatch(self.tenant):
            raise ConfigError("must be a name: letters, digits, _ and -", path="tenant")
        self._check_search()
        for name in ("vector", "embedder"):
            if getattr(self, name) == "":
                raise ConfigError("must not be empty; leave it out instead", path=name)
        if not self.text_fields or not all(self.text_fields):
            raise ConfigError("needs at least one property", path="text_fields")
        if not self.id_field or self.id_field in self.text_fields:
            raise ConfigError("must be a property of its own", path="id_field")
        if not 1 <= self.batch <= 1_000:
            raise ConfigError("must lie in [1, 1000]", path="batch")

    def _check_search(self) -> None:
        if self.modes is not None and not self.modes:
            raise ConfigError("must not be empty", path="modes")
        if self.modes is not None and self.default_mode is not None and self.default_mode not in self.modes:
            raise ConfigError(f"must be one of {', '.join(self.modes)}", path="default_mode")
        if not 0 <= self.alpha <= 1:
            raise ConfigError("must lie in [0, 1]", path="alpha")
        if self.embedder_identity is not None and not (self.embedder_identity and self.embedder):
            raise ConfigError("names whose vectors the store holds; needs an embedder", path="embedder_identity")
        if self.dimension < 0:
            raise ConfigError("must not be negative", path="dimension")
        if not 1 <= self.max_k <= MAX_RESULTS:
            raise ConfigError(f"must lie in [1, {MAX_RESULTS}]", path="max_k")

    @property
    def rest(self) -> Endpoint:
        if self.http is not None:
            return self.http
        return endpoint(self.url or "", path="url")

    @property
    def remote(self) -> Endpoint:
        rest = self.rest
        if self.grpc is None:
            return Endpoint(host=rest.host, port=_GRPC_PORT, secure=rest.secure)
        if isinstance(self.grpc, Endpoint):
            return self.grpc
        return endpoint(self.grpc, path="grpc", secure=rest.secure)


def endpoint(url: str, *, path: str, secure: bool | None = None) -> Endpoint:
    """A URL's parts. Without a scheme, ``secure`` says whether TLS is spoken; then the port is required."""
    bare = "://" not in url
    if bare and secure is None:
        raise ConfigError("must start with http:// or https://", path=path)
    try:
        parts = urlsplit(f"//{url}" if bare else url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("is no address", path=path) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("must hold no credentials; use api_key or headers", path=path)
    if not bare and parts.scheme not in _PORTS:
        raise ConfigError("must start with http:// or https://", path=path)
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment or (bare and port is None):
        raise ConfigError("must be a host and a port, and nothing more", path=path)
    if not bare:
        secure = parts.scheme == "https"
    return Endpoint(host=host, port=port if port is not None else _PORTS[parts.scheme], secure=bool(secure))
