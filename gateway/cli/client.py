"""Asking a gateway from the command line: one that runs elsewhere, or one opened here for the command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from gateway import _json
from gateway.app import Gateway, open_gateway
from gateway.caller import ANONYMOUS
from gateway.config import GatewayConfig
from gateway.errors import BackendUnavailable, RcpError
from gateway.protocol.session import Session
from gateway.spi.http import HttpClient, HttpSettings, open_http

__all__ = ["Client", "here", "of", "remote"]


class Client(Protocol):
    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result of an RCP method. Raises :class:`~gateway.errors.RcpError` with the gateway's error."""


def _frame(method: str, params: Mapping[str, Any] | None) -> bytes:
    return _json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params or {})})


def _result(body: bytes | None) -> dict[str, Any]:
    try:
        answer = _json.loads(body or b"")
    except ValueError as error:
        raise BackendUnavailable("what answered is not an RCP gateway") from error
    if not isinstance(answer, dict) or not ({"result", "error"} & answer.keys()):
        raise BackendUnavailable("what answered is not an RCP gateway")
    if "error" in answer:
        told = answer["error"]
        raise RcpError(str(told.get("message")), code=told.get("code"), data=told.get("data"))
    result = answer["result"]
    return result if isinstance(result, dict) else {}


class _Local:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        session = Session("implicit", ANONYMOUS)
        return _result(await self._gateway.dispatcher.answer(_frame(method, params), session))


class _Remote:
    def __init__(self, http: HttpClient, timeout: float) -> None:
        self._http = http
        self._timeout = timeout

    async def call(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        response = await self._http.request(
            "POST", method, content=_frame(method, params), headers=headers, timeout=self._timeout
        )
        return _result(response.body)


def of(gateway: Gateway) -> Client:
    """A client of a gateway that runs in this process."""
    return _Local(gateway)


@asynccontextmanager
async def here(config: GatewayConfig) -> AsyncIterator[Client]:
    """Opens the gateway of a configuration for as long as the block runs."""
    async with open_gateway(config) as gateway:
        yield _Local(gateway)


@asynccontextmanager
async def remote(url: str, *, timeout: float = 60.0) -> AsyncIterator[Client]:
    """A client of the gateway at ``url``, its base path included (``http://127.0.0.1:8787/rcp``)."""
    async with open_http(HttpSettings(), url.rstrip("/") + "/") as http:
        yield _Remote(http, timeout)
