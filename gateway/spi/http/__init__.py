"""HTTP for adapters: send a request, get status, headers and body bytes, within a deadline and a size limit.

An adapter never builds an HTTP client: ``EngineContext.http`` gives it one of these, opened with ``open_http``.
This package is the only place that knows an HTTP library, and it loads one only when a client is opened.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from gateway.errors import ConfigError
from gateway.spi.http._address import Address, redacted
from gateway.spi.http._client import HttpClient, HttpStream
from gateway.spi.http._message import Headers, HeaderValues, HttpResponse, HttpSettings
from gateway.spi.http._status import raise_for_status, retry_after_ms

__all__ = [
    "HeaderValues",
    "Headers",
    "HttpClient",
    "HttpResponse",
    "HttpSettings",
    "HttpStream",
    "open_http",
    "raise_for_status",
    "redacted",
    "retry_after_ms",
]


@asynccontextmanager
async def open_http(
    settings: HttpSettings, base_url: str, headers: HeaderValues | None = None, *, asgi_app: Any = None
) -> AsyncIterator[HttpClient]:
    """A client for one engine, closed with the block. Nothing is dialled before the first request.

    ``headers`` go with every request; a ``Secret`` among them is revealed only then. ``asgi_app`` is called in this
    process in place of the network, by httpx; its response is handed over once the application has finished.
    Raises ``ConfigError`` for a base URL or settings that cannot work.
    """
    address = Address(base_url)
    _check_pins(settings, address)
    tls = address.scheme == "https"
    try:
        if _library(settings, asgi_app) == "aiohttp":
            from gateway.spi.http import _aiohttp

            opened = _aiohttp.open_client(settings, base_url, headers, address.host, tls=tls)
        else:
            from gateway.spi.http import _httpx

            opened = _httpx.open_client(settings, base_url, headers, tls=tls, asgi_app=asgi_app)
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed", path="http.client") from error
    async with opened as client:
        yield client


def _library(settings: HttpSettings, asgi_app: Any) -> str:
    if asgi_app is not None and settings.client == "aiohttp":
        raise ConfigError("only httpx can call an ASGI application", path="http.client")
    if settings.client != "auto":
        return settings.client
    return "aiohttp" if asgi_app is None and find_spec("aiohttp") is not None else "httpx"


def _check_pins(settings: HttpSettings, address: Address) -> None:
    """A host that is an address itself is never looked up, so it must be among the pinned ones."""
    try:
        host = ipaddress.ip_address(address.host)
    except ValueError:
        return
    if settings.addresses and host not in {ipaddress.ip_address(text) for text in settings.addresses}:
        raise ConfigError("the host of the base URL is not among the pinned addresses", path="http.addresses")
