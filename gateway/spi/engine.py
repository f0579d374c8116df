"""The engine: what every retrieval back end looks like to the gateway.

An adapter overrides what its back end can do and declares it in :meth:`Engine.capabilities`. A declared capability must
be overridden (checked when the engine opens); an undeclared one is never called. A typical adapter is three pure
functions (compile the filter, build the request, read the hits) and one call.
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import msgspec

from gateway.errors import CallerError, Code, Unsupported
from gateway.filters import And, Condition, Filter, Not, Or, Pushdown, to_json
from gateway.model import (
    Capabilities,
    Content,
    Document,
    FusionOptions,
    Hit,
    IndexAddResult,
    MmrOptions,
    RecencyOptions,
    RerankOptions,
)
from gateway.secret import Secret
from gateway.spi.call import Call
from gateway.spi.http import HttpClient, HttpSettings
from gateway.spi.methods import (
    Cutting,
    EmbedQuery,
    EmbedReply,
    FeedbackQuery,
    GraphQuery,
    GraphReply,
    Matrix,
    MemoryBuilt,
    MemoryRecall,
    MemoryReply,
    MemoryWrite,
    RerankQuery,
    SparseVector,
    TransformQuery,
    TransformReply,
)
from gateway.spi.probe import Probe

__all__ = [
    "EmbedQuery",
    "EmbedReply",
    "Engine",
    "EngineConfig",
    "EngineContext",
    "EngineKind",
    "EngineQuery",
    "EngineReply",
    "Mode",
    "Process",
    "RerankQuery",
    "SparseVector",
    "TransformQuery",
    "TransformReply",
    "VectorNeed",
]

Mode = Literal["dense", "sparse", "hybrid"]
T = TypeVar("T")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of a kind's own settings (the ``with:`` part of an engine). Unknown keys are configuration errors.

    Field types may be the usual plain ones, nested structs, :class:`pathlib.Path` (resolved from the configuration
    file's folder) and :class:`gateway.secret.Secret` (written ``{env: NAME}`` or ``{file: path}``).
    Raise :class:`~gateway.errors.ConfigError` from ``__post_init__`` for what types cannot say.
    """


class VectorNeed(msgspec.Struct, frozen=True):
    """This engine needs a query vector for the call, from the engine that ``embedder`` names.

    ``dimension`` is checked against the embedder's when the gateway starts, 0 if the engine does not know. It says
    nothing of a sparse vector.

    ``identity`` is that of the embedder that made the stored vectors, ``""`` if the engine does not know. It must be
    the embedder's own: vectors of two embedders cannot be compared.
    """

    embedder: str
    dimension: int = 0
    identity: str = ""


