"""What the methods of an engine beside ``retrieve`` are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.model import Hit, MemoryText, Signal

__all__ = [
    "Clue",
    "Cutting",
    "Edge",
    "EmbedQuery",
    "EmbedReply",
    "FeedbackQuery",
    "GraphOp",
    "GraphQuery",
    "GraphReply",
    "Matrix",
    "MemoryBuilt",
    "MemoryRecall",
    "MemoryReply",
    "MemoryText",
    "MemoryWrite",
    "RerankQuery",
    "Signal",
    "SparseVector",
    "TransformQuery",
    "TransformReply",
]

GraphOp = Literal["local", "global", "drift", "communities", "neighbors"]
Matrix = tuple[tuple[float, ...], ...]
"""One text as several vectors of one dimension, a row each."""


class SparseVector(msgspec.Struct, frozen=True):
    """Weights by index, as RCP's ``embed/sparse`` returns them."""

    indices: tuple[int, ...]
    values: tuple[float, ...]


class EmbedQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed; ``kind`` says which side of a search they stand on."""

    inputs: tuple[str, ...]
    kind: Literal["query", "document"] = "query"


class EmbedReply(msgspec.Struct, frozen=True, kw_only=True):
    """One vector per input, in order, all of one dimension."""

    vectors: tuple[tuple[float, ...], ...]


class RerankQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Passages to score against a query."""

    query: str
    passages: tuple[str, ...]
    method: str | None = None
    model: str | None = None
    top_n: int | None = None


class TransformQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query to make other queries of (RCP section 7.8). ``n`` is how many are wanted where a method gives several."""

    text: str
    method: str
    n: int = 3


class TransformReply(msgspec.Struct, frozen=True, kw_only=True):
    """The queries to search with, at least one, and under ``hyde`` the passage to embed in the query's place.

    What cannot be transformed comes back as it was, with a note; see :attr:`EngineReply.notes`.
    """

    queries: tuple[str, ...]
    hypothetical: str | None = None
    notes: tuple[str, ...] = ()


class GraphQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a graph (RCP section 7.9). ``seed_ids`` are this engine's own ids; ``session`` names no caller."""

    op: GraphOp
    text: str | None = None
    k: int | None = None
    seed_ids: tuple[str, ...] = ()
    hops: int | None = None
    level: int | None = None
    session: str | None = None


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """``members`` are those the schema has no name for, such as a relation's label."""

    src: str
    dst: str
    weight: float | None = None
    members: dict[str, object] = msgspec.field(default_factory=dict)


class GraphReply(msgspec.Struct, frozen=True, kw_only=True):
    """What the operation gives; lists are best first.

    A node is a :class:`~gateway.model.Hit` of a thing of the graph, a community one whose member ``summary`` tells what
    it is about: their ids and scores are read, further members are kept. ``notes``: see ``EngineReply``.
    """

    hits: Sequence[Hit] = ()
    communities: Sequence[Hit] = ()
    nodes: Sequence[Hit] = ()
    edges: Sequence[Edge] = ()
    followups: tuple[str, ...] = ()
    summary: str | None = None
    notes: tuple[str, ...] = ()


class FeedbackQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What became of hits of this engine (RCP section 7.16): advice from a client, nothing more."""

    signals: tuple[Signal, ...]
    text: str | None = None
    session: str | None = None


class MemoryWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A memory to build or to add to (RCP section 7.17). ``documents`` of ``None``: over what is indexed."""

    documents: tuple[MemoryText, ...] | None = None
    id: str | None = None
    scope: str | None = None


class MemoryBuilt(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tokens: int | None = None


class MemoryRecall(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a memory; ``n`` bounds the clues. An unknown ``id`` is :data:`~gateway.errors.Code.NOT_FOUND`."""

    text: str
    id: str | None = None
    session: str | None = None
    n: int | None = None


class Clue(msgspec.Struct, frozen=True, kw_only=True):
    """Where to search: a query, ids to start from, or both."""

    query: str | None = None
    seed_ids: tuple[str, ...] = ()
    weight: float | None = None


class MemoryReply(msgspec.Struct, frozen=True, kw_only=True):
    """Clues and hits, best first; ``notes``: see ``EngineReply``."""

    clues: Sequence[Clue] = ()
    hits: Sequence[Hit] = ()
    notes: tuple[str, ...] = ()


class Cutting(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine that says it can is to cut documents up: into chunks, each with its context told."""

    chunk: bool = False
    contextual: bool = False
