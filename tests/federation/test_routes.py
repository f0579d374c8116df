"""Depth, path, cycles, selection and priority."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.caller import Caller
from gateway.errors import BackendUnavailable
from gateway.spi import Call, EngineQuery, EngineReply, Route
from tests.engines import Running, Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def upstream(*found: str) -> Script:
    return Script(hits(*found), federates=True)


@obligation(236, 237, 241)
@pytest.mark.parametrize(
    ("federation", "route"),
    [
        (None, Route(2, ("under-test",))),
        ({"depth": 2, "path": ["x"]}, Route(1, ("x", "under-test"))),
        ({"depth": 1}, Route(0, ("under-test",))),
        ({"depth": 10**9}, Route(2, ("under-test",))),
        ({"depth": "many", "path": "x"}, Route(2, ("under-test",))),
        ({"depth": True, "path": [1, None, "x"]}, Route(2, ("x", "under-test"))),
        ({"depth": 2.0}, Route(1, ("under-test",))),
        ("garbage", Route(2, ("under-test",))),
    ],
)
async def test_every_forwarded_request_says_how_far_it_may_go(federation: Any, route: Route) -> None:
    script = upstream("x")
    async with gateway_of({"a": script}) as gateway:
        await gateway.retrieve(_meta={} if federation is None else {"federation": federation})
    assert script.calls[0].route == route


@obligation(241)
async def test_a_path_of_a_million_entries_is_cut() -> None:
    script = upstream("x")
    async with gateway_of({"a": script}) as gateway:
        await gateway.retrieve(_meta={"federation": {"depth": 2, "path": ["x"] * 1_000_000 + ["x" * 1000] * 40}})
    assert len(script.calls[0].route.path) == 33
    assert max(map(len, script.calls[0].route.path)) == 200


@obligation(238)
@pytest.mark.parametrize("depth", [0, -5])
async def test_depth_zero_forwards_nothing_and_answers_from_what_is_its_own(depth: int) -> None:
    scripts = {"far": upstream("x"), "own": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(_meta={"federation": {"depth": depth}})
    assert ids(result) == ["y"]
    assert scripts["far"].queries == []
    assert "depth 0" in notes(result)


@obligation(239)
async def test_a_request_that_was_here_before_is_not_served_again() -> None:
    scripts = {"far": upstream("x"), "own": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(_meta={"federation": {"depth": 2, "path": ["other", "under-test"]}})
    assert result["hits"] == []
    assert "cycle" in notes(result)
    assert not scripts["far"].queries
    assert not scripts["own"].queries


@obligation(242)
async def test_what_is_left_of_the_deadline_is_strictly_less_than_what_was_given() -> None:
    left: list[float] = []

    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        left.append(call.remaining())
        return EngineReply(hits=hits("x"))

    async with gateway_of({"a": Script(retrieve=retrieve)}) as gateway:
        await gateway.retrieve(_meta={"deadlineMs": 1500})
    assert 0 < left[0] < 1.5


async def test_a_call_can_name_its_engines() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(_meta={"x-gateway": {"engines": ["b"]}})
        assert ids(result) == ["y"]
        assert scripts["a"].queries == []
        empty = await gateway.retrieve(_meta={"x-gateway": {"engines": []}})
        assert empty["hits"] == []


async def test_an_unknown_and_an_invisible_engine_are_the_same_error() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        narrow = Running(gateway.gateway, scripts, Caller(id="narrow", engines=frozenset({"a"})))
        unknown = await narrow.refused(_meta={"x-gateway": {"engines": ["nope"]}})
        invisible = await narrow.refused(_meta={"x-gateway": {"engines": ["b"]}})
        assert unknown == invisible
        assert unknown["code"] == -32602
        assert ids(await narrow.retrieve()) == ["x"]
        catalog = (await narrow.call("catalog/list"))["result"]["engines"]
        assert [entry["id"] for entry in catalog] == ["a"]


async def test_by_priority_the_first_turn_that_answers_is_enough() -> None:
    scripts = {"main": Script(hits("x")), "spare": Script(hits("y"))}
    async with gateway_of(scripts, engines={"main": {"priority": 10}}, federation={"select": "priority"}) as gateway:
        assert ids(await gateway.retrieve()) == ["x"]
        assert scripts["spare"].queries == []
        both = await gateway.retrieve(_meta={"x-gateway": {"select": "all"}})
        assert sorted(ids(both)) == ["x", "y"]


async def test_by_priority_the_next_turn_is_asked_when_the_first_fails() -> None:
    async def down(query: EngineQuery, call: Call) -> EngineReply:
        raise BackendUnavailable("down", retryable=False)

    scripts = {"main": Script(retrieve=down), "spare": Script(hits("y"))}
    async with gateway_of(scripts, engines={"main": {"priority": 10}}, federation={"select": "priority"}) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["y"]
    assert result["_meta"]["degraded"] == ["main"]


@obligation(194)
async def test_nothing_in_a_hit_is_taken_as_an_instruction() -> None:
    meta = {"federation": {"depth": 99}, "x-gateway": {"engines": []}, "deadlineMs": 0}
    script = Script(hits(("x", 1.0, meta)))
    async with gateway_of({"a": script, "b": Script(hits("y"))}) as gateway:
        result = await gateway.retrieve()
        assert sorted(ids(result)) == ["x", "y"]
        assert sorted(ids(await gateway.retrieve())) == ["x", "y"]


@obligation(239)
async def test_a_name_too_long_for_a_path_is_still_known_again() -> None:
    name = "n" * 250
    script = upstream("x")
    async with gateway_of({"far": script}, name=name) as gateway:
        await gateway.retrieve()
        path = [one[:200] for one in script.calls[0].route.path]
        result = await gateway.retrieve(_meta={"federation": {"depth": 2, "path": path}})
    assert "cycle" in notes(result)
    assert len(script.calls) == 1
