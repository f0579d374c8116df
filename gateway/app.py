"""The composition root: a configuration becomes a running gateway. Everything meets here and nowhere else."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway import __version__
from gateway.config import GatewayConfig
from gateway.engines import engine_specs, facades_of, read_config, strategies_of
from gateway.federation.capability import Offer
from gateway.federation.cursor import Cursors
from gateway.federation.embeddings import Embeddings
from gateway.federation.fleet import Fleet
from gateway.federation.plan import Defaults, Quorum
from gateway.federation.stages import Own
from gateway.model import PeerInfo
from gateway.plugins import Plugins, load_plugins
from gateway.protocol.dispatch import Dispatcher, Limits
from gateway.refine.lexical import MAX_CANDIDATES, METHOD
from gateway.refine.tokens import Estimate, exact
from gateway.refine.trajectory import Trajectories
from gateway.service import Service
from gateway.service.keeping import Keeping
from gateway.spi.facade import Facade
from gateway.state import Idempotency, Store, open_state

__all__ = ["Gateway", "engine_specs", "open_gateway", "read_config"]


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: hand :attr:`dispatcher` to a transport, or call :attr:`service` in process."""

    config: GatewayConfig
    plugins: Plugins
    fleet: Fleet
    service: Service
    dispatcher: Dispatcher
    facades: Sequence[Facade] = ()


@asynccontextmanager
async def open_gateway(config: GatewayConfig, plugins: Plugins | None = None) -> AsyncIterator[Gateway]:
    """Opens every engine and yields the running gateway; leaving closes them all.

    Raises :class:`~gateway.errors.ConfigErrors` for what is wrong with the configuration or a required engine.
    """
    plugins = plugins or load_plugins()
    specs = engine_specs(config, plugins)
    facades = facades_of(config, plugins)
    strategies = strategies_of(config.fusion, plugins)
    limits = config.limits
    embeddings = Embeddings(limits.embeddings)
    # Federation paths need a name nobody else has: one that is not configured must at least be unique.
    name = config.name or f"rcp-gateway-{uuid.uuid4().hex[:12]}"
    defaults = Defaults(
        identity=name,
        strategies=strategies,
        method=config.fusion.method,
        across=config.fusion.across,
        mix=config.fusion.mix,
        window=config.fusion.window,
        document_identity=config.fusion.identity,
        select=config.federation.select,
        depth=config.federation.depth,
        verify=config.federation.verify,
        max_k=limits.max_k,
        max_query=limits.query,
        deadline=limits.deadline,
        reserve=limits.reserve,
        transform=config.transform,
        quorum=None if (quorum := config.federation.quorum) is None else Quorum(quorum, config.federation.grace),
        per_document=config.fusion.per_document,
        own=Own(METHOD, MAX_CANDIDATES),
    )
    async with open_state(config.state) as store:
        keeping = _keeping(config, store)
        offer = _offer(config, tuple(strategies), keeping)
        fleet = Fleet(specs, offer=offer)
        service = Service(
            fleet,
            defaults,
            offer,
            info=PeerInfo(name=name, version=__version__),
            embeddings=embeddings,
            keeping=keeping,
            tokens=Estimate() if config.tokenizer is None else exact(config.tokenizer),
        )
        dispatcher = Dispatcher(
            service,
            limits=Limits(
                frame_bytes=max(limits.body, limits.line), batch=limits.batch, concurrent_per_session=limits.concurrency
            ),
        )
        async with fleet.open():
            try:
                yield Gateway(config, plugins, fleet, service, dispatcher, facades)
            finally:
                await dispatcher.close()
                await embeddings.close()


def _offer(config: GatewayConfig, strategies: tuple[str, ...], keeping: Keeping) -> Offer:
    return Offer(
        config.limits.max_k,
        config.writes,
        config.embed,
        strategies,
        transform=config.transform,
        rerank={"methods": [METHOD], "maxCandidates": MAX_CANDIDATES},
        pagination=keeping.cursors.offered,
        session_ttl=math.ceil(config.sessions.ttl),
    )


def _keeping(config: GatewayConfig, store: Store) -> Keeping:
    pages, sessions = config.pagination, config.sessions
    return Keeping(
        Cursors(store, ttl=pages.ttl, size=pages.bytes, caller_size=pages.caller_bytes, key=pages.key),
        Trajectories(store, ttl=sessions.ttl, cap=sessions.ids),
        # No write outlasts the deadline of the call it is part of, and what it leaves behind not twice that.
        Idempotency(store, ttl=config.idempotency.ttl, lease=2 * config.limits.deadline),
    )
