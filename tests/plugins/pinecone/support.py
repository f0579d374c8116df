"""An open engine over our Pinecone server, called as the host calls it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.federation.context import HostContext
from gateway.federation.runner import EngineCall
from gateway.secret import Secret
from gateway.spi import Engine, EngineQuery, EngineReply, HttpSettings, Route
from gateway_pinecone.engine import PineconeKind
from gateway_pinecone.settings import PineconeConfig
from tests.servers.pinecone import Index, serve

__all__ = ["call", "context", "ids", "opened", "query", "settings"]


def settings(**given: Any) -> PineconeConfig:
    """A configuration; without further settings that of a dense index."""
    base: dict[str, Any] = {"host": "http://127.0.0.1:1", "api_key": Secret("secret")}
    if not given.get("inference") and given.get("vector_type") != "sparse":
        base["embedder"] = "embedder"
    return PineconeConfig(**{**base, **given})


def context() -> HostContext:
    return HostContext("pine", Path(), http=HttpSettings())


def call(seconds: float = 10.0) -> EngineCall:
    """Needs a running loop, whose time it counts."""
    one = EngineCall(Route())
    one.limit(seconds)
    return one


@asynccontextmanager
async def opened(index: Index, **given: Any) -> AsyncIterator[Engine]:
    async with serve(index):
        config = settings(**{"host": index.url, "metric": index.metric, "vector_type": index.vector_type, **given})
        async with PineconeKind().open(config, context()) as engine:
            index.requests.clear()
            yield engine


async def query(
    engine: Engine, vector: Sequence[float] | None = (1.0, 0.0), k: int = 10, seconds: float = 10.0, **given: Any
) -> EngineReply:
    given.setdefault("text", "question")
    dense = None if vector is None else tuple(vector)
    return await engine.retrieve(EngineQuery(k=k, vector=dense, **given), call(seconds))


def ids(reply: EngineReply) -> list[str]:
    return [hit.id for hit in reply.hits]
