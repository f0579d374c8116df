"""Opening and closing an engine of kind ``rcp``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from gateway.errors import BackendUnavailable, RcpError
from gateway.model import Capabilities, FilterCapability, RetrieveCapability
from gateway.protocol.handshake import Handshake
from gateway.secret import Secret
from gateway.spi.engine import Engine, EngineContext, EngineKind, Process
from gateway_rcp.engine import CompleteRcpEngine, RcpEngine
from gateway_rcp.http_link import HttpLink
from gateway_rcp.link import Link, Tasks
from gateway_rcp.session import Session
from gateway_rcp.settings import RcpConfig
from gateway_rcp.stdio_link import StdioLink

__all__ = ["RcpKind"]


class RcpKind(EngineKind[RcpConfig]):
    name = "rcp"
    config = RcpConfig
    summary = "another RCP server, over HTTP or as a child process"
    federates = True

    def offers(self, config: RcpConfig) -> Capabilities:
        return Capabilities(
            retrieve=RetrieveCapability(max_k=config.max_k),
            filter=FilterCapability(fields=dict(config.fields)) if config.fields else None,
        )

    def open(self, config: RcpConfig, context: EngineContext) -> AbstractAsyncContextManager[Engine]:
        return _over_http(config, context) if config.command is None else _over_stdio(config, context)


def _session(config: RcpConfig, context: EngineContext, link: Link, tasks: Tasks) -> Session:
    try:
        release = version("rcp-gateway")
    except PackageNotFoundError:
        release = "0"
    handshake = Handshake(name="rcp-gateway", version=release)
    return Session(
        link,
        handshake,
        tasks,
        handshake_timeout=config.handshake_timeout,
        streaming=config.streaming,
        logger=context.logger,
    )


def _engine(config: RcpConfig, session: Session) -> RcpEngine:
    return (CompleteRcpEngine if config.meta_complete else RcpEngine)(config, session)


@asynccontextmanager
async def _over_http(config: RcpConfig, context: EngineContext) -> AsyncIterator[Engine]:
    """An upstream that others may use too: it is never told to shut down (DECISIONS D1b)."""
    headers: dict[str, str | Secret] = dict(config.headers)
    if config.token is not None:
        headers["Authorization"] = Secret(f"Bearer {config.token.reveal()}", source=config.token.source)
    tasks = Tasks(context.logger)
    async with context.http(config.url or "", headers=headers) as client:
        link = HttpLink(client, tasks, context.logger)
        session = _session(config, context, link, tasks)
        try:
            try:
                await session.ready()
            except RcpError as error:
                raise _unopened(error) from error
            yield _engine(config, session)
        finally:
            await tasks.close()


@asynccontextmanager
async def _over_stdio(config: RcpConfig, context: EngineContext) -> AsyncIterator[Engine]:
    argv = list(config.command or ())
    env = {name: value.reveal() if isinstance(value, Secret) else value for name, value in config.env.items()}

    def spawn() -> AbstractAsyncContextManager[Process]:
        return context.spawn(argv, cwd=config.cwd, env=env)

    tasks = Tasks(context.logger)
    link = StdioLink(
        spawn,
        context,
        tasks,
        serial=config.serial,
        max_line=config.max_line_bytes,
        delay=config.restart_delay,
        limit=config.restart_limit,
    )
    session = _session(config, context, link, tasks)
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    host = tasks.start(link.run(session, opened))
    try:
        await asyncio.wait([host, opened], return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await host  # a fault of ours: let it be seen
        try:
            opened.result()
        except RcpError as error:
            raise _unopened(error) from error
        yield _engine(config, session)
        await link.farewell()
    finally:
        await tasks.close()


def _unopened(error: RcpError) -> BackendUnavailable:
    found = BackendUnavailable(f"it did not open: {error.message}", retryable=error.retryable, data=error.data)
    found.detail = error.detail
    return found
