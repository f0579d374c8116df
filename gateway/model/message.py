"""The parameters and results of the RCP methods (RCP section 7).

Values that the spec answers with ``-32005`` when they are not offered (modes, methods, units) are plain strings here:
whether they are offered is the planner's question, not the decoder's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway._json import Raw
from gateway.model.base import Message
from gateway.model.content import Content, Query

__all__ = [
    "CatalogEntry",
    "CatalogResult",
    "Document",
    "EmbedRequest",
    "EmbedResult",
    "FusionOptions",
    "IndexAddRequest",
    "IndexAddResult",
    "IndexDeleteRequest",
    "IndexDeleteResult",
    "InitializeRequest",
    "InitializeResult",
    "MmrOptions",
    "PeerInfo",
    "RecencyOptions",
    "RerankOptions",
    "RerankRequest",
    "RerankResult",
    "RetrieveRequest",
    "RetrieveResult",
    "SparseEmbedResult",
    "TransformRequest",
    "TransformResult",
    "Usage",
]

Meta = dict[str, Any]


class PeerInfo(Message, frozen=True):
    name: str
    version: str | None = None


class InitializeRequest(Message, frozen=True):
    """Section 7.1. ``protocol_version`` defaults to 1 when absent (DECISIONS D38)."""

    protocol_version: int | None = None
    client: PeerInfo | None = None
    capabilities: dict[str, Any] | None = None


class InitializeResult(Message, frozen=True):
    """The answer to ``initialize`` and ``info``. ``meta`` carries ``conformance`` and, if issued, ``session``."""

    protocol_version: int
    server: PeerInfo
    capabilities: dict[str, Any]
    meta: Meta = msgspec.field(name="_meta")


class FusionOptions(Message, frozen=True):
    method: str | None = None
    weights: dict[str, float] | None = None
    rrf_k: int | None = None
    alpha: float | None = None


class RerankOptions(Message, frozen=True):
    method: str | None = None
    model: str | None = None
    top_n: int | None = None


class MmrOptions(Message, frozen=True):
    lambda_: float | None = msgspec.field(default=None, name="lambda")


class RecencyOptions(Message, frozen=True):
    field: str | None = None
    half_life_days: float | None = None


class RetrieveRequest(Message, frozen=True):
    """Section 7.7. ``filter`` is still JSON; it is parsed against the fields the caller can see."""

    query: Query | None = None
    k: int | None = None
    mode: str | None = None
    modality: str | None = None
    candidate_k: int | None = None
    fusion: FusionOptions | None = None
    rerank: RerankOptions | bool | None = None
    mmr: MmrOptions | None = None
    rewrite: str | bool | None = None
    filter: Any = None
    min_score: float | None = None
    recency: RecencyOptions | None = None
    unit: str | None = None
    level: int | None = None
    token_budget: int | None = None
    session_id: str | None = None
    include_text: bool | None = None
    include_vectors: bool | None = None
    encoding: str | None = None
    seed: int | None = None
    index_version: str | None = None
    strict: bool | None = None
    cursor: str | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class Usage(Message, frozen=True):
    """Section 17.2. ``latency_ms`` is wall-clock milliseconds; ``notes`` are sentences about what was lost.

    ``tokens`` is the size of the texts that were packed into a ``tokenBudget``.
    """

    candidates: int
    latency_ms: float
    reranked: int | None = None
    tokens: int | None = None
    notes: tuple[str, ...] | None = None


class RetrieveResult(Message, frozen=True):
    """``hits`` are sealed: encoded, checked and final. ``encoding`` is that of their vectors, if it is not JSON's."""

    hits: tuple[Raw, ...]
    usage: Usage
    next_cursor: str | None = None
    index_version: str | None = None
    rewritten_query: str | None = None
    encoding: str | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class EmbedRequest(Message, frozen=True):
    """Sections 7.3 to 7.5. ``texts`` is the legacy spelling of ``inputs``; both are accepted everywhere (D8)."""

    inputs: list[str | Content] | None = None
    texts: list[str | Content] | None = None
    kind: str | None = None
    encoding: str | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class EmbedResult(Message, frozen=True):
    """One vector per input, in order. ``vectors`` are numbers, or base64 text under ``f32-base64``."""

    vectors: tuple[Any, ...]
    dimension: int
    encoding: str | None = None


class SparseEmbedResult(Message, frozen=True):
    """Section 7.4. One ``{indices, values}`` per input, in order."""

    sparse: tuple[dict[str, Any], ...]


class RerankRequest(Message, frozen=True):
    """Section 7.6. ``documents`` is the other spelling of ``passages`` that real peers use (DECISIONS D4)."""

    query: Query | None = None
    passages: list[str | Content] | None = None
    documents: list[str | Content] | None = None
    method: str | None = None
    model: str | None = None
    top_n: int | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class RerankResult(Message, frozen=True):
    """``scores`` align with the input; ``order`` and ``results`` are sorted, best first, and cut to ``topN``."""

    scores: tuple[float, ...]
    order: tuple[int, ...]
    results: tuple[dict[str, Any], ...]
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class TransformRequest(Message, frozen=True):
    """Section 7.8."""

    query: Query | None = None
    method: str | None = None
    n: int | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class TransformResult(Message, frozen=True):
    """``hypothetical`` is the passage that ``hyde`` made up; clients embed it in the query's place."""

    queries: tuple[str, ...]
    hypothetical: str | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class Document(Message, frozen=True):
    """One document to index. ``vector`` is set by the gateway where the engine needs one."""

    text: str
    id: str | int | float | None = None
    meta: dict[str, Any] | None = None
    vector: list[float] | None = None


class IndexAddRequest(Message, frozen=True):
    """Section 7.10."""

    documents: list[Document] | None = None
    chunk: bool | None = None
    contextual: bool | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class IndexAddResult(Message, frozen=True):
    """``ids`` are positional: one for each document, in order. ``chunks`` counts what was stored."""

    ids: tuple[str, ...]
    chunks: int | None = None


class IndexDeleteRequest(Message, frozen=True):
    """Section 7.11. Numeric ids are accepted and read as text (DECISIONS D21)."""

    ids: list[str | int | float] | None = None
    filter: Any = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class IndexDeleteResult(Message, frozen=True):
    """``deleted`` counts documents that were really there."""

    deleted: int


class CatalogEntry(Message, frozen=True):
    id: str
    server: PeerInfo
    capabilities: dict[str, Any]
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class CatalogResult(Message, frozen=True):
    """Section 7.13."""

    engines: tuple[CatalogEntry, ...]
