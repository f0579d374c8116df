"""The engines, alive: opened, kept, retried and closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, ConfigError, ConfigErrors, PluginError, RcpError
from gateway.federation.aliases import NO_ALIASES, Aliases, aliased
from gateway.federation.breaker import Breaker, Limiter
from gateway.federation.capability import Offer, Snapshot, View, field_conflicts, fields_of, merge
from gateway.filters import Undeclared
from gateway.model import Capabilities
from gateway.spi.engine import Engine, EngineConfig, EngineContext, EngineKind, VectorNeed

__all__ = ["EngineSpec", "Fleet", "Member", "MemberSettings", "check_overridden", "identity_of"]

logger = logging.getLogger("gateway.fleet")

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_CAUSE_LIMIT = 300

_METHODS: dict[str, tuple[str, ...]] = {
    "retrieve": ("retrieve",),
    "embed": ("embed",),
    "sparse_embed": ("embed_sparse",),
    "multi_vector": ("embed_multi",),
    "rerank": ("rerank",),
    "transform": ("transform",),
    "graph": ("graph",),
    "feedback": ("feedback",),
    "memory": ("memory_build", "memory_recall"),
}


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What the host decides about one engine; see ``config.schema.EngineSettings`` for the meaning of each."""

    id: str
    weight: float = 1.0
    priority: int = 0
    required: bool = False
    corpus: str | None = None
    trust: str = "community"
    timeout: float = 10.0
    concurrency: int = 16
    queue: int = 256
    undeclared: Undeclared = "skip"
    min_score: float | None = None
    attempts: int = 2
    backoff: float = 0.05
    aliases: Aliases = NO_ALIASES


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that is needed to open one engine. ``context`` makes the context anew for each opening.

    ``offers``, ``embedders`` and ``requires`` are what the kind says of these settings.
    """

    settings: MemberSettings
    kind: EngineKind[Any]
    config: EngineConfig
    context: Callable[[], EngineContext]
    offers: Capabilities
    embedders: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


class Member:
    """One engine of the fleet, open or not. Its capabilities are what was last observed, before that what it claims."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.settings = spec.settings
        self.engine: Engine | None = None
        self.fault: RcpError | None = BackendUnavailable("it has not opened yet")
        self._cause = ""
        self.observed = False
        self.own_methods = False
        """True if the engine answers methods of its vendor's, so that its ``x-…`` members are more than information."""
        self.breaker = Breaker(time.monotonic, told=self._told)
        self.limiter = Limiter(spec.settings.concurrency, spec.settings.queue)
        self._capabilities = self.settings.aliases.capabilities(spec.offers)

    @property
    def federates(self) -> bool:
        """True if this engine may itself forward the request to others."""
        return self.spec.kind.federates

    @property
    def capabilities(self) -> Capabilities:
        if self.engine is not None:
            try:
                self._capabilities = self.engine.capabilities()
            except Exception as error:  # the boundary: an adapter may fail in any way
                logger.error("engine %s cannot say what it offers", self.settings.id, exc_info=error)
        return self._capabilities

    def jitter(self) -> float:
        """A factor for waiting times, so that calls that failed together do not come back together."""
        return random.uniform(0.5, 1.0)  # noqa: S311

    def _told(self, failing: bool) -> None:
        """One line when an engine is given up for a while, and one when it is back; not one for each call."""
        if failing:
            logger.warning("engine %s failed too often in a row: it is left alone for a while", self.settings.id)
        else:
            logger.info("engine %s answers again", self.settings.id)

    @property
    def state(self) -> str:
        """``open``, ``not open``, or ``failing`` while its breaker keeps calls away from it."""
        if self.engine is None:
            return "not open"
        return "open" if self.breaker.state == "closed" else "failing"

    def opened(self, engine: Engine) -> None:
        offered = engine.capabilities()
        check_overridden(engine, offered)
        for remark in self.settings.aliases.remarks(offered):
            logger.warning("engine %s %s", self.settings.id, remark)
        self._capabilities = self.settings.aliases.capabilities(offered)
        self.own_methods = type(engine).vendor is not Engine.vendor
        self.engine = aliased(engine, self.settings.aliases)
        self.observed = True
        self.fault, self._cause = None, ""

    def closed(self, error: Exception) -> None:
        self.engine = None
        expected = isinstance(error, RcpError)
        self.fault = error if isinstance(error, RcpError) else BackendUnavailable("it could not be opened")
        self._cause = "" if expected else f"{type(error).__name__}: {error}"[:_CAUSE_LIMIT]

    def late(self, seconds: float) -> None:
        """It has neither opened nor failed in the time that the start waits; it may still open."""
        self.fault = BackendUnavailable(f"it did not open within {seconds:g} s")

    @property
    def reason(self) -> str:
        """Why it is not open, for who runs the gateway: it may hold an engine's own words, which clients never see."""
        return ": ".join(part for part in (str(self.fault or ""), self._cause) if part)


