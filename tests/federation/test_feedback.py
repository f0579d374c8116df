"""``feedback``: a signal reaches the engines that the hit came from, under their own ids, and nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, RateLimited
from gateway.federation.origins import Origins
from gateway.fusion import Rrf, fuse
from gateway.fusion.ranking import Ranking
from gateway.model import hit
from gateway.spi import Call, EngineReply, FeedbackQuery, GraphReply, MemoryReply
from tests.engines import Running, Script, gateway_of, hits, ids
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def listening(*given: Any, feedback: Any = None, **capabilities: Any) -> Script:
    return Script(hits(*given), {"feedback": {}, **capabilities}, feedback=feedback)


async def send(gateway: Running, *given: Any, **params: Any) -> dict[str, Any]:
    """The result of a feedback on these hit ids, or signals."""
    signals = [one if isinstance(one, dict) else {"hitId": one, "used": True} for one in given]
    answer = await gateway.call("feedback", {"signals": signals, **params})
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


async def refused(gateway: Running, *given: Any, **params: Any) -> dict[str, Any]:
    answer = await gateway.call("feedback", {"signals": [{"hitId": one} for one in given], **params})
    assert "error" in answer, answer
    error: dict[str, Any] = answer["error"]
    return error


def heard(script: Script) -> list[list[Any]]:
    """The hit ids of every feedback that reached the engine."""
    return [[signal.hit_id for signal in query.signals] for query in script.asked]


@obligation(184)
async def test_a_signal_reaches_only_the_engine_the_hit_came_from() -> None:
    scripts = {"a": listening("x", "both"), "b": listening("y", "both")}
    async with gateway_of(scripts) as gateway:
        assert set(ids(await gateway.retrieve())) == {"x", "y", "both"}
        assert await send(gateway, "x") == {"accepted": 1}
        assert (heard(scripts["a"]), heard(scripts["b"])) == ([["x"]], [])
        assert await send(gateway, "y", "x", query="q") == {"accepted": 2}
        assert (heard(scripts["a"])[1:], heard(scripts["b"])) == ([["x"]], [["y"]])
        # Both returned it, and it is one signal.
        assert await send(gateway, "both") == {"accepted": 1}
        assert (heard(scripts["a"])[-1], heard(scripts["b"])[-1]) == (["both"], ["both"])
    assert scripts["b"].asked[0].text == "q"


@obligation(184)
async def test_everything_a_signal_says_is_handed_on_and_nothing_more() -> None:
    script = listening("7")
    said = {"used": False, "cited": True, "helpful": False, "reward": -0.5, "poisonSuspected": True,
            "injectionSuspected": False}  # fmt: skip
    async with gateway_of({"a": script}) as gateway:
        result = await send(gateway, {"hitId": 7.0, **said, "other": 1}, query="q", sessionId="s")
    assert result == {"accepted": 1}
    (query,) = script.asked
    (signal,) = query.signals
    assert (signal.hit_id, signal.used, signal.cited, signal.helpful) == ("7", False, True, False)
    assert (signal.reward, signal.poison_suspected, signal.injection_suspected) == (-0.5, True, False)
    assert query.session not in (None, "s")


@obligation(184)
async def test_a_plain_id_that_may_be_of_several_engines_is_refused_and_reaches_nobody() -> None:
    scripts = {"a": listening("x"), "b": listening("y")}
    async with gateway_of(scripts) as gateway:
        error = await refused(gateway, "x")
        assert (error["code"], error["data"]["field"]) == (-32602, "signals[0].hitId")
        await gateway.retrieve()
        error = await refused(gateway, "x", "never seen")
        assert (error["code"], error["data"]["field"]) == (-32602, "signals[1].hitId")
        other = Running(gateway.gateway, gateway.scripts, Caller(id="somebody else"))
        assert (await refused(other, "x"))["code"] == -32602
        assert [scripts[id].asked for id in "ab"] == [[], []]
        # The hit says which engine it is of, and so may the call.
        assert await send(gateway, "z", _meta={"x-gateway": {"engines": ["b"]}}) == {"accepted": 1}
        assert (heard(scripts["a"]), heard(scripts["b"])) == ([], [["z"]])
        unknown = await refused(gateway, "z", _meta={"x-gateway": {"engines": ["c"]}})
        assert unknown["data"]["field"] == "_meta.x-gateway.engines"


async def test_a_caller_who_sees_one_engine_needs_no_memory_of_it() -> None:
    scripts = {"a": listening("x"), "b": listening("y")}
    async with gateway_of(scripts) as gateway:
        some = Running(gateway.gateway, gateway.scripts, Caller(id="some", engines=frozenset({"b"})))
        assert await send(some, "anything") == {"accepted": 1}
    assert (heard(scripts["a"]), heard(scripts["b"])) == ([], [["anything"]])


@obligation(184)
async def test_a_qualified_id_tells_its_corpus_and_is_the_engines_own_there() -> None:
    scripts = {"a": listening("x"), "b": listening("x"), "c": listening("x")}
    engines = {"a": {"corpus": "one"}, "b": {"corpus": "two"}, "c": {"corpus": "two"}}
    async with gateway_of(scripts, engines=engines) as gateway:
        assert await send(gateway, "one/x/y") == {"accepted": 1}
        assert [heard(scripts[id]) for id in "abc"] == [[["x/y"]], [], []]
        assert await send(gateway, "two/x") == {"accepted": 1}
        assert [heard(scripts[id]) for id in "abc"] == [[["x/y"]], [["x"]], [["x"]]]
        for id in ("x", "three/x", "one"):
            assert (await refused(gateway, id))["code"] == -32602
        assert set(ids(await gateway.retrieve())) == {"one/x", "two/x"}
        assert await send(gateway, "one/x") == {"accepted": 1}
    assert heard(scripts["a"])[-1] == ["x"]


async def test_each_engine_is_told_its_own_id_of_a_document_that_was_joined_by_its_uri() -> None:
    citation = {"uri": "https://example.org/one"}
    scripts = {
        id: Script([hit(f"{id}-1", 1.0, citation=citation)], {"retrieve": {"maxK": 9}, "feedback": {}}) for id in "ab"
    }
    async with gateway_of(scripts, fusion={"identity": "uri"}) as gateway:
        (id,) = ids(await gateway.retrieve())
        assert await send(gateway, id) == {"accepted": 1}
    assert [heard(scripts[id]) for id in "ab"] == [[["a-1"]], [["b-1"]]]


async def test_an_engine_that_takes_no_feedback_is_told_nothing_and_the_client_that_it_was_not() -> None:
    scripts = {"a": listening("x"), "b": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        await gateway.retrieve()
        result = await send(gateway, "x", "y")
        assert result["accepted"] == 1
        assert result["_meta"]["x-gateway"]["notes"] == ["engine b was not asked: it takes no feedback"]
        assert (await send(gateway, "y"))["accepted"] == 0
    assert (heard(scripts["a"]), scripts["b"].asked) == ([["x"]], [])


async def test_hits_of_graphs_and_memories_are_remembered_too() -> None:
    async def graph(query: Any, call: Call) -> GraphReply:
        return GraphReply(hits=[hit("g", 1.0)])

    async def recall(query: Any, call: Call) -> MemoryReply:
        return MemoryReply(hits=[hit("m", 1.0)])

    a, b = listening("x", graph={"ops": ["local"]}), listening("y", memory={})
    a.graph, b.recall = graph, recall
    async with gateway_of({"a": a, "b": b}) as gateway:
        await gateway.call("graph", {"op": "local", "query": "q"})
        await gateway.call("memory/recall", {"query": "q"})
        a.asked.clear(), b.asked.clear()
        assert await send(gateway, "g", "m") == {"accepted": 2}
    assert (heard(a), heard(b)) == ([["g"]], [["m"]])


@obligation(184)
async def test_advice_fails_only_where_nobody_could_be_told_and_is_given_once() -> None:
    async def fails(query: FeedbackQuery, call: Call) -> int:
        raise BackendUnavailable("out of order")

    async def odd(query: FeedbackQuery, call: Call) -> Any:
        return "many"

    async def much(query: FeedbackQuery, call: Call) -> int:
        return 99

    scripts = {
        "a": listening("x", feedback=fails),
        "b": listening("y", feedback=much),
        "c": listening("z", feedback=odd),
    }
    async with gateway_of(scripts, engines={"a": {"required": True}}) as gateway:
        await gateway.retrieve()
        result = await send(gateway, "x", "y", "y", "z")
        assert result["accepted"] == 2
        assert result["_meta"]["degraded"] == ["a"]
        error = await refused(gateway, "x")
        assert error["code"] == -32010
    assert len(scripts["a"].asked) == 2


async def test_no_signals_reach_nobody_and_too_many_are_refused() -> None:
    script = listening("x", feedback=None)
    async with gateway_of({"a": script}) as gateway:
        assert await send(gateway) == {"accepted": 0}
        assert (await refused(gateway, *["x"] * 1001))["data"]["field"] == "signals"
        assert (await refused(gateway, "x", query="q" * 70_000))["data"]["field"] == "query"
    assert script.asked == []
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert (await refused(gateway, "x"))["code"] == -32003


async def test_feedback_changes_no_answer() -> None:
    script = listening("x", "y")
    async with gateway_of({"a": script}) as gateway:
        before = (await gateway.retrieve())["hits"]
        await send(gateway, {"hitId": "x", "reward": -1.0, "poisonSuspected": True})
        assert (await gateway.retrieve())["hits"] == before


async def test_a_refused_rate_is_told_with_its_waiting_time() -> None:
    async def busy(query: FeedbackQuery, call: Call) -> int:
        raise RateLimited("slower", retry_after_ms=400)

    async with gateway_of({"a": listening("x", feedback=busy)}) as gateway:
        error = await refused(gateway, "x")
    assert error["data"]["retryAfterMs"] == 400


def test_what_was_longest_unused_is_forgotten_first() -> None:
    origins = Origins(limit=2)

    def remember(caller: str, *names: str) -> None:
        found, _ = fuse([Ranking(engine="a", hits=[hit(name, 1.0) for name in names])], Rrf())
        origins.remember(caller, found)

    remember("me", "x", "y")
    assert origins.of("me", "x") == (("a", "x"),)
    remember("me", "z")
    assert [origins.of("me", id) is not None for id in "xyz"] == [True, False, True]
    assert origins.of("you", "x") is None
    remember("me", *map(str, range(100)))
    assert len(origins) == 2


async def test_nothing_is_remembered_where_nobody_takes_feedback() -> None:
    async def retrieve(query: Any, call: Call) -> EngineReply:
        return EngineReply(hits=hits("x"))

    async with gateway_of({"a": Script(retrieve=retrieve)}) as gateway:
        await gateway.retrieve()
        assert len(gateway.gateway.service._retrieval._origins) == 0
