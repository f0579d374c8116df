"""Model services for tests: one HTTP server that speaks every dialect, on a free loopback port.

Requests are validated as the services validate them (unknown members, wrong types, missing and empty texts, batch
limits) and refused with the status and the body that the service in question sends. Vectors are made from the texts,
so that a test can tell whose vector it got. ``faults`` are taken one per request, in turn.
"""

from __future__ import annotations

import asyncio
import base64
import math
import socket
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["KEY", "Providers", "Seen", "providers", "vector_of"]

KEY = "sk-test-0123456789abcdef"

_MEMBERS = {
    "openai": ({"model", "input"}, {"dimensions", "encoding_format", "user", "input_type"}),
    "voyage": ({"model", "input"}, {"input_type", "truncation", "output_dimension", "output_dtype", "encoding_format"}),
    "cohere": ({"model", "texts", "input_type"}, {"embedding_types", "output_dimension", "truncate"}),
    "jina": ({"model", "input"}, {"task", "dimensions", "embedding_type", "truncate", "normalized", "late_chunking"}),
    "tei": ({"inputs"}, {"normalize", "truncate", "prompt_name", "truncation_direction", "dimensions"}),
    "ollama": ({"model", "input"}, {"truncate", "dimensions", "keep_alive", "options"}),
    "rerank cohere": ({"model", "query", "documents"}, {"top_n", "max_tokens_per_doc"}),
    "rerank jina": ({"model", "query", "documents"}, {"top_n", "return_documents"}),
    "rerank voyage": ({"model", "query", "documents"}, {"top_k", "return_documents", "truncation"}),
    "rerank tei": ({"query", "texts"}, {"raw_scores", "return_text", "truncate"}),
    "chat": ({"model", "messages"}, {"temperature", "seed", "max_tokens", "max_completion_tokens"}),
}
_TYPES = {
    "voyage": {"query", "document"},
    "cohere": {"search_query", "search_document", "classification", "clustering"},
    "jina": {"retrieval.query", "retrieval.passage", "text-matching"},
}
_LIMITS = {"openai": 2048, "voyage": 1000, "cohere": 96, "jina": 2048, "tei": 32, "ollama": 10_000}


@dataclass
class Seen:
    """One request that arrived. ``gone`` is set if its client left before the answer."""

    dialect: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    gone: threading.Event = field(default_factory=threading.Event)


