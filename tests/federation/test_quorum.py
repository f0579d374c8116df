"""Enough engines are an answer: ``federation: {quorum, grace}`` (public report R26)."""

from __future__ import annotations

import asyncio

import pytest

from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.federation.scripts import failing, hanging

pytestmark = pytest.mark.anyio


async def test_once_enough_have_answered_the_late_ones_are_named_and_ended() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y")), "c": hanging()}
    async with gateway_of(scripts, federation={"quorum": 2, "grace": 0.01}) as gateway:
        async with asyncio.timeout(5):
            result = await gateway.retrieve()
    assert ids(result) == ["x", "y"]
    assert notes(result) == "engine c was left behind: enough engines had answered"
    assert result["_meta"]["degraded"] == ["c"]
    assert scripts["c"].cancelled.is_set()


async def test_an_answer_that_did_not_wait_for_all_has_no_pages_and_says_so() -> None:
    scripts = {"a": Script(hits("x", "y")), "b": hanging()}
    async with gateway_of(scripts, federation={"quorum": 1, "grace": 0}) as gateway:
        cut = await gateway.retrieve(k=1)
        whole = await gateway.retrieve(k=2)
    told = "there is more, but no pages of what not all were waited for"
    assert "nextCursor" not in cut
    assert told in notes(cut)
    assert told not in notes(whole)


async def test_who_answers_within_the_grace_is_heard() -> None:
    others = asyncio.Event()

    async def slow(query: EngineQuery, call: Call) -> EngineReply:
        await others.wait()
        return EngineReply(hits=hits("z"))

    async def last(query: EngineQuery, call: Call) -> EngineReply:
        others.set()
        return EngineReply(hits=hits("y"))

    scripts = {"a": Script(retrieve=last), "b": Script(retrieve=slow)}
    async with gateway_of(scripts, federation={"quorum": 1, "grace": 30}) as gateway:
        result = await gateway.retrieve()
    assert sorted(ids(result)) == ["y", "z"]
    assert notes(result) == ""


async def test_failures_do_not_count_and_required_engines_are_waited_for() -> None:
    release = asyncio.Event()

    async def needed(query: EngineQuery, call: Call) -> EngineReply:
        await release.wait()
        return EngineReply(hits=hits("z"))

    async def second(query: EngineQuery, call: Call) -> EngineReply:
        asyncio.get_running_loop().call_soon(release.set)
        return EngineReply(hits=hits("y"))

    scripts = {"f": failing(RuntimeError("bug")), "r": Script(retrieve=needed), "b": Script(retrieve=second)}
    settings = {"r": {"required": True}}
    async with gateway_of(scripts, engines=settings, federation={"quorum": 1, "grace": 0}) as gateway:
        result = await gateway.retrieve()
    assert sorted(ids(result)) == ["y", "z"]
    assert result["_meta"]["degraded"] == ["f"]


async def test_a_late_engine_is_not_taken_for_a_broken_one() -> None:
    scripts = {"a": Script(hits("x")), "c": hanging()}
    async with gateway_of(scripts, federation={"quorum": 1, "grace": 0}) as gateway:
        for _ in range(10):
            assert ids(await gateway.retrieve()) == ["x"]
        assert gateway.gateway.fleet.members["c"].breaker.state == "closed"
    assert len(scripts["c"].queries) == 10
