"""Engines that do what no engine should."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Script

__all__ = ["failing", "hanging", "stubborn"]


def failing(error: BaseException, capabilities: Mapping[str, Any] | None = None) -> Script:
    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        raise error

    return Script(retrieve=retrieve, capabilities=capabilities or {})


def hanging() -> Script:
    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        await asyncio.Event().wait()
        raise AssertionError

    return Script(retrieve=retrieve)


def stubborn(release: asyncio.Event) -> Script:
    """One that swallows every cancellation until it is released."""

    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return EngineReply(hits=[])

    return Script(retrieve=retrieve)
