"""The shapes of ``POST /v1/retrieve``, for both directions.

Source: the REST reference and RAGRails 0.2.1. Names are the wire's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import msgspec

from gateway.spi import read_body

__all__ = [
    "HEALTH",
    "OPTIONS",
    "PATH",
    "VECTOR_DBS",
    "Answer",
    "Item",
    "Problem",
    "RetrieveRequest",
    "read_answer",
    "read_request",
]

PATH: Final = "/v1/retrieve"
HEALTH: Final = "/v1/health"
VECTOR_DBS: Final = ("qdrant", "qdrant_cloud", "pinecone", "weaviate")
"""As the reference lists them; version 0.2.1 knows no ``qdrant_cloud`` over REST."""

OPTIONS: Final = ("options", "embedder_options", "reranker_options")
"""Objects without a documented content, in which keys are sent."""


class RetrieveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. The defaults are the service's own."""

    query: str
    provider: str = "voyage"
    model: str = "voyage-3"
    embedder_options: Mapping[str, Any] | None = None
    vector_db: str = "qdrant"
    collection: str | None = None
    url: str | None = None
    options: Mapping[str, Any] | None = None
    top_k: int = 10
    use_query_rewrite: bool = False
    rewrite_context: str = ""
    session_context: str = ""
    use_rerank: bool = False
    reranker: str = "voyage"
    reranker_model: str = "rerank-2-lite"
    reranker_options: Mapping[str, Any] | None = None
    rerank_top_k: int = 5

    def sent(self) -> dict[str, Any]:
        """The body: without nulls, and without the members of what is not asked for."""
        unused: set[str] = set()
        if not self.use_query_rewrite:
            unused |= {"use_query_rewrite", "rewrite_context", "session_context"}
        if not self.use_rerank:
            unused |= {"use_rerank", "reranker", "reranker_model", "reranker_options", "rerank_top_k"}
        members = msgspec.structs.asdict(self)
        return {name: value for name, value in members.items() if value is not None and name not in unused}


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk."""

    id: str
    score: float | None
    text: str
    metadata: Mapping[str, Any] = {}
    rerank_score: float | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename={"is_retryable": "isRetryable"}):
    """One entry of ``errors``. ``stage`` is ``validate``, ``rewrite``, ``retrieve`` or ``rerank``."""

    source: str = ""
    source_kind: str = "query"
    stage: str = "retrieve"
    error: str = ""
    is_retryable: bool = False
    attempts: int = 1


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """``retrieved`` is the number of results; the service itself counts those before reranking."""

    query: str
    search_query: str
    retrieved: int
    items: tuple[Item, ...] = ()
    failed: int = 0
    errors: tuple[Problem, ...] = ()


# An answer, as it comes: nothing in it is trusted.


def read_answer(value: Any) -> Answer | None:
    """``None`` if it is no answer. A member of the wrong type is read as its default."""
    if not isinstance(value, Mapping):
        return None
    items, errors, failed = value.get("items"), value.get("errors"), value.get("failed")
    if not isinstance(items, list) or not all(isinstance(one, Mapping) for one in items):
        return None
    problems = [_problem(one) for one in errors if isinstance(one, Mapping)] if isinstance(errors, list) else []
    retrieved = value.get("retrieved")
    return Answer(
        query=_text(value.get("query")),
        search_query=_text(value.get("search_query")),
        retrieved=retrieved if isinstance(retrieved, int) else len(items),
        items=tuple(_item(one) for one in items),
        failed=max(failed if isinstance(failed, int) else 0, len(problems)),
        errors=tuple(problems),
    )


def _item(one: Mapping[str, Any]) -> Item:
    id, metadata = one.get("id"), one.get("metadata")
    return Item(
        id=str(id) if isinstance(id, str | int) and not isinstance(id, bool) else "",
        score=_number(one.get("score")),
        text=_text(one.get("text")),
        metadata=metadata if isinstance(metadata, Mapping) else {},
        rerank_score=_number(one.get("rerank_score")),
    )


def _problem(one: Mapping[str, Any]) -> Problem:
    return Problem(
        source=_text(one.get("source")),
        stage=_text(one.get("stage")),
        error=_text(one.get("error")),
        is_retryable=one.get("isRetryable") is True,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


# A request, as it comes.


def read_request(data: bytes) -> RetrieveRequest:
    """Raises :class:`gateway.spi.Faults` with everything that is wrong with it."""
    body = read_body(data)
    request = RetrieveRequest(
        query=body.required_text("query"),
        provider=body.text("provider", "voyage") or "",
        model=body.text("model", "voyage-3") or "",
        embedder_options=body.mapping("embedder_options"),
        vector_db=body.choice("vector_db", VECTOR_DBS, "qdrant") or "",
        collection=body.text("collection"),
        url=body.text("url"),
        options=body.mapping("options"),
        top_k=body.whole("top_k", 10) or 0,
        use_query_rewrite=body.flag("use_query_rewrite", default=False),
        rewrite_context=body.text("rewrite_context", "") or "",
        session_context=body.text("session_context", "") or "",
        use_rerank=body.flag("use_rerank", default=False),
        reranker=body.text("reranker", "voyage") or "",
        reranker_model=body.text("reranker_model", "rerank-2-lite") or "",
        reranker_options=body.mapping("reranker_options"),
        rerank_top_k=body.whole("rerank_top_k", 5) or 0,
    )
    body.done()
    return request
