"""What a server or an engine says it can do (RCP section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.model.base import Message

__all__ = [
    "Capabilities",
    "CatalogCapability",
    "EmbedCapability",
    "Empty",
    "FilterCapability",
    "GraphCapability",
    "IndexCapability",
    "LogCapability",
    "MemoryCapability",
    "MultiVectorCapability",
    "RerankCapability",
    "RetrieveCapability",
    "SessionCapability",
    "SparseEmbedCapability",
    "TransformCapability",
    "capabilities_to_wire",
    "read_capabilities",
]


class EmbedCapability(Message, frozen=True):
    """``dimension`` counts numbers per vector; vectors of equal ``identity`` are comparable, others are not."""

    dimension: int | None = None
    identity: str | None = None
    batch_limit: int | None = None
    normalized: bool | None = None
    modalities: tuple[str, ...] | None = None
    encodings: tuple[str, ...] | None = None


class SparseEmbedCapability(Message, frozen=True):
    identity: str | None = None
    vocabulary: int | None = None


class MultiVectorCapability(Message, frozen=True):
    dimension: int | None = None
    identity: str | None = None
    similarity: str | None = None
    modalities: tuple[str, ...] | None = None


class RerankCapability(Message, frozen=True):
    methods: tuple[str, ...] | None = None
    max_candidates: int | None = None
    models: tuple[str, ...] | None = None


class RetrieveCapability(Message, frozen=True):
    """Section 6.1. ``max_k`` bounds ``k`` and ``candidateK``; absent lists offer nothing beyond the plain call.

    ``rewrite`` are the ways in which the call itself rewrites the query; the schema leaves room for it.
    """

    max_k: int | None = None
    modes: tuple[str, ...] | None = None
    modalities: tuple[str, ...] | None = None
    fusion: tuple[str, ...] | None = None
    mmr: bool | None = None
    rerank_builtin: bool | None = None
    deterministic: bool | None = None
    snapshots: bool | None = None
    units: tuple[str, ...] | None = None
    levels: int | None = None
    token_budget: bool | None = None
    confidence: bool | None = None
    score_scale: str | None = None
    score_floor: float | None = None
    default_mode: str | None = None
    rewrite: tuple[str, ...] | None = None


class TransformCapability(Message, frozen=True):
    methods: tuple[str, ...] | None = None


class GraphCapability(Message, frozen=True):
    ops: tuple[str, ...] | None = None


class IndexCapability(Message, frozen=True):
    writable: bool | None = None
    chunking: bool | None = None
    contextual: bool | None = None


class SessionCapability(Message, frozen=True):
    dedup: bool | None = None
    ttl_seconds: int | None = None


class MemoryCapability(Message, frozen=True):
    scopes: tuple[str, ...] | None = None
    clues: bool | None = None


class FilterCapability(Message, frozen=True):
    """Section 8. ``fields`` maps a field's name to its type: keyword, text, int, float, bool, date or geo."""

    fields: dict[str, str] = msgspec.field(default_factory=dict)
    operators: tuple[str, ...] = ()


class LogCapability(Message, frozen=True):
    levels: tuple[str, ...] | None = None


class CatalogCapability(Message, frozen=True):
    engines: int | None = None


class Empty(Message, frozen=True):
    """A capability that is offered by being there."""


class Capabilities(Message, frozen=True):
    """A member that is there is offered; ``vendor`` holds the ``x-…`` members (section 6.2)."""

    embed: EmbedCapability | None = None
    sparse_embed: SparseEmbedCapability | None = None
    multi_vector: MultiVectorCapability | None = None
    rerank: RerankCapability | None = None
    retrieve: RetrieveCapability | None = None
    transform: TransformCapability | None = None
    graph: GraphCapability | None = None
    index: IndexCapability | None = None
    session: SessionCapability | None = None
    feedback: Empty | None = None
    memory: MemoryCapability | None = None
    filter: FilterCapability | None = None
    streaming: Empty | None = None
    pagination: Empty | None = None
    citations: Empty | None = None
    log: LogCapability | None = None
    catalog: CatalogCapability | None = None
    vendor: dict[str, Any] = msgspec.field(default_factory=dict, name="vendor")


def capabilities_to_wire(capabilities: Capabilities) -> dict[str, Any]:
    """The capabilities as the JSON object of ``initialize`` and ``info``."""
    wire: dict[str, Any] = {}
    for field in msgspec.structs.fields(Capabilities):
        value = getattr(capabilities, field.name)
        if field.name != "vendor" and value is not None:
            wire[field.encode_name] = msgspec.to_builtins(value)
    return {**wire, **capabilities.vendor}


def read_capabilities(value: Any) -> Capabilities:
    """Capabilities as a peer sent them.

    A peer's claims are not trusted: a member of the wrong shape is read without the parts that do not fit, and a
    capability that is no object is not offered (section 6; ``citations: true`` and the spellings of DECISIONS D28, D29
    are taken as meant). Never raises.
    """
    if not isinstance(value, Mapping):
        return Capabilities()
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(Capabilities):
        given = value.get(field.encode_name)
        if field.name == "vendor" or given is None:
            continue
        struct = _STRUCTS[field.name]
        if given is True and struct is Empty:
            given = {}
        if isinstance(given, Mapping):
            found[field.name] = _read(struct, _respelt(field.name, given))
    retrieve = value.get("retrieve")
    if isinstance(retrieve, Mapping) and retrieve.get("citations") and "citations" not in found:
        found["citations"] = Empty()
    vendor = {str(name): item for name, item in value.items() if str(name).startswith("x-")}
    return Capabilities(**found, vendor=vendor)


def _respelt(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if name == "embed" and "dimension" not in given and "dimensions" in given:
        return {**given, "dimension": given["dimensions"]}
    if name == "filter" and isinstance(given.get("fields"), list):
        # A bare list of names carries no types; keyword is the one every operator but order applies to.
        return {**given, "fields": {item: "keyword" for item in given["fields"] if isinstance(item, str)}}
    return given


def _read(struct: type[Message], given: Mapping[str, Any]) -> Message:
    members: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        if field.encode_name not in given:
            continue
        value = given[field.encode_name]
        if isinstance(value, float) and value.is_integer():
            value = int(value) if field.type in (int, int | None) else value
        try:
            members[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError:
            continue
    return struct(**members)


_STRUCTS: dict[str, type[Message]] = {
    "embed": EmbedCapability,
    "sparse_embed": SparseEmbedCapability,
    "multi_vector": MultiVectorCapability,
    "rerank": RerankCapability,
    "retrieve": RetrieveCapability,
    "transform": TransformCapability,
    "graph": GraphCapability,
    "index": IndexCapability,
    "session": SessionCapability,
    "feedback": Empty,
    "memory": MemoryCapability,
    "filter": FilterCapability,
    "streaming": Empty,
    "pagination": Empty,
    "citations": Empty,
    "log": LogCapability,
    "catalog": CatalogCapability,
}
