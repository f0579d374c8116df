"""A facade: a foreign protocol served over the federation, so that clients written for it need not change.

A facade only translates. It asks the gateway through :class:`FacadeGateway`, which is the same door that RCP requests
come through: limits, authorisation and validation are not its business and cannot be passed by.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from gateway.errors import Code, RcpError
from gateway.model import PROVENANCE, UPSTREAM

__all__ = [
    "GATEWAYS_OWN",
    "Facade",
    "FacadeGateway",
    "FacadeKind",
    "FacadeRequest",
    "FacadeResponse",
    "FacadeSettings",
    "http_status",
    "search_score",
    "waiting_headers",
]

GATEWAYS_OWN: Final = frozenset({*PROVENANCE, UPSTREAM})
"""Metadata that the gateway adds. It names engines, which the clients of a foreign protocol know nothing of."""

_STATUS: Final[Mapping[int, int]] = {
    Code.PARSE_ERROR: 422,
    Code.INVALID_REQUEST: 422,
    Code.INVALID_PARAMS: 422,
    Code.CAPABILITY_UNSUPPORTED: 400,
    Code.OPTION_UNSUPPORTED: 400,
    Code.METHOD_NOT_FOUND: 400,
    Code.NOT_FOUND: 404,
    Code.CONFLICT: 409,
    Code.PAYLOAD_TOO_LARGE: 413,
    Code.RATE_LIMITED: 429,
    Code.BACKEND_UNAVAILABLE: 503,
    Code.TIMEOUT: 504,
}


class FacadeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a facade's own settings (the ``with:`` part). What clients name is looked up here, never dialled."""


class FacadeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request, read whole within the gateway's limits. Header names are in lower case."""

    method: str
    path: str
    body: bytes = b""
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


class FacadeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent back. ``body`` is JSON unless ``headers`` say otherwise."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = {}


class FacadeGateway(Protocol):
    """The gateway, as the caller of one request may use it."""

    async def call(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of an RCP method. Raises :class:`~gateway.errors.RcpError` as a client would get it."""


class Facade(ABC):
    """One foreign protocol, configured."""

    @abstractmethod
    def routes(self) -> Sequence[tuple[str, str]]:
        """What it answers: HTTP method and exact path (``("POST", "/v1/retrieve")``)."""

    @abstractmethod
    async def answer(self, request: FacadeRequest, gateway: FacadeGateway) -> FacadeResponse:
        """The answer to one request; bad input gets the protocol's own error shape."""

    @abstractmethod
    def failure(self, error: RcpError) -> FacadeResponse:
        """An error of the gateway in the protocol's own shape, for what :meth:`answer` raised or never got to see."""


def http_status(error: RcpError) -> int:
    """The status that a REST service gives to what went wrong: 401 for a caller unknown, 403 for one that may not."""
    if error.code == Code.UNAUTHORIZED:
        return 403 if error.data.get("authenticated") else 401
    return _STATUS.get(error.code, 500)


def waiting_headers(error: RcpError) -> dict[str, str]:
    """``Retry-After`` in whole seconds, where the error says how long to wait."""
    wait = error.data.get("retryAfterMs")
    return {"retry-after": str(math.ceil(wait / 1000))} if isinstance(wait, int | float) else {}


def search_score(hit: Mapping[str, Any]) -> float | None:
    """What a hit scored in the search, for protocols that tell it apart from the score of a reranking."""
    if (hit.get("scores") or {}).get("rerank") is None:
        return hit.get("score")
    return (hit.get("meta") or {}).get("fusedScore", hit.get("score"))


S = TypeVar("S", bound=FacadeSettings)


class FacadeKind(ABC, Generic[S]):
    """A type of facade, under the name that ``kind:`` gives in the configuration."""

    name: ClassVar[str]
    config: type[S]
    summary: ClassVar[str] = ""

    @abstractmethod
    def make(self, config: S, engines: Sequence[str]) -> Facade:
        """The facade; ``engines`` are the ids there are. Raises ``ConfigError`` for settings that name others."""
