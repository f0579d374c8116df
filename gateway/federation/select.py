"""Which engines a call is for: all in scope, those it names, or those of the highest priority."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.errors import invalid_params
from gateway.federation.capability import Snapshot, View

__all__ = ["Selection", "by_priority", "select"]

_FIELD = "_meta.x-gateway.engines"


class Selection:
    """``chosen`` are the engines the call is for, ``left_out`` the others that retrieve; ``priority`` asks in turns.

    ``unfit`` are engines that the call names and that do not retrieve.
    """

    __slots__ = ("chosen", "left_out", "priority", "unfit")

    def __init__(
        self, chosen: Sequence[View], left_out: Sequence[View], unfit: Sequence[View] = (), *, priority: bool
    ) -> None:
        self.chosen = tuple(chosen)
        self.left_out = tuple(left_out)
        self.unfit = tuple(unfit)
        self.priority = priority


def select(
    snapshot: Snapshot, meta: Mapping[str, Any], *, default: str, listed: Collection[str] | None = None
) -> Selection:
    """Reads ``_meta["x-gateway"]``: ``engines`` (a list of ids) and ``select`` (``all`` or ``priority``).

    ``listed`` are the engines that a profile names. An id that does not exist and one that the caller may not see get
    the same ``-32602``.
    """
    retrieving = [view for view in snapshot.views if view.capabilities.retrieve is not None]
    own = meta.get("x-gateway")
    given = own if isinstance(own, Mapping) else {}
    method = given.get("select")
    method = default if method is None else method
    if method not in ("all", "priority"):
        raise invalid_params("select is 'all' or 'priority'", field="_meta.x-gateway.select")
    engines = given.get("engines")
    if engines is None:
        # A weight of 0 means: only when it is named.
        chosen = [view for view in retrieving if view.member.settings.weight > 0 or view.id in (listed or ())]
        return Selection(chosen, [view for view in retrieving if view not in chosen], priority=method == "priority")
    if not isinstance(engines, list) or not all(isinstance(id, str) for id in engines):
        raise invalid_params("engines is a list of engine ids", field=_FIELD)
    known = {view.id: view for view in snapshot.views}
    for id in engines:
        if id not in known:
            raise invalid_params("there is no such engine", field=_FIELD)
    named = set(engines)
    return Selection(
        [view for view in retrieving if view.id in named],
        [view for view in retrieving if view.id not in named],
        [view for view in snapshot.views if view.id in named and view not in retrieving],
        priority=method == "priority",
    )


def by_priority(views: Sequence[View]) -> list[list[View]]:
    """The engines in turns: those of the highest priority first."""
    levels = sorted({view.member.settings.priority for view in views}, reverse=True)
    return [[view for view in views if view.member.settings.priority == level] for level in levels]
