"""Which names and which web pages may reach the gateway: the Host and Origin checks, and CORS.

A page on the web can make a browser send requests to ``127.0.0.1``, and by rebinding its own name to that address it
can also read the answers. The Host check ends the second, the Origin check the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

__all__ = ["LOOPBACK", "Guard", "hosts_for"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Headers = list[tuple[bytes, bytes]]


def hosts_for(bind: str, configured: Iterable[str] = ()) -> frozenset[str] | None:
    """The names by which a gateway bound to this address may be called; ``None`` if by any.

    On loopback only loopback names and the configured ones. Elsewhere the gateway cannot know its own names: the check
    is on as soon as some are configured.
    """
    names = frozenset(name.lower().rstrip(".") for name in configured)
    if "*" in names:
        return None
    if _is_loopback(bind):
        return LOOPBACK | names
    return names or None


@dataclass(frozen=True, slots=True)
class Guard:
    """``hosts``: the allowed names, ``None`` for any. ``origins``: other sites' pages that may call, ``*`` for all."""

    hosts: frozenset[str] | None = LOOPBACK
    origins: frozenset[str] = frozenset()

    def refusal(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Why a request with these headers is refused, or ``None``."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and host:
            name = _hostname(host)
            if name not in self.hosts and not _is_loopback(name):
                return "the Host header names a host that this gateway does not answer for"
        origin = headers.get(b"origin")
        if origin is not None and not self._allows(origin.decode("latin-1"), host):
            return "requests from this web origin are not allowed"
        return None

    def cors(self, origin: bytes | None) -> Headers:
        """What an answer to a page of an allowed other site carries."""
        if origin is None or not self.origins:
            return []
        if origin.decode("latin-1") not in self.origins and "*" not in self.origins:
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"RCP-Session, Retry-After, WWW-Authenticate"),
            (b"vary", b"Origin"),
        ]

    def preflight(self, headers: Mapping[bytes, bytes]) -> Headers:
        """What the answer to an ``OPTIONS`` request carries."""
        allowed = self.cors(headers.get(b"origin"))
        if allowed:
            allowed += [
                (b"access-control-allow-methods", b"POST"),
                (b"access-control-allow-headers", b"Accept, Authorization, Content-Type, RCP-Session"),
                (b"access-control-max-age", b"600"),
            ]
            if headers.get(b"access-control-request-private-network") == b"true":
                allowed.append((b"access-control-allow-private-network", b"true"))
        return allowed

    def _allows(self, origin: str, host: str) -> bool:
        # A page that the gateway served itself (the console) is of the origin it calls.
        same = bool(host) and origin.lower().partition("://")[2] == host
        return same or origin in self.origins or "*" in self.origins


def _hostname(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].rstrip(".") if ":" in host else host.rstrip(".")


def _is_loopback(name: str) -> bool:
    if name in LOOPBACK:
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
