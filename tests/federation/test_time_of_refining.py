"""What is worked out here, and not asked of engines, ends with the time of the call too."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from gateway.model import hit
from gateway.spi import EmbedReply, VectorNeed
from tests.engines import Script, gateway_of, ids, notes

pytestmark = pytest.mark.anyio

DIMENSION = 1536


def with_vectors(count: int) -> dict[str, Script]:
    """Hits that take some seconds to be held against each other."""
    found = [
        hit(f"d{n}", 1 - n / 2000, text="t", vector=[float(place * n % 7) + 1 for place in range(DIMENSION)])
        for n in range(count)
    ]

    async def embed(query: object, call: object) -> EmbedReply:
        return EmbedReply(vectors=((1.0,) * DIMENSION,))

    offers = {"retrieve": None, "embed": {"dimension": DIMENSION, "identity": "m"}}
    wide = {"retrieve": {"maxK": 1000}}
    return {
        "a": Script(found, wide, need=VectorNeed("m", DIMENSION)),
        "m": Script(capabilities=offers, embed=embed),
    }


async def test_diversity_ends_with_the_deadline_and_says_so() -> None:
    async with gateway_of(with_vectors(800)) as gateway:
        began = time.perf_counter()
        result = await gateway.retrieve(candidateK=800, k=800, mmr={"lambda": 0.5}, _meta={"deadlineMs": 400})
        assert time.perf_counter() - began < 3  # alone it takes some eight seconds
    assert len(set(ids(result))) == 800
    assert ids(result)[0] == "d0"
    assert "time ran out while the hits were diversified" in notes(result)


async def test_what_nobody_waits_for_any_more_is_not_worked_on() -> None:
    def threads() -> bool:
        frames = sys._current_frames().values()
        return any(frame.f_code.co_name in ("greedy", "likeness", "<listcomp>") for frame in frames)

    async with gateway_of(with_vectors(800)) as gateway:
        call = asyncio.create_task(gateway.retrieve(candidateK=800, k=800, mmr={"lambda": 0.5}))
        await gateway.scripts["a"].started.wait()
        async with asyncio.timeout(5):
            while not threads():
                await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(3):
            while threads():
                await asyncio.sleep(0.01)


async def test_what_cannot_be_measured_in_time_is_left_out_and_counted() -> None:
    found = [hit(f"d{n}", 1 - n / 2000, text="fox " * 20_000) for n in range(400)]
    async with gateway_of({"a": Script(found, {"retrieve": {"maxK": 1000}})}) as gateway:
        began = time.perf_counter()
        result = await gateway.retrieve(candidateK=400, tokenBudget=25_000, _meta={"deadlineMs": 300})
        assert time.perf_counter() - began < 2
    assert ids(result) == ["d0"]
    assert result["usage"]["tokens"] == 20_000
    assert "time ran out while texts were measured" in notes(result)