class EngineQuery(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's part of a retrieve.

    ``text`` is the query's text, ``content`` its blocks as given. ``k`` is how many hits are wanted, within the
    engine's ``maxK``. ``filter`` is what the engine's own :meth:`Engine.push_down` returned as native, ``None`` if
    nothing was pushed. ``fields`` are the metadata fields the gateway still has to see on every hit. The options after
    ``mode`` are set only where the engine advertises them; ``rewrite`` is the way in which it is to rewrite the query.
    """

    text: str
    k: int
    content: tuple[Content, ...] = ()
    mode: Mode | None = None
    modality: str | None = None
    vector: tuple[float, ...] | None = None
    sparse_vector: SparseVector | None = None
    filter: Any = None
    fields: frozenset[str] = frozenset()
    include_text: bool = True
    include_vectors: bool = False
    candidate_k: int | None = None
    fusion: FusionOptions | None = None
    rerank: RerankOptions | bool | None = None
    rewrite: str | None = None
    mmr: MmrOptions | None = None
    recency: RecencyOptions | None = None
    unit: str | None = None
    level: int | None = None
    seed: int | None = None
    index_version: str | None = None


class EngineReply(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, best first, at most ``k`` of them; more are cut off.

    ``exhausted`` says that asking for more would bring no further hit. ``rewritten_query`` is what the engine searched
    for, if that is another query than the one it was given. ``notes`` are sentences for the caller: they may
    name no secret, address or query text. ``partial`` is set where the engine itself says that something is missing
    from its answer: the names of what is missing, empty if it gives none.
    """

    hits: Sequence[Hit]
    exhausted: bool = False
    index_version: str | None = None
    rewritten_query: str | None = None
    notes: tuple[str, ...] = ()
    partial: tuple[str, ...] | None = None


class Engine(ABC):
    """One open back end. Methods run concurrently on one event loop and may be cancelled at any await.

    Errors: raise :mod:`gateway.errors` where the meaning is known (``BackendUnavailable``, ``RateLimited``, …); any
    other exception costs this engine the call and is logged with its traceback.
    """

    meta_complete: ClassVar[bool] = False
    """True if a hit carries its whole metadata, so that a missing field really is absent from the document."""

    rerank_logit: ClassVar[bool] = False
    """True if the scores of :meth:`rerank` are log-odds, so that a sigmoid makes shares of them."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What was observed when the engine opened. Cheap; called once after opening and once per reconnect."""

    def vector_need(self, mode: Mode | None) -> VectorNeed | None:
        """The query vector this engine needs to serve ``mode``, ``None`` if it needs none."""
        return None

    def sparse_need(self, mode: Mode | None) -> VectorNeed | None:
        """The sparse query vector this engine needs beside or instead of the dense one, ``None`` if it needs none."""
        return None

    def document_need(self) -> VectorNeed | None:
        """The vector that each document of ``index_add`` must carry, ``None`` if none."""
        return None

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        """Splits a filter into what the back end evaluates and what the gateway must check. Pure.

        The default pushes nothing: the gateway checks all of it on the returned metadata.
        """
        return Pushdown.unpushed(filter)

    def describe(self, native: Any) -> Any:
        """The native part of a pushed filter as plain JSON values, for people who ask what would be sent. Pure."""
        return to_json(native) if isinstance(native, And | Or | Not | Condition) else native

    def probes(self, keyword: str | None, date: str | None) -> Sequence[Probe]:
        """Questions for ``rcp-gateway probe`` that only this kind of back end raises, on fields of these names."""
        return ()

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        raise self._missing("retrieve")

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        raise self._missing("embed")

    async def embed_sparse(self, query: EmbedQuery, call: Call) -> Sequence[SparseVector]:
        """A sparse vector per input, in order; one of a text without any known term is empty."""
        raise self._missing("sparseEmbed")

    async def embed_multi(self, query: EmbedQuery, call: Call) -> Sequence[Matrix]:
        """A matrix per input, in order; all rows of all of them are of one dimension."""
        raise self._missing("multiVector")

    async def rerank(self, query: RerankQuery, call: Call) -> Sequence[float | None]:
        """A score per passage, aligned with the input, higher is better; ``None`` where the back end gave none."""
        raise self._missing("rerank")

    async def transform(self, query: TransformQuery, call: Call) -> TransformReply:
        raise self._missing("transform")

    async def graph(self, query: GraphQuery, call: Call) -> GraphReply:
        """Only operations that ``graph.ops`` names are asked for."""
        raise self._missing("graph")

    async def feedback(self, query: FeedbackQuery, call: Call) -> int:
        """How many of the signals were taken. Asked once: a signal must not count twice."""
        raise self._missing("feedback")

    async def memory_build(self, query: MemoryWrite, call: Call) -> MemoryBuilt:
        """Asked once, like a write."""
        raise self._missing("memory")

    async def memory_recall(self, query: MemoryRecall, call: Call) -> MemoryReply:
        raise self._missing("memory")

    async def vendor(self, method: str, params: Mapping[str, Any], call: Call) -> Mapping[str, Any]:
        """A method below an ``x-…`` capability of this engine. ``params`` are the client's own JSON, checked by nobody.

        Asked once. Raise ``CallerError`` with :data:`~gateway.errors.Code.METHOD_NOT_FOUND` for a name unknown here, as
        this does: an ``x-…`` capability may only describe, and have no methods.
        """
        raise CallerError("no such method", code=Code.METHOD_NOT_FOUND)

    async def embedded_by(self, identity: str, call: Call) -> None:  # noqa: B027  # most stores cannot remember it
        """Told before :meth:`index_add`: an embedder of this identity made the vectors of the documents to come.

        A store that can remember it does so beside the data, and says it in :class:`VectorNeed` from then on.
        """

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        """Adds or replaces documents by id; the ids returned are positional."""
        raise self._missing("index")

    async def index_cut(self, documents: Sequence[Document], cutting: Cutting, call: Call) -> IndexAddResult:
        """Like :meth:`index_add`, for engines that advertise ``index.chunking`` or ``index.contextual``.

        Without it documents come to :meth:`index_add` in pieces that the gateway has cut.
        """
        raise self._missing("index.chunking")

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        """Removes documents; an id that is not there is no error. Returns how many were there."""
        raise self._missing("index")

    async def ping(self, call: Call) -> None:  # noqa: B027  # an engine in this process is always there
        """Raises if the back end cannot be reached."""

    def _missing(self, capability: str) -> Unsupported:
        return Unsupported(f"{type(self).__name__} does not offer {capability}")


class Process(Protocol):
    """A child process in a group of its own, with a minimal environment; stderr goes to the engine's log."""

    @property
    def pid(self) -> int: ...

    async def read_line(self, limit: int) -> bytes | None:
        """The next stdout line without its end; ``None`` at the end. A longer line is skipped and read as ``b""``."""

    async def write(self, data: bytes) -> None:
        """Writes to stdin. Raises ``BackendUnavailable`` if the child is gone."""

    async def wait(self) -> int:
        """Waits for the child to end; its exit status."""


class EngineContext(Protocol):
    """What the host lends an engine. Adapters build no HTTP client, read no environment and keep no clock."""

    @property
    def id(self) -> str: ...

    @property
    def base_dir(self) -> Path:
        """The configuration file's folder: relative paths and commands start here."""

    @property
    def logger(self) -> logging.Logger: ...

    @property
    def random(self) -> random.Random: ...

    def clock(self) -> float:
        """Monotonic seconds."""

    def now(self) -> float:
        """Seconds since the epoch, for dates in queries."""

    def http(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str | Secret | None] | None = None,
        settings: HttpSettings | None = None,
    ) -> AbstractAsyncContextManager[HttpClient]:
        """An HTTP client with a connection pool of this engine's own."""

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Runs blocking code in a bounded pool of this engine's own, with the current context copied."""

    def spawn(
        self, argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Process]:
        """Starts a child without a shell; leaving the context ends its whole group (terminate, wait, kill)."""


C = TypeVar("C", bound=EngineConfig)


class EngineKind(ABC, Generic[C]):
    """A type of engine, under the name that ``kind:`` gives in the configuration."""

    name: ClassVar[str]
    config: type[C]
    summary: ClassVar[str] = ""
    federates: ClassVar[bool] = False
    """True if such an engine may forward a request to further gateways; then depth and cycles concern it (16.2)."""

    @abstractmethod
    def offers(self, config: C) -> Capabilities:
        """What such an engine is expected to offer, from its settings alone and before any I/O."""

    @abstractmethod
    def open(self, config: C, context: EngineContext) -> AbstractAsyncContextManager[Engine]:
        """Opens the engine; entered and left by one task. Calling this does no I/O, entering it may."""

    def requires(self, config: C) -> Sequence[str]:
        """Importable modules that this engine needs beyond the gateway's own, for ``check``."""
        return ()

    extra: ClassVar[str | None] = None
    """The extra of rcp-gateway (or of the plugin's distribution) that installs what :meth:`requires` names."""

    def embedders(self, config: C) -> Sequence[str]:
        """Ids of the engines this one takes vectors from, checked when the configuration is loaded."""
        return ()
