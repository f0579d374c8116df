"""The engine: RCP on one side, one LlamaCloud index on the other."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

from gateway.errors import BackendUnavailable, RcpError, UpstreamError
from gateway.filters import Filter, Op, Pushdown
from gateway.model import Capabilities, Empty, FilterCapability, RetrieveCapability
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
    Mode,
    raise_for_status,
)
from gateway.spi.codec import encode
from gateway_llamacloud.filters import LlamaCloudFilters
from gateway_llamacloud.hits import HitReader
from gateway_llamacloud.settings import LlamaCloudConfig
from gateway_llamacloud.wire import FILE_FIELD, PATH, Rerank, RetrieveRequest, read_results

__all__ = ["LlamaCloudEngine", "LlamaCloudKind", "request_for"]

_JSON: Final = {"Content-Type": "application/json"}
_PINNED: Final[Mapping[str, tuple[float, float]]] = {"dense": (1.0, 0.0), "sparse": (0.0, 1.0)}
"""The weights of the vector and the full-text search that make a mode."""


class LlamaCloudEngine(Engine):
    """One index."""

    def __init__(self, config: LlamaCloudConfig, http: HttpClient, logger: logging.Logger) -> None:
        self.meta_complete = config.meta_complete  # type: ignore[misc]  # a setting: it is not documented
        self._config = config
        self._http = http
        self._logger = logger
        self._filters = LlamaCloudFilters(config.field, negation_includes_missing=config.negation_includes_missing)
        self._reader = HitReader(config)
        scope = {"organization_id": config.organization_id, "project_id": config.project_id}
        self._params = {name: value for name, value in scope.items() if value is not None}

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        return self._filters.push_down(filter)

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        request = request_for(query, self._config)
        response = await self._http.request(
            "POST", PATH, content=encode(request), headers=_JSON, params=self._params, timeout=call.remaining()
        )
        results = read_results(self._json(response))
        if results is None:
            raise BackendUnavailable("the answer of LlamaCloud is not a list of results")
        k = request.top_k or 0
        mode = query.mode or self._config.default_mode
        hits = [self._reader.read(one, mode, include_text=query.include_text) for one in results[:k]]
        made = sum(map(self._reader.is_made, results[:k]))
        notes = (
            f"{made} of {len(hits)} hits come without an id, or file and chunk: their ids are made from their text",
        )
        return EngineReply(hits=hits, exhausted=len(results) < k, notes=notes if made else ())

    async def ping(self, call: Call) -> None:
        path = f"/api/v1/indexes/{quote(self._config.index_id, safe='')}"
        self._json(await self._http.request("GET", path, params=self._params, timeout=call.remaining()))

    def _json(self, response: HttpResponse) -> Any:
        try:
            raise_for_status(response)
            return response.json()
        except RcpError as error:
            raise self._told(error, response) from None

    def _told(self, error: RcpError, response: HttpResponse) -> RcpError:
        """The fault without what the service may have repeated of the request: our key, the caller's query."""
        if response.status == 422:
            error.detail = f"HTTP 422: {_places(response)}"
            self._logger.error("LlamaCloud refuses the request: %s", error.detail)
        error.detail = error.detail.replace(self._config.api_key.reveal(), "***")
        if 200 <= response.status < 300:
            told: RcpError = BackendUnavailable("the answer of LlamaCloud cannot be read", data=error.data)
        elif response.status == 404:
            told = UpstreamError(
                f"LlamaCloud has no index {self._config.index_id!r} for this key: correct index_id, project_id or "
                "organization_id in the engine's settings",
                data=error.data,
            )
        else:
            return error
        told.detail = error.detail
        return told


def request_for(query: EngineQuery, config: LlamaCloudConfig) -> RetrieveRequest:
    """What is sent for a query. Pure."""
    k = min(query.k, config.max_k)
    candidates = query.candidate_k or config.num_candidates
    vector, text = _weights(query, config)
    native = query.filter or {}
    # Without top_n it might drop results before the gateway has filtered them.
    rerank = Rerank(enabled=True, top_n=k) if query.rerank and config.rerank else Rerank(enabled=False)
    return RetrieveRequest(
        index_id=config.index_id,
        query=query.text,
        custom_filters=native.get("custom_filters"),
        static_filters=native.get("static_filters"),
        vector_pipeline_weight=vector,
        full_text_pipeline_weight=text,
        num_candidates=None if candidates is None else max(candidates, k),
        rerank=rerank,
        score_threshold=config.score_threshold,
        top_k=k,
    )


def _weights(query: EngineQuery, config: LlamaCloudConfig) -> tuple[float | None, float | None]:
    """The vector's and the full text's weight, each in [0, 1]; ``None`` leaves it to the service."""
    mode = query.mode or config.default_mode
    if mode in _PINNED:
        return _PINNED[mode]
    given = (query.fusion.weights if query.fusion is not None else None) or {}
    if not given:
        return config.vector_weight, config.text_weight
    vector, text = given.get("dense", 1.0), given.get("sparse", 1.0)
    if vector + text <= 0:
        return None, None
    # There they lie in [0, 1]; here only their ratio counts.
    return (vector, text) if max(vector, text) <= 1 else (vector / (vector + text), text / (vector + text))


def _places(response: HttpResponse) -> str:
    """Where a 422 says the faults are, without the values, which it repeats."""
    try:
        rows = response.json().get("detail")
        told = [f"{'.'.join(map(str, row['loc']))} {row['type']}" for row in rows]
    except (RcpError, AttributeError, KeyError, TypeError):
        return "it does not say where"
    return "; ".join(told)[:300]


def _capabilities(config: LlamaCloudConfig) -> Capabilities:
    fields = {name: field.type for name in config.fields if (field := config.field(name)) is not None}
    modes: tuple[Mode, ...] = ("hybrid", "dense", "sparse")
    return Capabilities(
        retrieve=RetrieveCapability(
            max_k=config.max_k,
            modes=modes,
            modalities=("text",),
            # Neither is what the service does: it takes the weights of both, and does not say how it fuses.
            fusion=("rrf", "weighted"),
            rerank_builtin=True if config.rerank else None,
            default_mode=config.default_mode,
        ),
        filter=FilterCapability(fields={**fields, FILE_FIELD: "keyword"}, operators=tuple(op.value for op in Op)),
        citations=Empty(),
    )


class LlamaCloudKind(EngineKind[LlamaCloudConfig]):
    name = "llamacloud"
    config = LlamaCloudConfig
    summary = "an index of LlamaCloud: hybrid, dense or full-text retrieval with its metadata filters"

    def offers(self, config: LlamaCloudConfig) -> Capabilities:
        return _capabilities(config)

    @asynccontextmanager
    async def open(self, config: LlamaCloudConfig, context: EngineContext) -> AsyncIterator[Engine]:
        key = Secret(f"Bearer {config.api_key.reveal()}", source=config.api_key.source)
        async with context.http(config.base_url, headers={"Authorization": key}) as http:
            yield LlamaCloudEngine(config, http, context.logger)