def check_overridden(engine: Engine, capabilities: Capabilities) -> None:
    """A declared capability must be implemented. Raises :class:`~gateway.errors.PluginError` naming what is missing."""
    needed = [
        method for name, methods in _METHODS.items() if getattr(capabilities, name) is not None for method in methods
    ]
    if capabilities.index is not None and capabilities.index.writable:
        needed += ["index_add", "index_delete"]
        if capabilities.index.chunking or capabilities.index.contextual:
            needed.append("index_cut")
    missing = [name for name in needed if getattr(type(engine), name) is getattr(Engine, name)]
    if missing:
        raise PluginError(f"{type(engine).__name__} declares capabilities but does not override {', '.join(missing)}")


def vector_needs(engine: Engine, capabilities: Capabilities) -> tuple[list[VectorNeed], list[VectorNeed]]:
    """The vectors an open engine will ask for, in any of its modes and for documents, each once: dense and sparse."""
    retrieve = capabilities.retrieve
    modes: list[Any] = [] if retrieve is None else [None, *(retrieve.modes or ())]
    dense = [engine.document_need(), *(engine.vector_need(mode) for mode in modes)]
    sparse = [engine.sparse_need(mode) for mode in modes]
    return _once(dense), _once(sparse)


def _once(needs: Sequence[VectorNeed | None]) -> list[VectorNeed]:
    return list(dict.fromkeys(need for need in needs if need is not None))


def identity_of(embedder: Member) -> str:
    """Whose vectors an embedder makes; ``""`` if it does not say, or has not been seen yet."""
    offered = embedder.capabilities.embed if embedder.observed else None
    return (offered.identity if offered is not None else None) or ""


