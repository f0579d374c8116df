"""The engine: RCP on one side, one collection of a RAGRails server on the other.

The server filters nothing, so every filter stays with the gateway, which asks for more until its page is full.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from gateway.errors import BackendUnavailable, RcpError
from gateway.filters import Op
from gateway.model import Capabilities, Document, Empty, FilterCapability, Hit, RerankOptions, RetrieveCapability, hit
from gateway.secret import Secret
from gateway.spi import (
    Call,
    Engine,
    EngineContext,
    EngineKind,
    EngineQuery,
    EngineReply,
    HttpClient,
    HttpResponse,
    chunk_of,
    citation_of,
    document_id,
    raise_for_status,
)
from gateway.spi.codec import encode
from gateway_ragrails.settings import RagrailsConfig, revealed
from gateway_ragrails.wire import HEALTH, PATH, Answer, Item, RetrieveRequest, read_answer

__all__ = ["RagrailsEngine", "RagrailsKind", "item_id", "request_for"]

_JSON: Final = {"Content-Type": "application/json"}
_STAGES: Final = ("validate", "rewrite", "retrieve", "rerank")


class RagrailsEngine(Engine):
    """One collection."""

    def __init__(self, config: RagrailsConfig, http: HttpClient, logger: logging.Logger) -> None:
        self.meta_complete = config.meta_complete  # type: ignore[misc]  # a setting: it is not documented
        self._config = config
        self._http = http
        self._logger = logger

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        request = request_for(query, self._config)
        body = encode(request.sent())
        response = await self._http.request("POST", PATH, content=body, headers=_JSON, timeout=call.remaining())
        answer = read_answer(self._json(response))
        if answer is None:
            raise BackendUnavailable("the answer of the RAGRails server is not a list of items")
        notes = self._failures(answer)
        rewritten = answer.search_query if request.use_query_rewrite else ""
        if rewritten in ("", query.text):
            rewritten = ""
        elif query.rewrite is None:
            notes = (*notes, "it searched for a rewritten query")
        hits = [_hit(item, query) for item in answer.items[: query.k]]
        made = sum(1 for item in answer.items[: query.k] if item_id(item)[1])
        if made:
            notes = (*notes, f"{made} of {len(hits)} hits come without an id: theirs are made from their text")
        exhausted = len(answer.items) < request.top_k
        return EngineReply(hits=hits, exhausted=exhausted, rewritten_query=rewritten or None, notes=notes)

    async def ping(self, call: Call) -> None:
        self._json(await self._http.request("GET", HEALTH, timeout=call.remaining()))

    def _failures(self, answer: Answer) -> tuple[str, ...]:
        """The notes on what failed, and an error if nothing came of it: the server answers HTTP 200 to both."""
        if not answer.failed:
            return ()
        stages = sorted({one.stage for one in answer.errors if one.stage in _STAGES})
        where = f" (stage {', '.join(stages)})" if stages else ""
        detail = self._clean("; ".join(f"{one.stage}: {one.error}" for one in answer.errors))[:300]
        if not answer.items:
            failure = BackendUnavailable(
                f"the RAGRails server failed{where}", retryable=any(one.is_retryable for one in answer.errors)
            )
            failure.detail = detail
            raise failure
        self._logger.warning("the RAGRails server answered with failures: %s", detail)
        return (f"the RAGRails server reports {answer.failed} failures{where}",)

    def _json(self, response: HttpResponse) -> Any:
        try:
            raise_for_status(response)
            return response.json()
        except RcpError as error:
            error.detail = self._clean(error.detail)
            if 200 <= response.status < 300:
                raise BackendUnavailable("the answer of the RAGRails server cannot be read", data=error.data) from None
            if response.status in (400, 422):
                self._logger.error("the RAGRails server refuses the request: %s", error.detail)
            raise

    def _clean(self, text: str) -> str:
        """What the server wrote, without the keys that it was given."""
        for secret in self._config.secrets():
            text = text.replace(secret, "***")
        return text


def request_for(query: EngineQuery, config: RagrailsConfig) -> RetrieveRequest:
    """What is sent for a query. Pure, but for secrets that are revealed in it."""
    wanted: dict[str, Any] = {
        "provider": config.provider,
        "model": config.model,
        "vector_db": config.vector_db,
        "embedder_options": revealed(config.embedder_options),
        "collection": config.collection,
        "url": config.vector_db_url,
        "options": revealed(config.options),
    }
    top_k = max(query.k, query.candidate_k or 0)
    if config.rewrite is not None and (config.rewrite.always or query.rewrite):
        wanted["use_query_rewrite"] = True
        wanted["rewrite_context"] = config.rewrite.context
        wanted["session_context"] = config.rewrite.session_context
    if config.rerank is not None and query.rerank:
        wanted["use_rerank"] = True
        method = query.rerank.method if isinstance(query.rerank, RerankOptions) else None
        if method == "bm25" != config.rerank.reranker:
            # It costs nothing. Which other reranker and model are paid for is not the caller's choice.
            wanted["reranker"] = "bm25"
        else:
            wanted["reranker"] = config.rerank.reranker
            wanted["reranker_model"] = config.rerank.model
            wanted["reranker_options"] = revealed(config.rerank.options)
        # The reranker keeps the best few: as many as are fetched, since the gateway has not filtered them yet.
        wanted["rerank_top_k"] = top_k
    return RetrieveRequest(query=query.text, top_k=top_k, **wanted)


def _hit(item: Item, query: EngineQuery) -> Hit:
    id, _ = item_id(item)
    meta = item.metadata
    scores = {"dense": item.score, "rerank": item.rerank_score}
    return hit(
        id,
        # After reranking that is what the items are ordered by.
        item.score if item.rerank_score is None else item.rerank_score,
        text=item.text if query.include_text else None,
        meta=meta or None,
        citation=citation_of(id, meta),
        chunk=_chunk(meta),
        scores={name: score for name, score in scores.items() if score is not None} or None,
    )


def item_id(item: Item) -> tuple[str, bool]:
    """The item's id, and whether it was made from the content.

    The vector store's own id if there is one: another engine on the same store gives the same.
    """
    if item.id:
        return item.id, False
    chunk = _chunk(item.metadata)
    if chunk is not None and "docId" in chunk and "index" in chunk:
        return f"{chunk['docId']}#{chunk['index']}", False
    source, place = item.metadata.get("source"), item.metadata.get("chunk_index")
    if isinstance(source, str) and source and isinstance(place, str) and place:
        return f"{source}#{place}", False
    return document_id(Document(text=item.text, meta=dict(item.metadata))), True


def _chunk(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """The server's chunker writes ``source`` and ``chunk_index``, the latter as ``section_part`` and so no number."""
    chunk = chunk_of(meta) or {}
    source, index = meta.get("source"), meta.get("chunk_index")
    if "docId" not in chunk and isinstance(source, str) and source:
        chunk["docId"] = source
    if "index" not in chunk and isinstance(index, int) and not isinstance(index, bool) and index >= 0:
        chunk["index"] = index
    return chunk if "index" in chunk or chunk_of(meta) is not None else None


def _capabilities(config: RagrailsConfig) -> Capabilities:
    return Capabilities(
        retrieve=RetrieveCapability(
            max_k=config.max_k,
            modes=("dense",),
            modalities=("text",),
            rerank_builtin=True if config.rerank is not None else None,
            default_mode="dense",
            rewrite=("rewrite",) if config.rewrite is not None else None,
        ),
        filter=FilterCapability(
            fields={name: type.value for name, type in config.fields.items()}, operators=tuple(op.value for op in Op)
        )
        if config.fields
        else None,
        citations=Empty(),
    )


class RagrailsKind(EngineKind[RagrailsConfig]):
    name = "ragrails"
    config = RagrailsConfig
    summary = "a collection behind a RAGRails server"

    def offers(self, config: RagrailsConfig) -> Capabilities:
        return _capabilities(config)

    @asynccontextmanager
    async def open(self, config: RagrailsConfig, context: EngineContext) -> AsyncIterator[Engine]:
        headers: dict[str, str | Secret] = {}
        if config.token is not None:
            headers["Authorization"] = Secret(f"Bearer {config.token.reveal()}", source=config.token.source)
        async with context.http(config.url, headers=headers) as http:
            yield RagrailsEngine(config, http, context.logger)
