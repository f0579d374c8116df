"""The composition root: a configuration becomes a running gateway. Everything meets here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gateway import __version__
from gateway.caller import ANONYMOUS
from gateway.config import GatewayConfig, located
from gateway.engines import config_of, engine_specs, facades_of, read_config, strategies_of
from gateway.errors import BackendUnavailable, ConfigError, RcpError
from gateway.federation.capability import Offer
from gateway.federation.embeddings import Embeddings
from gateway.federation.fleet import Fleet
from gateway.federation.plan import Defaults
from gateway.federation.profile import Profile
from gateway.model import PeerInfo, RetrieveRequest
from gateway.plugins import Plugins, load_plugins
from gateway.profiles import check_named, profiles_of
from gateway.protocol.dispatch import Dispatcher, Limits
from gateway.refine.lexical import MAX_CANDIDATES, METHOD
from gateway.service import Service
from gateway.spi.facade import Facade

__all__ = ["CONFORMANCE", "Endpoint", "OpenGateway", "config_of", "engine_specs", "open_gateway", "read_config"]

CONFORMANCE = "L1"

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
    strategies = strategies_of(config.fusion, plugins)
    offer = Offer(
        limits.max_k,
        config.writes,
        config.embed,
        tuple(strategies),
        transform=config.transform,
        rerank={"methods": [METHOD], "maxCandidates": MAX_CANDIDATES},
    )
    embeddings = Embeddings(limits.embeddings)
    # Federation paths need a name nobody else has: one that is not configured must at least be unique.
    name = config.name or f"rcp-gateway-{uuid.uuid4().hex[:12]}"
    defaults = Defaults(
        identity=name,
        strategies=strategies,
        method=config.fusion.method,
        window=config.fusion.window,
        document_identity=config.fusion.identity,
        select=config.federation.select,
        depth=config.federation.depth,
        verify=config.federation.verify,
        max_k=limits.max_k,
        max_query=limits.query,
        deadline=limits.deadline,
        reserve=limits.reserve,
    )
    fleet = Fleet(specs, offer=offer)
    bounds = Limits(
        frame_bytes=max(limits.body, limits.line), batch=limits.batch, concurrent_per_session=limits.concurrency
    )

    def endpoint(defaults: Defaults) -> Endpoint:
        info = PeerInfo(name=name, version=__version__)
        service = Service(fleet, defaults, offer, info=info, conformance=CONFORMANCE, embeddings=embeddings)
        return Endpoint(service, Dispatcher(service, limits=bounds))

    async with fleet.open():
        base = endpoint(defaults)
        others = {one.name: endpoint(_of_profile(defaults, one, config, plugins)) for one in profiles}
        _check_served(others, config)
        try:
            yield OpenGateway(config, plugins, fleet, base.service, base.dispatcher, facades, others)
        finally:
            await asyncio.gather(*(one.dispatcher.close() for one in (base, *others.values())))
            await embeddings.close()


def _of_profile(defaults: Defaults, profile: Profile, config: GatewayConfig, plugins: Plugins) -> Defaults:
    """What the configuration decides for calls under a profile."""
    fusion = next(one.fusion for one in config.profiles if one.name == profile.name)
    if fusion is None:
        return replace(defaults, profile=profile)
    return replace(
        defaults,
        profile=profile,
        strategies=strategies_of(fusion, plugins),
        method=fusion.method,
        window=fusion.window,
        document_identity=fusion.identity,
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
