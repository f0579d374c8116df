"""What a call may take and how far it may go, read from what came with it."""

from __future__ import annotations

from gateway.errors import invalid_params
from gateway.federation.plan import Defaults
from gateway.federation.route import deadline_of, route_of, visited
from gateway.federation.runner import Deadline
from gateway.federation.several import Journey
from gateway.spi.call import ClientCall, Route
from gateway.state import digest

__all__ = ["bounded", "deadline_for", "journey_for", "route_for", "session_for"]


def bounded(text: str | None, defaults: Defaults) -> None:
    """Raises ``-32602`` for a query that is longer than any may be."""
    if text is not None and len(text) > defaults.max_query:
        raise invalid_params(f"a query has at most {defaults.max_query} characters", field="query")


def deadline_for(call: ClientCall, defaults: Defaults) -> Deadline:
    """When the call must be answered. Raises :class:`~gateway.errors.Timeout` if that has passed."""
    seconds, client = deadline_of(call.meta, defaults.deadline)
    return Deadline.after(seconds, client=client, reserve=defaults.reserve, limit=defaults.deadline)


def route_for(call: ClientCall, defaults: Defaults) -> tuple[Route, bool]:
    """The route to hand on, and whether the request has been here before."""
    route = route_of(call.meta, identity=defaults.identity, limit=defaults.depth)
    return route, visited(call.meta, defaults.identity)


def journey_for(call: ClientCall, defaults: Defaults) -> Journey:
    """All that several engines asked at once share. Raises as :func:`deadline_for`."""
    route, cycle = route_for(call, defaults)
    return Journey(call, deadline_for(call, defaults), route, cycle)


def session_for(call: ClientCall, id: str | None) -> str | None:
    """What engines are told of a client's session: clients that choose the same name do not meet there."""
    if not id:
        return None
    return digest(call.caller.id, id)
