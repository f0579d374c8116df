"""What many engines can do, as one (RCP section 16.4), and the snapshot that a session is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gateway.federation import offers
from gateway.federation.offers import GRAPH_OPS, RERANK_METHODS, SCOPES, TRANSFORMS, bound, union, vendor_members
from gateway.filters import FieldType, Op
from gateway.model import (
    MODALITIES,
    PROVENANCE,
    UNITS,
    UPSTREAM,
    Capabilities,
    CatalogCapability,
    EmbedCapability,
    Empty,
    FilterCapability,
    LogCapability,
    RetrieveCapability,
    SessionCapability,
    capabilities_to_wire,
)
from gateway.model.vectors import ENCODINGS

if TYPE_CHECKING:
    from gateway.federation.fleet import Member

__all__ = [
    "Offer",
    "Snapshot",
    "View",
    "batch_limit",
    "field_conflicts",
    "fields_of",
    "full",
    "max_candidates",
    "max_k",
    "merge",
    "published",
    "vendor_members",
]

_OWN_FUSION = ("rrf", "weighted", "convex")
_OWN_FIELDS = frozenset({*PROVENANCE, UPSTREAM})
_OPERATORS = tuple(op.value for op in Op)


@dataclass(frozen=True, slots=True)
class View:
    """One engine as a snapshot saw it; ``member`` is the living thing."""

    member: Member
    capabilities: Capabilities
    fields: Mapping[str, FieldType]
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", self.member.settings.id)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one caller may see at one moment. Immutable; a session keeps the one it was given (section 13.2)."""

    views: tuple[View, ...]
    capabilities: Capabilities
    fields: Mapping[str, FieldType]
    settled: bool
    """False while an engine in scope has never been seen, so that what is unknown may only be unknown yet."""
    members: Mapping[str, Member]
    """All engines, also those out of scope: an engine in scope may take its vectors from one that is not."""

    def embedder(self, id: str) -> Member | None:
        """The engine that vectors come from, in scope or not. Nothing of one that is not may be told to the caller."""
        return self.members.get(id)

    def view(self, id: str) -> View | None:
        return next((view for view in self.views if view.id == id), None)


@dataclass(frozen=True, slots=True)
class Offer:
    """What the gateway adds of its own: limits, the engines that writes and embeds go to, strategies of plugins."""

    max_k: int
    writes: str | None
    embed: str | None
    strategies: tuple[str, ...]
    transform: str | None = None
    rerank: Mapping[str, Any] = field(default_factory=dict)
    """The gateway's own reranking, for ``x-gateway.rerank``; empty if there is none."""
    pagination: bool = False
    session_ttl: int | None = None
    """Seconds that a session is remembered; ``None`` where sessions are not kept."""


def full(capabilities: Capabilities) -> bool:
    """True if what the highest level of conformance stands for is really there (section 14.5, DECISIONS D42).

    Hybrid recall, reranking by an engine that reads the passages, streaming and pages: the gateway's own reranking by
    words would pass a suite, but is not what a client takes a level for.
    """
    retrieve, rerank = capabilities.retrieve, capabilities.rerank
    hybrid = retrieve is not None and "hybrid" in (retrieve.modes or ())
    return bool(hybrid and rerank and rerank.methods and capabilities.streaming and capabilities.pagination)


def fields_of(capabilities: Capabilities) -> dict[str, FieldType]:
    """The filterable fields an engine declares, of the types there are.

    Left out are fields of an unknown type, and the names under which the gateway says where a hit comes from.
    """
    if capabilities.filter is None:
        return {}
    known = {kind.value: kind for kind in FieldType}
    return {
        name: known[kind]
        for name, kind in capabilities.filter.fields.items()
        if kind in known and name not in _OWN_FIELDS
    }


def published(capabilities: Capabilities) -> Capabilities:
    """The capabilities as the schema allows them to be told: an engine may claim anything."""
    fitting: dict[str, Any] = {}
    for name, rules in _PUBLIC.items():
        section = getattr(capabilities, name)
        if section is not None:
            fitting[name] = replace(section, **{key: fit(getattr(section, key)) for key, fit in rules.items()})
    ours = {name: value for name, value in capabilities.vendor.items() if name == "x-gateway"}
    return replace(capabilities, **fitting, vendor={**vendor_members(capabilities), **ours})


