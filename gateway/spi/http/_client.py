"""The client that adapters see. What differs between HTTP libraries is an ``Exchange`` and a table of faults."""

from __future__ import annotations

import asyncio
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from gateway import _json
from gateway.errors import BackendUnavailable, ConfigError, RcpError, Timeout, UpstreamError
from gateway.secret import Secret
from gateway.spi.http._address import Address, Params, redacted
from gateway.spi.http._encoding import inflate_for
from gateway.spi.http._message import Headers, HeaderValues, HttpResponse, HttpSettings

__all__ = ["Exchange", "HttpClient", "HttpStream"]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_DEFAULTS: HeaderValues = {"User-Agent": "rcp-gateway", "Accept-Encoding": "identity"}
_Prepared = dict[str, tuple[str, "str | Secret"]]


class Exchange(ABC):
    """One request that was sent and whose response has begun, as a library has it."""

    __slots__ = ()
    status: int
    headers: Headers

    @abstractmethod
    async def chunk(self) -> bytes:
        """The next bytes of the undecoded body as they arrive, empty at its end."""

    @abstractmethod
    async def close(self) -> None:
        """Give the connection back if the body was read to its end, else close it. May be called twice."""


class HttpStream:
    """A response whose body is still coming."""

    __slots__ = ("_body", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: _Body) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    def chunks(self) -> AsyncIterator[bytes]:
        """The decoded body's bytes, as they arrive. There is one body: a second call goes on with it.

        Raises ``BackendUnavailable`` if it breaks off, ``UpstreamError`` if it grows over the limit.
        """
        return self._body

    async def read(self) -> HttpResponse:
        """What is left of the body, as a whole response."""
        parts = [chunk async for chunk in self._body]
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return HttpResponse(self.status, self.headers, body)


class _Body:
    """Decodes and counts. Refuses at once what says itself that it is too long."""

    __slots__ = ("_client", "_exchange", "_inflate", "_left", "_pieces", "_where")

    def __init__(self, client: HttpClient, exchange: Exchange, method: str, url: str) -> None:
        self._client = client
        self._exchange = exchange
        self._where = (method, url)
        self._left = client.settings.max_response_bytes
        self._pieces: Iterator[bytes] = iter(())
        try:
            self._inflate = inflate_for(exchange.headers.get("content-encoding", ""))
        except ValueError:
            raise self._fault(UpstreamError("the engine's answer has an unknown content encoding")) from None
        length = exchange.headers.get("content-length", "")
        if method != "HEAD" and _whole(length) > self._left:
            raise self._too_long()

    def __aiter__(self) -> _Body:
        return self

    async def __anext__(self) -> bytes:
        try:
            piece = await self._next()
        except zlib.error:
            raise self._fault(BackendUnavailable("the engine's answer cannot be decompressed")) from None
        except self._client.errors as error:
            raise self._fault(self._client.translate(error), error) from None
        if not piece:
            raise StopAsyncIteration
        self._left -= len(piece)
        if self._left < 0:
            raise self._too_long()
        return piece

    async def _next(self) -> bytes:
        if self._inflate is None:
            return await self._exchange.chunk()
        while True:
            if piece := next(self._pieces, b""):
                return piece
            data = await self._exchange.chunk()
            if not data:
                break
            self._pieces = self._inflate.feed(data)
        if not self._inflate.complete:
            raise self._fault(BackendUnavailable("the engine's answer broke off"))
        return b""

    def _too_long(self) -> RcpError:
        limit = self._client.settings.max_response_bytes
        return self._fault(UpstreamError(f"the engine's answer is over the limit of {limit} bytes"))

    def _fault(self, fault: RcpError, cause: BaseException | None = None) -> RcpError:
        return _located(fault, *self._where, cause)


