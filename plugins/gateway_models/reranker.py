"""The kind ``reranker``: a reranking service over HTTP, in one of four dialects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from gateway.errors import ConfigError
from gateway.model import Capabilities, RerankCapability
from gateway.spi.call import Call
from gateway.spi.codec import mend
from gateway.spi.engine import Engine, EngineContext, EngineKind, RerankQuery
from gateway_models.remote import Remote, RemoteConfig, TooLarge, open_remote
from gateway_models.rerank_dialects import DIALECTS, OVER, aligned

__all__ = ["RerankerConfig", "RerankerEngine", "RerankerKind"]


class RerankerConfig(RemoteConfig, frozen=True, kw_only=True):
    """``models`` are further models that a caller may name; ``max_candidates`` bounds what one call may cost.

    ``batch`` is how many passages go into one request, 0 for the dialect's; ``max_characters`` cuts every passage.
    """

    dialect: Literal["cohere", "jina", "voyage", "tei"]
    model: str = ""
    models: tuple[str, ...] = ()
    max_candidates: int = 200
    batch: int = 0
    max_characters: int = 8000

    def __post_init__(self) -> None:
        super().__post_init__()
        dialect = DIALECTS[self.dialect]
        if not self.url and not dialect.url:
            raise ConfigError(f"is required: the dialect {self.dialect} has no service of its own", path="url")
        if not self.model and self.dialect != "tei":
            raise ConfigError(f"is required by the dialect {self.dialect}", path="model")
        if self.models and self.dialect == "tei":
            raise ConfigError("a TEI server has one model", path="models")
        for name in ("max_candidates", "max_characters"):
            if getattr(self, name) < 1:
                raise ConfigError("must be at least 1", path=name)
        if self.batch < 0:
            raise ConfigError("must not be negative", path="batch")


class RerankerEngine(Engine):
    def __init__(self, config: RerankerConfig, remote: Remote) -> None:
        self._config = config
        self._remote = remote
        self._dialect = DIALECTS[config.dialect]

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    async def rerank(self, query: RerankQuery, call: Call) -> Sequence[float | None]:
        """Blank passages are not sent, since services refuse them: they get no score and so come last.

        Passages are scored independently of each other, so several requests give what one would.
        """
        scores: list[float | None] = [None] * len(query.passages)
        sent = [place for place, passage in enumerate(query.passages) if passage.strip()]
        asked = mend(query.query)
        if not asked.strip():
            return scores
        size = self._config.batch or self._dialect.batch
        done = 0
        while done < len(sent):
            places = sent[done : done + size]
            passages = [mend(query.passages[place])[: self._config.max_characters] for place in places]
            try:
                found = await self._scored(asked, passages, query.model)
            except TooLarge:
                if len(places) == 1:
                    raise
                size = len(places) // 2
                continue
            for place, score in zip(places, found, strict=True):
                scores[place] = score
            done += len(places)
        return scores

    async def _scored(self, query: str, passages: list[str], model: str | None) -> list[float | None]:
        # A name the settings do not know is not handed on: the caller must not choose what is paid for.
        chosen = model if model in self._config.models else self._config.model
        body = self._dialect.body(chosen or "", query, passages)
        answer = await self._remote.post(self._dialect.path, body, texts=[query, *passages], over=OVER)
        return aligned(self._dialect.read(answer), len(passages))


class RerankerKind(EngineKind[RerankerConfig]):
    name = "reranker"
    config = RerankerConfig
    summary = "a reranking service: Cohere, Jina and what is compatible, Voyage, TEI"

    def offers(self, config: RerankerConfig) -> Capabilities:
        return _capabilities(config)

    @asynccontextmanager
    async def open(self, config: RerankerConfig, context: EngineContext) -> AsyncIterator[Engine]:
        dialect = DIALECTS[config.dialect]
        async with open_remote(config, context, url=dialect.url, version=dialect.version) as remote:
            yield RerankerEngine(config, remote)


def _capabilities(config: RerankerConfig) -> Capabilities:
    models = tuple(dict.fromkeys(one for one in (config.model, *config.models) if one))
    return Capabilities(
        rerank=RerankCapability(methods=("cross-encoder",), max_candidates=config.max_candidates, models=models or None)
    )