@dataclass
class Providers:
    """``limit`` takes the place of each service's own batch limit; ``faults`` says what goes wrong next.

    A fault is a status (429 and 503 with ``Retry-After``), or one of ``shuffled``, ``short``, ``twice``, ``beyond``,
    ``wide``, ``nan``, ``null``, ``negative``, ``huge``, ``html``, ``no index``, ``quota``, ``echo`` and ``hang``.
    """

    url: str = ""
    dimension: int = 4
    limit: int | None = None
    faults: list[str | int] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    said: Callable[[str, str], str] = lambda task, query: '["one", "two", "three"]'

    def of(self, dialect: str) -> list[Seen]:
        return [one for one in self.seen if one.dialect == dialect]

    def app(self) -> Starlette:
        paths = {
            "/openai/v1/embeddings": self._embed("openai"),
            "/voyage/v1/embeddings": self._embed("voyage"),
            "/cohere/v2/embed": self._embed("cohere"),
            "/jina/v1/embeddings": self._embed("jina"),
            "/tei/embed": self._embed("tei"),
            "/ollama/api/embed": self._embed("ollama"),
            "/cohere/v2/rerank": self._rerank("cohere"),
            "/jina/v1/rerank": self._rerank("jina"),
            "/voyage/v1/rerank": self._rerank("voyage"),
            "/tei/rerank": self._rerank("tei"),
            "/openai/v1/chat/completions": self._chat,
        }
        return Starlette(routes=[Route(path, run, methods=["POST"]) for path, run in paths.items()])

    def _embed(self, dialect: str) -> Callable[[Request], Any]:
        async def serve(request: Request) -> Response:
            return await self._served(dialect, request, lambda body, fault: self._embedded(dialect, body, fault))

        return serve

    def _rerank(self, dialect: str) -> Callable[[Request], Any]:
        async def serve(request: Request) -> Response:
            name = f"rerank {dialect}"
            return await self._served(name, request, lambda body, fault: self._reranked(dialect, body, fault))

        return serve

    async def _chat(self, request: Request) -> Response:
        def answer(body: dict[str, Any], fault: str | int | None) -> Response:
            content = self.said(body["messages"][0]["content"], orjson.loads(body["messages"][1]["content"]))
            choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
            return _json({"id": "c", "object": "chat.completion", "choices": [] if fault == "short" else [choice]})

        return await self._served("chat", request, answer)

    async def _served(
        self, name: str, request: Request, answer: Callable[[dict[str, Any], str | int | None], Response]
    ) -> Response:
        seen = Seen(name, orjson.loads(await request.body()), dict(request.headers))
        self.seen.append(seen)
        self.arrived.set()
        dialect = name.split()[-1] if name != "chat" else "openai"
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _refusal(dialect, 401, "Incorrect API key provided: " + request.headers.get("authorization", ""))
        required, optional = _MEMBERS[name]
        for member in required - seen.body.keys():
            return _refusal(dialect, 422, f"missing field `{member}`")
        for member in seen.body.keys() - required - optional:
            return _refusal(dialect, 422, f"unknown field `{member}`")
        fault = self.faults.pop(0) if self.faults else None
        if fault == "hang":
            await _gone(request, seen)
            return _json({})
        if isinstance(fault, int):
            return _refusal(dialect, fault, "not now")
        match fault:
            case "html":
                return Response("<html>Bad gateway</html>", media_type="text/html")
            case "quota":
                return _json(
                    {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, 429
                )
            case "echo":
                return _refusal(dialect, 400, f"key {KEY} sent {orjson.dumps(seen.body).decode()}")
        return answer(seen.body, fault)

    def _embedded(self, dialect: str, body: dict[str, Any], fault: str | int | None) -> Response:
        texts = body.get("input", body.get("inputs", body.get("texts")))
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            return _refusal(dialect, 422, "input must be a list of strings")
        limit = self.limit or _LIMITS[dialect]
        if len(texts) > limit:
            return _too_many(dialect, len(texts), limit)
        if any(not text.strip() for text in texts):
            return _refusal(dialect, 400, "input cannot be an empty string")
        word = body.get("input_type", body.get("task"))
        if dialect in _TYPES and word is not None and word not in _TYPES[dialect]:
            return _refusal(dialect, 400, "invalid input type")
        width = (body.get("dimensions") or body.get("output_dimension") or self.dimension) + (fault == "wide")
        rows: list[tuple[int, Any]] = [(at, vector_of(text, width)) for at, text in enumerate(texts)]
        match fault:
            case "shuffled":
                rows.reverse()
            case "short":
                rows.pop()
            case "twice":
                rows[-1] = (0, rows[-1][1])
            case "beyond":
                rows[-1] = (len(rows), rows[-1][1])
            case "null":
                rows[0][1][0] = None
            case "nan" | "huge":
                rows[0][1][0] = "@"
        vectors = [vector for _, vector in rows]
        shape: Any
        if dialect == "tei":
            shape = vectors
        elif dialect == "ollama":
            shape = {"model": body["model"], "embeddings": vectors, "total_duration": 1}
        elif dialect == "cohere":
            shape = {"id": "x", "embeddings": {"float": vectors}, "meta": {}}
        else:
            rows = _packed(rows) if body.get("encoding_format") == "base64" else rows
            shape = {
                "object": "list",
                "data": [
                    {"object": "embedding", "embedding": vector, **({} if fault == "no index" else {"index": at})}
                    for at, vector in rows
                ],
                "usage": {"total_tokens": 1},
            }
        text = orjson.dumps(shape).replace(b'"@"', b"NaN" if fault == "nan" else b"1e999")
        return Response(text, media_type="application/json")

    def _reranked(self, dialect: str, body: dict[str, Any], fault: str | int | None) -> Response:
        passages = body.get("documents", body.get("texts"))
        if not isinstance(passages, list) or not all(isinstance(one, str) for one in passages):
            return _refusal(dialect, 422, "documents must be a list of strings")
        limit = self.limit or (32 if dialect == "tei" else 1000)
        if len(passages) > limit:
            return _too_many(dialect, len(passages), limit)
        if not body["query"].strip() or any(not one.strip() for one in passages):
            return _refusal(dialect, 400, "empty strings are not allowed")
        words = set(body["query"].split())
        scored: list[tuple[int, Any]] = [(at, len(words & set(one.split())) / 10) for at, one in enumerate(passages)]
        scored.sort(key=lambda pair: -pair[1])  # best first, as services answer
        match fault:
            case "short":
                scored.pop()
            case "twice":
                scored.append(scored[0])
            case "beyond":
                scored.append((len(passages), 0.0))
            case "null":
                scored[0] = (scored[0][0], None)
            case "negative":
                scored = [(at, score - 1) for at, score in scored]
            case "nan":
                scored[0] = (scored[0][0], "@")
        name = "score" if dialect == "tei" else "relevance_score"
        rows = [{"index": at, name: score} for at, score in scored]
        shape: Any = rows if dialect == "tei" else {"results": rows}
        if dialect == "voyage":
            shape = {"object": "list", "data": rows, "model": body["model"], "usage": {"total_tokens": 1}}
        return Response(orjson.dumps(shape).replace(b'"@"', b"NaN"), media_type="application/json")


def vector_of(text: str, width: int = 4) -> list[float]:
    """Of length 1 and different for different texts, as far as a test needs."""
    numbers = [math.sin(1 + place + sum(map(ord, text)) * (place + 1)) for place in range(width)]
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def _packed(rows: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Vectors as base64 of 32-bit floats, which OpenAI and Voyage offer and Voyage's own client asks for."""
    return [(at, base64.b64encode(array("f", vector).tobytes()).decode()) for at, vector in rows]


async def _gone(request: Request, seen: Seen) -> None:
    """Until the client has left."""
    try:
        while (await request.receive())["type"] != "http.disconnect":
            await asyncio.sleep(0)
    except ClientDisconnect:
        pass
    seen.gone.set()


def _too_many(dialect: str, count: int, limit: int) -> Response:
    match dialect:
        case "tei":
            return _refusal(dialect, 413, f"batch size {count} > maximum allowed batch size {limit}")
        case "cohere":
            told = f"invalid request: total number of texts must be at most {limit}, received {count}"
            return _refusal(dialect, 400, told)
        case "voyage":
            return _refusal(dialect, 400, f"The batch size limit is {limit}. Your batch size is {count}.")
        case "jina":
            return _refusal(dialect, 422, f"batch of {count} is above the limit of {limit}")
        case _:
            return _refusal(dialect, 400, f"Invalid 'input': array too long. Expected maximum length {limit}.")


def _refusal(dialect: str, status: int, message: str) -> Response:
    bodies: dict[str, Any] = {
        "openai": {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}},
        "voyage": {"detail": message},
        "cohere": {"message": message},
        "jina": {"detail": message},
        "tei": {"error": message, "error_type": "Validation"},
        "ollama": {"error": message},
    }
    headers = {"Retry-After": "7"} if status in (429, 503) else {}
    return Response(orjson.dumps(bodies[dialect]), status, headers, media_type="application/json")


def _json(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


@contextmanager
def providers() -> Iterator[Providers]:
    """The server, in a thread of its own."""
    server = Providers()
    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    running = uvicorn.Server(
        uvicorn.Config(server.app(), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        running.should_exit = True
        thread.join(10)
        listener.close()
