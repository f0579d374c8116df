"""Named profiles below the base path: ``<base>/<name>/<method>`` beside ``<base>/<method>``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from gateway.transports.beside import Receive
from gateway.transports.http import HttpApp
from gateway.transports.sse import Send

__all__ = ["ProfilesApp"]

App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class ProfilesApp:
    """An ASGI app in front of what serves the base path; requests below a profile's name end at the profile's own app.

    Each profile's app has its own sessions: a token of one is unknown to the others.
    """

    def __init__(self, front: App, rcp: HttpApp, base: str, profiles: Mapping[str, HttpApp]) -> None:
        self._front = front
        self._rcp = rcp
        self._base = f"/{base.strip('/')}/" if base.strip("/") else "/"
        self._profiles = profiles

    async def drain(self, timeout: float) -> None:
        """Turns unready, refuses new calls and ends those in flight within ``timeout`` seconds, on every path."""
        await asyncio.gather(*(app.drain(timeout) for app in (self._rcp, *self._profiles.values())))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        app: App | None = None
        if scope["type"] == "http" and path.startswith(self._base):
            app = self._profiles.get(path[len(self._base) :].partition("/")[0])
        await (app or self._front)(scope, receive, send)
