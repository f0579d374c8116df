"""Which engines a call is for: all in scope, those it names, or those of the highest priority."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.errors import invalid_params
from gateway.federation.capability import Snapshot, View
from gateway.federation.route import asked_here

__all__ = ["Selection", "by_priority", "named", "prioritised", "reranker", "select", "transformer"]

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
    priority = prioritised(meta, default)
    names = named(snapshot, meta)
    if names is None:
        # A weight of 0 means: only when it is named.
        chosen = [view for view in retrieving if view.member.settings.weight > 0 or view.id in (listed or ())]
        return Selection(chosen, [view for view in retrieving if view not in chosen], priority=priority)
    return Selection(
        [view for view in retrieving if view.id in names],
        [view for view in retrieving if view.id not in names],
        [view for view in snapshot.views if view.id in names and view not in retrieving],
        priority=priority,
    )


def prioritised(meta: Mapping[str, Any], default: str) -> bool:
    """Whether engines are asked in turns, those of the highest priority first."""
    method = asked_here(meta).get("select")
    method = default if method is None else method
    if method not in ("all", "priority"):
        raise invalid_params("select is 'all' or 'priority'", field="_meta.x-gateway.select")
    return bool(method == "priority")


def named(snapshot: Snapshot, meta: Mapping[str, Any]) -> frozenset[str] | None:
    """The engines that ``_meta["x-gateway"].engines`` names, ``None`` if it names none: then the call is for all.

    An id that does not exist and one that the caller may not see get the same ``-32602``.
    """
    engines = asked_here(meta).get("engines")
    if engines is None:
        return None
    if not isinstance(engines, list) or not all(isinstance(id, str) for id in engines):
        raise invalid_params("engines is a list of engine ids", field=_FIELD)
    known = {view.id for view in snapshot.views}
    if not known.issuperset(engines):
        raise invalid_params("there is no such engine", field=_FIELD)
    return frozenset(engines)


def reranker(snapshot: Snapshot, method: str | None, model: str | None) -> View | None:
    """The first engine in scope that reranks in this way with this model; any way and any model if they are not named.

    An engine that lists no models may have any; one that lists the model goes before it.
    """
    able = [
        (view, offered)
        for view in snapshot.views
        if (offered := view.capabilities.rerank) is not None
        and (method is None or method in (offered.methods or ()))
        and (model is None or offered.models is None or model in offered.models)
    ]
    listed = [view for view, offered in able if model is None or model in (offered.models or ())]
    return next(iter(listed or [view for view, _ in able]), None)


def transformer(snapshot: Snapshot, method: str, named: str | None) -> View | None:
    """The engine for a way of transforming: the one the configuration names, else the first that offers the method."""
    for view in snapshot.views:
        offered = view.capabilities.transform
        if (named is None or view.id == named) and offered is not None and method in (offered.methods or ()):
            return view
    return None


def transform_methods(snapshot: Snapshot, named: str | None) -> list[str]:
    """The ways of transforming that :func:`transformer` finds an engine for."""
    offered = [view.capabilities.transform for view in snapshot.views if named is None or view.id == named]
    return [method for one in offered if one is not None for method in one.methods or ()]


def rerank_methods(snapshot: Snapshot) -> list[str]:
    """The ways of reranking that engines in scope offer."""
    offered = [view.capabilities.rerank for view in snapshot.views]
    return [method for one in offered if one is not None for method in one.methods or ()]


def rerank_models(snapshot: Snapshot, method: str | None) -> list[str]:
    """The models that engines in scope say they rerank with in this way."""
    offered = [view.capabilities.rerank for view in snapshot.views]
    able = [one for one in offered if one is not None and (method is None or method in (one.methods or ()))]
    return [model for one in able for model in one.models or ()]


def by_priority(views: Sequence[View]) -> list[list[View]]:
    """The engines in turns: those of the highest priority first."""
    levels = sorted({view.member.settings.priority for view in views}, reverse=True)
    return [[view for view in views if view.member.settings.priority == level] for level in levels]
