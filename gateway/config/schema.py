"""``gateway.yaml`` as frozen structs: every key there is, its type, its default and its bounds.

Keys of the host and keys of a plugin never share a level: a plugin's settings stand under ``with:``.
All durations are in seconds, all sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.errors import ConfigError

__all__ = [
    "EngineSettings",
    "FederationSettings",
    "FusionSettings",
    "GatewayConfig",
    "HttpSection",
    "LimitSettings",
    "LogSettings",
    "ProfileSettings",
    "RetrySettings",
    "Sections",
    "StdioSection",
]

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
"""At least one."""

_PRINTABLE = r"\A(?!\s)[^\x00-\x1f\x7f]*(?<!\s)\Z"
Name = Annotated[
    str, Meta(pattern=_PRINTABLE, description="a name holds no control characters and no blanks around it")
]
_SEGMENT = r"\A(?!\s)[^/\x00-\x1f\x7f]+(?<!\s)\Z"
EngineId = Annotated[
    str,
    Meta(
        pattern=_SEGMENT,
        description="an engine id is a name, not empty, without '/', control characters or blanks around it",
    ),
]
Corpus = Annotated[
    str,
    Meta(
        pattern=_SEGMENT,
        description="a corpus name is not empty and holds no '/', control characters or blanks around it",
    ),
]

ProfileName = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9][A-Za-z0-9._~-]{0,63}\Z",
        description="a profile's name is one segment of a path: letters, digits, '.', '_', '~' and '-'",
    ),
]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections."""


class HttpSection(Section, frozen=True):
    """The HTTP endpoint, and the client that engines use.

    ``sessions``: see docs/http.md; ``stateless`` is right behind load balancers, ``token`` issues a session token,
    ``peer`` keeps one session per peer address and is for a single process. ``origins`` are the browser origins that
    may call; ``hosts`` further ``Host`` names accepted on a loopback listener.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="a port lies between 0 and 65535")] = 8787
    base: Annotated[str, Meta(pattern=r"\A/[^\s?#]*\Z", description="a base path begins with / and is a path only")] = (
        "/rcp"
    )
    sessions: Literal["stateless", "token", "peer"] = "stateless"
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    client: Literal["auto", "aiohttp", "httpx"] = "auto"
    header_timeout: Positive = 10.0
    drain_timeout: NotNegative = 10.0


class StdioSection(Section, frozen=True):
    drain_timeout: NotNegative = 10.0


class LimitSettings(Section, frozen=True):
    """What one client may ask for. ``deadline`` ends every call; ``reserve`` is kept of it for fusing and answering.

    ``embeddings`` is how many vectors of texts are kept, so that a text is not embedded again; 0 keeps none.
    """

    body: Count = 16 * 1024 * 1024
    line: Count = 16 * 1024 * 1024
    batch: Count = 100
    max_k: Count = 1000
    concurrency: Count = 64
    query: Count = 65_536
    deadline: Positive = 30.0
    reserve: NotNegative = 0.05
    embeddings: Annotated[int, Meta(ge=0)] = 4096


class FusionSettings(Section, frozen=True):
    """How the engines' lists become one.

    ``k`` is the constant of reciprocal rank fusion; ``window`` how deep each engine is asked when the client names no
    ``candidateK``; ``identity`` what makes two hits one document.
    """

    method: str = "rrf"
    k: Count = 60
    window: Count = 50
    alpha: Annotated[float, Meta(ge=0, le=1, description="alpha lies between 0 and 1")] | None = None
    identity: Literal["id", "uri", "content", "id+content"] = "id"


class FederationSettings(Section, frozen=True):
    """``select``: ask ``all`` engines, or those of the highest ``priority`` that answer. ``depth`` caps onward hops."""

    select: Literal["all", "priority"] = "all"
    depth: Annotated[int, Meta(ge=0)] = 3
    verify: bool = True


class RetrySettings(Section, frozen=True):
    """Retries inside an engine's time: at most ``attempts`` calls, waiting ``base`` seconds doubled each time."""

    attempts: Count = 2
    base: NotNegative = 0.05


class EngineSettings(Section, frozen=True):
    """One engine. ``settings`` is the plugin's own part (``with:``), decoded by the kind."""

    id: EngineId
    kind: str
    settings: Any = msgspec.field(default=None, name="with")
    weight: Annotated[float, Meta(ge=0, description="a weight is a finite number, 0 (not asked) or more")] = 1.0
    priority: int = 0
    required: bool = False
    corpus: Corpus | None = None
    trust: Literal["trusted", "community", "untrusted"] = "community"
    timeout: Positive = 10.0
    concurrency: Count = 16
    queue: Annotated[int, Meta(ge=0)] = 256
    undeclared: Literal["skip", "check", "absent"] = "skip"
    min_score: float | None = None
    retry: RetrySettings = RetrySettings()

    def __post_init__(self) -> None:
        if self.id in ("dense", "sparse"):
            raise ConfigError(f"{self.id!r} is reserved: it names a mode in fusion.weights", path="id")


class FacadeSection(Section, frozen=True):
    """A foreign protocol to serve beside RCP. ``settings`` is the plugin's own part (``with:``)."""

    kind: str
    settings: Any = msgspec.field(default=None, name="with")


class ProfileSettings(Section, frozen=True):
    """A way to ask, under a name of its own at ``<base>/<name>``.

    ``engines`` are those in its scope, all if it names none. ``fusion`` holds what differs from the gateway's own
    section. ``filter`` is an RCP filter that holds for every request, ``defaults`` are options of ``retrieve``, named
    as on the wire, for requests that leave them out.
    """

    name: ProfileName
    engines: tuple[str, ...] | None = None
    fusion: FusionSettings | None = None
    filter: Any = None
    defaults: Mapping[str, Any] = {}


class LogSettings(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Sections(Section, frozen=True):
    """The keys of the file. ``name`` identifies this gateway in federation paths and must be unique among gateways.

    ``writes`` and ``embed`` name the one engine that ``index/add``, ``index/delete`` and ``embed`` go to, ``transform``
    the one for ``query/transform``.
    """

    name: Name = ""
    engines: tuple[EngineSettings, ...] = ()
    facades: tuple[FacadeSection, ...] = ()
    profiles: tuple[ProfileSettings, ...] = ()
    writes: str | None = None
    embed: str | None = None
    transform: str | None = None
    http: HttpSection = HttpSection()
    stdio: StdioSection = StdioSection()
    limits: LimitSettings = LimitSettings()
    fusion: FusionSettings = FusionSettings()
    federation: FederationSettings = FederationSettings()
    log: LogSettings = LogSettings()


class GatewayConfig(Sections, frozen=True):
    """The whole configuration: what the file says, the folder its paths start from, the line of everything in it."""

    base_dir: Path = Path()
    source: Path | None = None
    lines: Mapping[str, int] = msgspec.field(default_factory=dict)
