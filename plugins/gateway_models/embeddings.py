"""The kind ``embeddings``: an embedding service over HTTP, in one of six dialects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from gateway.errors import ConfigError
from gateway.model import Capabilities, EmbedCapability
from gateway.spi.call import Call
from gateway.spi.codec import mend
from gateway.spi.engine import EmbedQuery, EmbedReply, Engine, EngineContext, EngineKind
from gateway_models.embedding_dialects import DIALECTS, Ask, Vector, checked, placed
from gateway_models.remote import Remote, RemoteConfig, TooLarge, open_remote

__all__ = ["EmbeddingsConfig", "EmbeddingsEngine", "EmbeddingsKind", "Sides"]

_BLANK = "."
"""What is sent for a text of nothing but blanks: most services refuse an empty one, and some a blank one."""


class Sides(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something for queries and something for documents."""

    query: str | None = None
    document: str | None = None

    def of(self, kind: str) -> str | None:
        return self.query if kind == "query" else self.document


class EmbeddingsConfig(RemoteConfig, frozen=True, kw_only=True):
    """``dimensions``: 0 asks the service once, when the engine opens. Otherwise they are asked for and checked.

    ``batch`` 0 is the dialect's. ``types`` take the place of the dialect's words for query and document, ``""`` sends
    none; ``prefixes`` are put before the texts. ``max_characters`` cuts every text, 0 does not.
    """

    dialect: Literal["openai", "voyage", "cohere", "jina", "tei", "ollama"]
    model: str
    dimensions: int = 0
    batch: int = 0
    identity: str = ""
    normalized: bool | None = None
    types: Sides = Sides()
    prefixes: Sides = Sides()
    max_characters: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model.strip():
            raise ConfigError("names the model, and with it the vectors' identity", path="model")
        for name in ("dimensions", "batch", "max_characters"):
            if getattr(self, name) < 0:
                raise ConfigError("must not be negative", path=name)
        dialect = DIALECTS[self.dialect]
        if not self.url and not dialect.url:
            raise ConfigError(f"is required: the dialect {self.dialect} has no service of its own", path="url")
        if dialect.typed is None and (self.types.query or self.types.document):
            raise ConfigError(f"the dialect {self.dialect} knows no types; use prefixes", path="types")


class EmbeddingsEngine(Engine):
    """``dimension`` is what every vector must have; 0 until the first answer has told it."""

    def __init__(self, config: EmbeddingsConfig, context: EngineContext, remote: Remote) -> None:
        self._config = config
        self._context = context
        self._remote = remote
        self._dialect = DIALECTS[config.dialect]
        self._dimension = config.dimensions
        self._told = False

    async def learn(self) -> None:
        """Embeds one word to learn the dimension. Raises what the service refuses."""
        await self._embedded(["dimension"], "query")

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config, self._dimension)

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        texts = [self._prepared(text, query.kind) for text in query.inputs]
        found: list[Vector] = []
        size = self._config.batch or self._dialect.batch
        while len(found) < len(texts):
            batch = texts[len(found) : len(found) + size]
            try:
                found += await self._embedded(batch, query.kind)
            except TooLarge:
                if len(batch) == 1:
                    raise
                # Halved until it fits. It is not remembered: it may have been the length of these very texts.
                size = len(batch) // 2
                self._tell(len(batch))
        return EmbedReply(vectors=tuple(found))

    async def _embedded(self, texts: list[str], kind: str) -> tuple[Vector, ...]:
        config, dialect = self._config, self._dialect
        given = config.types.of(kind)
        word = given if given is not None else dialect.query if kind == "query" else dialect.document
        ask = Ask(config.model, texts, word, config.dimensions)
        body = await self._remote.post(dialect.path, dialect.request(ask), texts=texts, over=dialect.over)
        vectors = placed(dialect.read(body), len(texts))
        self._dimension = checked(vectors, self._dimension)
        return vectors

    def _prepared(self, text: str, kind: str) -> str:
        whole = f"{self._config.prefixes.of(kind) or ''}{mend(text)}"
        return (whole[: self._config.max_characters or None]) if whole.strip() else _BLANK

    def _tell(self, size: int) -> None:
        if not self._told:
            self._told = True
            self._context.logger.warning("the service refuses %d texts at once as too much: set batch lower", size)


class EmbeddingsKind(EngineKind[EmbeddingsConfig]):
    name = "embeddings"
    config = EmbeddingsConfig
    summary = "an embedding service: OpenAI and what is compatible, Voyage, Cohere, Jina, TEI, Ollama"

    def offers(self, config: EmbeddingsConfig) -> Capabilities:
        return _capabilities(config, config.dimensions)

    @asynccontextmanager
    async def open(self, config: EmbeddingsConfig, context: EngineContext) -> AsyncIterator[Engine]:
        """Without ``dimensions`` one word is embedded, to learn how long the model's vectors are."""
        dialect = DIALECTS[config.dialect]
        async with open_remote(config, context, url=dialect.url, version=dialect.version) as remote:
            engine = EmbeddingsEngine(config, context, remote)
            if not config.dimensions:
                await engine.learn()
            yield engine


def _capabilities(config: EmbeddingsConfig, dimension: int) -> Capabilities:
    dialect = DIALECTS[config.dialect]
    identity = config.identity or f"{config.dialect}/{config.model}" + (f"/{dimension}" if dimension else "")
    return Capabilities(
        embed=EmbedCapability(
            dimension=dimension or None,
            identity=identity,
            batch_limit=config.batch or dialect.batch,
            normalized=dialect.normalized if config.normalized is None else config.normalized,
            modalities=("text",),
        )
    )
