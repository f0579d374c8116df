"""Asking a gateway from the command line: one that runs elsewhere, or one opened here for the command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import quote

from gateway import _json
from gateway.config import GatewayConfig
from gateway.errors import BackendUnavailable, Timeout, UpstreamError, from_wire
from gateway.inprocess import Gateway
from gateway.plugins import Plugins
from gateway.profiles import check_named
from gateway.spi.http import HttpClient, HttpSettings, open_http, redacted

__all__ = ["Client", "here", "remote"]


class Client(Protocol):
    async def call(self, method: str, params: Mapping[str, Any] | None = None, /) -> dict[str, Any]:
        """The result of an RCP method. Raises :class:`~gateway.errors.RcpError` with the gateway's error."""


def _frame(method: str, params: Mapping[str, Any] | None) -> bytes:
    return _json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params or {})})


def _result(body: bytes | None) -> dict[str, Any] | None:
    """The result in a response, ``None`` if it is no response. Raises the :class:`~gateway.errors.RcpError` in it."""
    try:
        answer = _json.loads(body or b"")
    except ValueError:
        return None
    if not isinstance(answer, dict):
        return None
    told = answer.get("error")
    if isinstance(told, dict):
        raise from_wire(told)
    result = answer.get("result")
    return result if isinstance(result, dict) else None


class _Remote:
    def __init__(self, http: HttpClient, url: str, timeout: float) -> None:
        self._http = http
        self._url = redacted(url)
        self._timeout = timeout

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        try:
            response = await self._http.request(
                "POST", method, content=_frame(method, params), headers=headers, timeout=self._timeout
            )
        except Timeout as error:
            raise Timeout(f"{self._url} did not answer within {self._timeout:g} s") from error
        except UpstreamError as error:
            raise BackendUnavailable(f"{self._url} cannot be reached") from error
        result = _result(response.body)
        if result is None:
            told = (
                f"what answers at {self._url} is not an RCP gateway (HTTP {response.status}); is the base path right?"
            )
            raise BackendUnavailable(told)
        return result


@asynccontextmanager
async def here(config: GatewayConfig, plugins: Plugins, profile: str | None = None) -> AsyncIterator[Client]:
    """Opens the gateway of a configuration for as long as the block runs; asks it under a profile."""
    check_named(config, profile)
    async with Gateway(config, profile=profile, plugins=plugins) as gateway:
        yield gateway


@asynccontextmanager
async def remote(url: str, *, profile: str | None = None, timeout: float = 60.0) -> AsyncIterator[Client]:
    """A client of the gateway at ``url``, its base path included (``http://127.0.0.1:8787/rcp``); under a profile."""
    url = url.rstrip("/") + (f"/{quote(profile, safe='')}" if profile else "")
    async with open_http(HttpSettings(), url + "/") as http:
        yield _Remote(http, url, timeout)
