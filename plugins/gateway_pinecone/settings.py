"""The ``with:`` part of an engine of kind ``pinecone``; README.md has it as a table."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from math import isfinite
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError
from gateway.secret import Secret
from gateway.spi import EngineConfig, Mode, redacted

__all__ = ["FieldSettings", "FieldType", "Metric", "PineconeConfig", "RerankSettings", "modes_of"]

FieldType = Literal["keyword", "text", "int", "float", "bool", "date", "geo"]
Metric = Literal["cosine", "dotproduct", "euclidean"]

_TOP_K = 10_000
_NAMESPACE_LENGTH = 512
_RECORD_BATCH = 96
_VECTOR_BATCH = 1_000


class FieldSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A metadata field that can be filtered on. Pinecone tells nobody what its metadata holds, so it is declared here.

    ``dates`` is how dates are stored: RFC 3339 text, which Pinecone cannot order, or whole milliseconds since 1970.
    ``multi`` says that lists of strings are stored; without it none may be. ``clean`` promises that every stored value
    is of the declared type and no list is empty: then more is filtered by Pinecone and less by the gateway.
    """

    type: FieldType
    dates: Literal["rfc3339", "epoch_ms"] = "rfc3339"
    multi: bool = False
    clean: bool = False

    def __post_init__(self) -> None:
        strings = self.type in ("keyword", "text") or (self.type == "date" and self.dates == "rfc3339")
        if self.multi and not strings:
            raise ConfigError("Pinecone stores lists of strings only", path="multi")


class RerankSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pinecone's own reranking, offered with ``inference``; off unless a caller asks for it."""

    model: str

    def __post_init__(self) -> None:
        if not self.model:
            raise ConfigError("must not be empty", path="model")


class PineconeConfig(EngineConfig, frozen=True, kw_only=True):
    """One namespace of one index.

    ``host`` is the index's own host. ``namespace`` is passed on as it is written, unset included. ``embedder`` and
    ``sparse_embedder`` are ids of the engines that make query vectors; with ``inference`` Pinecone makes them itself.
    ``embedder_identity`` says whose dense vectors the index holds, which the embedder must then be.
    ``alpha`` weighs dense against sparse in hybrid search. ``text_fields`` are the metadata keys that may hold the
    text, first come first served; the first is written by ``index/add``.
    """

    host: str
    api_key: Secret
    namespace: str | None = None
    metric: Metric = "cosine"
    vector_type: Literal["dense", "sparse"] = "dense"
    dimension: int = 0
    embedder: str | None = None
    embedder_identity: str | None = None
    sparse_embedder: str | None = None
    inference: bool = False
    return_fields: tuple[str, ...] | None = None
    rerank: RerankSettings | None = None
    alpha: float = 0.5
    text_fields: tuple[str, ...] = ("text",)
    fields: Mapping[str, FieldType | FieldSettings] = {}
    default_mode: Mode | None = None
    max_k: int = 1_000
    writable: bool = False
    batch: int = _RECORD_BATCH

    def __post_init__(self) -> None:
        _check_host(self.host)
        if not self.api_key.reveal().strip():
            # The SDK would take whatever key the environment holds instead.
            raise ConfigError("must not be empty", path="api_key")
        self._check_namespace()
        self._check_vectors()
        if not self.text_fields or not all(self.text_fields):
            raise ConfigError("needs at least one key", path="text_fields")
        for name in (*self.text_fields, *self.fields):
            if name.startswith("$"):
                raise ConfigError("Pinecone keeps keys that start with $ for itself", path=f"fields.{name}")
        if self.default_mode is not None and self.default_mode not in modes_of(self):
            raise ConfigError(f"must be one of {', '.join(modes_of(self))}", path="default_mode")
        if not 1 <= self.max_k <= _TOP_K:
            raise ConfigError(f"must lie in [1, {_TOP_K}]", path="max_k")
        most = _RECORD_BATCH if self.inference else _VECTOR_BATCH
        if not 1 <= self.batch <= most:
            raise ConfigError(f"must lie in [1, {most}]", path="batch")
        if not (isfinite(self.alpha) and 0 <= self.alpha <= 1):
            raise ConfigError("must lie in [0, 1]", path="alpha")

    def _check_namespace(self) -> None:
        name = self.namespace
        if self.inference and not (name and name.strip()):
            # Never filled in: which namespace is meant has to be said.
            raise ConfigError("is required with inference; __default__ is the default one", path="namespace")
        if name and (len(name) > _NAMESPACE_LENGTH or not name.isascii() or "\0" in name):
            raise ConfigError(f"must be at most {_NAMESPACE_LENGTH} ASCII characters", path="namespace")

    def _check_vectors(self) -> None:
        if self.embedder_identity is not None and not (self.embedder_identity and self.embedder):
            raise ConfigError("names whose vectors the store holds; needs an embedder", path="embedder_identity")
        if self.dimension < 0:
            raise ConfigError("must not be negative", path="dimension")
        if self.vector_type == "sparse" and self.metric != "dotproduct":
            raise ConfigError("an index of sparse vectors has the metric dotproduct", path="metric")
        if self.inference:
            if self.embedder or self.sparse_embedder:
                raise ConfigError("with inference Pinecone embeds; leave the embedders out", path="inference")
            return
        for name in ("rerank", "return_fields"):
            if getattr(self, name) is not None:
                raise ConfigError("works with inference only", path=name)
        if self.vector_type == "sparse":
            if not self.sparse_embedder or self.embedder:
                raise ConfigError("an index of sparse vectors needs this, and no embedder", path="sparse_embedder")
        elif not self.embedder:
            raise ConfigError("an index of dense vectors needs the id of an engine that embeds", path="embedder")
        elif self.sparse_embedder and self.metric != "dotproduct":
            raise ConfigError("sparse values work with the metric dotproduct only", path="sparse_embedder")
        if self.writable and self.sparse_embedder:
            # Documents come with dense vectors only; stored without their sparse half they could not all be found.
            raise ConfigError("documents cannot be given sparse vectors: read only", path="writable")

    def field(self, name: str) -> FieldSettings | None:
        """The declared field, in its long form."""
        declared = self.fields.get(name)
        return FieldSettings(type=declared) if isinstance(declared, str) else declared


def modes_of(config: PineconeConfig) -> tuple[Mode, ...]:
    """The modes that the kind of vectors and the metric allow."""
    if config.vector_type == "sparse":
        return ("sparse",)
    return ("dense", "hybrid") if config.sparse_embedder else ("dense",)


def _check_host(host: str) -> None:
    shown = redacted(host) if "://" in host else "the host"
    try:
        parts = urlsplit(host if "://" in host else f"https://{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("is not a host or URL", path="host") from None
    if parts.scheme not in ("http", "https") or not name:
        raise ConfigError(f"must be a host, or an http or https URL: {shown}", path="host")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("takes no user, password, query or fragment", path="host")
    if parts.scheme == "http" and not _is_loopback(name):
        raise ConfigError("http would send the key in the clear: https, or a loopback address", path="host")
    if "." not in parts.netloc and "localhost" not in name:
        raise ConfigError("must be the index's host, such as docs-abc123.svc.pinecone.io", path="host")


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
