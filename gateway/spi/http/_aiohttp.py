"""The seam over aiohttp: what production uses. Imported when a client is opened, never before."""

from __future__ import annotations

import io
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.errors import BackendUnavailable, RcpError, Timeout
from gateway.spi.http._client import Exchange, HttpClient
from gateway.spi.http._message import Headers, HeaderValues, HttpSettings
from gateway.spi.http._tls import tls_context

__all__ = ["open_client"]

_IDLE_SECONDS = 15.0
_AT_ONCE = 2**20  # aiohttp warns about writing more than this in one go


class _Exchange(Exchange):
    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = Headers(response.headers.items())

    async def chunk(self) -> bytes:
        return await self._response.content.readany()

    async def close(self) -> None:
        self._response.close()  # at the end of the body the connection has left it already


class _Client(HttpClient):
    errors = (aiohttp.ClientError, OSError)

    def __init__(
        self, settings: HttpSettings, base_url: str, headers: HeaderValues | None, session: aiohttp.ClientSession
    ) -> None:
        super().__init__(settings, base_url, headers)
        self._session = session

    async def exchange(self, method: str, url: str, headers: list[tuple[str, str]], content: bytes | None) -> Exchange:
        large = content is not None and len(content) > _AT_ONCE
        response = await self._session.request(
            method,
            URL(url, encoded=True),
            headers=headers,
            data=io.BytesIO(content) if content is not None and large else content,
            allow_redirects=False,
        )
        return _Exchange(response)

    def translate(self, error: Exception) -> RcpError:
        match error:
            case TimeoutError():
                return Timeout("the engine did not accept a connection in time")
            case aiohttp.ClientConnectorCertificateError():
                return BackendUnavailable("the engine's TLS certificate is not trusted", retryable=False)
            case aiohttp.ClientSSLError():
                return BackendUnavailable("TLS with the engine failed", retryable=False)
            case aiohttp.ClientConnectorDNSError():
                return BackendUnavailable("the engine's host name does not resolve")
            case aiohttp.ClientConnectorError():
                return BackendUnavailable("the engine cannot be reached")
            case aiohttp.ClientResponseError():
                return BackendUnavailable("the engine's answer is not HTTP")
            case _:
                return BackendUnavailable("the connection to the engine broke off")

    async def aclose(self) -> None:
        self._closed = True
        await self._session.close()


class _Pinned(AbstractResolver):
    """Answers one name with fixed addresses and no other name at all."""

    def __init__(self, host: str, addresses: Sequence[str]) -> None:
        self._host = host
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host != self._host:
            raise OSError(None, "no address is pinned for this name")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        return


@asynccontextmanager
async def open_client(
    settings: HttpSettings, base_url: str, headers: HeaderValues | None, host: str, *, tls: bool
) -> AsyncIterator[HttpClient]:
    context: ssl.SSLContext | bool = await tls_context(settings) if tls else True
    connector = aiohttp.TCPConnector(
        limit=settings.pool_size,
        keepalive_timeout=_IDLE_SECONDS,
        ssl=context,
        resolver=_Pinned(host, settings.addresses) if settings.addresses else None,
    )
    async with aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Content-Type",),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout),
        trust_env=settings.trust_env,
    ) as session:
        client = _Client(settings, base_url, headers, session)
        try:
            yield client
        finally:
            await client.aclose()
