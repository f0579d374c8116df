"""Many engines behind one retrieve: who answers, who fails, and what the client is told."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from gateway.errors import BackendUnavailable, Code, RateLimited, Timeout, UpstreamError
from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def failing(error: Exception) -> Script:
    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        raise error

    return Script(retrieve=retrieve)


def hanging() -> Script:
    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        await asyncio.Event().wait()
        raise AssertionError

    return Script(retrieve=retrieve)


@obligation(229)
async def test_engines_are_asked_at_the_same_time() -> None:
    barrier = asyncio.Barrier(3)

    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        async with asyncio.timeout(5):
            await barrier.wait()  # passes only if all three are inside
        return EngineReply(hits=hits("x"))

    async with gateway_of({id: Script(retrieve=retrieve) for id in "abc"}) as gateway:
        assert ids(await gateway.retrieve()) == ["x"]


@obligation(245)
async def test_a_document_at_rank_two_in_two_engines_scores_two_sixty_seconds() -> None:
    async with gateway_of({"a": Script(hits("p", "x")), "b": Script(hits("q", "x"))}) as gateway:
        result = await gateway.retrieve()
    assert result["hits"][0]["id"] == "x"
    assert result["hits"][0]["score"] == pytest.approx(2 / 62, rel=1e-12)


@obligation(246)
async def test_an_engine_votes_once_for_a_document_it_repeats() -> None:
    async with gateway_of({"a": Script(hits("x", "x", "x")), "b": Script(hits("y"))}) as gateway:
        result = await gateway.retrieve()
    assert {one["id"]: one["score"] for one in result["hits"]} == {
        "x": pytest.approx(1 / 61),
        "y": pytest.approx(1 / 61),
    }


@obligation(248)
async def test_a_numeric_and_a_text_id_are_the_same_document() -> None:
    async with gateway_of({"a": Script(hits((7, 1.0))), "b": Script(hits(("7", 1.0)))}) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["7"]
    assert result["hits"][0]["meta"]["engines"] == ["a", "b"]


@obligation(233, 232)
async def test_an_engine_that_fails_costs_its_hits_and_is_named() -> None:
    async with gateway_of({"a": Script(hits("x")), "b": failing(BackendUnavailable("gone"))}) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["x"]
    assert result["_meta"]["degraded"] == ["b"]
    assert "engine b failed: gone" in notes(result)
    assert result["_meta"]["x-gateway"]["losses"] == [
        {"kind": "failed", "message": "gone", "engine": "b", "code": -32010}
    ]


@obligation(232)
async def test_an_empty_answer_beside_a_failure_is_an_empty_success() -> None:
    async with gateway_of({"a": Script([]), "b": failing(BackendUnavailable("gone"))}) as gateway:
        result = await gateway.retrieve()
    assert result["hits"] == []
    assert result["_meta"]["degraded"] == ["b"]


@obligation(235)
async def test_nothing_answered_never_looks_like_nothing_found() -> None:
    scripts = {"a": failing(BackendUnavailable("gone")), "b": failing(RuntimeError("a bug"))}
    async with gateway_of(scripts) as gateway:
        error = await gateway.refused()
    assert error["code"] == Code.BACKEND_UNAVAILABLE
    assert set(error["data"]["engines"]) == {"a", "b"}
    assert "a bug" not in str(error)


@obligation(33)
async def test_an_unknown_error_code_of_an_engine_is_a_plain_failure() -> None:
    async with gateway_of({"a": Script(hits("x")), "b": failing(UpstreamError("odd", code=-32099))}) as gateway:
        assert ids(await gateway.retrieve()) == ["x"]


@obligation(234)
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BackendUnavailable("down"), -32010),
        (RateLimited("slow down", retry_after_ms=60_000), -32011),
        (Timeout("late"), -32014),
        (RuntimeError("bug"), -32603),
    ],
)
async def test_a_required_engine_fails_the_call_with_its_own_code(error: Exception, code: int) -> None:
    async with gateway_of({"a": Script(hits("x")), "b": failing(error)}, engines={"b": {"required": True}}) as gateway:
        told = await gateway.refused()
    assert told["code"] == code
    assert told["data"]["engine"] == "b"


@obligation(234)
@pytest.mark.parametrize("code", [-32602, -32012, -32001, -32005])
async def test_what_an_engine_says_of_our_request_is_not_the_callers_fault(code: int) -> None:
    async with gateway_of(
        {"a": Script(hits("x")), "b": failing(UpstreamError("no", code=code, upstream_code=code, retryable=False))},
        engines={"b": {"required": True}},
    ) as gateway:
        told = await gateway.refused()
    assert told["code"] == -32010
    assert told["data"]["upstreamCode"] == code


async def test_a_required_failure_cancels_the_others_before_the_answer() -> None:
    scripts = {"a": hanging(), "b": Script()}

    async def fails_when_a_runs(query: EngineQuery, call: Call) -> EngineReply:
        await scripts["a"].started.wait()
        raise BackendUnavailable("down", retryable=False)

    scripts["b"].retrieve = fails_when_a_runs
    async with gateway_of(scripts, engines={"b": {"required": True}}) as gateway:
        assert (await gateway.refused())["code"] == -32010
        assert scripts["a"].cancelled.is_set()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("leg ")]


@obligation(225, 243)
async def test_the_answer_comes_at_the_clients_deadline_with_what_there_is() -> None:
    scripts = {"fast": Script(hits("x")), "stuck": hanging()}
    async with gateway_of(scripts) as gateway:
        async with asyncio.timeout(5):
            result = await gateway.retrieve(_meta={"deadlineMs": 200})
    assert ids(result) == ["x"]
    assert result["_meta"]["degraded"] == ["stuck"]
    assert "engine stuck timed out" in notes(result)
    assert scripts["stuck"].cancelled.is_set()


@obligation(243, 67)
async def test_only_timeouts_under_the_clients_deadline_are_a_timeout() -> None:
    async with gateway_of({"stuck": hanging()}) as gateway:
        assert (await gateway.refused(_meta={"deadlineMs": 100}))["code"] == Code.TIMEOUT
    async with gateway_of({"stuck": hanging()}, engines={"stuck": {"timeout": 0.1}}) as gateway:
        assert (await gateway.refused())["code"] == Code.BACKEND_UNAVAILABLE


@obligation(244)
@pytest.mark.parametrize("deadline", ["x", True, None, {}, [1]])
async def test_a_deadline_that_is_no_number_is_ignored(deadline: Any) -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert ids(await gateway.retrieve(_meta={"deadlineMs": deadline})) == ["x"]


@obligation(244)
@pytest.mark.parametrize("deadline", [0, -1])
async def test_a_deadline_that_has_passed_asks_nobody(deadline: int) -> None:
    script = Script(hits("x"))
    async with gateway_of({"a": script}) as gateway:
        assert (await gateway.refused(_meta={"deadlineMs": deadline}))["code"] == Code.TIMEOUT
    assert script.queries == []


async def test_an_engine_that_swallows_its_cancellation_cannot_hold_the_answer() -> None:
    release = asyncio.Event()

    async def stubborn(query: EngineQuery, call: Call) -> EngineReply:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return EngineReply(hits=[])

    async with gateway_of({"a": Script(hits("x")), "b": Script(retrieve=stubborn)}) as gateway:
        async with asyncio.timeout(5):
            result = await gateway.retrieve(_meta={"deadlineMs": 200})
        assert ids(result) == ["x"]
        assert result["_meta"]["degraded"] == ["b"]
        release.set()


@obligation(138)
async def test_an_engine_that_gives_more_than_asked_is_cut() -> None:
    async def generous(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits(*(f"d{n}" for n in range(500))))

    async with gateway_of({"a": Script(retrieve=generous)}) as gateway:
        result = await gateway.retrieve(k=5)
    assert ids(result) == ["d0", "d1", "d2", "d3", "d4"]
    assert "more than the 50 hits asked for" in notes(result)
    assert result["usage"]["candidates"] == 50


@obligation(217)
async def test_what_may_succeed_later_is_tried_again_and_what_cannot_is_not() -> None:
    asked: dict[str, int] = {"later": 0, "never": 0}

    def counting(id: str, error: Exception) -> Script:
        async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
            asked[id] += 1
            if asked[id] == 1:
                raise error
            return EngineReply(hits=hits(id))

        return Script(retrieve=retrieve)

    scripts = {
        "later": counting("later", BackendUnavailable("blink")),
        "never": counting("never", UpstreamError("refused", retryable=False)),
    }
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve()
    assert asked == {"later": 2, "never": 1}
    assert ids(result) == ["later"]


@obligation(216)
async def test_a_wait_the_engine_asked_for_that_does_not_fit_is_given_up_at_once() -> None:
    script = failing(RateLimited("busy", retry_after_ms=60_000))
    async with gateway_of({"a": script}) as gateway:
        async with asyncio.timeout(5):
            error = await gateway.refused()
    assert len(script.queries) == 1
    assert error["data"]["retryAfterMs"] == 60_000


async def test_a_flood_of_failures_opens_the_breaker_and_spares_the_engine() -> None:
    script = failing(BackendUnavailable("down"))
    async with gateway_of({"a": script, "b": Script(hits("x"))}, engines={"a": {"retry": {"attempts": 1}}}) as gateway:
        for _ in range(8):
            result = await gateway.retrieve()
    assert len(script.queries) == 5
    assert "failed too often" in notes(result)


@obligation(247)
async def test_the_order_of_arrival_changes_nothing() -> None:
    seen = set()
    for order in ("abc", "cba", "bca"):
        events = {id: asyncio.Event() for id in "abc"}
        events[order[0]].set()
        after = dict(zip(order, [*order[1:], ""], strict=True))

        def script(id: str, events: dict[str, asyncio.Event] = events, after: dict[str, str] = after) -> Script:
            async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
                await events[id].wait()
                if after[id]:
                    events[after[id]].set()
                return EngineReply(hits=hits("x", id, "y", from_engine=id))

            return Script(retrieve=retrieve)

        async with gateway_of({id: script(id) for id in "abc"}) as gateway:
            seen.add(str((await gateway.retrieve())["hits"]))
    assert len(seen) == 1


@obligation(231)
async def test_engines_are_asked_for_the_window_whatever_k_is_and_never_beyond_their_limit() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y"), capabilities={"retrieve": {"maxK": 20}})}
    async with gateway_of(scripts) as gateway:
        await gateway.retrieve(k=3)
        result = await gateway.retrieve(k=70)
    assert [query.k for query in scripts["a"].queries] == [50, 70]
    assert [query.k for query in scripts["b"].queries] == [20, 20]
    assert "engine b: it gives at most 20 hits" in notes(result)


async def test_within_the_window_the_top_k_is_a_prefix_of_the_top_k_plus_one() -> None:
    scripts = {
        "a": Script(hits(*(f"d{n}" for n in range(40)))),
        "b": Script(hits(*(f"d{n}" for n in range(60, 10, -3)))),
    }
    async with gateway_of(scripts) as gateway:
        lists = [ids(await gateway.retrieve(k=k)) for k in range(1, 50)]
    for shorter, longer in itertools.pairwise(lists):
        assert longer[: len(shorter)] == shorter
