"""The facade: LlamaCloud's retrieval endpoint over the federation, for clients that were written for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from gateway.spi.codec import dumps, encode, mend
from gateway_llamacloud.hits import VENDOR
from gateway_llamacloud.wire import (
    FILE_FIELD,
    MAX_TOP_K,
    PATH,
    Bound,
    Rerank,
    Result,
    RetrieveRequest,
    StaticFields,
    read_request,
    read_results,
)

__all__ = ["IndexSettings", "LlamaCloudFacade", "LlamaCloudFacadeKind", "LlamaCloudFacadeSettings"]


class IndexDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in for members that a request leaves out."""

    top_k: int | None = None
    num_candidates: int | None = None
    vector_pipeline_weight: float | None = None
    full_text_pipeline_weight: float | None = None
    score_threshold: float | None = None
    rerank: bool = True

    def __post_init__(self) -> None:
        for name in ("top_k", "num_candidates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError("must be at least 1", path=name)
        for name in ("vector_pipeline_weight", "full_text_pipeline_weight"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError("must lie in [0, 1]", path=name)


class IndexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an index stands for. ``engines`` unset: all that the caller may see.

    ``file_field`` is the metadata field that ``parsed_directory_file_id`` means here. A ``project_id`` or
    ``organization_id`` must be the one that the request names, if it names one.
    """

    engines: tuple[str, ...] | None = None
    defaults: IndexDefaults = IndexDefaults()
    file_field: str = FILE_FIELD
    project_id: str | None = None
    organization_id: str | None = None


class LlamaCloudFacadeSettings(FacadeSettings, frozen=True, kw_only=True):
    """``indexes`` by the ``index_id`` that requests name. What is not listed does not exist."""

    indexes: Mapping[str, IndexSettings]


class LlamaCloudFacade(Facade):
    def __init__(self, settings: LlamaCloudFacadeSettings) -> None:
        self._indexes = settings.indexes

    def routes(self) -> Sequence[tuple[str, str]]:
        return [("POST", PATH)]

    async def answer(self, request: FacadeRequest, gateway: FacadeGateway) -> FacadeResponse:
        try:
            asked = read_request(request.body)
        except Faults as faults:
            return FacadeResponse(status=422, body=faults.encoded())
        index = self._indexes.get(asked.index_id)
        if index is None or not _is_in_scope(index, request.query):
            return _detail(404, "Index not found")
        asked = _with_defaults(asked, index.defaults)
        try:
            result = await _retrieved(asked, index, gateway)
        except RcpError as error:
            if error.code == Code.INVALID_PARAMS:
                return _refused(error, asked, index)
            raise
        results = [_result(hit, index) for hit in result.get("hits", ())]
        if asked.rerank is not None and asked.rerank.enabled and asked.rerank.top_n is not None:
            results = results[: asked.rerank.top_n]
        return FacadeResponse(body=encode({"results": results}))

    def failure(self, error: RcpError) -> FacadeResponse:
        status = http_status(error)
        match status:
            case 401:
                return _detail(401, "Not authenticated", {"www-authenticate": "Bearer"})
            case 403:
                return _detail(403, "Not enough permissions")
            case 422:
                return FacadeResponse(status=422, body=Faults.one("value_error", error.message, "body").encoded())
            case 500:
                return _detail(500, "Internal Server Error")
            case _:
                return _detail(status, error.message, waiting_headers(error))


class LlamaCloudFacadeKind(FacadeKind[LlamaCloudFacadeSettings]):
    name = "llamacloud"
    config = LlamaCloudFacadeSettings
    summary = "LlamaCloud's retrieval endpoint"

    def make(self, config: LlamaCloudFacadeSettings, engines: Sequence[str]) -> Facade:
        for id, index in config.indexes.items():
            for place, engine in enumerate(index.engines or ()):
                if engine not in engines:
                    raise ConfigError(f"there is no engine {engine!r}", path=f"indexes.{id}.engines[{place}]")
            if index.engines == ():
                raise ConfigError("names no engine; leave it out for all of them", path=f"indexes.{id}.engines")
        return LlamaCloudFacade(config)


def _detail(status: int, detail: str, headers: Mapping[str, str] | None = None) -> FacadeResponse:
    return FacadeResponse(status=status, body=dumps({"detail": detail}), headers=headers or {})


def _is_in_scope(index: IndexSettings, query: Mapping[str, str]) -> bool:
    asked = ((index.project_id, query.get("project_id")), (index.organization_id, query.get("organization_id")))
    return all(own is None or not named or own == named for own, named in asked)


def _with_defaults(asked: RetrieveRequest, defaults: IndexDefaults) -> RetrieveRequest:
    def either(given: Any, default: Any) -> Any:
        return default if given is None else given

    vector, text = asked.vector_pipeline_weight, asked.full_text_pipeline_weight
    if vector is None and text is None:
        vector, text = defaults.vector_pipeline_weight, defaults.full_text_pipeline_weight
    return msgspec.structs.replace(
        asked,
        vector_pipeline_weight=vector,
        full_text_pipeline_weight=text,
        top_k=either(asked.top_k, defaults.top_k),
        num_candidates=either(asked.num_candidates, defaults.num_candidates),
        score_threshold=either(asked.score_threshold, defaults.score_threshold),
        rerank=either(asked.rerank, Rerank(enabled=defaults.rerank)),
    )


async def _retrieved(asked: RetrieveRequest, index: IndexSettings, gateway: FacadeGateway) -> dict[str, Any]:
    """The answer of the gateway. Reranking is on by default in this protocol and says nothing where there is none;
    a search of one kind only is asked for strictly, so that engines of the other kind are left out, where it can be.
    """
    mode = _mode(asked)
    offered = await gateway.call("info", {}) if mode is not None or _reranks(asked) else {}
    retrieve = offered.get("capabilities", {}).get("retrieve", {})
    params = params_for(asked, index)
    if mode in retrieve.get("modes", ()):
        params["mode"] = mode
    if not retrieve.get("rerankBuiltin"):
        params.pop("rerank", None)
    try:
        return await gateway.call("retrieve", params)
    except RcpError as error:
        if error.code != Code.OPTION_UNSUPPORTED or error.data.get("option") == "filter":
            raise
    return await gateway.call("retrieve", {**params, "strict": False})


def params_for(asked: RetrieveRequest, index: IndexSettings) -> dict[str, Any]:
    """The parameters of RCP's ``retrieve``, but for the mode. Pure."""
    params: dict[str, Any] = {"query": asked.query}
    if index.engines is not None:
        params["_meta"] = {"x-gateway": {"engines": list(index.engines)}}
    top_k = None if asked.top_k is None else min(asked.top_k, MAX_TOP_K)
    top_n = asked.rerank.top_n if asked.rerank is not None and _reranks(asked) else None
    # RCP's funnel: candidateK, then rerank.topN, then k, each at least the next.
    k = top_k if top_n is None else min(top_n, top_k or top_n, MAX_TOP_K)
    if k is not None:
        params["k"] = k
    if _reranks(asked):
        # All that would be returned is reranked, and of that the best are kept.
        params["rerank"] = {} if k is None else {"topN": max(top_n or 1, top_k or 1)}
    if asked.num_candidates is not None or (_reranks(asked) and k is not None):
        params["candidateK"] = max(asked.num_candidates or 1, top_k or 1, top_n or 1)
    if asked.score_threshold is not None:
        params["minScore"] = asked.score_threshold
    weights = {"dense": asked.vector_pipeline_weight, "sparse": asked.full_text_pipeline_weight}
    given = {name: weight for name, weight in weights.items() if weight is not None}
    if _mode(asked) is None and any(given.values()):
        params["fusion"] = {"weights": given}
    if (filter := filter_for(asked, index)) is not None:
        params["filter"] = filter
    return params


def _mode(asked: RetrieveRequest) -> str | None:
    """The mode that the weights come to, if one of them is 0 and the other is not."""
    vector, text = asked.vector_pipeline_weight, asked.full_text_pipeline_weight
    if vector == 0 and text != 0:
        return "sparse"
    return "dense" if text == 0 and vector != 0 else None


def _reranks(asked: RetrieveRequest) -> bool:
    return asked.rerank is not None and asked.rerank.enabled


def filter_for(asked: RetrieveRequest, index: IndexSettings) -> dict[str, Any] | None:
    """Both kinds of filters as one of RCP's."""
    conditions: list[dict[str, Any]] = []
    for field, bounds in (asked.custom_filters or {}).items():
        conditions += [_condition(field, bound) for bound in ((bounds,) if isinstance(bounds, Bound) else bounds)]
    for bound in (asked.static_filters or {}).values():
        conditions.append(_condition(index.file_field, bound))
    return None if not conditions else conditions[0] if len(conditions) == 1 else {"and": conditions}


def _condition(field: str, bound: Bound) -> dict[str, Any]:
    return {"field": field, "op": bound.operator, "value": bound.value}


def _refused(error: RcpError, asked: RetrieveRequest, index: IndexSettings) -> FacadeResponse:
    """A ``-32602`` of the gateway, told where this protocol's clients know the place."""
    field = error.data.get("field")
    if isinstance(field, str) and field.startswith("_meta."):
        # The caller may not see an engine of the index: then there is no such index for it.
        return _detail(404, "Index not found")
    if field in (asked.custom_filters or {}):
        place: tuple[str, ...] = ("body", "custom_filters", str(field))
    elif asked.static_filters and field == index.file_field:
        place = ("body", "static_filters", FILE_FIELD)
    else:
        place = ("body",)
    return FacadeResponse(status=422, body=Faults.one("value_error", error.message, *place).encoded())


# The hits.


def _result(hit: Mapping[str, Any], index: IndexSettings) -> Result:
    meta = hit.get("meta") or {}
    scores = hit.get("scores") or {}
    text = hit.get("text")
    moved = {VENDOR, index.file_field} if index.file_field == FILE_FIELD else {VENDOR}
    metadata = {name: _plain(value) for name, value in meta.items() if name not in GATEWAYS_OWN | moved}
    return Result(
        content=text if isinstance(text, str) else "",
        metadata=metadata,
        rerank_score=scores.get("rerank"),
        score=search_score(hit),
        static_fields=_static(hit, meta, index),
    )


def _static(hit: Mapping[str, Any], meta: Mapping[str, Any], index: IndexSettings) -> StaticFields:
    citation, chunk = hit.get("citation") or {}, hit.get("chunk") or {}
    file = meta.get(index.file_field)
    # Read as an answer of the service would be, so that nothing of another type gets through.
    vendor = meta.get(VENDOR)
    own = vendor if isinstance(vendor, Mapping) else {}
    (known,) = read_results({"results": [{"static_fields": own}]}) or (Result(content=""),)
    last = known.static_fields.page_range_end
    return StaticFields(
        attachments=known.static_fields.attachments,
        chunk_token_count=known.static_fields.chunk_token_count,
        page_range_end=citation.get("page") if last is None else last,
        chunk_start_char=citation.get("start"),
        chunk_end_char=citation.get("end"),
        page_range_start=citation.get("page"),
        chunk_index=chunk.get("index"),
        # A hit that is no part of a document is one itself.
        parsed_directory_file_id=file if isinstance(file, str) and file else chunk.get("docId") or hit.get("id"),
    )


def _plain(value: Any) -> Any:
    """Metadata as this protocol has it: scalars and lists of text. The rest is written as JSON text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return mend(encode(value).decode())