class Fleet:
    """All engines of one gateway. Enter it with :meth:`open`."""

    def __init__(self, specs: Sequence[EngineSpec], *, offer: Offer, start_timeout: float = 10.0) -> None:
        self.members = {spec.settings.id: Member(spec) for spec in specs}
        self._offer = offer
        self._start_timeout = start_timeout
        self._stop = asyncio.Event()
        self._merged: dict[frozenset[str] | None, tuple[tuple[tuple[bool, Capabilities], ...], Snapshot]] = {}
        self._conflicts: set[str] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Fleet]:
        """Opens every engine at once and returns when each has tried, or after ``start_timeout`` seconds.

        An engine that fails is retried in the background. Only a configuration fault, or the failure of an engine
        marked ``required``, is raised; then everything already open is closed again.
        """
        first = {id: asyncio.get_running_loop().create_future() for id in self.members}
        hosts = [
            asyncio.create_task(self._host(member, first[id]), name=f"engine {id}")
            for id, member in self.members.items()
        ]
        try:
            if first:
                await asyncio.wait(first.values(), timeout=self._start_timeout)
            for id, future in first.items():
                if not future.done():
                    self.members[id].late(self._start_timeout)
            self._raise_faults(first)
            self._warn_conflicts()
            yield self
        finally:
            self._stop.set()
            for future in first.values():
                future.cancel()
            for member, host in zip(self.members.values(), hosts, strict=True):
                if member.engine is None:
                    # It is still opening, or waits to try again: an engine that hangs there must not hold up the end.
                    host.cancel()
            await _finish(hosts)

    async def _host(self, member: Member, first: asyncio.Future[Exception | None]) -> None:
        """Owns one engine from opening to closing: both happen in this task."""
        delay = _FIRST_DELAY
        task = asyncio.current_task()
        while not self._stop.is_set():
            try:
                async with member.spec.kind.open(member.spec.config, member.spec.context()) as engine:
                    member.opened(engine)
                    logger.info("engine %s is open", member.settings.id)
                    if not first.done():
                        first.set_result(None)
                    await self._stop.wait()
                return
            # One of the five boundaries: an engine may fail in any way, by a cancellation of its own among others.
            except (Exception, asyncio.CancelledError) as fault:
                if isinstance(fault, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                error = fault if isinstance(fault, Exception) else BackendUnavailable("it broke off")
                member.closed(error)
                expected = isinstance(error, RcpError | ConfigError)
                told = str(error).removeprefix("it did not open: ")
                logger.warning(
                    "engine %s did not open: %s", member.settings.id, told, exc_info=None if expected else error
                )
                if not first.done():
                    first.set_result(error)
            jittered = delay * member.jitter()
            delay = min(delay * 2, _LONGEST_DELAY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(jittered):
                    await self._stop.wait()

    def _raise_faults(self, first: dict[str, asyncio.Future[Exception | None]]) -> None:
        faults: list[ConfigError] = []
        for id, future in first.items():
            member = self.members[id]
            error = future.result() if future.done() else member.fault
            if isinstance(error, ConfigError):
                faults.append(ConfigError(str(error), path=f"engine {id}"))
            elif error is not None and member.settings.required and member.engine is None:
                faults.append(ConfigError(f"is required: {member.reason}", path=f"engine {id}"))
        for member in self.members.values():
            faults += [ConfigError(told, path=f"engine {member.settings.id}") for told in self._misfits(member)]
        if faults:
            raise ConfigErrors(faults)

    def _misfits(self, member: Member) -> Iterator[str]:
        """Where an open engine and the one it takes vectors from do not go together, as far as both say."""
        if member.engine is None:
            return
        dense, sparse = vector_needs(member.engine, member.capabilities)
        for need in sparse:
            embedder = self.members.get(need.embedder)
            if embedder is None:
                yield f"takes its sparse vectors from {need.embedder!r}, which is not configured"
            elif embedder.observed and embedder.capabilities.sparse_embed is None:
                yield f"takes its sparse vectors from {need.embedder!r}, which makes none"
        for need in dense:
            embedder = self.members.get(need.embedder)
            offered = embedder.capabilities.embed if embedder is not None else None
            if embedder is None:
                yield f"takes its vectors from {need.embedder!r}, which is not configured"
            elif offered is None and embedder.observed:
                yield f"takes its vectors from {need.embedder!r}, which does not embed"
            elif offered is not None and need.dimension and offered.dimension not in (None, need.dimension):
                yield f"needs vectors of {need.dimension} numbers; engine {need.embedder} gives {offered.dimension}"
            elif need.identity and identity_of(embedder) not in ("", need.identity):
                yield (
                    f"holds vectors made by {need.identity!r}, and engine {need.embedder} makes those of "
                    f"{identity_of(embedder)!r}, which cannot be compared with them: give it the embedder it was "
                    "filled with, or fill it anew"
                )

    def _warn_conflicts(self) -> None:
        views = self._views(None)
        for name, kinds in field_conflicts(views).items():
            if name not in self._conflicts:
                self._conflicts.add(name)
                told = "; ".join(f"{kind} in {', '.join(ids)}" for kind, ids in kinds.items())
                logger.warning("the field %s has different types (%s), so it is not offered for filters", name, told)

    def _views(self, scope: frozenset[str] | None) -> tuple[View, ...]:
        return tuple(
            View(member, capabilities, fields_of(capabilities))
            for id, member in self.members.items()
            if scope is None or id in scope
            for capabilities in (member.capabilities,)
        )

    def snapshot(self, caller: Caller) -> Snapshot:
        """What this caller sees now. Made anew only when an engine's capabilities have changed."""
        seen = tuple((member.observed, member.capabilities) for member in self.members.values())
        known = self._merged.get(caller.engines)
        # Tuples and structs compare by identity first, so this is cheap while nothing changes.
        if known is not None and known[0] == seen:
            return known[1]
        views = self._views(caller.engines)
        capabilities, fields = merge(views, self._offer)
        settled = all(view.member.observed for view in views)
        snapshot = Snapshot(views, capabilities, fields, settled, self.members)
        self._merged[caller.engines] = (seen, snapshot)
        return snapshot


async def _finish(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for all tasks; if this task is cancelled meanwhile, so are they, and still they are awaited."""
    try:
        await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
