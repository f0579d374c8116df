"""Success or which error, out of what every engine did (SEMANTICS section 1, RCP section 16.2)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, RateLimited, Timeout, UpstreamError
from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Running, Script, gateway_of, hits, ids, notes
from tests.federation.scripts import failing, hanging
from tests.obligations import obligation
from tests.schema import check_frame

pytestmark = pytest.mark.anyio

FIELDS = {"filter": {"fields": {"lang": "keyword"}, "operators": ["eq"]}}
DENSE = {"retrieve": {"maxK": 100, "modes": ["dense"]}}
ENGLISH = {"field": "lang", "op": "eq", "value": "en"}


@obligation(235)
async def test_a_late_engine_beside_a_failed_one_is_not_a_timeout() -> None:
    scripts = {"late": hanging(), "down": failing(BackendUnavailable("gone", retryable=False))}
    async with gateway_of(scripts) as gateway:
        error = await gateway.refused(_meta={"deadlineMs": 80})
    assert error["code"] == -32010
    assert {id: one["code"] for id, one in error["data"]["engines"].items()} == {"late": -32014, "down": -32010}


@obligation(235)
async def test_a_late_engine_beside_one_that_is_not_open_is_not_a_timeout() -> None:
    async with gateway_of({"late": hanging(), "down": Script(hits("x"))}) as gateway:
        gateway.gateway.fleet.members["down"].closed(BackendUnavailable("went away"))
        assert (await gateway.refused(_meta={"deadlineMs": 80}))["code"] == -32010


async def test_one_late_by_its_own_limit_makes_it_no_matter_of_the_clients_deadline() -> None:
    scripts = {"late": hanging(), "slow": hanging()}
    async with gateway_of(scripts, engines={"slow": {"timeout": 0.02}}) as gateway:
        assert (await gateway.refused(_meta={"deadlineMs": 120}))["code"] == -32010


async def test_an_engine_that_tells_of_the_deadline_itself_is_late_like_one_that_is_cut_off() -> None:
    scripts = {"polite": failing(UpstreamError("late", code=-32014)), "stuck": hanging()}
    async with gateway_of(scripts) as gateway:
        assert (await gateway.refused(_meta={"deadlineMs": 100}))["code"] == -32014
    async with gateway_of({"polite": failing(Timeout("late"))}) as gateway:
        assert (await gateway.refused())["code"] == -32010


@obligation(94)
async def test_of_all_failed_engines_the_soonest_retry_counts() -> None:
    scripts = {
        "a": failing(RateLimited("busy", retry_after_ms=9_000_000)),
        "b": failing(BackendUnavailable("away", data={"retryAfterMs": 8_000_000.5})),
        "c": failing(BackendUnavailable("odd", retryable=False, data={"retryAfterMs": True})),
    }
    async with gateway_of(scripts) as gateway:
        error = await gateway.refused()
    assert error["data"]["retryAfterMs"] == 8_000_001
    assert error["data"]["retryable"] is True


async def test_what_cannot_succeed_later_is_not_called_retryable() -> None:
    async with gateway_of({"a": failing(BackendUnavailable("no such collection", retryable=False))}) as gateway:
        assert (await gateway.refused())["data"]["retryable"] is False
    required = {"a": {"required": True}}
    async with gateway_of({"a": failing(BackendUnavailable("gone", retryable=False))}, engines=required) as gateway:
        assert (await gateway.refused())["data"]["retryable"] is False


async def test_a_required_engine_that_is_unable_refuses_the_call_before_anyone_is_asked() -> None:
    scripts = {"a": Script(hits("x"), DENSE), "b": Script(hits("y"))}
    async with gateway_of(scripts, engines={"b": {"required": True}}) as gateway:
        error = await gateway.refused(mode="dense")
        assert error["code"] == -32005
        assert error["data"] == {"option": "dense", "reasons": {"b": "it does not offer mode 'dense'"}}
        assert scripts["a"].queries == []


async def test_a_required_engine_that_is_not_open_refuses_the_call_before_anyone_is_asked() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y"))}
    async with gateway_of(scripts, engines={"b": {"required": True}}) as gateway:
        gateway.gateway.fleet.members["b"].closed(BackendUnavailable("went away"))
        error = await gateway.refused()
    assert (error["code"], error["data"]["engine"]) == (-32010, "b")
    assert scripts["a"].queries == []


async def test_a_required_engine_may_be_left_out_or_have_nothing() -> None:
    closed = {"filter": {"fields": {"size": "int"}}}
    scripts = {"a": Script(hits(("x", 1.0, {"lang": "en"})), FIELDS), "b": Script(hits("y"), closed)}
    async with gateway_of(scripts, engines={"b": {"required": True, "undeclared": "absent"}}) as gateway:
        assert ids(await gateway.retrieve(filter=ENGLISH)) == ["x"]
        assert ids(await gateway.retrieve(_meta={"x-gateway": {"engines": ["a"]}})) == ["x"]


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_of_two_required_engines_that_failed_the_first_in_the_plan_is_reported(order: str) -> None:
    now = asyncio.Event()

    def script(id: str) -> Script:
        async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
            await now.wait()
            raise UpstreamError(id, code=-32011 if id == "a" else -32014, retryable=False)

        return Script(retrieve=retrieve)

    async def both_at_once(query: EngineQuery, call: Call) -> EngineReply:
        now.set()
        return EngineReply(hits=[])

    engines = {id: {"required": True} for id in "ab"}
    scripts = {**{id: script(id) for id in order}, "go": Script(retrieve=both_at_once)}
    async with gateway_of(scripts, engines=engines) as gateway:
        for _ in range(10):
            now.clear()
            assert (await gateway.refused())["data"]["engine"] == order[0]


async def test_a_required_engine_that_was_cut_off_by_anothers_failure_is_not_the_one_to_blame() -> None:
    scripts = {"a": hanging(), "b": failing(RateLimited("busy", retry_after_ms=9_000_000))}
    async with gateway_of(scripts, engines={id: {"required": True} for id in "ab"}) as gateway:
        error = await gateway.refused()
    assert (error["code"], error["data"]["engine"]) == (-32011, "b")


@obligation(234)
async def test_a_required_engine_of_the_first_turn_that_fails_ends_the_call() -> None:
    scripts = {"main": failing(BackendUnavailable("down", retryable=False)), "spare": Script(hits("y"))}
    async with gateway_of(
        scripts, engines={"main": {"priority": 9, "required": True}}, federation={"select": "priority"}
    ) as gateway:
        assert (await gateway.refused())["data"]["engine"] == "main"
    assert scripts["spare"].queries == []


async def test_a_required_engine_whose_turn_never_comes_is_no_failure_and_is_told_of() -> None:
    scripts = {"main": Script(hits("x")), "spare": failing(BackendUnavailable("down"))}
    async with gateway_of(
        scripts,
        engines={"main": {"priority": 9}, "spare": {"required": True}},
        federation={"select": "priority"},
    ) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["x"]
    assert "engine spare was not asked: engines of a higher priority answered" in notes(result)


async def test_by_priority_unable_engines_do_not_use_up_a_turn_and_proof_ends_it() -> None:
    scripts = {
        "unable": Script(hits("u"), {"retrieve": {"maxK": 9, "modes": ["sparse"]}}),
        "main": Script(hits("x"), DENSE),
        "spare": Script(hits("y"), DENSE),
    }
    engines = {"unable": {"priority": 9}, "main": {"priority": 5}}
    async with gateway_of(scripts, engines=engines, federation={"select": "priority"}) as gateway:
        assert ids(await gateway.retrieve(mode="dense")) == ["x"]
        assert scripts["spare"].queries == []
    closed = {"main": Script(hits("x"), {"filter": {"fields": {"size": "int"}}}), "spare": Script(hits("y"), FIELDS)}
    absent = {"main": {"priority": 5, "undeclared": "absent"}}
    async with gateway_of(closed, engines=absent, federation={"select": "priority"}) as gateway:
        # As if it had been asked and had answered that there is nothing.
        result = await gateway.retrieve(filter=ENGLISH)
        assert result["hits"] == []
        assert closed["spare"].queries == []
        assert "engine spare was not asked" in notes(result)


async def test_by_priority_proof_ends_the_asking_only_after_its_own_turn() -> None:
    closed = {"filter": {"fields": {"size": "int"}}}
    scripts = {"a": Script(hits("x"), closed), "b": Script(hits(("y", 1.0, {"lang": "en"})), FIELDS)}
    engines: dict[str, dict[str, Any]] = {"a": {"priority": 5, "undeclared": "absent"}, "b": {"priority": 5}}
    async with gateway_of(scripts, engines=engines, federation={"select": "priority"}) as gateway:
        assert ids(await gateway.retrieve(filter=ENGLISH)) == ["y"]


async def test_by_priority_a_turn_that_answered_nothing_has_answered() -> None:
    scripts = {"main": Script([]), "spare": Script(hits("y"))}
    async with gateway_of(scripts, engines={"main": {"priority": 5}}, federation={"select": "priority"}) as gateway:
        assert (await gateway.retrieve())["hits"] == []
    assert scripts["spare"].queries == []


async def test_by_priority_equal_engines_are_asked_together() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y")), "c": Script(hits("z"))}
    async with gateway_of(scripts, engines={"c": {"priority": -1}}, federation={"select": "priority"}) as gateway:
        assert ids(await gateway.retrieve()) == ["x", "y"]


async def test_a_mode_that_an_engine_lists_and_then_refuses_is_its_failure() -> None:
    scripts = {
        "liar": failing(UpstreamError("no dense", code=-32005, retryable=False), DENSE),
        "b": Script(hits("y"), DENSE),
    }
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mode="dense")
        assert ids(result) == ["y"]
        assert result["_meta"]["degraded"] == ["liar"]
    async with gateway_of({"liar": scripts["liar"]}) as gateway:
        error = await gateway.refused(mode="dense")
    assert (error["code"], error["data"]["engines"]["liar"]["code"]) == (-32010, -32005)


async def test_when_nobody_is_to_be_asked_the_answer_says_so() -> None:
    scripts = {"a": Script(hits("x")), "e": Script(capabilities={"retrieve": None, "embed": {"dimension": 2}})}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(_meta={"x-gateway": {"engines": ["e"]}})
        assert result["hits"] == []
        assert "engine e was not asked: it does not offer retrieve" in notes(result)
    scripts = {"a": Script(hits("x")), "b": Script(hits("y"))}
    async with gateway_of(scripts, engines={"a": {"weight": 0}}) as gateway:
        narrow = Running(gateway.gateway, scripts, Caller(id="n", engines=frozenset({"a"})))
        result = await narrow.retrieve()
        assert result["hits"] == []
        assert "there was no engine to ask" in notes(result)
        assert ids(await narrow.retrieve(_meta={"x-gateway": {"engines": ["a"], "select": None}})) == ["x"]


@pytest.mark.parametrize("select", ["some", 1, ["all"], {}])
async def test_a_selection_that_is_none_is_the_callers_fault(select: Any) -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        error = await gateway.refused(_meta={"x-gateway": {"select": select}})
    assert (error["code"], error["data"]["field"]) == (-32602, "_meta.x-gateway.select")


@pytest.mark.parametrize("engines", ["a", [1], {"a": 1}, [["a"]]])
async def test_a_list_of_engines_that_is_none_is_the_callers_fault(engines: Any) -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        error = await gateway.refused(_meta={"x-gateway": {"engines": engines}})
    assert (error["code"], error["data"]["field"]) == (-32602, "_meta.x-gateway.engines")


async def test_an_engine_cancelled_from_within_costs_its_own_hits_and_not_the_answer() -> None:
    scripts = {"a": Script(hits("x")), "b": failing(asyncio.CancelledError())}
    async with gateway_of(scripts) as gateway:
        async with asyncio.timeout(5):
            result = await gateway.retrieve()
    assert ids(result) == ["x"]
    assert "engine b failed: it broke off" in notes(result)


async def test_an_adapter_that_fails_in_the_plan_costs_its_own_hits_and_not_the_answer() -> None:
    def crash(*_: Any) -> Any:
        raise ZeroDivisionError("secret")

    scripts = {"a": Script(hits(("x", 1.0, {"lang": "en"})), FIELDS), "b": Script(hits("y"), FIELDS, push=crash)}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
        assert ids(result) == ["x"]
        assert result["_meta"]["degraded"] == ["b"]
        assert "secret" not in json.dumps(result)
        engine: Any = gateway.gateway.fleet.members["b"].engine
        engine.vector_need = crash
        assert ids(await gateway.retrieve()) == ["x"]
        engine.capabilities = crash
        assert ids(await gateway.retrieve()) == ["x"]


async def test_an_engines_words_are_cut_and_made_one_line_wherever_they_are_shown() -> None:
    words = "bad\r\n\x1b[31m\u202e\ud800" + "x" * 10_000

    async def talkative(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits("x"), notes=tuple(f"{n} {words}" for n in range(1000)))

    scripts = {"a": Script(retrieve=talkative), "b": failing(UpstreamError(words, retryable=False))}
    async with gateway_of(scripts) as gateway:
        answer = await gateway.call("retrieve", {"query": "q"})
    result = check_frame("retrieve", json.dumps(answer).encode())["result"]
    told = [*result["usage"]["notes"], *(one["message"] for one in result["_meta"]["x-gateway"]["losses"])]
    assert len(told) < 40
    assert all(len(note) <= 300 and note.isprintable() for note in told)
    scripts["b"].queries.clear()
    async with gateway_of(scripts, engines={"b": {"required": True}}) as gateway:
        error = await gateway.refused()
    assert error["message"].isprintable()
    assert len(error["message"]) < 400


@obligation(234)
async def test_the_code_an_engine_gave_is_told_also_if_its_adapter_does_not_say_so() -> None:
    async with gateway_of(
        {"a": failing(UpstreamError("no", code=-32016))}, engines={"a": {"required": True}}
    ) as gateway:
        error = await gateway.refused()
    assert (error["code"], error["data"]["upstreamCode"]) == (-32010, -32016)
    assert error["data"]["retryable"] is False


async def test_of_an_engines_error_only_plain_data_is_passed_on() -> None:
    data = {"upstreamStatus": 500, "nested": {"a": [1]}, "nan": float("nan"), "text": "a\ud800\n" + "b" * 900,
            **{f"n{n}": n for n in range(100)}}  # fmt: skip
    async with gateway_of({"a": failing(UpstreamError("no", data=data))}, engines={"a": {"required": True}}) as gateway:
        answer = await gateway.call("retrieve", {"query": "q"})
    error = check_frame("retrieve", json.dumps(answer).encode())["error"]
    assert error["code"] == -32010
    assert error["data"]["upstreamStatus"] == 500
    assert not {"nested", "nan"} & set(error["data"])
    assert len(error["data"]) < 25
    assert len(error["data"]["text"]) == 300


async def test_invisible_engines_are_in_no_part_of_an_answer() -> None:
    scripts = {
        "a": failing(BackendUnavailable("gone", retryable=False), FIELDS),
        "hidden": failing(RateLimited("busy", retry_after_ms=9_000_000), DENSE),
        "other": Script(hits("y"), {"filter": {"fields": {"lang": "int"}}}),
    }
    async with gateway_of(scripts, engines={"hidden": {"required": True, "priority": 9}}) as gateway:
        narrow = Running(gateway.gateway, scripts, Caller(id="n", engines=frozenset({"a"})))
        told = [
            await narrow.call("retrieve", {"query": "q"}),
            await narrow.call("retrieve", {"query": "q", "mode": "dense"}),
            await narrow.call("retrieve", {"query": "q", "filter": ENGLISH}),
            await narrow.call("retrieve", {"query": "q", "fusion": {"weights": {"hid": 1}}}),
            await narrow.call("retrieve", {"query": "q", "_meta": {"x-gateway": {"select": "priority"}}}),
            await narrow.call("catalog/list"),
            await narrow.call("info"),
        ]
    assert "hidden" not in json.dumps(told)
    assert "other" not in json.dumps(told)
    codes = [one["error"]["code"] if "error" in one else 0 for one in told]
    assert codes == [-32010, -32005, -32010, -32602, -32010, 0, 0]
