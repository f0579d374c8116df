"""Running a gateway until somebody stops it."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.app import Gateway, open_gateway
from gateway.caller import ANONYMOUS
from gateway.cli.render import say
from gateway.config import GatewayConfig
from gateway.protocol.session import Session, Sessions
from gateway.transports.guard import Guard, hosts_for
from gateway.transports.http import HttpApp
from gateway.transports.server import Address, serve
from gateway.transports.signals import stop_on_signals
from gateway.transports.stdio import claim, serve_stdio

__all__ = ["over_http", "serve_http", "serve_on_stdio", "settle"]


@asynccontextmanager
async def over_http(
    gateway: Gateway, *, host: str | None = None, port: int | None = None, sessions: str | None = None
) -> AsyncIterator[Address]:
    """Serves an open gateway over HTTP while the block runs; what is ``None`` is as configured."""
    http = gateway.config.http
    bind = host or http.host
    app = HttpApp(
        gateway.dispatcher,
        Sessions(),
        mode=sessions or http.sessions,  # type: ignore[arg-type]  # click and the config loader check the choice
        base=http.base,
        guard=Guard(hosts=hosts_for(bind, http.hosts), origins=frozenset(http.origins)),
        body_limit=gateway.config.limits.body,
    )
    async with serve(
        app,
        bind,
        http.port if port is None else port,
        header_timeout=http.header_timeout,
        drain_timeout=http.drain_timeout,
        draining=app.drain,
    ) as address:
        yield address


async def serve_http(config: GatewayConfig, *, host: str | None, port: int | None, sessions: str | None) -> int:
    """Serves until a signal; the first one drains, the second one ends at once."""
    async with stop_on_signals() as stop, open_gateway(config) as gateway:
        _say_state(gateway)
        settle()
        async with over_http(gateway, host=host, port=port, sessions=sessions) as address:
            say(f"rcp-gateway: serving {address.url}{config.http.base}")
            await stop.wait()
            say("rcp-gateway: stopping")
    return 0


async def serve_on_stdio(config: GatewayConfig) -> int:
    """Serves one client on stdin and stdout until it leaves."""
    stdin, stdout = claim()
    async with stop_on_signals() as stop, open_gateway(config) as gateway:
        _say_state(gateway)
        settle()
        await serve_stdio(
            gateway.dispatcher,
            Session("strict", ANONYMOUS),
            stdin,
            stdout,
            line_limit=config.limits.line,
            drain_timeout=config.stdio.drain_timeout,
            stop=stop,
        )
    return 0


def settle() -> None:
    """What start-up made stays for good: the garbage collector need not walk it again and again.

    Calls leave hardly any cycles behind, so looking for them after every 700 objects is mostly in vain.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _say_state(gateway: Gateway) -> None:
    for id, member in gateway.fleet.members.items():
        if member.engine is None:
            say(f"rcp-gateway: engine {id} is not open yet: {member.fault}")
