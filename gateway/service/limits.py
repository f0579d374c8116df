"""What a call may take and how far it may go, read from what came with it."""

from __future__ import annotations

from gateway.federation.plan import Defaults
from gateway.federation.route import deadline_of, route_of, visited
from gateway.federation.runner import Deadline
from gateway.spi.call import ClientCall, Route

__all__ = ["deadline_for", "route_for"]


def deadline_for(call: ClientCall, defaults: Defaults) -> Deadline:
    """When the call must be answered. Raises :class:`~gateway.errors.Timeout` if that has passed."""
    seconds, client = deadline_of(call.meta, defaults.deadline)
    return Deadline.after(seconds, client=client, reserve=defaults.reserve, limit=defaults.deadline)


def route_for(call: ClientCall, defaults: Defaults) -> tuple[Route, bool]:
    """The route to hand on, and whether the request has been here before."""
    route = route_of(call.meta, identity=defaults.identity, limit=defaults.depth)
    return route, visited(call.meta, defaults.identity)
