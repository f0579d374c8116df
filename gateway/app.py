"""The composition root: a configuration becomes a running gateway. Everything meets here and nowhere else."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway import __version__
from gateway.caller import ANONYMOUS
from gateway.config import GatewayConfig, located
from gateway.engines import config_of, engine_specs, facades_of, read_config
from gateway.errors import BackendUnavailable, ConfigError, RcpError
from gateway.federation.embeddings import Embeddings
from gateway.federation.fleet import Fleet
from gateway.federation.plan import Defaults
from gateway.model import PeerInfo, RetrieveRequest
from gateway.plugins import Plugins, load_plugins
from gateway.profiles import check_named, profiles_of
from gateway.protocol.dispatch import Dispatcher
from gateway.refine.tokens import Estimate, exact
from gateway.service import Service
from gateway.settings import bounds_of, defaults_of, keeping_of, offer_of, profile_defaults
from gateway.spi.facade import Facade
from gateway.state import open_state

__all__ = ["Endpoint", "OpenGateway", "config_of", "engine_specs", "open_gateway", "read_config"]

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
    embeddings = Embeddings(config.limits.embeddings)
    # Federation paths need a name nobody else has: one that is not configured must at least be unique.
    name = config.name or f"rcp-gateway-{uuid.uuid4().hex[:12]}"
    info = PeerInfo(name=name, version=__version__)
    tokens = Estimate() if config.tokenizer is None else exact(config.tokenizer)
    defaults = defaults_of(config, plugins, name)
    async with open_state(config.state) as store:
        keeping = keeping_of(config, store)
        offer = offer_of(config, defaults, keeping)
        fleet = Fleet(specs, offer=offer, start_timeout=config.federation.start_timeout)

        def endpoint(defaults: Defaults) -> Endpoint:
            service = Service(fleet, defaults, offer, info=info, embeddings=embeddings, keeping=keeping, tokens=tokens)
            return Endpoint(service, Dispatcher(service, limits=bounds_of(config)))

        async with fleet.open():
            base = endpoint(defaults)
            others = {one.name: endpoint(profile_defaults(defaults, one, config, plugins)) for one in profiles}
            _check_served(others, config)
            try:
                yield OpenGateway(config, plugins, fleet, base.service, base.dispatcher, facades, others)
            finally:
                await asyncio.gather(*(one.dispatcher.close() for one in (base, *others.values())))
                await embeddings.close()


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
