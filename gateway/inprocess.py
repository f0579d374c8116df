"""The gateway inside a program: ``async with Gateway("gateway.yaml") as gateway``.

A call here is an RCP frame like any other: it is written, admitted, checked and answered by the dispatcher that serves
the transports, so that nothing can mean one thing on the wire and another in process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack

import msgspec

from gateway import _json
from gateway.app import OpenGateway, config_of, open_gateway, read_config
from gateway.caller import ANONYMOUS, Caller
from gateway.config import GatewayConfig, nearest
from gateway.errors import GatewayError, from_wire
from gateway.model import (
    CatalogResult,
    Content,
    Document,
    EmbedResult,
    FusionOptions,
    IndexAddResult,
    IndexDeleteResult,
    InitializeResult,
    Message,
    MmrOptions,
    Query,
    RecencyOptions,
    RerankOptions,
    RerankResult,
    RetrieveRequest,
    TransformResult,
    Usage,
)
from gateway.plugins import Plugins, load_plugins
from gateway.protocol.dispatch import Dispatcher
from gateway.protocol.session import Session

__all__ = ["Answer", "Gateway", "Passage", "Profile", "Progress", "RetrieveOptions"]

_TOKEN = "in-process"  # noqa: S105 - names a stream of progress


class Passage(Message, frozen=True):
    """One hit. ``meta`` says under ``engines`` who returned it; all other members are as RCP has them."""

    id: str
    score: float
    text: str | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    citation: dict[str, Any] | None = None
    chunk: dict[str, Any] | None = None
    confidence: float | None = None
    trust: dict[str, Any] | None = None
    scores: dict[str, float] = msgspec.field(default_factory=dict)
    content: tuple[Content, ...] = ()
    vector: Any = None
    provenance: dict[str, Any] | None = None
    modality: str | None = None
    unit: str | None = None
    level: int | None = None


class Answer(Message, frozen=True):
    """What ``retrieve`` found, best first. ``usage.notes`` are sentences about what was lost, ``meta`` the records."""

    hits: tuple[Passage, ...]
    usage: Usage
    next_cursor: str | None = None
    index_version: str | None = None
    rewritten_query: str | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict, name="_meta")


class Progress(Message, frozen=True):
    """How far a call is: ``progress`` in [0, 1], never falling. ``hits`` are the first ones as they stand then."""

    progress: float
    stage: str | None = None
    message: str | None = None
    hits: tuple[Passage, ...] = ()


OnProgress = Callable[[Progress], None]
"""Must not wait, and what it raises is logged and changes nothing."""


class RetrieveOptions(TypedDict, total=False):
    """The options of ``retrieve`` (RCP section 7.7), by their Python names; those inside a mapping as on the wire."""

    k: int | None
    mode: str | None
    modality: str | None
    candidate_k: int | None
    fusion: FusionOptions | Mapping[str, Any] | None
    rerank: RerankOptions | Mapping[str, Any] | bool | None
    mmr: MmrOptions | Mapping[str, Any] | None
    rewrite: str | bool | None
    filter: Mapping[str, Any] | None
    min_score: float | None
    recency: RecencyOptions | Mapping[str, Any] | None
    unit: str | None
    level: int | None
    token_budget: int | None
    session_id: str | None
    include_text: bool | None
    include_vectors: bool | None
    encoding: str | None
    seed: int | None
    index_version: str | None
    strict: bool | None
    cursor: str | None
    meta: Mapping[str, Any] | None


T = TypeVar("T")


class _Partial(msgspec.Struct):
    hits: tuple[Passage, ...] = ()


class _Told(Message, frozen=True):
    progress: float = 0.0
    stage: str | None = None
    message: str | None = None
    partial: _Partial | None = None


class _Notification(msgspec.Struct):
    method: str
    params: msgspec.Raw


class _Response(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"")
    error: dict[str, Any] | None = None


class Profile:
    """A way to ask an open gateway, as one caller. Every method raises :class:`~gateway.errors.RcpError`.

    The classes of ``gateway.errors`` tell errors apart, ``error.code`` is RCP's number. Cancelling a task that waits
    here cancels every engine call behind it.
    """

    def __init__(self, dispatcher: Dispatcher, caller: Caller = ANONYMOUS) -> None:
        self._dispatcher: Dispatcher | None = dispatcher
        self._caller = caller

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, /, *, on_progress: OnProgress | None = None
    ) -> dict[str, Any]:
        """The result of any RCP method as plain values; ``params`` as on the wire."""
        return await self._ask(method, params or {}, dict[str, Any], on_progress)

    async def retrieve(
        self, query: Query, *, on_progress: OnProgress | None = None, **options: Unpack[RetrieveOptions]
    ) -> Answer:
        """The fused ranking for a query."""
        return await self._ask("retrieve", _retrieve_params(query, options), Answer, on_progress)

    async def embed(
        self, inputs: Sequence[str | Content], *, kind: str | None = None, encoding: str | None = None
    ) -> EmbedResult:
        """One vector for each input, from the engine that embeds. ``kind`` is ``query`` or ``document``."""
        return await self._ask("embed", {"inputs": inputs, "kind": kind, "encoding": encoding}, EmbedResult)

    async def rerank(
        self,
        query: Query,
        passages: Sequence[str | Content],
        *,
        method: str | None = None,
        model: str | None = None,
        top_n: int | None = None,
    ) -> RerankResult:
        """Scores for the passages, and their order by them."""
        params = {"query": query, "passages": passages, "method": method, "model": model, "topN": top_n}
        return await self._ask("rerank", params, RerankResult)

    async def transform(self, query: Query, method: str, *, n: int | None = None) -> TransformResult:
        """The query put another way (``query/transform``)."""
        return await self._ask("query/transform", {"query": query, "method": method, "n": n}, TransformResult)

    async def index_add(
        self,
        documents: Sequence[Document | Mapping[str, Any]],
        *,
        chunk: bool | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> IndexAddResult:
        """Stores documents in the engine that ``writes`` names; ``meta`` may hold an ``idempotencyKey``."""
        return await self._ask("index/add", {"documents": documents, "chunk": chunk, "_meta": meta}, IndexAddResult)

    async def index_delete(self, ids: Sequence[str], *, meta: Mapping[str, Any] | None = None) -> IndexDeleteResult:
        """Removes documents by id from the engine that ``writes`` names; ``meta`` as in :meth:`index_add`."""
        return await self._ask("index/delete", {"ids": ids, "_meta": meta}, IndexDeleteResult)

    async def graph(self, query: Query | None = None, /, **params: Any) -> dict[str, Any]:
        """What a graph engine says; further ``params`` as on the wire."""
        return await self.call("graph", {**({} if query is None else {"query": query}), **params})

    async def feedback(self, **params: Any) -> dict[str, Any]:
        """Tells the engine that a hit came from how good it was; ``params`` as on the wire."""
        return await self.call("feedback", params)

    async def memory_build(self, **params: Any) -> dict[str, Any]:
        """``memory/build``; ``params`` as on the wire."""
        return await self.call("memory/build", params)

    async def memory_recall(self, **params: Any) -> dict[str, Any]:
        """``memory/recall``; ``params`` as on the wire."""
        return await self.call("memory/recall", params)

    async def info(self) -> InitializeResult:
        """Who answers and what is offered, as ``initialize`` tells a client."""
        return await self._ask("info", {}, InitializeResult)

    async def catalog(self) -> CatalogResult:
        """The engines in scope and what each offers."""
        return await self._ask("catalog/list", {}, CatalogResult)

    async def _ask(
        self, method: str, params: Mapping[str, Any], result: type[T], on_progress: OnProgress | None = None
    ) -> T:
        if self._dispatcher is None:
            raise GatewayError("the gateway is not open: use it inside `async with`")
        if on_progress is not None:
            params = {**params, "_meta": {**(params.get("_meta") or {}), "progressToken": _TOKEN}}
        try:
            frame = _json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        except (TypeError, ValueError) as error:
            raise TypeError(f"the parameters of {method} cannot be written as JSON: {error}") from error
        emit = None if on_progress is None else _reader(on_progress)
        answer = await self._dispatcher.answer(frame, Session("implicit", self._caller), emit=emit)
        response = _json.decode(answer or b"{}", _Response)
        if response.error is not None or not bytes(response.result):
            raise from_wire(response.error or {})
        return _json.decode(response.result, result)


class Gateway(Profile):
    """A gateway of this process, open inside ``async with``.

    ``config`` is the path of a configuration file, the same as a mapping (its relative paths start at the current
    folder), or a :class:`GatewayConfig`. With ``profile`` it asks under that profile. Entering raises
    :class:`~gateway.errors.ConfigErrors` for what is wrong with the configuration.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any] | GatewayConfig = "gateway.yaml",
        *,
        profile: str | None = None,
        plugins: Plugins | None = None,
        caller: Caller = ANONYMOUS,
    ) -> None:
        self._config = config
        self._profile = profile
        self._plugins = plugins
        self._caller = caller
        self._dispatcher = None
        self._open: OpenGateway | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise GatewayError("the gateway is open already")
        plugins = self._plugins or load_plugins()
        self._open = await self._stack.enter_async_context(open_gateway(self._read(plugins), plugins))
        try:
            self._dispatcher = self._open.endpoint(self._profile).dispatcher
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Gives calls in flight ten seconds, ends those that are left, and closes every engine."""
        self._dispatcher = None
        try:
            await self._stack.aclose()
        finally:
            self._open = None

    def profile(self, name: str | None, *, caller: Caller | None = None) -> Profile:
        """The same open engines under a profile, or for another caller. Raises ``ConfigError`` if there is none."""
        if self._open is None:
            raise GatewayError("the gateway is not open: use it inside `async with`")
        return Profile(self._open.endpoint(name).dispatcher, caller or self._caller)

    def _read(self, plugins: Plugins) -> GatewayConfig:
        config = self._config
        if isinstance(config, GatewayConfig):
            return config
        if isinstance(config, Mapping):
            return config_of(config, Path.cwd(), plugins)
        return read_config(Path(config), plugins)


_WIRE = {one.name: one.encode_name for one in msgspec.structs.fields(RetrieveRequest)}


def _retrieve_params(query: Query, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under their names on the wire. Raises ``TypeError`` for one that there is not."""
    params: dict[str, Any] = {"query": query}
    for name, value in options.items():
        if name not in _WIRE:
            raise TypeError(f"retrieve has no option {name!r}{nearest(name, _WIRE)}")
        if value is not None:
            params[_WIRE[name]] = value
    return params


def _reader(on_progress: OnProgress) -> Callable[[bytes], None]:
    def read(frame: bytes) -> None:
        notification = _json.decode(frame, _Notification)
        if notification.method == "notifications/progress":
            told = _json.decode(notification.params, _Told)
            hits = () if told.partial is None else told.partial.hits
            on_progress(Progress(progress=told.progress, stage=told.stage, message=told.message, hits=hits))

    return read
