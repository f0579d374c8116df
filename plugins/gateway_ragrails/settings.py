"""The ``with:`` part of an engine of kind ``ragrails``; README.md has it as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from gateway.errors import ConfigError
from gateway.filters import FieldType
from gateway.secret import Secret
from gateway.spi import EngineConfig

__all__ = ["Options", "RagrailsConfig", "RerankSettings", "RewriteSettings", "revealed"]

Options = Mapping[str, bool | int | float | str | Secret]
"""An object that the service hands on unseen. What is secret in it is given by reference."""


class RewriteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The service's rewriting, offered to callers that ask for it; ``always`` has it rewrite every query.

    It needs a language model of its own for that. Version 0.2.1 can be given none over REST, and answers with an error.
    """

    context: str = ""
    session_context: str = ""
    always: bool = False


class RerankSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The service's reranking, offered to callers that ask for it."""

    reranker: Literal["voyage", "bm25"] = "voyage"
    model: str = "rerank-2-lite"
    options: Options = msgspec.field(default_factory=dict)


class RagrailsConfig(EngineConfig, frozen=True, kw_only=True):
    """One collection behind a RAGRails server.

    ``url`` is the server, ``vector_db_url`` the vector store as the *server* reaches it. The server knows no
    authentication; ``token`` is for a proxy in front of it. ``max_k`` bounds ``top_k``, for which it has no limit.
    """

    url: str = "http://127.0.0.1:8000"
    token: Secret | None = None
    provider: str = "voyage"
    model: str = "voyage-3"
    embedder_options: Options = msgspec.field(default_factory=dict)
    vector_db: Literal["qdrant", "qdrant_cloud", "pinecone", "weaviate"] = "qdrant"
    collection: str | None = None
    vector_db_url: str | None = None
    options: Options = msgspec.field(default_factory=dict)
    rewrite: RewriteSettings | None = None
    rerank: RerankSettings | None = None
    fields: Mapping[str, FieldType] = {}
    meta_complete: bool = False
    max_k: int = 1_000

    def __post_init__(self) -> None:
        _check_url(self.url, "url")
        if self.vector_db_url is not None:
            _check_url(self.vector_db_url, "vector_db_url")
        if self.token is not None and not (self.token.reveal().isascii() and self.token.reveal().isprintable()):
            raise ConfigError("must be printable ASCII", path="token")
        if self.max_k < 1:
            raise ConfigError("must be at least 1", path="max_k")

    def secrets(self) -> list[str]:
        """Every secret among the settings, for taking it out of what the server says."""
        groups = [self.embedder_options, self.options, self.rerank.options if self.rerank else {}]
        given = [self.token, *(value for group in groups for value in group.values())]
        return [one.reveal() for one in given if isinstance(one, Secret)]


def revealed(options: Options) -> dict[str, Any] | None:
    """The object as it is sent; ``None`` if it is empty."""
    sent = {name: value.reveal() if isinstance(value, Secret) else value for name, value in options.items()}
    return sent or None


def _check_url(url: str, path: str) -> None:
    try:
        parts = urlsplit(url)
        usable, _ = parts.scheme in ("http", "https") and bool(parts.hostname), parts.port
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError("must be an http or https URL with a host", path=path)
    if parts.username or parts.password:
        raise ConfigError("takes no user or password", path=path)
