"""What must hold for parameters whatever the server offers: otherwise ``-32602`` (spec section 12).

Values that are well-formed but larger than an advertised limit, or name an option that is not offered, are not looked
at here. The funnel is checked on the client's own numbers, before anything is clamped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from itertools import pairwise
from typing import Any, TypeVar

from msgspec.structs import replace

from gateway.errors import invalid_params
from gateway.model import (
    Content,
    EmbedRequest,
    FeedbackRequest,
    FusionOptions,
    GraphRequest,
    IndexAddRequest,
    IndexDeleteRequest,
    InitializeRequest,
    MemoryBuildRequest,
    MemoryRecallRequest,
    Query,
    RecencyOptions,
    RerankOptions,
    RerankRequest,
    RetrieveRequest,
    TransformRequest,
)

__all__ = ["MAX_INTEGER", "validated"]

MAX_INTEGER = 2**53 - 1
"""Integers of RCP fit 53 bits (section 4.6); larger ones are read as this."""

T = TypeVar("T")


@singledispatch
def validated(request: Any) -> Any:
    """The request in canonical form. Raises ``-32602`` with ``data.field``."""
    return request


@validated.register
def _(request: InitializeRequest) -> InitializeRequest:
    return request


@validated.register
def _(request: RetrieveRequest) -> RetrieveRequest:
    _query(request.query)
    for value, field in (
        (request.k, "k"),
        (request.candidate_k, "candidateK"),
        (request.token_budget, "tokenBudget"),
    ):
        _at_least(value, 1, field)
    _at_least(request.level, 0, "level")
    _finite(request.min_score, "minScore")
    if request.rerank is True:
        raise invalid_params("rerank must be an object or false", field="rerank")
    if request.rewrite is True:
        raise invalid_params("rewrite must be a method's name or false", field="rewrite")
    rerank = request.rerank if isinstance(request.rerank, RerankOptions) else None
    top_n = rerank.top_n if rerank else None
    _at_least(top_n, 1, "rerank.topN")
    _funnel(request.candidate_k, top_n, request.k)
    _within(request.mmr.lambda_ if request.mmr else None, 0.0, 1.0, "mmr.lambda")
    _fusion(request.fusion)
    _recency(request.recency)
    return replace(
        request,
        k=_clamped(request.k),
        candidate_k=_clamped(request.candidate_k),
        token_budget=_clamped(request.token_budget),
        level=_clamped(request.level),
        seed=_clamped(request.seed),
        rerank=replace(rerank, top_n=_clamped(top_n)) if rerank else request.rerank,
        fusion=request.fusion and replace(request.fusion, rrf_k=_clamped(request.fusion.rrf_k)),
    )


@validated.register
def _(request: RerankRequest) -> RerankRequest:
    _query(request.query)
    passages = _one_of(request.passages, "passages", request.documents, "documents")
    _bodies(passages, "passages" if request.passages is not None else "documents")
    _at_least(request.top_n, 1, "topN")
    return replace(request, passages=passages, documents=None, top_n=_clamped(request.top_n))


@validated.register
def _(request: TransformRequest) -> TransformRequest:
    _query(request.query)
    if request.method is None:
        raise invalid_params("method is required", field="method")
    _at_least(request.n, 1, "n")
    return replace(request, n=_clamped(request.n))


@validated.register
def _(request: EmbedRequest) -> EmbedRequest:
    inputs = _one_of(request.inputs, "inputs", request.texts, "texts")
    _bodies(inputs, "inputs" if request.inputs is not None else "texts")
    return replace(request, inputs=inputs, texts=None)


@validated.register
def _(request: IndexAddRequest) -> IndexAddRequest:
    if request.documents is None:
        raise invalid_params("documents is required", field="documents")
    for place, document in enumerate(request.documents):
        _id(document.id, f"documents[{place}].id")
    # A client's vector is no member of the protocol; the field is for the gateway's own use.
    return replace(request, documents=[replace(document, vector=None) for document in request.documents])


@validated.register
def _(request: IndexDeleteRequest) -> IndexDeleteRequest:
    if request.ids is None and request.filter is None:
        raise invalid_params("ids is required", field="ids")
    return request


@validated.register
def _(request: GraphRequest) -> GraphRequest:
    if request.op is None:
        raise invalid_params("op is required", field="op")
    for value, least, field in ((request.k, 1, "k"), (request.hops, 1, "hops"), (request.level, 0, "level")):
        _at_least(value, least, field)
    seeds = request.seed_ids
    if request.node is not None:
        if seeds is not None and seeds != [request.node]:
            raise invalid_params("seedIds and node are one parameter, given twice", field="node")
        seeds = [request.node]
    for place, seed in enumerate(seeds or ()):
        _id(seed, f"seedIds[{place}]")
    return replace(
        request,
        seed_ids=seeds,
        node=None,
        k=_clamped(request.k),
        hops=_clamped(request.hops),
        level=_clamped(request.level),
    )


@validated.register
def _(request: FeedbackRequest) -> FeedbackRequest:
    if request.signals is None:
        raise invalid_params("signals is required", field="signals")
    for place, signal in enumerate(request.signals):
        _id(signal.hit_id, f"signals[{place}].hitId")
        _within(signal.reward, -1.0, 1.0, f"signals[{place}].reward")
    return request


@validated.register
def _(request: MemoryBuildRequest) -> MemoryBuildRequest:
    for place, document in enumerate(request.documents or ()):
        _id(document.id, f"documents[{place}].id")
    if request.memory_id == "":
        raise invalid_params("a memory's id is not empty", field="memoryId")
    return request


@validated.register
def _(request: MemoryRecallRequest) -> MemoryRecallRequest:
    if request.query is None:
        raise invalid_params("query is required", field="query")
    _at_least(request.n, 1, "n")
    return replace(request, n=_clamped(request.n))


# Parts.


def _id(id: str | float | None, field: str) -> None:
    if isinstance(id, float) and not math.isfinite(id):
        raise invalid_params("an id must be finite", field=field)
    if id == "":
        raise invalid_params("an id is not empty", field=field)


def _query(query: Query | None) -> None:
    match query:
        case None:
            raise invalid_params("query is required", field="query")
        case Content():
            _block(query, "query")
        case [*blocks]:
            if not blocks:
                raise invalid_params("query must not be an empty array", field="query")
            for place, block in enumerate(blocks):
                _block(block, f"query[{place}]")


def _bodies(bodies: Sequence[str | Content], field: str) -> None:
    for place, body in enumerate(bodies):
        if isinstance(body, Content):
            _block(body, f"{field}[{place}]")


def _block(block: Content, field: str) -> None:
    """Section 4.8. Whether the block's modality is offered is another question."""
    if block.uri is not None:
        if block.data is not None:
            raise invalid_params("a block has data or uri, not both", field=f"{field}.uri")
        raise invalid_params("this server fetches no uri; send the body as data", field=f"{field}.uri")
    if block.type == "text":
        if block.text is None:
            raise invalid_params("a text block needs text", field=f"{field}.text")
        return
    if block.mime_type is None:
        raise invalid_params("a block that is not text needs mimeType", field=f"{field}.mimeType")
    if block.data is None:
        raise invalid_params("a block that is not text needs data", field=f"{field}.data")


