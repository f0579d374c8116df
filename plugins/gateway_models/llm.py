"""The kind ``llm``: a language model behind an OpenAI-compatible chat, for ``query/transform``."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from gateway.errors import BackendUnavailable, ConfigError
from gateway.model import Capabilities, TransformCapability
from gateway.spi.call import Call
from gateway.spi.codec import mend
from gateway.spi.engine import Engine, EngineContext, EngineKind, TransformQuery, TransformReply
from gateway_models.answers import passage_in, queries_in
from gateway_models.prompts import METHODS, messages
from gateway_models.remote import Remote, RemoteConfig, open_remote, read

__all__ = ["LlmConfig", "LlmEngine", "LlmKind"]

Method = Literal["rewrite", "hyde", "multi-query", "decompose", "step-back"]

_SEVERAL = ("multi-query", "decompose")
_UNUSABLE = "the model's answer could not be used: the query is as it was"


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Chat(msgspec.Struct):
    choices: list[_Choice]


class LlmConfig(RemoteConfig, frozen=True, kw_only=True):
    """``max_queries`` bounds what a caller's ``n`` may ask for; ``max_tokens`` what the model may write.

    ``temperature`` ``null`` leaves it to the model, for those that take none. ``limit_option`` is the member that holds
    ``max_tokens``. ``max_characters`` cuts the query.
    """

    model: str
    methods: tuple[Method, ...] = ("rewrite", "hyde", "multi-query", "decompose", "step-back")
    temperature: float | None = 0.0
    seed: int | None = None
    max_tokens: int = 512
    limit_option: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    max_queries: int = 8
    max_characters: int = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url:
            raise ConfigError("is required", path="url")
        if not self.model.strip():
            raise ConfigError("is required", path="model")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise ConfigError("names at least one method, and each once", path="methods")
        if self.temperature is not None and not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError("must not be negative", path="temperature")
        for name in ("max_tokens", "max_queries", "max_characters"):
            if getattr(self, name) < 1:
                raise ConfigError("must be at least 1", path=name)


class LlmEngine(Engine):
    def __init__(self, config: LlmConfig, remote: Remote) -> None:
        self._config = config
        self._remote = remote

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    async def transform(self, query: TransformQuery, call: Call) -> TransformReply:
        text = mend(query.text)[: self._config.max_characters]
        n = min(query.n, self._config.max_queries) if query.method in _SEVERAL else 1
        answer = await self._said(messages(query.method, text, n), text)
        if query.method == "hyde":
            passage = passage_in(answer)
            return TransformReply(
                queries=(query.text,), hypothetical=passage, notes=() if passage is not None else (_UNUSABLE,)
            )
        # A query that was taken apart may be one of its own parts; phrased anew it is nothing new.
        queries = queries_in(answer, without=text if query.method == "multi-query" else "", n=n)
        return TransformReply(queries=queries) if queries else TransformReply(queries=(query.text,), notes=(_UNUSABLE,))

    async def _said(self, dialogue: list[dict[str, str]], text: str) -> str:
        config = self._config
        body: dict[str, Any] = {"model": config.model, "messages": dialogue, config.limit_option: config.max_tokens}
        if config.temperature is not None:
            body["temperature"] = config.temperature
        if config.seed is not None:
            body["seed"] = config.seed
        chat = read(await self._remote.post("chat/completions", body, texts=[text]), _Chat)
        if not chat.choices:
            raise BackendUnavailable("the service's answer has no choices")
        return mend(chat.choices[0].message.content or "")


class LlmKind(EngineKind[LlmConfig]):
    name = "llm"
    config = LlmConfig
    summary = "a language model behind an OpenAI-compatible chat, which transforms queries"

    def offers(self, config: LlmConfig) -> Capabilities:
        return _capabilities(config)

    @asynccontextmanager
    async def open(self, config: LlmConfig, context: EngineContext) -> AsyncIterator[Engine]:
        async with open_remote(config, context, url="", version="v1") as remote:
            yield LlmEngine(config, remote)


def _capabilities(config: LlmConfig) -> Capabilities:
    # In one order, whatever the settings' is, so that the same abilities always read the same.
    return Capabilities(transform=TransformCapability(methods=tuple(one for one in METHODS if one in config.methods)))
