"""RAGRails' REST retrieval for tests, written from its reference and the behaviour of version 0.2.1 (``make e2e``).

The reference's request model ignores members it does not know; here they are refused, so that an adapter that sends
what is not documented is seen. Failures are HTTP 200 with ``failed`` and ``errors``, as there.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["Chunk", "Fault", "Server", "failure", "serve", "validate"]


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str
    provider: str = "voyage"
    model: str = "voyage-3"
    embedder_options: dict[str, Any] | None = None
    vector_db: Literal["qdrant", "pinecone", "weaviate"] = "qdrant"
    collection: str | None = None
    url: str | None = None
    options: dict[str, Any] | None = None
    top_k: int = 10
    use_query_rewrite: bool = False
    rewrite_context: str = ""
    session_context: str = ""
    use_rerank: bool = False
    reranker: str = "voyage"
    reranker_model: str = "rerank-2-lite"
    reranker_options: dict[str, Any] | None = None
    rerank_top_k: int = 5


def validate(body: Any) -> Request:
    return Request.model_validate(body)


def failure(stage: str, error: str, source: str = "", *, retryable: bool = False) -> dict[str, Any]:
    return {
        "source": source,
        "source_kind": "query",
        "stage": stage,
        "error": error,
        "isRetryable": retryable,
        "attempts": 1,
    }


@dataclass
class Chunk:
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    id: Any = ""


@dataclass
class Fault:
    status: int = 500
    body: bytes = b"Internal Server Error"
    hang: bool = False


@dataclass
class Seen:
    path: str
    body: Any
    authorization: str | None


class Server:
    """``llm`` rewrites queries: ``"broken"`` fails to, ``None`` is none. ``reranker_fails`` likewise.

    Over REST version 0.2.1 is always without one: it answers 500 to ``use_query_rewrite``, whatever its reference says.
    """

    def __init__(self, *chunks: Chunk, collection: str = "docs", llm: str | None = None) -> None:
        self.chunks = list(chunks)
        self.collection = collection
        self.llm = llm
        self.reranker_fails = False
        self.faults: deque[Fault] = deque()
        self.requests: list[Seen] = []
        self.arrived, self.gone = asyncio.Event(), asyncio.Event()
        self.url = ""

    def retrieve(self, asked: Request) -> dict[str, Any]:
        def told(items: list[Any], errors: list[Any], *, retrieved: int, search: str, failed: int | None = None) -> Any:
            return {
                "query": asked.query,
                "search_query": search,
                "retrieved": retrieved,
                "items": items,
                "failed": len(errors) if failed is None else failed,
                "errors": errors,
            }

        search, errors = asked.query, []
        if not asked.query.strip():
            raise ValueError("query must be a non-empty string")
        for name in ("top_k", "rerank_top_k"):
            if getattr(asked, name) < 1:
                raise ValueError(f"{name} must be greater than 0")
        if asked.reranker not in ("bm25", "voyage") and asked.use_rerank:
            raise ValueError(f"Unknown reranker provider {asked.reranker!r}. Available providers: bm25, voyage")
        if asked.use_query_rewrite:
            if self.llm == "broken":
                errors.append(failure("rewrite", "the model is down", asked.query, retryable=True))
            elif self.llm is None:
                raise TypeError("use_query_rewrite without llm")
            else:
                search = self.llm
        if asked.collection != self.collection:
            error = failure("retrieve", "404 collection doesn't exist", asked.query, retryable=True)
            return told([], [error], retrieved=0, search=search)
        words = set(search.lower().split())
        found: list[dict[str, Any]] = [
            {
                "id": one.id,
                "score": len(words & set(one.text.lower().split())) / max(1, len(words)),
                "text": one.text,
                "metadata": one.metadata,
                "rerank_score": None,
            }
            for one in self.chunks
        ]
        found.sort(key=lambda one: -one["score"])
        kept = found[: asked.top_k]
        if errors or not asked.use_rerank:
            return told(kept, errors, retrieved=len(kept), search=search)
        if self.reranker_fails:
            error = failure("rerank", "VOYAGE_API_KEY is missing", asked.query, retryable=True)
            return told([], [error], retrieved=len(kept), search=search, failed=len(kept))
        for one in kept:
            one["rerank_score"] = 1 / (1 + len(one["text"]))
        kept.sort(key=lambda one: -one["rerank_score"])
        return told(kept[: asked.rerank_top_k], [], retrieved=len(kept), search=search)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw) if raw else None
        self.requests.append(Seen(request.path, body, request.headers.get("Authorization")))
        if self.faults:
            return await self._fail(self.faults.popleft())
        if (request.method, request.path) == ("GET", "/v1/health"):
            return _answer({"status": "ok", "service": "ragrails"})
        if (request.method, request.path) != ("POST", "/v1/retrieve"):
            return _answer({"detail": "Not Found"}, 404)
        try:
            asked = validate(body)
        except ValidationError as error:
            rows = json.loads(error.json(include_url=False, include_context=False))
            return _answer({"detail": [{**row, "loc": ["body", *row["loc"]]} for row in rows]}, 422)
        try:
            return _answer(self.retrieve(asked))
        except ValueError as error:
            return _answer({"error": {"type": "ValueError", "message": str(error)}}, 400)
        except TypeError:
            return web.Response(status=500, text="Internal Server Error")

    async def _fail(self, fault: Fault) -> web.StreamResponse:
        if not fault.hang:
            return web.Response(status=fault.status, body=fault.body)
        self.arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.gone.set()
        raise AssertionError("unreachable")


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), status=status, content_type="application/json")


@asynccontextmanager
async def serve(server: Server) -> AsyncIterator[Server]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()
