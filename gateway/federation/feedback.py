"""``feedback``: whose hit a signal is about (RCP section 7.16). It reaches no engine that it may not be about."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from msgspec.structs import replace

from gateway.errors import invalid_params
from gateway.federation.capability import Snapshot, View
from gateway.federation.ids import id_text, own_id, owners
from gateway.federation.loss import Reason
from gateway.federation.several import Errand
from gateway.model import Signal
from gateway.spi.call import Call
from gateway.spi.codec import mend
from gateway.spi.engine import Engine
from gateway.spi.methods import FeedbackQuery

__all__ = ["errands"]

Origin = Callable[[str], Sequence[tuple[str, str]] | None]
"""Engines and their own ids of a hit that this caller was given, ``None`` if it is not remembered."""


def errands(
    snapshot: Snapshot, query: FeedbackQuery, origin: Origin, named: Set[str] | None
) -> tuple[list[Errand[int]], list[Reason]]:
    """What each engine is told, its own ids in the signals, and which were not told because they take no feedback.

    A hit that was given to this caller lately is told to every engine that returned it; else its corpus tells, and a
    plain id only where one engine can own it, or the call names the engine. Raises ``-32602`` otherwise.
    """
    told: dict[str, list[Signal]] = {}
    deaf: dict[str, Reason] = {}
    for place, signal in enumerate(query.signals):
        id = mend(id_text(signal.hit_id))
        for view, own in _about(id, snapshot, origin, named, f"signals[{place}].hitId"):
            if view.capabilities.feedback is None:
                deaf[view.id] = Reason(view.id, "left-out", "it takes no feedback", option="feedback")
            else:
                told.setdefault(view.id, []).append(replace(signal, hit_id=own))
    return [
        Errand(view, _telling(replace(query, signals=tuple(told[view.id]))))
        for view in snapshot.views
        if view.id in told
    ], list(deaf.values())


def _telling(query: FeedbackQuery) -> Any:
    async def tell(engine: Engine, call: Call) -> int:
        taken: Any = await engine.feedback(query, call)
        # Advice: an engine that counts oddly is no reason to fail.
        return max(0, min(taken, len(query.signals))) if isinstance(taken, int) and not isinstance(taken, bool) else 0

    return tell


def _about(id: str, snapshot: Snapshot, origin: Origin, named: Set[str] | None, field: str) -> list[tuple[View, str]]:
    remembered = origin(id)
    if remembered is not None:
        known = [(view, own) for engine, own in remembered if (view := snapshot.view(engine)) is not None]
        return [(view, own) for view, own in known if named is None or view.id in named]
    views = [view for view in snapshot.views if _gives_hits(view)]
    found = [view for view in owners(id, views, field) if named is None or view.id in named] if views else []
    corpora = {view.member.settings.corpus for view in found}
    if len(found) != 1 and (not found or None in corpora):
        raise invalid_params("the id does not tell which engine it is of", field=field)
    return [(view, own_id(view.member, id)) for view in found]


def _gives_hits(view: View) -> bool:
    offered = view.capabilities
    return any(one is not None for one in (offered.retrieve, offered.graph, offered.memory))