def _among(*known: str) -> Callable[[Any], Any]:
    """Keeps a value that is known; of several, those that are."""

    def fit(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(item for item in value if item in known) or None
        return value if value in known else None

    return fit


def max_k(capabilities: Capabilities) -> int | None:
    """How many hits the engine gives at once. A bound below 1 says nothing that could be meant, like none at all."""
    return bound(capabilities.retrieve.max_k if capabilities.retrieve is not None else None)


def batch_limit(capabilities: Capabilities) -> int | None:
    """How many texts the engine embeds at once, if it says so."""
    return bound(capabilities.embed.batch_limit if capabilities.embed is not None else None)


def max_candidates(capabilities: Capabilities) -> int | None:
    """How many passages the engine reranks at once, if it says so."""
    return bound(capabilities.rerank.max_candidates if capabilities.rerank is not None else None)


_MODES = _among("dense", "sparse", "hybrid")
_MODALITIES = _among(*MODALITIES)
_UNITS = _among(*UNITS)
_PUBLIC: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "retrieve": {
        "max_k": bound,
        "modes": _MODES,
        "default_mode": _MODES,
        "modalities": _MODALITIES,
        "units": _UNITS,
        "levels": bound,
        "fusion": _among(*_OWN_FUSION),
        "score_scale": _among("cosine", "dot", "bm25", "probability", "unbounded"),
    },
    "embed": {"dimension": bound, "batch_limit": bound, "modalities": _MODALITIES},
    "sparse_embed": {"vocabulary": bound},
    "multi_vector": {"dimension": bound, "similarity": _among("dot", "cosine"), "modalities": _MODALITIES},
    "rerank": {"methods": _among(*RERANK_METHODS), "max_candidates": bound},
    "transform": {"methods": _among(*TRANSFORMS)},
    "graph": {"ops": _among(*GRAPH_OPS)},
    "memory": {"scopes": _among(*SCOPES)},
}
"""What the schema restricts, by capability and member."""


def field_conflicts(views: Iterable[View]) -> dict[str, dict[str, list[str]]]:
    """Fields that engines declare with different types: name → type → engine ids."""
    seen: dict[str, dict[str, list[str]]] = {}
    for view in views:
        for name, kind in view.fields.items():
            seen.setdefault(name, {}).setdefault(kind.value, []).append(view.id)
    return {name: kinds for name, kinds in seen.items() if len(kinds) > 1}


def merge(views: Sequence[View], offer: Offer) -> tuple[Capabilities, dict[str, FieldType]]:
    """The capabilities to advertise (union) and the merged filter fields.

    What every engine offers (intersection) stands under ``x-gateway.guaranteed``.
    """
    retrieving = [view for view in views if view.capabilities.retrieve is not None]
    conflicts = field_conflicts(retrieving)
    fields = {name: kind for view in retrieving for name, kind in view.fields.items() if name not in conflicts}
    by_id = {view.id: view for view in views}
    writer = by_id.get(offer.writes or "")
    embedder = by_id.get(offer.embed or "") if offer.embed else _first(views, "embed")
    sparse = _first(views, "sparse_embed")
    multi = _first(views, "multi_vector")
    # Who may see no engine has nothing to rerank, and is told of nothing.
    own = offer.rerank if views else {}
    capabilities = Capabilities(
        retrieve=_retrieve(retrieving, offer) if retrieving else None,
        embed=_embed(embedder),
        sparse_embed=sparse.capabilities.sparse_embed if sparse is not None else None,
        multi_vector=multi.capabilities.multi_vector if multi is not None else None,
        rerank=offers.rerank(views, own),
        transform=offers.transform(views, offer.transform),
        graph=offers.graph(views),
        feedback=offers.feedback(views),
        memory=offers.memory(views),
        index=offers.index(writer),
        session=SessionCapability(dedup=True, ttl_seconds=offer.session_ttl)
        if retrieving and offer.session_ttl is not None
        else None,
        pagination=Empty() if retrieving and offer.pagination else None,
        filter=FilterCapability(fields={name: kind.value for name, kind in fields.items()}, operators=_OPERATORS)
        if fields
        else None,
        citations=Empty() if any(view.capabilities.citations for view in retrieving) else None,
        streaming=Empty(),
        log=LogCapability(levels=("debug", "info", "notice", "warning", "error")),
        catalog=CatalogCapability(engines=len(views)),
        vendor={**offers.vendors(views), "x-gateway": _vendor(retrieving, offer, offers.own_rerank(views, own))},
    )
    return published(capabilities), fields


