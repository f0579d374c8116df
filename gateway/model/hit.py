"""One passage as an engine returned it.

A hit that arrives over RCP stays encoded: its ``id``, ``score`` and ``confidence`` are read, every other member is kept
as ``msgspec.Raw`` until somebody needs it, and unknown members survive. Adapters of other stores build the same thing
from plain values with :func:`hit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway import _json

__all__ = [
    "MODALITIES",
    "PROVENANCE",
    "UNITS",
    "UPSTREAM",
    "Hit",
    "decoded",
    "hit",
    "member",
    "meta_of",
    "text_of_hit",
    "with_meta",
]


MODALITIES = ("text", "image", "audio", "code", "multimodal")
UNITS = ("chunk", "passage", "document", "node", "triplet", "path", "subgraph", "community", "tree-node", "page")
"""The words that the schema has for a hit's ``modality`` and ``unit``."""

PROVENANCE = ("engine", "bodyEngine", "engines", "engineRank", "engineScore", "fusedScore", "vectorEngine")
"""Metadata keys that only the gateway writes."""

UPSTREAM = "x-upstream"
"""Where an upstream's own values of :data:`PROVENANCE` go; one nesting level per gateway passed."""


class Hit(msgspec.Struct, frozen=True, gc=False):
    """``members`` holds every member but id, score and confidence by its wire name, encoded or plain. It is a dict, or
    what reads like one; a struct that omits its defaults is taken to be encoded as what it can be decoded from.

    ``score`` is the engine's own number, always higher-is-better (RCP section 4.6); ``None`` if it gave none that can
    be used. ``confidence`` lies in [0, 1] or is ``None``. Fusion by rank reads the order of hits, not the score.
    """

    id: str
    score: float | None
    confidence: float | None = None
    members: Mapping[str, Any] = msgspec.field(default_factory=dict)


def hit(
    id: str,
    score: float | None,
    *,
    text: str | None = None,
    meta: Mapping[str, Any] | None = None,
    citation: Mapping[str, Any] | None = None,
    chunk: Mapping[str, Any] | None = None,
    vector: Sequence[float] | None = None,
    scores: Mapping[str, float] | None = None,
    confidence: float | None = None,
    **members: Any,
) -> Hit:
    """A hit from plain values. Members that are ``None`` are left out; further ones go by their wire name."""
    given: dict[str, Any] = {
        "text": text,
        "meta": meta,
        "citation": citation,
        "chunk": chunk,
        "vector": vector,
        "scores": scores,
        **members,
    }
    return Hit(id, score, confidence, {name: value for name, value in given.items() if value is not None})


def member(hit: Hit, name: str) -> Any:
    """The member as plain values, ``None`` if absent, null or not readable."""
    value = hit.members.get(name)
    return decoded(value) if isinstance(value, msgspec.Raw) else value


def decoded(raw: msgspec.Raw) -> Any:
    """An encoded member as plain values, ``None`` if it is not readable."""
    try:
        return _json.decode_any(raw)
    except (ValueError, RecursionError):
        return None


def text_of_hit(hit: Hit) -> str | None:
    """The hit's text, ``None`` if it carries none."""
    value = member(hit, "text")
    return value if isinstance(value, str) else None


def meta_of(hit: Hit) -> dict[str, Any]:
    """The hit's metadata, empty if it carries none."""
    value = hit.members.get("meta")
    if isinstance(value, msgspec.Raw):
        value = decoded(value)
        return value if isinstance(value, dict) else {}
    return dict(value) if isinstance(value, Mapping) else {}


def with_meta(hit: Hit, meta: Mapping[str, Any]) -> Hit:
    """The same hit with other metadata."""
    return msgspec.structs.replace(hit, members={**hit.members, "meta": meta})
