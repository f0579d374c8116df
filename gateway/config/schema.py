"""``gateway.yaml`` as frozen structs: every key there is, its type and its default.

Keys of the host and keys of a plugin never share a level: a plugin's settings stand under ``with:``.
All durations are in seconds, all sizes in bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from gateway.errors import ConfigError

__all__ = [
    "EngineSettings",
    "FederationSettings",
    "FusionSettings",
    "GatewayConfig",
    "HttpSection",
    "LimitSettings",
    "LogSettings",
    "RetrySettings",
    "StdioSection",
]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


def _positive(section: Section, *names: str) -> None:
    for name in names:
        if not getattr(section, name) > 0:
            raise ConfigError("must be greater than 0", path=name)


class HttpSection(Section, frozen=True):
    """The HTTP endpoint, and the client that engines use.

    ``sessions``: see docs/http.md; ``stateless`` is right behind load balancers, ``token`` issues a session token,
    ``peer`` keeps one session per peer address and is for a single process. ``origins`` are the browser origins that
    may call; ``hosts`` further ``Host`` names accepted on a loopback listener.
    """

    host: str = "127.0.0.1"
    port: int = 8787
    base: str = "/rcp"
    sessions: Literal["stateless", "token", "peer"] = "stateless"
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    client: Literal["auto", "aiohttp", "httpx"] = "auto"
    header_timeout: float = 10.0
    drain_timeout: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError("a port lies between 0 and 65535", path="port")
        if not self.base.startswith("/"):
            raise ConfigError("a base path begins with /", path="base")


class StdioSection(Section, frozen=True):
    drain_timeout: float = 10.0


class LimitSettings(Section, frozen=True):
    """What one client may ask for. ``deadline`` ends every call; ``reserve`` is kept of it for fusing and answering."""

    body: int = 16 * 1024 * 1024
    line: int = 16 * 1024 * 1024
    batch: int = 100
    max_k: int = 1000
    concurrency: int = 64
    deadline: float = 30.0
    reserve: float = 0.05

    def __post_init__(self) -> None:
        _positive(self, "body", "line", "batch", "max_k", "concurrency", "deadline")


class FusionSettings(Section, frozen=True):
    """How the engines' lists become one.

    ``k`` is the constant of reciprocal rank fusion; ``window`` how deep each engine is asked when the client names no
    ``candidateK``; ``identity`` what makes two hits one document.
    """

    method: str = "rrf"
    k: int = 60
    window: int = 50
    alpha: float | None = None
    identity: Literal["id", "uri", "content", "id+content"] = "id"

    def __post_init__(self) -> None:
        _positive(self, "k", "window")


class FederationSettings(Section, frozen=True):
    """``select``: ask ``all`` engines, or those of the highest ``priority`` that answer. ``depth`` caps onward hops."""

    select: Literal["all", "priority"] = "all"
    depth: int = 3
    verify: bool = True


class RetrySettings(Section, frozen=True):
    """Retries inside an engine's time: at most ``attempts`` calls, waiting ``base`` seconds doubled each time."""

    attempts: int = 2
    base: float = 0.05


class EngineSettings(Section, frozen=True):
    """One engine. ``settings`` is the plugin's own part (``with:``), decoded by the kind."""

    id: str
    kind: str
    settings: Any = msgspec.field(default=None, name="with")
    weight: float = 1.0
    priority: int = 0
    required: bool = False
    corpus: str | None = None
    trust: Literal["trusted", "community", "untrusted"] = "community"
    timeout: float = 10.0
    concurrency: int = 16
    queue: int = 256
    undeclared: Literal["skip", "check", "absent"] = "skip"
    min_score: float | None = None
    retry: RetrySettings = RetrySettings()

    def __post_init__(self) -> None:
        if not self.id or "/" in self.id or self.id != self.id.strip():
            raise ConfigError("an engine id is a non-empty name without '/' and without blanks around it", path="id")
        if self.id in ("dense", "sparse"):
            raise ConfigError(f"{self.id!r} is reserved: it names a mode in fusion.weights", path="id")
        if not self.weight >= 0 or self.weight == float("inf"):
            raise ConfigError("a weight is a finite number, 0 (not asked) or more", path="weight")
        if self.corpus is not None and (not self.corpus or "/" in self.corpus):
            raise ConfigError("a corpus name is not empty and holds no '/'", path="corpus")
        _positive(self, "timeout", "concurrency")


class LogSettings(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class GatewayConfig(Section, frozen=True):
    """The whole file. ``name`` identifies this gateway in federation paths and must be unique among gateways.

    ``writes`` and ``embed`` name the one engine that ``index/add``, ``index/delete`` and ``embed`` go to.
    """

    name: str = ""
    engines: tuple[EngineSettings, ...] = ()
    writes: str | None = None
    embed: str | None = None
    http: HttpSection = HttpSection()
    stdio: StdioSection = StdioSection()
    limits: LimitSettings = LimitSettings()
    fusion: FusionSettings = FusionSettings()
    federation: FederationSettings = FederationSettings()
    log: LogSettings = LogSettings()
    base_dir: Path = Path()
    source: Path | None = None
