"""``gateway.yaml`` as frozen structs: every key there is, its type, its default and its bounds.

Keys of the host and keys of a plugin never share a level: a plugin's settings stand under ``with:``.
All durations are in seconds, all sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from gateway.errors import ConfigError, ConfigErrors
from gateway.secret import Secret

__all__ = [
    "EngineSettings",
    "FederationSettings",
    "FusionSettings",
    "GatewayConfig",
    "HttpSection",
    "IdempotencySettings",
    "LimitSettings",
    "LogSettings",
    "PaginationSettings",
    "ProfileSettings",
    "RetrySettings",
    "Sections",
    "SessionSettings",
    "StateSettings",
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
FieldName = Annotated[str, Meta(min_length=1, description="the name of a field is not empty")]
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


_KEY_LENGTH = 32
"""Of a key that signs, in characters."""


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
    write_timeout: Positive = 30.0
    drain_timeout: NotNegative = 10.0


class StdioSection(Section, frozen=True):
    drain_timeout: NotNegative = 10.0


class LimitSettings(Section, frozen=True):
    """What one client may ask for. ``deadline`` ends every call; ``reserve`` is kept of it for fusing and answering.

    ``rate`` is how many calls a caller may make in a minute, counted over all processes that share the state.

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
    rate: Count | None = None


class FusionSettings(Section, frozen=True):
    """How the engines' lists become one.

    ``k`` is the constant of reciprocal rank fusion; ``window`` how deep each engine is asked when the client names no
    ``candidateK``; ``identity`` what makes two hits one document; ``per_document`` how many passages of one document an
    answer may hold. ``across`` is how engines of different ``corpus`` meet: by their scores alone, or scored again
    together, ``mix`` being the share of that score: by words, or by the engine that ``scorer`` names. ``undated`` is
    what of its relevance a hit without a readable date keeps under ``recency``.
    """

    method: str = "rrf"
    k: Count = 60
    window: Count = 50
    alpha: Annotated[float, Meta(ge=0, le=1, description="alpha lies between 0 and 1")] | None = None
    identity: Literal["id", "uri", "content", "id+content"] = "id"
    per_document: Count | None = None
    across: Literal["rrf", "rescore"] = "rrf"
    mix: Annotated[float, Meta(ge=0, le=1, description="mix lies between 0 and 1")] = 0.7
    scorer: str | None = None
    undated: Annotated[float, Meta(ge=0, le=1, description="undated lies between 0 and 1")] = 0.5


class FederationSettings(Section, frozen=True):
    """``select``: ask ``all`` engines, or those of the highest ``priority`` that answer. ``depth`` caps onward hops.

    With a ``quorum``, once so many engines have answered the others have ``grace`` seconds left. The start waits
    ``start_timeout`` seconds for engines that neither open nor fail.
    """

    select: Literal["all", "priority"] = "all"
    depth: Annotated[int, Meta(ge=0)] = 3
    verify: bool = True
    quorum: Count | None = None
    grace: NotNegative = 0.1
    start_timeout: Positive = 10.0


class RetrySettings(Section, frozen=True):
    """Retries inside an engine's time: at most ``attempts`` calls, waiting ``base`` seconds doubled each time."""

    attempts: Count = 2
    base: NotNegative = 0.05


class EngineSettings(Section, frozen=True):
    """One engine. ``settings`` is the plugin's own part (``with:``), decoded by the kind.

    ``aliases`` are names of metadata fields, the engine's own by the gateway's.
    """

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
    aliases: dict[FieldName, FieldName] = msgspec.field(default_factory=dict)
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