def _funnel(candidate_k: int | None, top_n: int | None, k: int | None) -> None:
    """Section 3.3: candidateK ≥ rerank.topN ≥ k, for those that are given."""
    given = [(v, f) for v, f in ((candidate_k, "candidateK"), (top_n, "rerank.topN"), (k, "k")) if v is not None]
    for (wide, field), (narrow, name) in pairwise(given):
        if wide < narrow:
            raise invalid_params(f"{field} must be at least {name}", field=field)


def _fusion(fusion: FusionOptions | None) -> None:
    if fusion is None:
        return
    _at_least(fusion.rrf_k, 1, "fusion.rrfK")
    _within(fusion.alpha, 0.0, 1.0, "fusion.alpha")
    for name, weight in (fusion.weights or {}).items():
        if not math.isfinite(weight) or weight < 0:
            raise invalid_params("a weight must be a finite number, 0 or more", field=f"fusion.weights.{name}")


def _recency(recency: RecencyOptions | None) -> None:
    if recency is None:
        return
    days = recency.half_life_days
    if days is not None and not (math.isfinite(days) and days > 0):
        raise invalid_params("recency.halfLifeDays must be more than 0", field="recency.halfLifeDays")
    for name, value in (("field", recency.field), ("halfLifeDays", days)):
        if not value:
            raise invalid_params(f"recency.{name} is required", field=f"recency.{name}")


def _at_least(value: int | None, least: int, field: str) -> None:
    if value is not None and value < least:
        raise invalid_params(f"{field} must be {least} or more", field=field)


def _within(value: float | None, low: float, high: float, field: str) -> None:
    if value is not None and not low <= value <= high:
        raise invalid_params(f"{field} must lie between {low:g} and {high:g}", field=field)


def _finite(value: float | None, field: str) -> None:
    if value is not None and not math.isfinite(value):
        raise invalid_params(f"{field} must be finite", field=field)


def _clamped(value: int | None) -> int | None:
    return value if value is None else max(-MAX_INTEGER, min(value, MAX_INTEGER))


def _one_of(first: list[T] | None, name: str, second: list[T] | None, other: str) -> list[T]:
    """Two spellings of one parameter (DECISIONS D4, D8): either, or both if they agree."""
    if first is not None and second is not None and first != second:
        raise invalid_params(f"{name} and {other} are one parameter, given twice", field=other)
    chosen = first if first is not None else second
    if chosen is None:
        raise invalid_params(f"{name} is required", field=name)
    return chosen
