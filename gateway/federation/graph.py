"""``graph``: which engines an operation is for, what each is asked, and their parts as one (RCP section 7.9).

Communities are an engine's own reading of its graph, so they are never merged; things of the graph are, by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from msgspec.structs import replace

from gateway.federation.capability import Snapshot, View
from gateway.federation.ids import emitted_id, id_text, own_id, owners
from gateway.federation.loss import Reason, said
from gateway.federation.offers import not_offered
from gateway.federation.replies import sound_graph
from gateway.federation.several import Errand
from gateway.spi.call import Call
from gateway.spi.codec import dumps, mend, sound
from gateway.spi.engine import Engine
from gateway.spi.methods import Edge, GraphQuery, GraphReply

__all__ = ["edges_of", "errands", "followups_of", "summaries_of"]

_TEXTS = 32
_TEXT_LENGTH = 1000
_SUMMARY_LENGTH = 65_536
_EDGES = 10_000
_MEMBER_DEPTH = 16


def errands(
    snapshot: Snapshot, query: GraphQuery, seeds: Sequence[str | int | float], named: Set[str] | None
) -> tuple[list[Errand[GraphReply]], list[Reason]]:
    """What each engine that has the operation is asked, with the seeds it may know, and why others are not.

    Raises ``-32005`` for an operation nobody in scope has, ``-32602`` for a seed that may be anybody's.
    """
    able = [view for view in snapshot.views if query.op in _ops(view)]
    if not able:
        ops = [op for view in snapshot.views for op in _ops(view)]
        raise not_offered(snapshot, "that operation", option=query.op, field="op", offered=ops)
    reasons = [
        Reason(view.id, "unable", f"it has no operation {query.op}", option=query.op, field="op")
        for view in snapshot.views
        if named is not None and view.id in named and view not in able
    ]
    asked = [view for view in able if (view.member.settings.weight > 0 if named is None else view.id in named)]
    known = _seeds_of(seeds, snapshot) if seeds else {}
    found: list[Errand[GraphReply]] = []
    for view in asked:
        own = known.get(view.id, ())
        if seeds and not own:
            reasons.append(Reason(view.id, "left-out", "none of the seeds is of its corpus"))
            continue
        found.append(Errand(view, _asking(replace(query, seed_ids=tuple(own)))))
    return found, reasons


def _asking(query: GraphQuery) -> Any:
    async def ask(engine: Engine, call: Call) -> GraphReply:
        return sound_graph(await engine.graph(query, call))

    return ask


def _ops(view: View) -> Sequence[str]:
    graph = view.capabilities.graph
    return (graph.ops if graph is not None else None) or ()


def _seeds_of(seeds: Sequence[str | int | float], snapshot: Snapshot) -> Mapping[str, Sequence[str]]:
    """By engine, the seeds it may know, as it calls them."""
    found: dict[str, dict[str, None]] = {}
    views = [view for view in snapshot.views if view.capabilities.graph or view.capabilities.retrieve]
    for place, seed in enumerate(seeds):
        id = mend(id_text(seed))
        for view in owners(id, views, f"seedIds[{place}]"):
            found.setdefault(view.id, {})[own_id(view.member, id)] = None
    return {id: tuple(own) for id, own in found.items()}


def edges_of(replies: Sequence[tuple[View, GraphReply]], cut: Set[str] = frozenset()) -> list[dict[str, Any]]:
    """The edges, each once: those of equal ends and members are one, and the first engine's weight is kept.

    ``cut`` are nodes that are not shown: their edges would lead nowhere.
    """
    found: dict[bytes, dict[str, Any]] = {}
    for view, reply in replies:
        for edge in reply.edges[:_EDGES]:
            wire = _edge(view, edge)
            if wire is None or wire["src"] in cut or wire["dst"] in cut:
                continue
            kept = found.setdefault(dumps({name: wire[name] for name in sorted(wire) if name != "weight"}), wire)
            if "weight" in wire:
                kept.setdefault("weight", wire["weight"])
    return list(found.values())


def _edge(view: View, edge: Edge) -> dict[str, Any] | None:
    try:
        members = sound(edge.members, _MEMBER_DEPTH)
        weight = {} if edge.weight is None else {"weight": sound(float(edge.weight), 1)}
    except (ValueError, OverflowError):
        return None
    ends = {name: emitted_id(view.member, mend(id_text(id))) for name, id in (("src", edge.src), ("dst", edge.dst))}
    further = {name: value for name, value in members.items() if name not in (*ends, "weight") and value is not None}
    return {**ends, **weight, **further}


def followups_of(replies: Sequence[tuple[View, GraphReply]]) -> tuple[str, ...]:
    """The questions to ask next, each once, in the engines' order."""
    found = (said(text, _TEXT_LENGTH) for _, reply in replies for text in reply.followups[:_TEXTS])
    return tuple(dict.fromkeys(text for text in found if text))[:_TEXTS]


def summaries_of(replies: Sequence[tuple[View, GraphReply]]) -> dict[str, str]:
    """The engines' summaries by engine, cut to a length that can be meant."""
    return {
        view.id: text
        for view, reply in replies
        if reply.summary is not None and (text := mend(reply.summary)[:_SUMMARY_LENGTH].strip())
    }
