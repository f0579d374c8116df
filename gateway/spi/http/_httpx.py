"""The seam over httpx: the portable fallback, and the one that calls an ASGI application in this process.

Its transports are used without ``httpx.AsyncClient``, which logs whole URLs with their keys.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from gateway.errors import BackendUnavailable, RcpError, Timeout
from gateway.spi.http._client import Exchange, HttpClient
from gateway.spi.http._message import Headers, HeaderValues, HttpSettings
from gateway.spi.http._tls import tls_context

__all__ = ["open_client"]

_IDLE_SECONDS = 15.0


class _Exchange(Exchange):
    __slots__ = ("_body", "_closed", "_leave", "_stream", "headers", "status")

    def __init__(self, response: httpx.Response, leave: Callable[[], None]) -> None:
        stream = response.stream
        if not isinstance(stream, httpx.AsyncByteStream):
            raise TypeError("the transport is not an asynchronous one")
        self.status = response.status_code
        self.headers = Headers(response.headers.multi_items())
        self._stream = stream
        self._body = stream.__aiter__()
        self._leave = leave
        self._closed = False

    async def chunk(self) -> bytes:
        async for data in self._body:
            if data:
                return data
        return b""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if isinstance(self._body, AsyncGenerator):
                await self._body.aclose()
            await self._stream.aclose()
        finally:
            self._leave()


class _Dialled:
    """Remembers the socket that a call opens: httpx leaves it open if the call is cancelled in the TLS handshake."""

    def __init__(self) -> None:
        self._sockets: list[Any] = []

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._sockets.append(info["return_value"])

    async def close(self) -> None:
        for stream in self._sockets:
            await stream.aclose()


class _Client(HttpClient):
    errors = (httpx.TransportError, OSError)

    def __init__(
        self,
        settings: HttpSettings,
        base_url: str,
        headers: HeaderValues | None,
        transport: httpx.AsyncBaseTransport,
    ) -> None:
        super().__init__(settings, base_url, headers)
        self._transport = transport
        # The pool is bounded here: httpx loses a slot if a call is cancelled while it connects (httpcore#1093).
        self._slots = asyncio.Semaphore(settings.pool_size)
        self._wait = {"connect": settings.connect_timeout, "read": None, "write": None, "pool": None}

    async def exchange(self, method: str, url: str, headers: list[tuple[str, str]], content: bytes | None) -> Exchange:
        extensions: dict[str, Any] = {"timeout": self._wait}
        await self._slots.acquire()
        dialled = _Dialled()
        if self.address.scheme == "https":
            extensions["trace"] = dialled
        try:
            return _Exchange(await self._sending(method, url, headers, content, extensions), self._slots.release)
        except BaseException:
            self._slots.release()
            await dialled.close()
            raise

    async def _sending(
        self,
        method: str,
        url: str,
        headers: list[tuple[str, str]],
        content: bytes | None,
        extensions: dict[str, Any],
    ) -> httpx.Response:
        if not self.settings.addresses:
            request = httpx.Request(method, url, headers=headers, content=content, extensions=extensions)
            return await self._transport.handle_async_request(request)
        named = [*((name, value) for name, value in headers if name.lower() != "host"), ("Host", self.address.netloc)]
        extensions["sni_hostname"] = self.address.host
        last: httpx.TransportError = httpx.ConnectError("no address is pinned")
        for address in self.settings.addresses:
            pinned = httpx.URL(url).copy_with(host=address)
            request = httpx.Request(method, pinned, headers=named, content=content, extensions=extensions)
            try:
                return await self._transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                last = error
        raise last

    def translate(self, error: Exception) -> RcpError:
        match error:
            case httpx.TimeoutException() | TimeoutError():
                return Timeout("the engine did not accept a connection in time")
            case httpx.ConnectError():
                return _unreachable(error)
            case httpx.RemoteProtocolError():
                return BackendUnavailable("the engine's answer is not HTTP or broke off")
            case _:
                return BackendUnavailable("the connection to the engine broke off")

    async def aclose(self) -> None:
        self._closed = True
        await self._transport.aclose()


def _unreachable(error: BaseException) -> RcpError:
    cause: BaseException | None = error
    for _ in range(6):
        match cause:
            case None:
                break
            case ssl.SSLCertVerificationError():
                return BackendUnavailable("the engine's TLS certificate is not trusted", retryable=False)
            case ssl.SSLError():
                return BackendUnavailable("TLS with the engine failed", retryable=False)
            case socket.gaierror():
                return BackendUnavailable("the engine's host name does not resolve")
        cause = cause.__cause__ or cause.__context__
    return BackendUnavailable("the engine cannot be reached")


def _proxy(base_url: str) -> str | None:
    """The proxy that the environment names for this host."""
    parts = urlsplit(base_url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


@asynccontextmanager
async def open_client(
    settings: HttpSettings, base_url: str, headers: HeaderValues | None, *, tls: bool, asgi_app: Any = None
) -> AsyncIterator[HttpClient]:
    transport: httpx.AsyncBaseTransport
    if asgi_app is not None:
        transport = httpx.ASGITransport(asgi_app, raise_app_exceptions=False)  # a 500, as a server would answer
    else:
        transport = httpx.AsyncHTTPTransport(
            verify=await tls_context(settings) if tls else False,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=settings.pool_size, keepalive_expiry=_IDLE_SECONDS
            ),
            proxy=_proxy(base_url) if settings.trust_env else None,
        )
    async with transport:
        client = _Client(settings, base_url, headers, transport)
        try:
            yield client
        finally:
            await client.aclose()
