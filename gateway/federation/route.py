"""What comes in ``_meta``: depth, path and deadline of federated calls (RCP section 16.2), and what is for us alone.

Everything here comes from a client and is clamped, never trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import Timeout
from gateway.spi.call import Route

__all__ = ["asked_here", "deadline_of", "route_of", "visited"]

_PATH_LENGTH = 32
_NAME_LENGTH = 200


def route_of(meta: Mapping[str, Any], *, identity: str, limit: int) -> Route:
    """The route to hand on: one hop less than came in (``limit`` if none did), this gateway at the end of the path.

    A depth below 0 means that nothing may be forwarded.
    """
    federation = meta.get("federation")
    given = federation if isinstance(federation, Mapping) else {}
    depth = given.get("depth")
    if isinstance(depth, float) and depth.is_integer():
        depth = int(depth)
    if isinstance(depth, bool) or not isinstance(depth, int):
        depth = limit
    return Route(depth=max(0, min(depth, limit)) - 1, path=(*_path(given), identity))


def visited(meta: Mapping[str, Any], identity: str) -> bool:
    """True if the request has passed this gateway before."""
    federation = meta.get("federation")
    return isinstance(federation, Mapping) and identity[:_NAME_LENGTH] in _path(federation)


def _path(given: Mapping[str, Any]) -> tuple[str, ...]:
    path = given.get("path")
    if not isinstance(path, list):
        return ()
    # The latest names are kept: a cycle shows in them, and a path of a million entries is an attack.
    return tuple(str(name)[:_NAME_LENGTH] for name in path[-_PATH_LENGTH:] if isinstance(name, str))


def asked_here(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a request asks of this gateway alone, under ``x-gateway``; empty if that is no object."""
    own = meta.get("x-gateway")
    return own if isinstance(own, Mapping) else {}


def deadline_of(meta: Mapping[str, Any], limit: float) -> tuple[float, bool]:
    """Seconds this call may take, and whether it was the client who set them (``_meta.deadlineMs``, relative).

    Anything that is no number is ignored. Raises :class:`~gateway.errors.Timeout` if no time is left at all.
    """
    given = meta.get("deadlineMs")
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:  # NaN
        return limit, False
    if given <= 0:
        raise Timeout("the deadline had passed when the request arrived")
    # Compared before it is divided: an integer of JSON may be too large to be a float.
    return (given / 1000, True) if given <= limit * 1000 else (limit, False)