class HttpClient(ABC):
    """HTTP to one engine: one base address, its headers, a connection pool of its own.

    Made by ``open_http``. Any status is a response. Raised are ``BackendUnavailable`` if the engine cannot be reached
    or breaks off, ``Timeout``, and ``UpstreamError`` for an answer over the size limit. Cancelling the task closes the
    connection, so that the engine can stop.
    ``errors`` are the exceptions of the library, which ``translate`` knows.
    """

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, settings: HttpSettings, base_url: str, headers: HeaderValues | None = None) -> None:
        self.settings = settings
        self.address = Address(base_url)
        self._closed = False
        self._headers = _prepared(_DEFAULTS)
        if self.address.authorization is not None:
            self._headers.update(_prepared({"Authorization": self.address.authorization}))
        try:
            self._headers.update(_prepared(headers or {}))
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @abstractmethod
    async def exchange(self, method: str, url: str, headers: list[tuple[str, str]], content: bytes | None) -> Exchange:
        """Send a request and wait for the head of its response. For implementations."""

    @abstractmethod
    def translate(self, error: Exception) -> RcpError:
        """One of ``errors`` as an error of ours, whose text holds nothing of the request. For implementations."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections; calls in flight fail."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        headers: HeaderValues | None = None,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> HttpResponse:
        """Send a request and read the whole response.

        ``timeout``, in seconds, covers waiting for a connection, connecting, TLS, sending and reading. ``json`` other
        than ``None`` is encoded as the body, in place of ``content``.
        """
        async with self.stream(
            method, path, json=json, content=content, headers=headers, params=params, timeout=timeout
        ) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        headers: HeaderValues | None = None,
        params: Params | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[HttpStream, None]:
        """Send a request and hand over the response once its head is there.

        ``timeout`` covers the whole block. Leaving the block before the body has ended closes the connection.
        """
        url = self.address.join(path, params)
        prepared = self._headers
        if json is not None:
            content = _json.dumps(json)
            prepared = prepared | _prepared({"Content-Type": "application/json"})
        if headers:
            prepared = prepared | _prepared(headers)
        if timeout is not None and timeout <= 0:
            raise _late(method, url, timeout)
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                exchange = await self._answered(method, url, prepared, content)
                try:
                    yield HttpStream(exchange.status, exchange.headers, _Body(self, exchange, method, url))
                finally:
                    await exchange.close()
        except TimeoutError:
            if not deadline.expired():
                raise
            raise _late(method, url, timeout) from None

    async def _answered(self, method: str, url: str, headers: _Prepared, content: bytes | None) -> Exchange:
        """The exchange, after redirects within the origin if these are followed. Only 303 turns into a GET."""
        for hop in range(_MAX_REDIRECTS + 1):
            exchange = await self._sent(method, url, headers, content)
            if exchange.status not in _REDIRECTS or not self.settings.follow_redirects or hop == _MAX_REDIRECTS:
                break
            target = self.address.redirect(url, exchange.headers.get("location", ""))
            if target is None:
                break
            await exchange.close()
            url = target
            if exchange.status == 303 and method != "HEAD":
                method, content = "GET", None
                headers = {key: value for key, value in headers.items() if key != "content-type"}
        return exchange

    async def _sent(self, method: str, url: str, headers: _Prepared, content: bytes | None) -> Exchange:
        if self._closed:
            raise _located(BackendUnavailable("the engine is closed"), method, url)
        revealed = [(name, v.reveal() if isinstance(v, Secret) else v) for name, v in headers.values()]
        try:
            return await self.exchange(method, url, revealed, content)
        except self.errors as error:
            raise _located(self.translate(error), method, url, error) from None


def _prepared(headers: HeaderValues) -> _Prepared:
    """By lower-case name. Raises ``ValueError``, without the value, for what could not be written into a request."""
    prepared: _Prepared = {}
    for name, value in headers.items():
        if value is None:
            continue
        text = value.reveal() if isinstance(value, Secret) else value
        if not text.isascii() or not text.replace("\t", " ").isprintable() or not name.isascii() or " " in name:
            raise ValueError(f"the value of header {name!r} holds a line break or is not ASCII")
        prepared[name.lower()] = (name, value)
    return prepared


def _whole(digits: str) -> int:
    """A Content-Length, 0 if there is none that can be read, capped in its number of digits."""
    return int(digits[:20]) if digits.isascii() and digits.isdigit() else 0


def _late(method: str, url: str, timeout: float | None) -> RcpError:
    return _located(Timeout(f"the engine did not answer within {max(0.0, timeout or 0.0):.3g} s"), method, url)


def _located(fault: RcpError, method: str, url: str, cause: BaseException | None = None) -> RcpError:
    """The error with its ``detail`` for the log: where, and what kinds of exception with which words of the system.

    Their own texts are left out: libraries put URLs and header values into them. So are they as causes (``from None``).
    """
    words = [f"{method} {redacted(url)}"]
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen and len(seen) < 6:
        seen.add(id(cause))
        reason = getattr(cause, "strerror", None) or getattr(cause, "verify_message", None)
        words.append(f"{type(cause).__name__}({reason})" if isinstance(reason, str) else type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    fault.detail = ": ".join(words)
    return fault
