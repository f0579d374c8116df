"""A client may leave while a retrieve is anywhere: in a transform, an embedding, a recall, a rerank, or freezing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.model import hit
from gateway.spi import EmbedReply, EngineReply, TransformReply, VectorNeed
from tests.engines import Running, Script, gateway_of, ids

pytestmark = pytest.mark.anyio


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def searching(step: int, **more: Any) -> Script:
    async def retrieve(query: Any, call: Any) -> EngineReply:
        await turns(5)
        found = [hit(f"d{n * step % 17}", 1 - n / 50, text=f"q {n} word") for n in range(12)]
        return EngineReply(hits=found[: query.k])

    return Script(retrieve=retrieve, **more)


def models() -> Script:
    async def embed(query: Any, call: Any) -> EmbedReply:
        await turns(4)
        return EmbedReply(vectors=tuple((float(len(text)), 1.0) for text in query.inputs))

    async def rerank(query: Any, call: Any) -> list[float]:
        await turns(4)
        return [float(len(passage)) for passage in query.passages]

    async def transform(query: Any, call: Any) -> TransformReply:
        await turns(3)
        return TransformReply(queries=("a", "b c"))

    offers = {
        "retrieve": None,
        "embed": {"dimension": 2, "identity": "x"},
        "sparseEmbed": {"vocabulary": 10},
        "rerank": {"methods": ["cross-encoder"], "maxCandidates": 5},
        "transform": {"methods": ["multi-query"]},
    }
    return Script(capabilities=offers, embed=embed, rerank=rerank, transform=transform)


def begun(gateway: Running, query: str) -> asyncio.Task[Any]:
    return asyncio.create_task(
        gateway.retrieve(
            query,
            k=3,
            rewrite="multi-query",
            rerank={"method": "cross-encoder", "topN": 10},
            mmr={"lambda": 0.5},
            sessionId=query,
            tokenBudget=8,
        )
    )


async def test_leaving_at_any_moment_leaves_no_task_no_slot_and_no_blame() -> None:
    dense, sparse = VectorNeed("m", 2), VectorNeed("m", 0)
    scripts = {"a": searching(1, need=dense, sparse=sparse), "b": searching(3, need=dense), "m": models()}
    engines = {id: {"corpus": id, "concurrency": 6} for id in scripts}
    mixed = {"across": "rescore", "scorer": "m"}
    async with gateway_of(scripts, engines=engines, fusion=mixed) as gateway:
        before = asyncio.all_tasks()
        members = gateway.gateway.service._fleet.members.values()
        free = [member.limiter._slots._value for member in members]
        whole = await begun(gateway, "whole")
        moments = finished = 0
        while finished < 5:
            call = begun(gateway, f"q{moments}")
            await turns(moments)
            finished += call.done()
            moments += 1
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await turns(3)
            assert asyncio.all_tasks() == before
            assert [member.limiter._slots._value for member in members] == free
            assert not any(member.limiter._waiting or member.breaker._failures for member in members)
        assert moments > 30
        assert ids(await begun(gateway, "another")) == ids(whole)
