"""The parameters and results of ``graph``, ``feedback``, ``memory/…``, ``embed/multi`` and vendor methods."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway._json import Raw
from gateway.model.base import Message
from gateway.model.message import Usage

__all__ = [
    "FeedbackRequest",
    "FeedbackResult",
    "GraphRequest",
    "GraphResult",
    "MemoryBuildRequest",
    "MemoryBuildResult",
    "MemoryRecallRequest",
    "MemoryRecallResult",
    "MemoryText",
    "MultiVectorResult",
    "Signal",
    "VendorRequest",
]

Meta = dict[str, Any]
Id = str | int | float


class MultiVectorResult(Message, frozen=True):
    """Section 7.5. One matrix per input, a vector to a row: numbers, or base64 text under ``f32-base64``."""

    matrices: tuple[tuple[Any, ...], ...]
    dimension: int
    encoding: str | None = None


class GraphRequest(Message, frozen=True):
    """Section 7.9. ``node`` is the documentation's spelling of a single seed (DECISIONS D30)."""

    op: str | None = None
    query: str | None = None
    k: int | None = None
    seed_ids: list[Id] | None = None
    node: Id | None = None
    hops: int | None = None
    level: int | None = None
    session_id: str | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class GraphResult(Message, frozen=True):
    """What the operation gives, one of ``hits``, ``communities`` and ``nodes`` at least; sealed, best first."""

    hits: tuple[Raw, ...] | None = None
    communities: tuple[Raw, ...] | None = None
    nodes: tuple[Raw, ...] | None = None
    edges: tuple[dict[str, Any], ...] | None = None
    followups: tuple[str, ...] | None = None
    summary: str | None = None
    usage: Usage | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class Signal(Message, frozen=True):
    """What became of one hit. ``reward`` lies in [−1, 1]."""

    hit_id: Id
    used: bool | None = None
    cited: bool | None = None
    helpful: bool | None = None
    reward: float | None = None
    poison_suspected: bool | None = None
    injection_suspected: bool | None = None


class FeedbackRequest(Message, frozen=True):
    """Section 7.16."""

    signals: list[Signal] | None = None
    query: str | None = None
    session_id: str | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class FeedbackResult(Message, frozen=True):
    """``accepted`` counts the signals that engines took."""

    accepted: int
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class MemoryText(Message, frozen=True):
    """One document to remember."""

    text: str
    id: Id | None = None


class MemoryBuildRequest(Message, frozen=True):
    """Section 7.17. Without ``documents`` the memory is built over what the engine has indexed."""

    documents: list[MemoryText] | None = None
    memory_id: str | None = None
    scope: str | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class MemoryBuildResult(Message, frozen=True):
    """``memory_id`` names the engine too: ``engine/id``. ``tokens`` is how much the memory holds."""

    memory_id: str
    tokens: int | None = None


class MemoryRecallRequest(Message, frozen=True):
    """Section 7.17. ``n`` bounds the clues."""

    query: str | None = None
    memory_id: str | None = None
    session_id: str | None = None
    n: int | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class MemoryRecallResult(Message, frozen=True):
    """Clues to search with, best first, and the hits that memories came with."""

    clues: tuple[dict[str, Any], ...]
    hits: tuple[Raw, ...] | None = None
    usage: Usage | None = None
    meta: Meta | None = msgspec.field(default=None, name="_meta")


class VendorRequest(Message, frozen=True):
    """A method of a vendor's own (section 6.2): its name, and the parameters as they came, without ``_meta``."""

    method: str
    params: dict[str, Any]
    meta: Meta | None = msgspec.field(default=None, name="_meta")
