"""The engines, alive: opened, kept, retried and closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, ConfigError, ConfigErrors, PluginError, RcpError
from gateway.federation.breaker import Breaker, Limiter
from gateway.federation.capability import Offer, Snapshot, View, field_conflicts, fields_of, merge
from gateway.filters import Undeclared
from gateway.model import Capabilities
from gateway.spi.engine import Engine, EngineConfig, EngineContext, EngineKind

__all__ = ["EngineSpec", "Fleet", "Member", "MemberSettings", "check_overridden"]

logger = logging.getLogger("gateway.fleet")

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0

_METHODS: dict[str, tuple[str, ...]] = {
    "retrieve": ("retrieve",),
    "embed": ("embed",),
    "rerank": ("rerank",),
    "transform": ("transform",),
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


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that is needed to open one engine. ``context`` makes the context anew for each opening."""

    settings: MemberSettings
    kind: EngineKind[Any]
    config: EngineConfig
    context: Callable[[], EngineContext]


class Member:
    """One engine of the fleet, open or not. Its capabilities are what was last observed, before that what it claims."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.settings = spec.settings
        self.engine: Engine | None = None
        self.fault: RcpError | None = BackendUnavailable("it has not opened yet")
        self.observed = False
        self.breaker = Breaker(time.monotonic)
        self.limiter = Limiter(spec.settings.concurrency, spec.settings.queue)
        self._capabilities = spec.kind.offers(spec.config)

    @property
    def federates(self) -> bool:
        """True if this engine may itself forward the request to others."""
        return self.spec.kind.federates

    @property
    def capabilities(self) -> Capabilities:
        if self.engine is not None:
            self._capabilities = self.engine.capabilities()
        return self._capabilities

    def jitter(self) -> float:
        """A factor for waiting times, so that calls that failed together do not come back together."""
        return random.uniform(0.5, 1.0)  # noqa: S311

    def opened(self, engine: Engine) -> None:
        self._capabilities = engine.capabilities()
        check_overridden(engine, self._capabilities)
        self.engine = engine
        self.observed = True
        self.fault = None

    def closed(self, error: Exception) -> None:
        self.engine = None
        self.fault = error if isinstance(error, RcpError) else BackendUnavailable("it could not be opened")


def check_overridden(engine: Engine, capabilities: Capabilities) -> None:
    """A declared capability must be implemented. Raises :class:`~gateway.errors.PluginError` naming what is missing."""
    needed = [
        method for name, methods in _METHODS.items() if getattr(capabilities, name) is not None for method in methods
    ]
    if capabilities.index is not None and capabilities.index.writable:
        needed += ["index_add", "index_delete"]
    missing = [name for name in needed if getattr(type(engine), name) is getattr(Engine, name)]
    if missing:
        raise PluginError(f"{type(engine).__name__} declares capabilities but does not override {', '.join(missing)}")


class Fleet:
    """All engines of one gateway. Enter it with :meth:`open`."""

    def __init__(self, specs: Sequence[EngineSpec], *, offer: Offer, start_timeout: float = 10.0) -> None:
        self.members = {spec.settings.id: Member(spec) for spec in specs}
        self._offer = offer
        self._start_timeout = start_timeout
        self._stop = asyncio.Event()
        self._merged: dict[frozenset[str] | None, tuple[tuple[Capabilities, ...], Snapshot]] = {}
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
            self._raise_faults(first)
            self._raise_unfit()
            self._warn_conflicts()
            yield self
        finally:
            self._stop.set()
            for future in first.values():
                future.cancel()
            await _finish(hosts)

    async def _host(self, member: Member, first: asyncio.Future[Exception | None]) -> None:
        """Owns one engine from opening to closing: both happen in this task."""
        delay = _FIRST_DELAY
        while not self._stop.is_set():
            try:
                async with member.spec.kind.open(member.spec.config, member.spec.context()) as engine:
                    member.opened(engine)
                    logger.info("engine %s is open", member.settings.id)
                    if first.done():
                        self._warn_unfit()
                    if not first.done():
                        first.set_result(None)
                    await self._stop.wait()
                return
            except Exception as error:  # one of the five boundaries: an engine may fail in any way
                member.closed(error)
                expected = isinstance(error, RcpError | ConfigError)
                logger.warning(
                    "engine %s did not open: %s", member.settings.id, error, exc_info=None if expected else error
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
            error = future.result() if future.done() else TimeoutError("it did not open in time")
            if isinstance(error, ConfigError):
                faults.append(ConfigError(str(error), path=f"engine {id}"))
            elif error is not None and self.members[id].settings.required:
                reason = error if isinstance(error, RcpError | TimeoutError) else "it could not be opened"
                faults.append(ConfigError(f"is required and did not open: {reason}", path=f"engine {id}"))
        if faults:
            raise ConfigErrors(faults)

    def _raise_unfit(self) -> None:
        """An engine whose vectors its embedder does not make can never answer. Only what is open can be compared."""
        faults = [
            ConfigError(told, path=f"engine {member.settings.id}")
            for member in self.members.values()
            if (told := self._unfit(member)) is not None
        ]
        if faults:
            raise ConfigErrors(faults)

    def _warn_unfit(self) -> None:
        """For an engine that opens late: the gateway runs already, so the fault is told and met call by call."""
        for member in self.members.values():
            if (told := self._unfit(member)) is not None:
                logger.error("engine %s %s", member.settings.id, told)

    def _unfit(self, member: Member) -> str | None:
        if member.engine is None:
            return None
        modes: tuple[Any, ...] = (None, *((member.capabilities.retrieve and member.capabilities.retrieve.modes) or ()))
        needs = [member.engine.vector_need(mode) for mode in modes]
        for need in dict.fromkeys([*needs, member.engine.document_need()]):
            embedder = self.members.get(need.embedder) if need is not None else None
            if need is None or need.sparse or embedder is None or embedder.engine is None:
                continue
            offered = embedder.capabilities.embed
            if offered is None:
                return f"takes its vectors from engine {need.embedder}, which makes none"
            if need.dimension and offered.dimension and need.dimension != offered.dimension:
                return (
                    f"needs vectors of {need.dimension} numbers, and its embedder, engine {need.embedder}, makes "
                    f"vectors of {offered.dimension}: use the embedder that it was filled with, or fill it anew"
                )
        return None

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
        seen = tuple(member.capabilities for member in self.members.values())
        known = self._merged.get(caller.engines)
        if (
            known is not None
            and len(known[0]) == len(seen)
            and all(a is b for a, b in zip(known[0], seen, strict=True))
        ):
            return known[1]
        views = self._views(caller.engines)
        capabilities, fields = merge(views, self._offer)
        settled = all(view.member.observed for view in views)
        snapshot = Snapshot(views, capabilities, fields, settled)
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
