"""``graph``: asked of the engines that have the operation, at once; what they give becomes one answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.caller import ANONYMOUS, Caller
from gateway.errors import BackendUnavailable, RateLimited
from gateway.fusion import Rrf, fuse
from gateway.fusion.ranking import Ranking
from gateway.model import Hit, hit
from gateway.protocol.session import Session
from gateway.spi import Call, Edge, GraphQuery, GraphReply
from tests.engines import Running, Script, gateway_of
from tests.engines import hits as hits_of
from tests.obligations import obligation
from tests.schema import check_notification, check_ranking

pytestmark = pytest.mark.anyio

ALL = ("local", "global", "drift", "communities", "neighbors")


def graphs(reply: GraphReply | Exception | None = None, *, ops: Any = ALL, **script: Any) -> Script:
    """An engine with a graph that always answers so."""

    async def graph(query: GraphQuery, call: Call) -> GraphReply:
        if isinstance(reply, Exception):
            raise reply
        return reply or GraphReply()

    return Script(capabilities={"graph": {"ops": list(ops)}}, graph=graph, **script)


def nodes(*ids: str, **members: Any) -> list[Hit]:
    return [hit(id, None, **members) for id in ids]


async def ask(gateway: Running, op: str, **params: Any) -> dict[str, Any]:
    answer = await gateway.call("graph", {"op": op, **params})
    assert "result" in answer, answer
    found: dict[str, Any] = answer["result"]
    check_ranking(found.get("hits", []), params.get("k") or 10)
    return found


async def refused(gateway: Running, **params: Any) -> dict[str, Any]:
    answer = await gateway.call("graph", params)
    assert "error" in answer, answer
    error: dict[str, Any] = answer["error"]
    return error


def ids(part: list[dict[str, Any]]) -> list[Any]:
    return [one["id"] for one in part]


@obligation(179)
async def test_an_operation_goes_only_to_engines_that_have_it_and_is_refused_where_none_has() -> None:
    scripts = {
        "a": graphs(ops=["local", "own"]),
        "b": graphs(ops=["local", "neighbors"]),
        "c": Script(hits_of("x")),
    }
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["graph"] == {"ops": ["local", "neighbors"]}
        await ask(gateway, "neighbors", seedIds=["n"])
        assert ([len(scripts["a"].asked), len(scripts["b"].asked)]) == [0, 1]
        await ask(gateway, "local", query="q")
        assert ([len(scripts["a"].asked), len(scripts["b"].asked)]) == [1, 2]
        for op in ("drift", "own", "DRIFT", ""):
            error = await refused(gateway, op=op, query="q")
            assert (error["code"], error["data"]["option"], error["data"]["field"]) == (-32005, op, "op")
        missing = await refused(gateway, query="q")
        assert (missing["code"], missing["data"]["field"]) == (-32602, "op")
    assert scripts["c"].asked == []
    async with gateway_of({"c": Script(hits_of("x"))}) as gateway:
        assert (await refused(gateway, op="local", query="q"))["code"] == -32003


@obligation(179)
@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"op": "local"}, "query"),
        ({"op": "drift", "query": ""}, "query"),
        ({"op": "global"}, "query"),
        ({"op": "neighbors"}, "seedIds"),
        ({"op": "local", "query": "x" * 65_537}, "query"),
        ({"op": "local", "query": "x", "k": 0}, "k"),
    ],
)
async def test_a_question_without_a_start_is_refused_before_anybody_is_asked(params: Any, field: str) -> None:
    script = graphs()
    async with gateway_of({"a": script}) as gateway:
        error = await refused(gateway, **params)
    assert (error["code"], error["data"]["field"]) == (-32602, field)
    assert script.asked == []


@pytest.mark.parametrize("op", ["local", "drift"])
async def test_hits_are_fused_by_rank_and_followups_joined(op: str) -> None:
    first = [hit("x", 0.1, text="X"), hit("y", 0.05, text="Y")]
    second = [hit("y", 900.0, text="longer Y"), hit("z", 7.0)]
    scripts = {
        "a": graphs(GraphReply(hits=first, followups=("why?", "who?"))),
        "b": graphs(GraphReply(hits=second, followups=("who?", "when?\nnow"))),
    }
    async with gateway_of(scripts) as gateway:
        result = await ask(gateway, op, query="q", k=2)
    wanted, _ = fuse([Ranking(engine="a", hits=first), Ranking(engine="b", hits=second, order=1)], Rrf())
    assert [(one["id"], one["score"]) for one in result["hits"]] == [(one.id, one.score) for one in wanted[:2]]
    assert result["hits"][0]["text"] == "longer Y"
    assert result["hits"][0]["meta"]["engines"] == ["b", "a"]
    assert result["followups"] == ["why?", "who?", "when? now"]
    assert [query.k for script in scripts.values() for query in script.asked] == [2, 2]
    assert result["_meta"]["x-gateway"] == {"engines": ["a", "b"], "scale": "rrf"}
    assert "nodes" not in result


async def test_engines_are_asked_at_once_and_their_order_of_arrival_changes_nothing() -> None:
    async def answers(turns: int) -> bytes:
        both = asyncio.Barrier(2)

        def late(name: str, rounds: int) -> Any:
            async def graph(query: GraphQuery, call: Call) -> GraphReply:
                await both.wait()  # neither gets here alone
                for _ in range(rounds):
                    await asyncio.sleep(0)
                return GraphReply(hits=[hit(name, 1.0), hit("both", 0.5)], followups=(name,))

            return graph

        offers = {"graph": {"ops": ["local"]}}
        scripts = {
            "a": Script(capabilities=offers, graph=late("x", turns)),
            "b": Script(capabilities=offers, graph=late("y", 5 - turns)),
        }
        async with gateway_of(scripts) as gateway:
            result = await ask(gateway, "local", query="q")
        result["usage"].pop("latencyMs")
        return json.dumps(result).encode()

    assert len({await answers(turns) for turns in range(6)}) == 1


async def test_nodes_and_edges_are_merged_by_their_ids() -> None:
    a = GraphReply(
        nodes=nodes("p", "q", label="A says"),
        edges=[
            Edge(src="p", dst="q", members={"relation": "knows"}),
            Edge(src="p", dst="q", members={"relation": "likes"}, weight=0.5),
        ],
    )
    b = GraphReply(
        nodes=nodes("q", "r", label="B says"),
        edges=[
            Edge(src="p", dst="q", members={"relation": "knows"}, weight=2.0),
            Edge(src="q", dst="r", weight=float("nan")),
            Edge(src="q", dst="r", members={"deep": [float("inf")]}),
        ],
    )
    async with gateway_of({"a": graphs(a), "b": graphs(b)}) as gateway:
        result = await ask(gateway, "neighbors", seedIds=["p"], hops=2)
    assert ids(result["nodes"]) == ["q", "p", "r"]
    assert result["nodes"][0]["label"] == "B says"
    assert result["nodes"][0]["meta"]["engines"] == ["b", "a"]
    assert result["edges"] == [
        {"src": "p", "dst": "q", "weight": 2.0, "relation": "knows"},
        {"src": "p", "dst": "q", "weight": 0.5, "relation": "likes"},
    ]
    assert "hits" not in result


async def test_edges_to_nodes_beyond_k_are_not_shown() -> None:
    reply = GraphReply(nodes=nodes("p", "q", "r"), edges=[Edge(src="s", dst="p"), Edge(src="p", dst="r")])
    async with gateway_of({"a": graphs(reply)}) as gateway:
        result = await ask(gateway, "neighbors", seedIds=["s"], k=2)
    assert ids(result["nodes"]) == ["p", "q"]
    assert result["edges"] == [{"src": "s", "dst": "p"}]


async def test_neighbours_given_as_hits_are_nodes() -> None:
    async with gateway_of({"a": graphs(GraphReply(hits=nodes("n", text="N")))}) as gateway:
        result = await ask(gateway, "neighbors", node="s")
    assert [(one["id"], one["text"]) for one in result["nodes"]] == [("n", "N")]
    assert result["edges"] == []


@pytest.mark.parametrize("op", ["communities", "global"])
async def test_communities_of_several_engines_stay_apart_and_keep_their_summaries(op: str) -> None:
    a = GraphReply(communities=nodes("0", "1", summary="of a", level=1), summary="All of A.")
    b = GraphReply(communities=nodes("0", summary="of b"), summary=" All of B. ")
    async with gateway_of({"a": graphs(a), "b": graphs(b)}) as gateway:
        result = await ask(gateway, op, query="q", level=1)
    found = {one["id"]: one["summary"] for one in result["communities"]}
    assert found == {"a/0": "of a", "b/0": "of b", "a/1": "of a"}
    assert result["communities"][0]["level"] == 1
    assert result["summary"] == "All of A.\n\nAll of B."
    assert result["_meta"]["x-gateway"]["summaries"] == {"a": "All of A.", "b": "All of B."}
    async with gateway_of({"a": graphs(a)}) as gateway:
        alone = await ask(gateway, op, query="q")
    assert ids(alone["communities"]) == ["0", "1"]
    assert alone["summary"] == "All of A."
    assert "summaries" not in alone["_meta"]["x-gateway"]


async def test_an_empty_answer_has_the_part_that_the_operation_is_for() -> None:
    async with gateway_of({"a": graphs()}) as gateway:
        for op, part in (
            ("local", "hits"),
            ("drift", "hits"),
            ("global", "communities"),
            ("communities", "communities"),
        ):
            result = await ask(gateway, op, query="q")
            assert result[part] == []
            assert not {"hits", "communities", "nodes", "edges"} - {part} & set(result)
        assert (await ask(gateway, "neighbors", seedIds=["n"]))["nodes"] == []


# Ids


async def test_ids_are_qualified_by_the_corpus_and_seeds_go_to_the_engines_of_theirs() -> None:
    reply = GraphReply(nodes=nodes("n"), edges=[Edge(src="s", dst="n")])
    scripts = {"a": graphs(reply), "b": graphs(reply), "c": graphs(reply)}
    engines = {"a": {"corpus": "one"}, "b": {"corpus": "two"}, "c": {"corpus": "two"}}
    async with gateway_of(scripts, engines=engines) as gateway:
        result = await ask(gateway, "neighbors", seedIds=["two/s", "two/p/q", "two/s"])
        assert scripts["a"].asked == []
        assert [query.seed_ids for id in "bc" for query in scripts[id].asked] == [("s", "p/q")] * 2
        assert ids(result["nodes"]) == ["two/n"]
        assert result["edges"] == [{"src": "two/s", "dst": "two/n"}]
        assert "none of the seeds is of its corpus" in result["usage"]["notes"][0]
        for place, seed in enumerate(["s", "three/s", 7]):
            error = await refused(gateway, op="neighbors", seedIds=["one/s"] * place + [seed])
            assert (error["code"], error["data"]["field"]) == (-32602, f"seedIds[{place}]")
        assert ids((await ask(gateway, "neighbors", seedIds=["one/s", "two/s"]))["nodes"]) == ["two/n", "one/n"]


async def test_without_corpora_every_engine_gets_the_seeds_as_they_came() -> None:
    scripts = {"a": graphs(), "b": graphs()}
    async with gateway_of(scripts) as gateway:
        await ask(gateway, "neighbors", seedIds=["x/y", 7, 7.0])
    assert [query.seed_ids for script in scripts.values() for query in script.asked] == [("x/y", "7")] * 2


async def test_a_plain_seed_is_understood_where_there_is_one_engine() -> None:
    script = graphs()
    async with gateway_of({"a": script}, engines={"a": {"corpus": "one"}}) as gateway:
        await ask(gateway, "neighbors", seedIds=["x", "one/y"])
    assert script.asked[0].seed_ids == ("x", "y")


# What goes wrong


async def test_a_failed_engine_is_a_loss_and_only_all_of_them_an_error() -> None:
    broken = graphs(BackendUnavailable("out of order", retryable=False))
    scripts = {"a": broken, "b": graphs(GraphReply(hits=[hit("x", 1.0)], notes=("cut short",)))}
    async with gateway_of(scripts) as gateway:
        result = await ask(gateway, "local", query="q")
        assert ids(result["hits"]) == ["x"]
        assert result["_meta"]["degraded"] == ["a"]
        assert result["_meta"]["x-gateway"]["losses"][0]["engine"] == "a"
        assert result["usage"]["notes"] == ["engine a failed: out of order", "engine b: cut short"]
    async with gateway_of({"a": broken, "b": graphs(RateLimited("busy", retry_after_ms=9000))}) as gateway:
        error = await refused(gateway, op="local", query="q")
    assert (error["code"], error["data"]["retryAfterMs"]) == (-32010, 9000)
    assert set(error["data"]["engines"]) == {"a", "b"}


@pytest.mark.parametrize(("thrown", "code"), [(RateLimited("busy"), -32011), (ValueError("bug"), -32603)])
async def test_a_required_engine_ends_the_call_and_the_others_with_it(thrown: Exception, code: int) -> None:
    async def hangs(query: GraphQuery, call: Call) -> GraphReply:
        await asyncio.Event().wait()
        raise AssertionError

    other = Script(capabilities={"graph": {"ops": ["local"]}}, graph=hangs)

    async def fails(query: GraphQuery, call: Call) -> GraphReply:
        await other.started.wait()
        raise thrown

    first = Script(capabilities={"graph": {"ops": ["local"]}}, graph=fails)
    async with gateway_of({"a": first, "b": other}, engines={"a": {"required": True}}) as gateway:
        assert (await refused(gateway, op="local", query="q"))["code"] == code
    assert other.cancelled.is_set()


async def test_what_is_late_is_left_behind_at_the_clients_deadline() -> None:
    async def hangs(query: GraphQuery, call: Call) -> GraphReply:
        await asyncio.Event().wait()
        raise AssertionError

    late = Script(capabilities={"graph": {"ops": ["local"]}}, graph=hangs)
    async with gateway_of({"a": late, "b": graphs(GraphReply(hits=[hit("x", 1.0)]))}) as gateway:
        result = await ask(gateway, "local", query="q", _meta={"deadlineMs": 300})
        assert ids(result["hits"]) == ["x"]
        assert result["_meta"]["degraded"] == ["a"]
        assert late.cancelled.is_set()
        past = await refused(gateway, op="local", query="q", _meta={"deadlineMs": 0})
        assert past["code"] == -32014
    async with gateway_of({"a": late}) as gateway:
        alone = await refused(gateway, op="local", query="q", _meta={"deadlineMs": 300})
    assert alone["code"] == -32014


async def test_an_engine_that_swallows_its_cancellation_does_not_hold_the_answer() -> None:
    release = asyncio.Event()

    async def stubborn(query: GraphQuery, call: Call) -> GraphReply:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return GraphReply()

    deaf = Script(capabilities={"graph": {"ops": ["local"]}}, graph=stubborn)
    async with gateway_of({"a": deaf, "b": graphs(GraphReply(hits=[hit("x", 1.0)]))}) as gateway:
        result = await ask(gateway, "local", query="q", _meta={"deadlineMs": 200})
        assert ids(result["hits"]) == ["x"]
        assert result["_meta"]["degraded"] == ["a"]
        release.set()


async def test_a_client_that_takes_its_question_back_reaches_every_engine() -> None:
    async def hangs(query: GraphQuery, call: Call) -> GraphReply:
        await asyncio.Event().wait()
        raise AssertionError

    scripts = {id: Script(capabilities={"graph": {"ops": ["local"]}}, graph=hangs) for id in "ab"}
    async with gateway_of(scripts) as gateway:
        asked = asyncio.create_task(gateway.call("graph", {"op": "local", "query": "q"}))
        await asyncio.gather(*(script.started.wait() for script in scripts.values()))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert all(script.cancelled.is_set() for script in scripts.values())


@obligation(238)
async def test_at_the_last_hop_only_what_is_the_gateways_own_is_asked() -> None:
    up = graphs(GraphReply(hits=[hit("far", 1.0)]), federates=True)
    own = graphs(GraphReply(hits=[hit("near", 1.0)]))
    async with gateway_of({"up": up, "own": own}) as gateway:
        result = await ask(gateway, "local", query="q", _meta={"federation": {"depth": 0}})
        assert ids(result["hits"]) == ["near"]
        assert "depth 0" in result["usage"]["notes"][0]
        assert up.asked == []
        await ask(gateway, "local", query="q", _meta={"federation": {"depth": 2, "path": ["before"]}})
    assert (up.calls[-1].route.depth, up.calls[-1].route.path) == (1, ("before", "under-test"))


@obligation(239, 240)
async def test_a_request_that_comes_round_again_asks_nobody_a_second_time() -> None:
    up = graphs(GraphReply(hits=[hit("far", 1.0)]), federates=True)
    own = graphs(GraphReply(hits=[hit("near", 1.0)]))
    async with gateway_of({"up": up, "own": own}) as gateway:
        result = await ask(gateway, "local", query="q", _meta={"federation": {"path": ["under-test"]}})
    assert result["hits"] == []
    assert "a cycle" in result["usage"]["notes"][0]
    assert up.asked == own.asked == []


async def test_a_call_may_name_its_engines_and_a_weight_of_none_waits_to_be_named() -> None:
    scripts = {
        "a": graphs(GraphReply(hits=[hit("x", 1.0)])),
        "b": graphs(GraphReply(hits=[hit("y", 1.0)])),
        "c": Script(hits_of("z")),
    }
    async with gateway_of(scripts, engines={"b": {"weight": 0}}) as gateway:
        assert ids((await ask(gateway, "local", query="q"))["hits"]) == ["x"]
        named = await ask(gateway, "local", query="q", _meta={"x-gateway": {"engines": ["b", "c"]}})
        assert ids(named["hits"]) == ["y"]
        assert "it has no operation local" in named["usage"]["notes"][0]
        unable = await refused(gateway, op="local", query="q", _meta={"x-gateway": {"engines": ["c"]}})
        assert (unable["code"], unable["data"]["option"]) == (-32005, "local")
        unknown = await refused(gateway, op="local", query="q", _meta={"x-gateway": {"engines": ["d"]}})
        assert unknown["code"] == -32602


async def test_engines_of_a_lower_priority_are_asked_when_the_others_have_failed() -> None:
    first = graphs(BackendUnavailable("gone", retryable=False))
    scripts = {"a": first, "b": graphs(GraphReply(hits=[hit("y", 1.0)])), "c": graphs()}
    engines = {"a": {"priority": 2}, "b": {"priority": 1}, "c": {"priority": 0}}
    async with gateway_of(scripts, engines=engines, federation={"select": "priority"}) as gateway:
        result = await ask(gateway, "local", query="q")
    assert ids(result["hits"]) == ["y"]
    assert scripts["c"].asked == []
    assert any("engines of a higher priority answered" in note for note in result["usage"]["notes"])


@obligation(51)
async def test_an_operation_that_an_engine_may_yet_offer_is_not_the_clients_fault() -> None:
    async def shut() -> None:
        raise BackendUnavailable("not yet")

    unseen = Script(capabilities={"rerank": {"methods": ["llm"]}, "memory": {"scopes": ["global"]}}, opening=shut)
    async with gateway_of({"a": graphs(ops=["local"]), "b": unseen}) as gateway:
        for method, params in (
            ("graph", {"op": "drift", "query": "q"}),
            ("rerank", {"query": "q", "passages": ["p"], "method": "colbert"}),
            ("memory/build", {"scope": "session"}),
        ):
            error = (await gateway.call(method, params))["error"]
            assert (error["code"], error["data"]["retryable"]) == (-32010, True), method
        assert (await refused(gateway, op="own", query="q"))["code"] == -32005


async def test_an_engine_that_the_caller_may_not_see_is_not_asked() -> None:
    scripts = {"a": graphs(GraphReply(hits=[hit("x", 1.0)])), "b": graphs(GraphReply(hits=[hit("y", 1.0)]))}
    async with gateway_of(scripts) as gateway:
        some = Running(gateway.gateway, gateway.scripts, Caller(id="some", engines=frozenset({"a"})))
        assert ids((await ask(some, "local", query="q"))["hits"]) == ["x"]
    assert scripts["b"].asked == []


async def test_sessions_of_clients_that_choose_one_name_do_not_meet() -> None:
    script = graphs()
    async with gateway_of({"a": script}) as gateway:
        for id in ("one", "two", "one"):
            caller = Running(gateway.gateway, gateway.scripts, Caller(id=id))
            await ask(caller, "local", query="q", sessionId="s")
        await ask(gateway, "local", query="q")
    first, second, third, none = [query.session for query in script.asked]
    assert first == third != second
    assert none is None
    assert "one" not in first


# Nothing an engine gives is trusted


async def test_what_engines_give_is_made_sound() -> None:
    hostile = GraphReply(
        hits=[hit("a\ud800", float("nan"), unit="node", text="\ud800"), Hit(None, 1.0), hit("b", 1.0, level=-1)],  # type: ignore[arg-type]
        nodes=[hit("n", float("inf"), deep={"x": float("inf")}, plain={"y": 1})],
        edges=[Edge(src="n\ud800", dst="m", members={"src": "other", "label": "\ud800", "gone": None})],
        communities=[hit("c", True, summary=None)],  # type: ignore[arg-type]
        followups=("\x00\ud800 go on",),
        summary="\ud800",
    )
    async with gateway_of({"a": graphs(hostile)}) as gateway:
        result = await ask(gateway, "local", query="q")
    assert ids(result["hits"]) == ["a\ufffd", "b"]
    assert "level" not in result["hits"][1]
    assert result["edges"] == [{"src": "n\ufffd", "dst": "m", "label": "\ufffd"}]
    assert result["followups"] == ["\ufffd go on"]
    assert result["summary"] == "\ufffd"
    assert "deep" not in result["nodes"][0]


async def test_trust_is_capped_by_what_the_engine_is_configured_to_have() -> None:
    reply = GraphReply(hits=[hit("x", 1.0, trust={"level": "trusted"})])
    async with gateway_of({"a": graphs(reply)}) as gateway:
        (found,) = (await ask(gateway, "local", query="q"))["hits"]
    assert found["trust"]["level"] == "community"


# Notifications


async def notified(gateway: Running, method: str, params: dict[str, Any], **session: Any) -> list[dict[str, Any]]:
    """The frames that one call made before its answer."""
    frames: list[bytes] = []
    sent = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    kept = Session("implicit", ANONYMOUS)
    answer = await gateway.gateway.dispatcher.answer(json.dumps(sent).encode(), kept, emit=frames.append)
    assert answer is not None
    assert b'"error"' not in answer
    return [json.loads(frame) for frame in frames]


@obligation(70, 71, 200)
async def test_an_engines_words_reach_only_a_client_that_asked_for_them() -> None:
    async def talks(query: GraphQuery, call: Call) -> GraphReply:
        call.progress(0.5, "walking")
        call.progress(float("nan"), "lost")
        call.log("debug", "a detail")
        call.log("warning", "mind\nthis")
        return GraphReply()

    script = Script(capabilities={"graph": {"ops": ["local"]}}, graph=talks)
    asked = {"op": "local", "query": "q"}
    async with gateway_of({"a": script}) as gateway:
        assert await notified(gateway, "graph", asked) == []
        frames = await notified(gateway, "graph", {**asked, "_meta": {"logLevel": "info", "progressToken": 5}})
        logs = [frame["params"] for frame in frames if frame["method"] == "notifications/log"]
        told = [frame["params"] for frame in frames if frame["method"] == "notifications/progress"]
        assert [(one["level"], one["message"]) for one in logs] == [("warning", "mind this")]
        assert {one["progressToken"] for one in told} == {5}
        assert [one["progress"] for one in told] == sorted(one["progress"] for one in told)
        for frame in frames:
            kind: Any = frame["method"].removeprefix("notifications/")
            check_notification(kind, json.dumps(frame, separators=(",", ":")).encode())
    assert [call.log_level for call in script.calls] == [None, "info"]
