"""What all model services over HTTP have in common: an address, a key in a header, and how they refuse."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec

from gateway.errors import BackendUnavailable, Code, ConfigError, RcpError, UpstreamError
from gateway.secret import Secret
from gateway.spi.codec import DecodeError, ValidationError, decode
from gateway.spi.engine import EngineConfig, EngineContext
from gateway.spi.http import HttpClient, HttpResponse, raise_for_status

__all__ = ["Remote", "RemoteConfig", "TooLarge", "open_remote", "read"]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NOT_A_NUMBER = re.compile(rb"[\[,:]\s*-?(?:NaN|Infinity)\b")
_USED_UP = re.compile(r"insufficient_quota|exceeded your current quota", re.IGNORECASE)

_QUOTED = 4
"""Shorter texts are not looked for in a service's words: they are part of any sentence."""

T = TypeVar("T")


class TooLarge(UpstreamError):
    """The request is too large as a whole; a part of it may pass."""


class RemoteConfig(EngineConfig, frozen=True, kw_only=True):
    """``options`` are further members of every request's body; ``headers`` go with every request."""

    url: str = ""
    api_key: Secret | None = None
    headers: dict[str, str | Secret] = msgspec.field(default_factory=dict)
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.url and not _usable(self.url):
            raise ConfigError("must be an http or https URL with a host", path="url")
        key = self.api_key.reveal() if self.api_key is not None else ""
        if not key.isascii() or not key.isprintable():
            raise ConfigError("must be printable ASCII", path="api_key")
        if self.api_key is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ConfigError("api_key and an Authorization header exclude each other", path="api_key")
        for name, value in self.headers.items():
            text = value.reveal() if isinstance(value, Secret) else value
            if not _HEADER_NAME.fullmatch(name) or not text.isascii() or not text.isprintable():
                raise ConfigError("must be a header name with printable ASCII for its value", path=f"headers.{name}")


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


class Remote:
    """Posts JSON; whatever is not a 2xx is raised, with nothing of the request in the text or the detail."""

    def __init__(self, http: HttpClient, config: RemoteConfig) -> None:
        self._http = http
        self._options = config.options
        given = [config.api_key, *config.headers.values()]
        self._hidden = [one.reveal() for one in given if isinstance(one, Secret)]

    async def post(
        self, path: str, body: Mapping[str, Any], *, texts: Sequence[str], over: re.Pattern[str] | None = None
    ) -> bytes:
        """The body of the answer. ``texts`` are what the request is about: a service may quote them, we do not.

        Raises :class:`TooLarge` for a 413, and for a 400 or 422 in whose words ``over`` finds something.
        """
        response = await self._http.request("POST", path, json={**body, **self._options})
        try:
            raise_for_status(response)
        except RcpError as error:
            raise self._discreet(_meant(error, response, over), error.detail, texts) from None
        return response.body

    def _discreet(self, error: RcpError, words: str, texts: Iterable[str]) -> RcpError:
        for hidden in (*self._hidden, *(text for text in texts if len(text) >= _QUOTED)):
            words = words.replace(hidden, "***")
        error.detail = words
        return error


def _meant(error: RcpError, response: HttpResponse, over: re.Pattern[str] | None) -> RcpError:
    """The refusal as what it means, where the status alone does not tell."""
    status = response.status
    if status == 413 or (status in (400, 422) and over is not None and over.search(error.detail)):
        return TooLarge(
            "the request is too large for the service", code=Code.PAYLOAD_TOO_LARGE, data={"upstreamStatus": status}
        )
    if status == 429 and _USED_UP.search(response.body[:4096].decode("utf-8", "replace")):
        # A quota does not come back by waiting; the status is that of a rate.
        return UpstreamError("the service's quota for this key is used up", data={"upstreamStatus": status})
    return error


@asynccontextmanager
async def open_remote(config: RemoteConfig, context: EngineContext, *, url: str, version: str) -> AsyncIterator[Remote]:
    """``url`` is where the service is if the settings do not say; of a bare host the folder ``version`` is meant."""
    base = config.url or url
    parts = urlsplit(base)
    if version and not parts.path.strip("/"):
        base = urlunsplit(parts._replace(path=f"/{version}"))
    headers: dict[str, str | Secret] = dict(config.headers)
    if config.api_key is not None:
        headers["Authorization"] = Secret(f"Bearer {config.api_key.reveal()}", source=config.api_key.source)
    async with context.http(base, headers=headers) as http:
        yield Remote(http, config)


def read(body: bytes, shape: type[T]) -> T:
    """An answer of this shape. Raises ``BackendUnavailable`` saying what is wrong with it, without its values."""
    try:
        return decode(body, shape)
    except ValidationError as error:
        told = str(error).replace("`", "")
        raise BackendUnavailable(f"the service's answer has the wrong shape: {told}") from None
    except DecodeError:
        if _NOT_A_NUMBER.search(body):
            raise BackendUnavailable("the service's answer holds NaN or Infinity, which are no numbers") from None
        raise BackendUnavailable("the service's answer is not JSON") from None
