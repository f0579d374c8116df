"""``memory/build`` and ``memory/recall``: memories belong to engines, and their ids say to which (RCP section 7.17).

An emitted memory id is ``engine/id``: engine ids hold no slash, so it is split at the first.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from msgspec.structs import replace

from gateway.errors import CallerError, Code, option_unsupported
from gateway.federation.capability import Snapshot, View
from gateway.federation.ids import emitted_id, id_text
from gateway.federation.offers import not_offered
from gateway.federation.replies import sound_memory
from gateway.federation.several import Errand
from gateway.spi.call import Call
from gateway.spi.codec import finite_float, mend
from gateway.spi.engine import Engine
from gateway.spi.methods import MemoryRecall, MemoryReply

__all__ = ["SEPARATOR", "builder", "clues_of", "emitted_memory", "recallers"]

SEPARATOR = "/"
_CLUES = 100
_SEEDS = 1000
_TEXT_LENGTH = 4096


def emitted_memory(view: View, id: str) -> str:
    return f"{view.id}{SEPARATOR}{id}"


def builder(
    snapshot: Snapshot, memory: str | None, scope: str | None, named: Set[str] | None
) -> tuple[View, str | None]:
    """The one engine a memory is built in, and the memory's id there.

    That is the engine the id tells, else the first in order that has the scope (and is named, if any is): then the id
    is a name of the client's own. Raises ``-32005`` for a scope that is not offered.
    """
    views = _remembering(snapshot)
    owner = _owner(views, memory)
    if owner is not None:
        views, memory = [owner[0]], owner[1]
    elif named is not None:
        views = [view for view in views if view.id in named]
    known: list[str] = []
    for view in views:
        scopes = (view.capabilities.memory.scopes if view.capabilities.memory is not None else None) or ()
        known += scopes
        if scope is None or scope in scopes:
            return view, memory
    if not views or scope is None:
        raise option_unsupported("no engine that is asked remembers", option="memory")
    raise not_offered(snapshot, "that scope", option=scope, field="scope", offered=known)


def recallers(snapshot: Snapshot, query: MemoryRecall, named: Set[str] | None) -> list[Errand[MemoryReply]]:
    """The engines to ask: the one whose memory it is, or all if the call names none.

    Raises ``-32015`` for a memory that can be nobody's here: a plain id is understood only where one engine remembers.
    """
    views = _remembering(snapshot)
    if query.id is None:
        asked = [view for view in views if (view.member.settings.weight > 0 if named is None else view.id in named)]
        return [Errand(view, _asking(query)) for view in asked]
    owner = _owner(views, query.id)
    if owner is None and len(views) == 1:
        owner = views[0], query.id
    if owner is None or (named is not None and owner[0].id not in named):
        raise CallerError("there is no such memory", code=Code.NOT_FOUND, data={"field": "memoryId"})
    return [Errand(owner[0], _asking(replace(query, id=owner[1])))]


def _remembering(snapshot: Snapshot) -> list[View]:
    return [view for view in snapshot.views if view.capabilities.memory is not None]


def _owner(views: Sequence[View], memory: str | None) -> tuple[View, str] | None:
    engine, slash, own = (memory or "").partition(SEPARATOR)
    return next(((view, own) for view in views if slash and own and view.id == engine), None)


def _asking(query: MemoryRecall) -> Any:
    async def ask(engine: Engine, call: Call) -> MemoryReply:
        return sound_memory(await engine.memory_recall(query, call))

    return ask


def clues_of(replies: Sequence[tuple[View, MemoryReply]], n: int | None) -> list[dict[str, Any]]:
    """The engines' clues by their places, then by the engines' order, at most ``n``; equal queries are one clue.

    Weights of different engines cannot be compared, so they order nothing; of clues that are joined the first's stays.
    """
    limit = min(n or _CLUES, _CLUES)
    ranked = [
        (place, order, view, clue)
        for order, (view, reply) in enumerate(replies)
        for place, clue in enumerate(reply.clues[:limit])
    ]
    found: dict[Any, dict[str, Any]] = {}
    for place, order, view, clue in sorted(ranked, key=lambda one: one[:2]):
        seeds = [emitted_id(view.member, mend(id_text(id))) for id in clue.seed_ids[:_SEEDS]]
        text = mend(clue.query)[:_TEXT_LENGTH] if clue.query is not None else ""
        if not text and not seeds:
            continue
        # A clue without a query is like no other.
        wire = found.setdefault(text or (place, order), {"query": text} if text else {})
        if seeds:
            wire["seedIds"] = list(dict.fromkeys([*wire.get("seedIds", ()), *seeds]))
        weight = finite_float(clue.weight)
        if weight is not None:
            wire.setdefault("weight", weight)
    return list(found.values())[:limit]
