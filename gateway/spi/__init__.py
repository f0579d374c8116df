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
from gateway.spi.facade import (
    GATEWAYS_OWN,
    Facade,
    FacadeGateway,
    FacadeKind,
    FacadeRequest,
    FacadeResponse,
    FacadeSettings,
    http_status,
    waiting_headers,
)
from gateway.spi.hooks import ENTRY_POINT_GROUP, hookimpl
from gateway.spi.http import HttpClient, HttpResponse, HttpSettings, raise_for_status, redacted
from gateway.spi.passage import chunk_of, citation_of, document_id, passage_id
from gateway.spi.probe import Finding, Probe, finding
from gateway.spi.sse import SseDecoder
from gateway.spi.versions import check_pin, version_gone

__all__ = [
    "ENTRY_POINT_GROUP",
    "GATEWAYS_OWN",
    "Body",
    "Call",
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
    "Finding",
    "HttpClient",
    "HttpResponse",
    "HttpSettings",
    "Mode",
    "Probe",
    "Process",
    "RerankQuery",
    "Route",
    "SparseVector",
    "SseDecoder",
    "TransformQuery",
    "TransformReply",
    "VectorNeed",
    "check_pin",
    "chunk_of",
    "citation_of",
    "document_id",
    "finding",
    "hookimpl",
    "http_status",
    "passage_id",
    "raise_for_status",
    "read_body",
    "redacted",
    "version_gone",
    "waiting_headers",
]
