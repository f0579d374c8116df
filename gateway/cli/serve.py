"""Running a gateway until somebody stops it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from gateway.app import OpenGateway, open_gateway
from gateway.caller import ANONYMOUS
from gateway.cli.render import say
from gateway.config import GatewayConfig
from gateway.errors import GatewayError
from gateway.plugins import Plugins
from gateway.profiles import HEADS, check_named
from gateway.protocol.dispatch import Dispatcher
from gateway.protocol.session import Session, Sessions
from gateway.telemetry.log import redact
from gateway.transports.facades import FacadeApp
from gateway.transports.guard import Guard, hosts_for
from gateway.transports.http import HttpApp, Mode
from gateway.transports.profiles import ProfilesApp
from gateway.transports.server import Address, serve
from gateway.transports.signals import stop_on_signals
from gateway.transports.stdio import claim, serve_stdio

__all__ = ["over_http", "serve_http", "serve_on_stdio", "settle"]


@asynccontextmanager
async def over_http(
    gateway: OpenGateway, *, host: str | None = None, port: int | None = None, sessions: str | None = None
) -> AsyncIterator[Address]:
    """Serves an open gateway over HTTP while the block runs; what is ``None`` is as configured."""
    http = gateway.config.http
    bind = host or http.host
    guard = Guard(hosts=hosts_for(bind, http.hosts), origins=frozenset(http.origins))
    # click and the config loader check the choice of sessions
    app, drain = _app(gateway, guard, sessions or http.sessions)  # type: ignore[arg-type]
    number = http.port if port is None else port
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(
                serve(
                    app,
                    bind,
                    number,
                    header_timeout=http.header_timeout,
                    write_timeout=http.write_timeout,
                    drain_timeout=http.drain_timeout,
                    draining=drain,
                )
            )
        except OSError as error:
            raise GatewayError(f"cannot listen on {bind}:{number}: {error.strerror}") from error
        yield address


def _app(
    gateway: OpenGateway, guard: Guard, mode: Mode
) -> tuple[Callable[..., Awaitable[None]], Callable[[float], Awaitable[None]]]:
    """All that is served at one address, and how it is drained."""
    base = gateway.config.http.base
    heads = HEADS if gateway.profiles else None

    def at(dispatcher: Dispatcher, path: str) -> HttpApp:
        limit = gateway.config.limits.body
        return HttpApp(dispatcher, Sessions(), mode=mode, base=path, heads=heads, guard=guard, body_limit=limit)

    rcp = at(gateway.dispatcher, base)
    front = FacadeApp(rcp, gateway.dispatcher, gateway.facades) if gateway.facades else rcp
    if not gateway.profiles:
        return front, rcp.drain
    below = {name: at(one.dispatcher, f"{base.rstrip('/')}/{name}") for name, one in gateway.profiles.items()}
    whole = ProfilesApp(front, rcp, base, below)
    return whole, whole.drain


async def serve_http(
    config: GatewayConfig, plugins: Plugins, *, host: str | None, port: int | None, sessions: str | None
) -> int:
    """Serves until a signal; the first one drains, the second one ends at once."""

    async def serving(gateway: OpenGateway, stop: asyncio.Event) -> None:
        settle()
        async with over_http(gateway, host=host, port=port, sessions=sessions) as address:
            say(f"rcp-gateway: serving {address.url}{config.http.base}")
            await stop.wait()
            say("rcp-gateway: stopping")

    return await _until_stopped(config, plugins, serving)


async def serve_on_stdio(config: GatewayConfig, plugins: Plugins, *, profile: str | None = None) -> int:
    """Serves one client on stdin and stdout until it leaves."""
    check_named(config, profile)
    stdin, stdout = claim()

    async def serving(gateway: OpenGateway, stop: asyncio.Event) -> None:
        settle()
        await serve_stdio(
            gateway.endpoint(profile).dispatcher,
            Session("strict", ANONYMOUS),
            stdin,
            stdout,
            line_limit=config.limits.line,
            drain_timeout=config.stdio.drain_timeout,
            stop=stop,
        )

    return await _until_stopped(config, plugins, serving)


async def _until_stopped(
    config: GatewayConfig, plugins: Plugins, serving: Callable[[OpenGateway, asyncio.Event], Awaitable[None]]
) -> int:
    """Opens the gateway and serves it. A signal while engines are still opening, which may take long, ends that too."""
    opened = False

    async def work(stop: asyncio.Event) -> None:
        nonlocal opened
        async with open_gateway(config, plugins) as gateway:
            opened = True
            _say_state(gateway)
            await serving(gateway, stop)

    async with stop_on_signals() as stop:
        working, told = asyncio.create_task(work(stop)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
            if not opened and not working.done():
                working.cancel()
            await asyncio.wait({working})
        finally:
            told.cancel()
            working.cancel()
    if not working.cancelled():
        working.result()
    return 0


def settle() -> None:
    """What start-up made stays for good: the garbage collector need not walk it again and again.

    Calls leave hardly any cycles behind, so looking for them after every 700 objects is mostly in vain.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _say_state(gateway: OpenGateway) -> None:
    for id, member in gateway.fleet.members.items():
        if member.engine is None:
            say(f"rcp-gateway: engine {id} is not open yet: {redact(member.reason)}")
