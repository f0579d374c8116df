"""Foreign protocols on the same socket: their routes first, everything else is RCP's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from gateway import _json
from gateway.caller import Caller
from gateway.errors import InternalError, RcpError, from_wire
from gateway.protocol import Dispatcher, Session
from gateway.spi.facade import Facade, FacadeRequest, FacadeResponse
from gateway.transports.beside import ClientGone, beside
from gateway.transports.http import HttpApp, linger

__all__ = ["FacadeApp"]

logger = logging.getLogger("gateway.facade")

_BODY_LIMIT = 1 << 20
"""A search takes little; reading a body with a foreign protocol's rules costs far more than its bytes."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _Door:
    """The gateway for one request: every call is an RCP frame of the caller, admitted like any other."""

    def __init__(self, dispatcher: Dispatcher, caller: Caller) -> None:
        self._dispatcher = dispatcher
        self._caller = caller

    async def call(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        frame = _json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params)})
        answer = await self._dispatcher.answer(frame, Session("implicit", self._caller))
        decoded = _json.loads(answer or b"{}")
        if "error" in decoded:
            raise from_wire(decoded["error"])
        result: dict[str, Any] = decoded["result"]
        return result


class FacadeApp:
    """An ASGI app in front of :class:`HttpApp`; requests for a facade's routes end here."""

    def __init__(self, rcp: HttpApp, dispatcher: Dispatcher, facades: Sequence[Facade]) -> None:
        self._rcp = rcp
        self._dispatcher = dispatcher
        self._routes = {route: facade for facade in facades for route in facade.routes()}
        self._paths = {path for _, path in self._routes}

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or path not in self._paths:
            await self._rcp(scope, receive, send)
            return
        facade = self._routes.get((scope["method"], path))
        if facade is None:
            allowed = ", ".join(sorted(method for method, at in self._routes if at == path))
            await _send(send, FacadeResponse(status=405, headers={"allow": allowed}))
            return
        try:
            caller, body = await self._rcp.admit(scope, receive, limit=_BODY_LIMIT)
            request = FacadeRequest(
                method=scope["method"],
                path=path,
                body=body,
                query=dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"))),
                headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            )
            response = await beside(receive, self._answer(facade, request, caller))
        except ClientGone:
            return
        except RcpError as error:
            await refuse(receive, send, facade.failure(error))
            return
        await _send(send, response)

    async def _answer(self, facade: Facade, request: FacadeRequest, caller: Caller) -> FacadeResponse:
        try:
            return await facade.answer(request, _Door(self._dispatcher, caller))
        except RcpError as error:
            return facade.failure(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # A facade reads what a stranger sent: its slip must not end the connection without an answer.
            logger.error("facade for %s failed", request.path, exc_info=error)
            return facade.failure(InternalError())


async def refuse(receive: Receive, send: Send, response: FacadeResponse) -> None:
    """Answers before the body was read, and lets the client send the rest for a moment; see ``http._refuse``."""
    await _send(send, response, close=True)
    await linger(receive)
    await send({"type": "http.response.body", "body": b""})


async def _send(send: Send, response: FacadeResponse, *, close: bool = False) -> None:
    headers = {"content-type": "application/json", **response.headers, "content-length": str(len(response.body))}
    if close:
        headers["connection"] = "close"
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": encoded})
    await send({"type": "http.response.body", "body": response.body, "more_body": close})
