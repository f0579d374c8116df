"""The facade: RAGRails' retrieval endpoint over the federation, for clients that were written for it.

As there, an answer can be HTTP 200 and a failure: ``failed`` and ``errors`` say what was lost. What is wrong with a
request itself is a 422 if its shape is, and else a 400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.errors import Code, ConfigError, RcpError
from gateway.spi import (
    GATEWAYS_OWN,
    Facade,
    FacadeGateway,
    FacadeKind,
    FacadeRequest,
    FacadeResponse,
    FacadeSettings,
    Faults,
    http_status,
    search_score,
    waiting_headers,
)
from gateway.spi.codec import dumps, encode
from gateway_ragrails.wire import (
    HEALTH,
    OPTIONS,
    PATH,
    VECTOR_DBS,
    Answer,
    Item,
    Problem,
    RetrieveRequest,
    read_request,
)

__all__ = ["CollectionSettings", "RagrailsFacade", "RagrailsFacadeKind", "RagrailsFacadeSettings"]

_BACKEND: Final = (Code.BACKEND_UNAVAILABLE, Code.TIMEOUT)
"""Errors of engines, which this protocol tells with HTTP 200."""

_BM25: Final = "bm25"


class CollectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a collection stands for. ``engines`` unset: all that the caller may see.

    ``vector_db`` and ``url``, where they are set, are what a request must name if it names any. Where ``url`` is not
    set, a request that names one finds no such collection.
    """

    engines: tuple[str, ...] | None = None
    vector_db: str | None = None
    url: str | None = None

    def __post_init__(self) -> None:
        if self.vector_db is not None and self.vector_db not in VECTOR_DBS:
            raise ConfigError(f"must be one of {', '.join(VECTOR_DBS)}", path="vector_db")
        if self.engines == ():
            raise ConfigError("names no engine; leave it out for all of them", path="engines")


class RagrailsFacadeSettings(FacadeSettings, frozen=True, kw_only=True):
    """``collections`` by the name that requests give; ``default`` is the one for requests that give none."""

    collections: Mapping[str, CollectionSettings]
    default: str | None = None

    def __post_init__(self) -> None:
        if self.default is not None and self.default not in self.collections:
            raise ConfigError("must be one of the collections", path="default")


class RagrailsFacade(Facade):
    def __init__(self, settings: RagrailsFacadeSettings) -> None:
        self._settings = settings

    def routes(self) -> Sequence[tuple[str, str]]:
        return [("POST", PATH), ("GET", HEALTH)]

    async def answer(self, request: FacadeRequest, gateway: FacadeGateway) -> FacadeResponse:
        if request.path == HEALTH:
            return FacadeResponse(body=dumps({"status": "ok", "service": "ragrails"}))
        try:
            asked = read_request(request.body)
        except Faults as faults:
            return FacadeResponse(status=422, body=faults.encoded())
        for name in OPTIONS:
            if getattr(asked, name):
                return _error(400, "ValueError", f"{name} is not accepted here: it is configured")
        if (wrong := _invalid(asked)) is not None:
            return _error(400, "ValueError", wrong)
        collection = self._collection(asked)
        if collection is None:
            return _told(asked, errors=[Problem(source=asked.query, error="the collection does not exist")])
        try:
            params = params_for(asked, collection)
            if asked.use_rerank and asked.reranker == _BM25 and await _offers_bm25(gateway):
                params["rerank"]["method"] = _BM25
            result = await gateway.call("retrieve", params)
        except RcpError as error:
            if error.data.get("field") == "_meta.x-gateway.engines":
                # The caller may not see an engine of the collection: then there is no such collection for it.
                return _told(asked, errors=[Problem(source=asked.query, error="the collection does not exist")])
            if error.code in _BACKEND:
                return _told(asked, errors=_failures(asked, error))
            raise
        items = [_item(hit) for hit in result.get("hits", ())]
        rewritten = result.get("rewrittenQuery")
        return _told(
            asked,
            search_query=rewritten if isinstance(rewritten, str) else asked.query,
            items=items[: asked.rerank_top_k] if asked.use_rerank else items,
            errors=_losses(asked, result, items),
        )

    def failure(self, error: RcpError) -> FacadeResponse:
        status = http_status(error)
        match status:
            case 401:
                return _error(401, "PermissionError", "not authenticated", {"www-authenticate": "Bearer"})
            case 403:
                return _error(403, "PermissionError", "not allowed")
            case 500:
                return _error(500, "RuntimeError", "internal error")
            case 422:
                # There a 422 is about the shape, and that was right.
                return _error(400, "ValueError", error.message)
            case _:
                told = "ValueError" if status < 429 else "RuntimeError"
                return _error(status, told, error.message, waiting_headers(error))

    def _collection(self, asked: RetrieveRequest) -> CollectionSettings | None:
        """The configured collection that the request means. Nothing that it names is dialled."""
        name = asked.collection if asked.collection is not None else self._settings.default
        found = None if name is None else self._settings.collections.get(name)
        if found is None:
            return None
        # The protocol's default stands for "not said".
        named = asked.vector_db not in ("qdrant", found.vector_db) and found.vector_db is not None
        return None if named or asked.url not in (None, found.url) else found


