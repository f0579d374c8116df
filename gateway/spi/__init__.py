"""All that an adapter author imports; see docs/plugins.md.

``spi``, ``model``, ``filters``, ``errors`` and ``testing`` are the public surface of the gateway. All else is private.
"""

from gateway.spi.body import Body, Faults, read_body
from gateway.spi.call import Call, Route
from gateway.spi.engine import (
    EmbedQuery,
    EmbedReply,
    Engine,
    EngineConfig,
    EngineContext,
    EngineKind,
    EngineQuery,
    EngineReply,
    Mode,
    Process,
    RerankQuery,
    SparseVector,
    TransformQuery,
    TransformReply,
    VectorNeed,
)
from gateway.spi.facade import Facade, FacadeGateway, FacadeKind, FacadeRequest, FacadeResponse, FacadeSettings
from gateway.spi.hooks import ENTRY_POINT_GROUP, hookimpl
from gateway.spi.http import HttpClient, HttpResponse, HttpSettings, raise_for_status, redacted
from gateway.spi.methods import (
    Clue,
    Cutting,
    Edge,
    FeedbackQuery,
    GraphQuery,
    GraphReply,
    Matrix,
    MemoryBuilt,
    MemoryRecall,
    MemoryReply,
    MemoryText,
    MemoryWrite,
    Signal,
)
from gateway.spi.passage import chunk_of, citation_of, document_id, passage_id
from gateway.spi.probe import Finding, Probe, finding
from gateway.spi.sse import SseDecoder

__all__ = [
    "ENTRY_POINT_GROUP",
    "Body",
    "Call",
    "Clue",
    "Cutting",
    "Edge",
    "EmbedQuery",
    "EmbedReply",
    "Engine",
    "EngineConfig",
    "EngineContext",
    "EngineKind",
    "EngineQuery",
    "EngineReply",
    "Facade",
    "FacadeGateway",
    "FacadeKind",
    "FacadeRequest",
    "FacadeResponse",
    "FacadeSettings",
    "Faults",
    "FeedbackQuery",
    "Finding",
    "GraphQuery",
    "GraphReply",
    "HttpClient",
    "HttpResponse",
    "HttpSettings",
    "Matrix",
    "MemoryBuilt",
    "MemoryRecall",
    "MemoryReply",
    "MemoryText",
    "MemoryWrite",
    "Mode",
    "Probe",
    "Process",
    "RerankQuery",
    "Route",
    "Signal",
    "SparseVector",
    "SseDecoder",
    "TransformQuery",
    "TransformReply",
    "VectorNeed",
    "chunk_of",
    "citation_of",
    "document_id",
    "finding",
    "hookimpl",
    "passage_id",
    "raise_for_status",
    "read_body",
    "redacted",
]
