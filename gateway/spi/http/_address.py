"""URLs: a base address taken apart once, requests joined to it, and the one way to show an address."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit

from gateway.errors import ConfigError
from gateway.secret import Secret

__all__ = ["Address", "Params", "redacted"]

Params = Mapping[str, "str | int | float | bool | Sequence[str | int | float | bool]"]

_SHOWN = 200
_REMEMBERED = 64  # paths of one engine whose URLs are kept: most engines are asked at one or two
_UNREADABLE = "<unreadable address>"
_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")
_DOTS = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.IGNORECASE)
_PATH_SAFE = "/%:@!$&'()*+,;=~"
_DEFAULT_PORT = {"http": 80, "https": 443}


def redacted(url: str) -> str:
    """``scheme://host:port/path`` of a URL, for logs: no user, password, query or fragment. Never raises.

    An ``@`` behind the host means that a password with a ``/`` in it was cut in the wrong place: then only the scheme
    is shown.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return _UNREADABLE
    if not parts.scheme or not host:
        return _UNREADABLE
    rest = url.partition(parts.netloc)[2]
    if "@" in rest and "@" not in parts.netloc:
        return f"{parts.scheme}://…"
    shown = f"{_netloc(host, port)}{parts.path}"
    return f"{parts.scheme}://{_UNPRINTABLE.sub('?', shown)[:_SHOWN]}"


def _netloc(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


class Address:
    """A base URL. User and password in it become a Basic ``Authorization`` header, its query goes with every request.

    Raises ``ConfigError`` for anything but http or https with a host.
    """

    __slots__ = ("_base", "_joined", "_query", "authorization", "host", "netloc", "origin", "port", "scheme")

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            if host and not host.isascii():
                host = host.encode("idna").decode("ascii")
        except ValueError:
            raise ConfigError(f"not a URL: {redacted(url)}") from None
        if parts.scheme not in _DEFAULT_PORT or not host or _UNPRINTABLE.search(host):
            raise ConfigError(f"not an http or https URL with a host: {redacted(url)}")
        if _DOTS.search(parts.path):
            raise ConfigError(f"a base URL must not hold . or .. in its path: {redacted(url)}")
        self.scheme = parts.scheme
        self.host = host
        self.port = _DEFAULT_PORT[self.scheme] if port is None else port
        self.netloc = _netloc(host, None if self.port == _DEFAULT_PORT[self.scheme] else self.port)
        self.origin = f"{self.scheme}://{self.netloc}"
        self._base = self.origin + quote(parts.path.rstrip("/"), safe=_PATH_SAFE)
        self._query = _UNPRINTABLE.sub(lambda found: quote(found[0]), parts.query)
        self._joined: dict[str, str] = {}
        self.authorization: Secret | None = None
        if parts.username or parts.password:
            pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
            token = base64.b64encode(pair.encode()).decode("ascii")
            self.authorization = Secret(f"Basic {token}", source="userinfo of the URL")

    def join(self, path: str, params: Params | None = None) -> str:
        """The full URL of a path below the base. A path is only ever a path: ``?`` and ``#`` in it are escaped.

        Raises ``ValueError`` for ``.`` and ``..`` segments, which would leave the base.
        """
        if not params and path in self._joined:
            return self._joined[path]
        url = self._join(path, params)
        if not params and len(self._joined) < _REMEMBERED:
            self._joined[path] = url
        return url

    def _join(self, path: str, params: Params | None) -> str:
        if _DOTS.search(path):
            raise ValueError("a request path must not hold . or .. segments")
        relative = quote(path.lstrip("/"), safe=_PATH_SAFE)
        url = f"{self._base}/{relative}" if relative or self._base == self.origin else self._base
        query = [self._query] if self._query else []
        if params:
            query.append(urlencode([(name, item) for name, value in params.items() for item in _items(value)]))
        return f"{url}?{'&'.join(query)}" if query else url

    def redirect(self, url: str, location: str) -> str | None:
        """Where a redirect leads, or ``None`` if to another origin: our keys and pinned addresses are for this one."""
        try:
            target = urljoin(url, location)
            parts = urlsplit(target)
            port = parts.port or _DEFAULT_PORT.get(parts.scheme)
        except ValueError:
            return None
        if (parts.scheme, parts.hostname, port) != (self.scheme, self.host, self.port) or "@" in parts.netloc:
            return None
        query = f"?{quote(parts.query, safe='/%:@!$&()*+,;=~?')}" if parts.query else ""
        return f"{self.origin}{quote(parts.path, safe=_PATH_SAFE) or '/'}{query}"


def _items(value: str | float | bool | Sequence[str | float | bool]) -> list[str]:
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, str | int | float):
        return [str(value)]
    return [text for item in value for text in _items(item)]