class RagrailsFacadeKind(FacadeKind[RagrailsFacadeSettings]):
    name = "ragrails"
    config = RagrailsFacadeSettings
    summary = "RAGRails' retrieval endpoint"

    def make(self, config: RagrailsFacadeSettings, engines: Sequence[str]) -> Facade:
        for name, collection in config.collections.items():
            for place, engine in enumerate(collection.engines or ()):
                if engine not in engines:
                    raise ConfigError(f"there is no engine {engine!r}", path=f"collections.{name}.engines[{place}]")
        return RagrailsFacade(config)


def params_for(asked: RetrieveRequest, collection: CollectionSettings) -> dict[str, Any]:
    """The parameters of RCP's ``retrieve``. Pure. Options that the gateway lacks come back as losses."""
    params: dict[str, Any] = {"query": asked.query, "k": asked.top_k, "strict": False}
    if collection.engines is not None:
        params["_meta"] = {"x-gateway": {"engines": list(collection.engines)}}
    if asked.use_query_rewrite:
        params["rewrite"] = "rewrite"
    if asked.use_rerank:
        # All that is fetched is reranked, and the best few are kept. Which reranker it is, the gateway knows.
        kept = min(asked.rerank_top_k, asked.top_k)
        params |= {"k": kept, "candidateK": asked.top_k, "rerank": {"topN": asked.top_k}}
    return params


async def _offers_bm25(gateway: FacadeGateway) -> bool:
    """The protocol's own name for it, where the gateway has the same: RCP's schema has none."""
    told = (await gateway.call("info", {})).get("capabilities", {}).get("x-gateway", {})
    return _BM25 in told.get("rerank", {}).get("methods", ())


def _invalid(asked: RetrieveRequest) -> str | None:
    """What the service refuses after it has read the request, in its words."""
    if not asked.query.strip():
        return "query must be a non-empty string"
    for name in ("top_k", "rerank_top_k"):
        if getattr(asked, name) < 1:
            return f"{name} must be greater than 0"
    return None


def _told(
    asked: RetrieveRequest,
    *,
    search_query: str | None = None,
    items: Sequence[Item] = (),
    errors: Sequence[Problem] = (),
) -> FacadeResponse:
    answer = Answer(
        query=asked.query,
        search_query=asked.query if search_query is None else search_query,
        retrieved=len(items),
        items=tuple(items),
        failed=len(errors),
        errors=tuple(errors),
    )
    return FacadeResponse(body=encode(answer))


def _error(status: int, type: str, message: str, headers: Mapping[str, str] | None = None) -> FacadeResponse:
    body = dumps({"error": {"type": type, "message": message}})
    return FacadeResponse(status=status, body=body, headers=headers or {})


def _failures(asked: RetrieveRequest, error: RcpError) -> list[Problem]:
    """One for each engine that failed, when none answered."""
    engines = error.data.get("engines")
    told = [one["message"] for one in engines.values()] if isinstance(engines, Mapping) else [error.message]
    retryable = error.data.get("retryable") is True or error.code == Code.TIMEOUT
    return [Problem(source=asked.query, error=message, is_retryable=retryable) for message in told]


def _losses(asked: RetrieveRequest, result: Mapping[str, Any], items: Sequence[Item]) -> list[Problem]:
    """What the federation lost on the way, as far as this protocol calls it a failure."""
    own = (result.get("_meta") or {}).get("x-gateway") or {}
    found: list[Problem] = []
    for loss in own.get("losses", ()):
        stage = {"rewrite": "rewrite", "rerank": "rerank"}.get(loss.get("option"))
        failed = loss.get("kind") in ("failed", "timeout", "partial")
        # An engine that was not selected is no loss; one that could not serve the request is.
        unable = loss.get("kind") == "skipped" and loss.get("option") is not None
        undone = loss.get("kind") == "degraded" and stage is not None
        # A stage that somebody was to do, and failed at; one that nobody offers is undone next time too.
        tried = undone and (loss.get("engine") is not None or loss.get("code") is not None)
        if failed or unable or undone:
            found.append(
                Problem(
                    source=asked.query,
                    stage=stage or "retrieve",
                    error=loss.get("message", ""),
                    is_retryable=failed or tried,
                )
            )
    missing = asked.use_rerank and items and all(one.rerank_score is None for one in items)
    if missing and not any(one.stage == "rerank" for one in found):
        found.append(Problem(source=asked.query, stage="rerank", error="not reranked", is_retryable=True))
    return found


def _item(hit: Mapping[str, Any]) -> Item:
    meta = {name: value for name, value in (hit.get("meta") or {}).items() if name not in GATEWAYS_OWN}
    citation, chunk = hit.get("citation") or {}, hit.get("chunk") or {}
    # What this protocol's clients read from the metadata, where the engine has it elsewhere.
    known = {"title": citation.get("title"), "source": citation.get("source"), "chunk_index": chunk.get("index")}
    meta.update({name: value for name, value in known.items() if value is not None and name not in meta})
    text = hit.get("text")
    return Item(
        id=hit["id"],
        score=search_score(hit),
        text=text if isinstance(text, str) else "",
        metadata=meta,
        rerank_score=(hit.get("scores") or {}).get("rerank"),
    )
