"""The composition root: a configuration becomes a running gateway. Everything meets here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway import __version__
from gateway.caller import ANONYMOUS
from gateway.config import FusionSettings, GatewayConfig, located
from gateway.engines import config_of, engine_specs, facades_of, read_config, strategies_of
from gateway.errors import BackendUnavailable, ConfigError, RcpError
from gateway.federation.capability import Offer
from gateway.federation.cursor import Cursors
from gateway.federation.embeddings import Embeddings
from gateway.federation.fleet import Fleet
from gateway.federation.plan import Defaults, Quorum
from gateway.federation.profile import EVERYTHING, Profile
from gateway.federation.stages import Own
from gateway.fusion import Strategy
from gateway.model import PeerInfo, RetrieveRequest
from gateway.plugins import Plugins, load_plugins
from gateway.profiles import check_named, profiles_of
from gateway.protocol.dispatch import Dispatcher, Limits
from gateway.refine.lexical import MAX_CANDIDATES, METHOD
from gateway.refine.tokens import Estimate, exact
from gateway.refine.trajectory import Trajectories
from gateway.service import Service
from gateway.service.keeping import Keeping
from gateway.spi.facade import Facade
from gateway.state import Idempotency, Store, open_state

__all__ = ["Endpoint", "OpenGateway", "config_of", "engine_specs", "open_gateway", "read_config"]

logger = logging.getLogger("gateway.app")

logger = logging.getLogger("gateway.app")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One way to ask: hand :attr:`dispatcher` to a transport, or call :attr:`service` in process."""

    service: Service
    dispatcher: Dispatcher


@dataclass(frozen=True, slots=True)
class OpenGateway:
    """A running gateway. ``service`` and ``dispatcher`` are what the base path serves, ``profiles`` the others."""

    config: GatewayConfig
    plugins: Plugins
    fleet: Fleet
    service: Service
    dispatcher: Dispatcher
    facades: Sequence[Facade] = ()
    profiles: Mapping[str, Endpoint] = field(default_factory=dict)

    def endpoint(self, profile: str | None) -> Endpoint:
        """What a profile serves; without a name, what the base path does. Raises ``ConfigError`` if there is none."""
        if profile is None:
            return Endpoint(self.service, self.dispatcher)
        check_named(self.config, profile)
        return self.profiles[profile]


@asynccontextmanager
async def open_gateway(config: GatewayConfig, plugins: Plugins | None = None) -> AsyncIterator[OpenGateway]:
    """Opens every engine and yields the running gateway; leaving closes them all.

    Raises :class:`~gateway.errors.ConfigErrors` for what is wrong with the configuration or a required engine.
    """
    plugins = plugins or load_plugins()
    specs = engine_specs(config, plugins)
    profiles = profiles_of(config)
    facades = facades_of(config, plugins)
    limits = config.limits
    embeddings = Embeddings(limits.embeddings)
    tokens = Estimate() if config.tokenizer is None else exact(config.tokenizer)
    # Federation paths need a name nobody else has: one that is not configured must at least be unique.
    name = config.name or f"rcp-gateway-{uuid.uuid4().hex[:12]}"
    bounds = Limits(
        frame_bytes=max(limits.body, limits.line), batch=limits.batch, concurrent_per_session=limits.concurrency
    )
    async with open_state(config.state) as store:
        keeping = _keeping(config, store)
        offer = _offer(config, tuple(strategies_of(config.fusion, plugins)), keeping)
        fleet = Fleet(specs, offer=offer)

        def endpoint(profile: Profile, fusion: FusionSettings) -> Endpoint:
            service = Service(
                fleet,
                _defaults(config, name, profile, fusion, strategies_of(fusion, plugins)),
                offer,
                info=PeerInfo(name=name, version=__version__),
                embeddings=embeddings,
                keeping=keeping,
                tokens=tokens,
            )
            return Endpoint(service, Dispatcher(service, limits=bounds))

        base = endpoint(EVERYTHING, config.fusion)
        own = {one.name: one.fusion or config.fusion for one in config.profiles}
        others = {profile.name: endpoint(profile, own[profile.name]) for profile in profiles}
        async with fleet.open():
            try:
                _check_served(others, config)
                yield OpenGateway(config, plugins, fleet, base.service, base.dispatcher, facades, others)
            finally:
                await asyncio.gather(*(one.dispatcher.close() for one in (base, *others.values())))
                await embeddings.close()


def _defaults(
    config: GatewayConfig, name: str, profile: Profile, fusion: FusionSettings, strategies: Mapping[str, Strategy]
) -> Defaults:
    """What the configuration decides for every call under a profile."""
    federation, limits = config.federation, config.limits
    return Defaults(
        identity=name,
        strategies=strategies,
        method=fusion.method,
        across=fusion.across,
        mix=fusion.mix,
        window=fusion.window,
        document_identity=fusion.identity,
        select=federation.select,
        depth=federation.depth,
        verify=federation.verify,
        max_k=limits.max_k,
        max_query=limits.query,
        deadline=limits.deadline,
        reserve=limits.reserve,
        transform=config.transform,
        quorum=None if federation.quorum is None else Quorum(federation.quorum, federation.grace),
        per_document=fusion.per_document,
        own=Own(METHOD, MAX_CANDIDATES),
        profile=profile,
    )


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


def _check_served(profiles: Mapping[str, Endpoint], config: GatewayConfig) -> None:
    """A profile whose filter or options its engines cannot serve refuses every request: better said at once.

    Raises ``ConfigErrors``. While some of its engines have not been seen, it is only a warning.
    """
    faults: list[ConfigError] = []
    for index, name in enumerate(profiles):
        try:
            profiles[name].service.explain(RetrieveRequest(query=""), ANONYMOUS)
        except BackendUnavailable as error:
            told = f"{error.message}{f' ({error.detail})' if error.detail else ''}"
            if not error.retryable:
                faults.append(ConfigError(told, path=f"profiles[{index}]"))
            else:
                logger.warning("profile %s cannot be served yet: %s", name, told)
        except RcpError as error:
            faults.append(
                ConfigError(f"no engine in its scope can serve it: {error.message}", path=f"profiles[{index}]")
            )
    if faults:
        raise located(faults, config.source, config.lines)