class StateSettings(Section, frozen=True):
    """Where everything is kept that outlives a request.

    ``memory``: in this process, at most ``entries`` values in ``bytes``. ``redis``: in the server at ``url``, which is
    a secret if it holds a password; ``ca`` is a file of certificates to trust, ``prefix`` keeps gateways that share a
    server apart, and ``timeout`` ends every call to it. ``processes`` is how many gateways answer at one address: with
    more than one, ``memory`` keeps no pages, since another process may be asked for the next.
    """

    kind: Literal["memory", "redis"] = "memory"
    bytes: Annotated[int, Meta(ge=1024 * 1024)] = 128 * 1024 * 1024
    entries: Annotated[int, Meta(ge=100)] = 100_000
    url: str | Secret | None = None
    password: Secret | None = None
    ca: Path | None = None
    prefix: Annotated[
        str, Meta(pattern=r"\A[A-Za-z0-9_.-]*\Z", description="a prefix is of letters, digits and the signs _ . -")
    ] = ""
    timeout: Positive = 0.5
    processes: Count = 1

    def __post_init__(self) -> None:
        faults = [*self._placed(), *self._url()]
        if faults:
            raise ConfigErrors(faults)

    def _placed(self) -> Iterator[ConfigError]:
        if self.kind == "redis" and self.url is None:
            yield ConfigError("is required", path="url")
        for key in ("url", "password", "ca") if self.kind == "memory" else ():
            if getattr(self, key) is not None:
                yield ConfigError("is for kind redis only", path=key)

    def _url(self) -> Iterator[ConfigError]:
        """What is wrong with the URL, without it: where there should be none, a password may stand."""
        if self.url is None:
            return
        written = self.url if isinstance(self.url, str) else self.url.reveal()
        try:
            url = urlsplit(written)
            password, host, _ = url.password, url.hostname, url.port
        except ValueError:
            yield ConfigError("is no URL", path="url")
            return
        if url.scheme not in ("redis", "rediss", "unix") or not (url.path if url.scheme == "unix" else host):
            yield ConfigError("must be a redis, rediss or unix URL", path="url")
        elif url.query or url.fragment:
            yield ConfigError("holds options: only the host, the port and the database belong here", path="url")
        elif password and isinstance(self.url, str):
            told = "holds a password: give it by reference, as url or as password: {env: NAME} or {file: path}"
            yield ConfigError(told, path="url")
        if self.ca is not None and url.scheme != "rediss":
            yield ConfigError("is for rediss URLs only", path="ca")


class PaginationSettings(Section, frozen=True):
    """How long a list that pages are cut from is kept, and in how much room: of all callers, and of one.

    ``key`` signs cursors; without it one is made, which all who share the state share.
    """

    ttl: Positive = 900.0
    bytes: Count = 64 * 1024 * 1024
    caller_bytes: Count = 16 * 1024 * 1024
    key: Secret | None = None

    def __post_init__(self) -> None:
        faults = []
        if self.caller_bytes > self.bytes:
            faults.append(ConfigError("one caller cannot have more than all together", path="caller_bytes"))
        if self.key is not None and len(self.key.reveal()) < _KEY_LENGTH:
            faults.append(ConfigError(f"is shorter than {_KEY_LENGTH} characters", path="key"))
        if faults:
            raise ConfigErrors(faults)


class SessionSettings(Section, frozen=True):
    """How long after its last answer a session (``sessionId``) is known, and how many of its hits."""

    ttl: Positive = 1800.0
    ids: Count = 10_000


class IdempotencySettings(Section, frozen=True):
    """How long a write's idempotency key and answer are known."""

    ttl: Positive = 86_400.0


class Sections(Section, frozen=True):
    """The keys of the file. ``name`` identifies this gateway in federation paths and must be unique among gateways.

    ``writes`` and ``embed`` name the one engine that ``index/add``, ``index/delete`` and ``embed`` go to, ``transform``
    the one for ``query/transform``. ``tokenizer`` is a ``tokenizer.json`` to count the tokens of a budget with, where
    an estimate is not enough.
    """

    name: Name = ""
    engines: tuple[EngineSettings, ...] = ()
    facades: tuple[FacadeSection, ...] = ()
    profiles: tuple[ProfileSettings, ...] = ()
    writes: str | None = None
    embed: str | None = None
    transform: str | None = None
    tokenizer: Path | None = None
    http: HttpSection = HttpSection()
    stdio: StdioSection = StdioSection()
    limits: LimitSettings = LimitSettings()
    fusion: FusionSettings = FusionSettings()
    federation: FederationSettings = FederationSettings()
    state: StateSettings = StateSettings()
    pagination: PaginationSettings = PaginationSettings()
    sessions: SessionSettings = SessionSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    log: LogSettings = LogSettings()


class GatewayConfig(Sections, frozen=True):
    """The whole configuration: what the file says, the folder its paths start from, the line of everything in it."""

    base_dir: Path = Path()
    source: Path | None = None
    lines: Mapping[str, int] = msgspec.field(default_factory=dict)
