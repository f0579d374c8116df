"""RCP over HTTP (section 5.2) as a plain ASGI app.

``POST <base>/<method>`` is the protocol; beside it stand only ``GET /healthz`` and ``GET /readyz``. Written on ASGI
itself, because a framework's request object would be the dearest part of a call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, Literal

from gateway.caller import ANONYMOUS, Caller
from gateway.errors import Code, RcpError
from gateway.protocol import Dispatcher, Session, Sessions
from gateway.transports.beside import ClientGone, Receive, beside
from gateway.transports.frames import fault, has_one_answer, names_method, too_large
from gateway.transports.guard import Guard
from gateway.transports.sse import Send, accepts_events, stream

__all__ = ["Authenticate", "HttpApp", "Mode"]

Headers = Mapping[bytes, bytes]
Mode = Literal["stateless", "token", "peer"]
Extra = list[tuple[bytes, bytes]]
Authenticate = Callable[[Headers, str], Caller]
"""Who asks, from the lower-cased header names with their values, and the peer's address.

Raises :class:`~gateway.errors.RcpError`: ``-32012`` is answered with HTTP 401, or with 403 if its data says
``{"authenticated": true}``; any other code rides on 200 like every JSON-RPC error.
"""

_JSON = (b"content-type", b"application/json")
_LINGER = 2.0


class HttpApp:
    """The ASGI app. One for each base path.

    ``mode`` says what a request without a session token is (DECISIONS D1): ``stateless``, initialised by nature;
    ``token``, the start of a session; ``peer``, part of the session of everybody at its address with its credentials.
    A token is issued and honoured in every mode.
    With ``heads``, the first segments that methods begin with, a path with another one that is not the method of its
    body leads nowhere; without, it is a mistaken method.
    ``streaming`` says whether the gateway advertises it. ``silence`` is in seconds, ``body_limit`` in bytes,
    ``body_timeout`` bounds how long a body may take to arrive, in seconds.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        sessions: Sessions,
        *,
        mode: Mode = "stateless",
        base: str = "/rcp",
        heads: Collection[str] | None = None,
        guard: Guard | None = None,
        authenticate: Authenticate | None = None,
        body_limit: int = 16 << 20,
        body_timeout: float = 60.0,
        streaming: bool = True,
        silence: float = 15.0,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._mode = mode
        self._base = "/" + base.strip("/") if base.strip("/") else ""
        self._heads = heads
        self._guard = guard or Guard()
        self._authenticate = authenticate
        self._body_limit = body_limit
        self._body_timeout = body_timeout
        self._streaming = streaming
        self._silence = silence
        self._ready = ready
        self._draining = False

    async def drain(self, timeout: float) -> None:
        """Turns unready, refuses new calls and ends those in flight within ``timeout`` seconds."""
        self._draining = True
        await self._dispatcher.close(timeout)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"HttpApp answers HTTP only, not {scope['type']!r}")
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        method = self._method_of(path)
        if method is not None:
            await self._endpoint(scope, receive, send, method)
        elif path in {"/healthz", "/readyz"} and scope["method"] in {"GET", "HEAD"}:
            well = path == "/healthz" or (not self._draining and self._ready())
            await _reply(send, 200 if well else 503, b"ok\n" if well else b"not ready\n", [_TEXT, _NO_STORE])
        else:
            await _reply(send, 404, b"not found\n", [_TEXT])

    def _method_of(self, path: str) -> str | None:
        """The RCP method that a path names, ``""`` for the bare base, ``None`` for a path off the base."""
        base = self._base
        if path.startswith(base):
            rest = path[len(base) :]
            if not rest or rest == "/":
                return ""
            # With an empty base every path is ours except the probes, which no RCP method is called.
            if rest[0] == "/" and rest not in {"/healthz", "/readyz"}:
                return rest[1:]
        return None

    async def _endpoint(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, method: str) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        extra = self._guard.cors(headers.get(b"origin"))
        reason = self._guard.refusal(headers)
        if reason is not None:
            await _refuse(receive, send, 403, RcpError(reason, code=Code.UNAUTHORIZED), extra)
        elif scope["method"] == "POST":
            with contextlib.suppress(ClientGone):
                await self._post(scope, headers, receive, send, method, extra)
        elif scope["method"] == "OPTIONS":
            await _reply(send, 204, b"", [_ALLOW, *self._guard.preflight(headers)])
        else:
            await _reply(send, 405, b"RCP methods are called with POST\n", [_TEXT, _ALLOW, *extra])

    async def _post(
        self,
        scope: MutableMapping[str, Any],
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        method: str,
        extra: Extra,
    ) -> None:
        peer = _peer(scope)
        try:
            caller = self._caller(headers, peer, self._body_limit)
        except RcpError as error:
            await _refuse(receive, send, _status_of(error), error, extra)
            return
        try:
            frame = await self._read(receive, self._body_limit)
        except RcpError as error:
            # Part of the body was read, so this is an answer and not a refusal to listen (DECISIONS D5).
            await _refuse(receive, send, 408 if error.code == Code.TIMEOUT else 200, error, extra)
            return
        if self._leads_nowhere(method) and not names_method(frame, method):
            await _reply(send, 404, b"not found\n", [_TEXT, *extra])
            return
        session = self._session(headers, peer, caller)
        answer = partial(self._dispatcher.answer, frame, session, path_method=method or None)
        wants_events = self._streaming and accepts_events(headers.get(b"accept"))
        if wants_events and scope.get("http_version") != "1.0" and has_one_answer(frame):
            await stream(receive, send, lambda emit: answer(emit=emit), headers=extra, silence=self._silence)
            return
        reply = await beside(receive, answer(emit=None))
        if reply is None:
            await _reply(send, 204, b"", extra)
        else:
            await _reply(send, 200, reply, [_JSON, *extra])

    def _leads_nowhere(self, method: str) -> bool:
        head = method.partition("/")[0]
        return self._heads is not None and bool(head) and head not in self._heads and not head.startswith("x-")

    async def admit(self, scope: MutableMapping[str, Any], receive: Receive, *, limit: int) -> tuple[Caller, bytes]:
        """The caller and the body of a request to a route beside RCP's, under the same rules as RCP's own.

        Raises :class:`~gateway.errors.RcpError` for what is refused, :class:`ClientGone` if the client broke off.
        """
        headers: dict[bytes, bytes] = dict(scope["headers"])
        reason = self._guard.refusal(headers)
        if reason is not None:
            raise RcpError(reason, code=Code.UNAUTHORIZED)
        limit = min(limit, self._body_limit)
        return self._caller(headers, _peer(scope), limit), await self._read(receive, limit)

    def _caller(self, headers: dict[bytes, bytes], peer: str, limit: int) -> Caller:
        """Who asks, before the body is read. Raises :class:`RcpError` for who may not or announces too much."""
        caller = self._authenticate(headers, peer) if self._authenticate is not None else ANONYMOUS
        if int(headers.get(b"content-length", b"0")) > limit:
            raise too_large(limit)
        return caller

    def _session(self, headers: Headers, peer: str, caller: Caller) -> Session:
        issue = self._sessions.issue
        token = headers.get(b"rcp-session")
        if token is not None:
            # A fresh session in place of one that is unknown or expired: it refuses with -32001 and may be initialised.
            return self._sessions.find(token.decode("latin-1"), caller) or Session("strict", caller, issue=issue)
        match self._mode:
            case "stateless":
                return Session("implicit", caller, issue=issue)
            case "peer":
                return self._sessions.peer((peer, headers.get(b"authorization")), caller, issue=issue)
            case "token":
                return Session("strict", caller, issue=issue)

    async def _read(self, receive: Receive, limit: int) -> bytes:
        """The body. Raises :class:`RcpError` if it is too large or too slow, :class:`ClientGone` if it broke off."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            parts, size = [body], len(body)
            try:
                async with asyncio.timeout(self._body_timeout):
                    while message.get("more_body", False) and size <= limit:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise ClientGone
                        parts.append(message.get("body", b""))
                        size += len(parts[-1])
            except TimeoutError:
                raise RcpError("the body took too long to arrive", code=Code.TIMEOUT) from None
            if size > limit:
                raise too_large(limit)
            body = b"".join(parts)
        if len(body) > limit:
            raise too_large(limit)
        return body


_TEXT = (b"content-type", b"text/plain; charset=utf-8")
_ALLOW = (b"allow", b"POST, OPTIONS")
_NO_STORE = (b"cache-control", b"no-store")


def _status_of(error: RcpError) -> int:
    if error.code == Code.UNAUTHORIZED:
        return 403 if error.data.get("authenticated") else 401
    return 413 if error.code == Code.PAYLOAD_TOO_LARGE else 200


async def _reply(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    fields = [*headers]
    if status != 204:
        fields.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def _refuse(receive: Receive, send: Send, status: int, error: RcpError, extra: Extra) -> None:
    """Answers a request whose body was not, or not all, read; then closes the connection.

    The answer is complete at once, but the rest of the body is thrown away for a moment before the connection closes:
    closing on unread data resets it, and the client would lose the answer while it still sends.
    """
    body = fault(error)
    fields = [_JSON, *extra, (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if status == 401:
        fields.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await linger(receive)
    await send({"type": "http.response.body", "body": b""})


async def linger(receive: Receive) -> None:
    """Throws away what still comes of a request, for a moment."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            message = await receive()
            while message["type"] == "http.request" and message.get("more_body", False):
                message = await receive()


def _peer(scope: MutableMapping[str, Any]) -> str:
    """The address that the client comes from."""
    client = scope.get("client")
    return str(client[0]) if client else ""