def _first(views: Sequence[View], capability: str) -> View | None:
    return next((view for view in views if getattr(view.capabilities, capability) is not None), None)


def _offered(view: View) -> RetrieveCapability:
    assert view.capabilities.retrieve is not None
    return view.capabilities.retrieve


def _retrieve(views: Sequence[View], offer: Offer) -> RetrieveCapability:
    each = [_offered(view) for view in views]
    bounds = [bound for view in views if (bound := max_k(view.capabilities)) is not None]
    # A list fused from several engines can be longer than any one of them gives; more than all together it cannot.
    most = offer.max_k if len(bounds) < len(views) else min(offer.max_k, sum(bounds))
    modes = union(one.modes for one in each) or ()
    if "hybrid" not in modes and {"dense", "sparse"} <= set(modes):
        # Engines that have one half each serve it together.
        modes = (*modes, "hybrid")
    return RetrieveCapability(
        max_k=most,
        modes=modes or None,
        modalities=union([("text",), *(one.modalities for one in each)]),
        fusion=_OWN_FUSION,
        units=union(one.units for one in each),
        levels=max((one.levels for one in each if one.levels is not None), default=None),
        # Who reads this takes it for a property of every hit.
        confidence=True if all(one.confidence for one in each) else None,
        deterministic=True if all(one.deterministic for one in each) else None,
        # One version of everything exists only where every engine has one.
        snapshots=True if all(one.snapshots for one in each) else None,
        # What the gateway does itself, over any engine.
        mmr=True,
        rerank_builtin=True,
        token_budget=True,
    )


def _embed(view: View | None) -> EmbedCapability | None:
    if view is None or view.capabilities.embed is None:
        return None
    given = view.capabilities.embed
    return EmbedCapability(
        dimension=given.dimension,
        identity=given.identity,
        batch_limit=batch_limit(view.capabilities),
        normalized=given.normalized,
        modalities=("text",),
        encodings=ENCODINGS,
    )


def _vendor(views: Sequence[View], offer: Offer, rerank: Mapping[str, Any]) -> dict[str, Any]:
    """What the schema of capabilities has no place for."""
    vendor: dict[str, Any] = {
        "fusion": list(offer.strategies),
        "rerank": dict(rerank),
        "guaranteed": _guaranteed(views),
    }
    return {name: value for name, value in vendor.items() if value}


def _guaranteed(views: Sequence[View]) -> dict[str, Any]:
    """What every engine offers: the capabilities all have, with the lists and fields all share."""
    if not views:
        return {}
    wires = [capabilities_to_wire(view.capabilities) for view in views]
    shared = _intersect(wires)
    return {name: value for name, value in shared.items() if not name.startswith("x-")}


def _intersect(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *rest = values
    shared: dict[str, Any] = {}
    for name, value in first.items():
        others = [other[name] for other in rest if name in other]
        if len(others) < len(rest):
            continue
        match value:
            case dict() if all(isinstance(other, dict) for other in others):
                shared[name] = _intersect([value, *others])
            case list() | tuple():
                shared[name] = [item for item in value if all(item in other for other in others)]
            case bool():
                if all(other == value for other in others):
                    shared[name] = value
            case int() | float() if all(isinstance(other, int | float) for other in others):
                shared[name] = min([value, *others])
            case _ if all(other == value for other in others):
                shared[name] = value
    return shared
