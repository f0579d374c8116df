"""What is agreed before a request and what comes back: settings, headers, a response."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from gateway import _json
from gateway.errors import UpstreamError
from gateway.secret import Secret

__all__ = ["HeaderValues", "Headers", "HttpResponse", "HttpSettings"]

HeaderValues = Mapping[str, "str | Secret | None"]
"""Header values by name; one that is ``None`` (a key that is not configured) is not sent."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one engine is reached. Times are seconds, sizes are bytes of the decoded body.

    ``addresses``: if given, the host of the base URL is only ever dialled at these, whatever a name server says.
    ``follow_redirects``: within the same origin only; a redirect elsewhere is returned as it came.
    ``trust_env``: use the proxies that the environment names.
    """

    client: Literal["auto", "aiohttp", "httpx"] = "auto"
    pool_size: int = 32
    max_response_bytes: int = 32 * 1024 * 1024
    connect_timeout: float = 5.0
    tls_verify: bool = True
    tls_ca_file: str | None = None
    follow_redirects: bool = False
    trust_env: bool = False
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pool_size < 1:
            raise ValueError("pool_size must be at least 1")
        if self.max_response_bytes < 1:
            raise ValueError("max_response_bytes must be at least 1")
        if not 0 < self.connect_timeout < float("inf"):
            raise ValueError("connect_timeout must be above 0 seconds")
        for address in self.addresses:
            ipaddress.ip_address(address)
        if self.addresses and self.trust_env:
            raise ValueError("addresses cannot be pinned through a proxy: set trust_env to false")


class Headers(Mapping[str, str]):
    """Response headers: names in any case, repeated ones joined by a comma. Not printed, as they may hold cookies."""

    __slots__ = ("_values",)

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        values: dict[str, str] = {}
        for name, value in pairs:
            key = name.lower()
            values[key] = f"{values[key]}, {value}" if key in values else value
        self._values = values

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({', '.join(self._values)})"


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response; any status, 3xx to 5xx too (see ``raise_for_status``)."""

    status: int
    headers: Headers = field(default_factory=Headers)
    body: bytes = field(default=b"", repr=False)

    def json(self) -> Any:
        """The body as plain values; ``UpstreamError`` if it is not JSON."""
        try:
            return _json.loads(self.body)
        except ValueError:
            raise UpstreamError("the engine's answer is not JSON", data={"upstreamStatus": self.status}) from None
