"""One leg: its time, its breaker, its retries, and what it is blamed for."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from gateway.errors import BackendUnavailable, Cancelled, InternalError, RateLimited, Timeout, UpstreamError
from gateway.federation.runner import Deadline
from gateway.model import IndexAddResult
from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Running, Script, gateway_of, hits, ids, notes
from tests.federation.scripts import failing, hanging, stubborn
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

ONCE = {"retry": {"attempts": 1}}


def state(gateway: Running, id: str = "a") -> str:
    return gateway.gateway.fleet.members[id].breaker.state


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (BackendUnavailable("down"), "open"),
        (Timeout("late"), "open"),
        (UpstreamError("late", code=-32014), "open"),
        (TimeoutError(), "open"),
        (InternalError(), "open"),
        (UpstreamError("a fault there", code=-32603), "open"),
        (RuntimeError("a bug"), "open"),
        (asyncio.CancelledError(), "open"),
        (UpstreamError("no", code=-32602, retryable=False), "closed"),
        (UpstreamError("no key", code=-32012, retryable=False), "closed"),
        (RateLimited("busy", retry_after_ms=9_000_000), "closed"),
        (UpstreamError("busy", code=-32011, retryable=True, data={"retryAfterMs": 9_000_000}), "closed"),
        (Cancelled("taken back"), "closed"),
    ],
)
async def test_only_what_speaks_of_a_sick_engine_opens_its_breaker(error: BaseException, after: str) -> None:
    async with gateway_of({"a": failing(error), "b": Script(hits("x"))}, engines={"a": ONCE}) as gateway:
        for _ in range(5):
            await gateway.retrieve()
        assert state(gateway) == after


async def test_a_busy_engine_is_neither_sick_nor_well() -> None:
    script = failing(BackendUnavailable("down"))
    async with gateway_of({"a": script, "b": Script(hits("x"))}, engines={"a": ONCE}) as gateway:
        for turn in range(8):
            if turn == 4:
                script.retrieve = failing(RateLimited("busy", retry_after_ms=9_000_000)).retrieve
            elif turn == 7:
                script.retrieve = failing(BackendUnavailable("down")).retrieve
            assert state(gateway) == "closed"
            await gateway.retrieve()
        assert state(gateway) == "open"


async def test_a_deadline_that_the_client_cut_short_says_nothing_of_the_engine() -> None:
    async def gives_up(query: EngineQuery, call: Call) -> EngineReply:
        await asyncio.sleep(call.remaining() / 2)
        raise Timeout("no time left")

    async def times_out(query: EngineQuery, call: Call) -> EngineReply:
        raise TimeoutError

    scripts = {"a": hanging(), "b": Script(retrieve=gives_up), "c": Script(retrieve=times_out)}
    async with gateway_of(scripts) as gateway:
        for _ in range(6):
            await gateway.refused(_meta={"deadlineMs": 20})
        assert [state(gateway, id) for id in "abc"] == ["closed"] * 3
        assert all(len(script.queries) == 6 for script in scripts.values())


async def test_time_outs_of_its_own_full_time_open_the_breaker() -> None:
    async with gateway_of({"a": hanging(), "b": Script(hits("x"))}, engines={"a": {"timeout": 0.02}}) as gateway:
        for _ in range(5):
            result = await gateway.retrieve()
        assert "engine a timed out: no answer within 0.02 s" in notes(result)
        assert state(gateway) == "open"


async def test_an_engine_that_may_take_longer_than_any_call_is_still_found_sick() -> None:
    limits = {"deadline": 0.2, "reserve": 0.01}
    async with gateway_of({"a": hanging(), "b": Script(hits("x"))}, limits=limits) as gateway:
        for _ in range(20):  # five are enough, unless the machine is so busy that a call never reached the engine
            await gateway.retrieve()
            if state(gateway) == "open":
                break
        assert state(gateway) == "open"


async def test_a_client_that_goes_away_says_nothing_of_the_engine() -> None:
    script = hanging()
    async with gateway_of({"a": script}) as gateway:
        for _ in range(6):
            script.started.clear()
            call = asyncio.create_task(gateway.retrieve())
            await script.started.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert state(gateway) == "closed"
        assert script.cancelled.is_set()


async def test_a_full_queue_says_nothing_of_the_engine() -> None:
    script = hanging()
    settings = {"a": {"concurrency": 1, "queue": 0}}
    async with gateway_of({"a": script, "b": Script(hits("x"))}, engines=settings) as gateway:
        first = asyncio.create_task(gateway.retrieve())
        await script.started.wait()
        for _ in range(6):
            assert ids(await gateway.retrieve()) == ["x"]
        assert state(gateway) == "closed"
        first.cancel()


async def test_time_that_runs_out_in_the_queue_says_nothing_of_the_engine() -> None:
    script = hanging()
    settings = {"a": {"concurrency": 1, "timeout": 0.02}}
    async with gateway_of({"a": script, "b": Script(hits("x"))}, engines=settings) as gateway:
        member = gateway.gateway.fleet.members["a"]
        async with member.limiter.slot():
            for _ in range(6):
                result = await gateway.retrieve()
        assert "engine a timed out: it could not be asked within 0.02 s" in notes(result)
        assert state(gateway) == "closed"
        assert script.queries == []


@obligation(217)
@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (BackendUnavailable("blink"), 4),
        (UpstreamError("a fault there", code=-32603, retryable=True), 2),
        (InternalError(), 2),
        (Timeout("late"), 1),
        (UpstreamError("late", code=-32014, retryable=True), 1),
        (UpstreamError("no", code=-32602, retryable=False), 1),
        (RuntimeError("a bug"), 1),
    ],
)
async def test_how_often_an_engine_is_asked_again(error: Exception, asked: int) -> None:
    script = failing(error)
    async with gateway_of({"a": script}, engines={"a": {"retry": {"attempts": 4, "base": 0.001}}}) as gateway:
        await gateway.refused()
    assert len(script.queries) == asked


@obligation(217)
async def test_internal_errors_of_many_engines_share_the_retries_of_a_call() -> None:
    scripts = {id: failing(InternalError()) for id in "abcdef"}
    engines = {id: {"retry": {"attempts": 2, "base": 0.001}} for id in scripts}
    async with gateway_of(scripts, engines=engines) as gateway:
        for calls in (1, 2):
            await gateway.refused()
            assert sum(len(script.queries) for script in scripts.values()) == calls * (len(scripts) + 2)


async def test_a_second_attempt_tells_and_keeps_nothing_twice() -> None:
    asked = 0

    async def blinks(query: EngineQuery, call: Call) -> EngineReply:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise BackendUnavailable("blink")
        return EngineReply(hits=hits(*(f"d{n}" for n in range(query.k)), lang="fr"), notes=("same words",))

    script = Script(retrieve=blinks, capabilities={"filter": {"fields": {"lang": "keyword"}}})
    async with gateway_of({"a": script}, engines={"a": {"retry": {"base": 0.001}}}) as gateway:
        result = await gateway.retrieve(filter={"field": "lang", "op": "eq", "value": "en"})
    kinds = [loss["kind"] for loss in result["_meta"]["x-gateway"]["losses"]]
    assert sorted(kinds) == ["note", "scanned"]


async def test_an_error_after_the_first_page_fails_the_leg_and_a_time_out_keeps_what_was_read() -> None:
    pages = 0

    def script(end: Exception | None) -> Script:
        async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
            nonlocal pages
            pages += 1
            if pages > 1:
                if end is not None:
                    raise end
                await asyncio.Event().wait()
            found = hits(("keep", 0.9, {"lang": "en"}), *((f"d{n}", 0.1, {"lang": "fr"}) for n in range(query.k - 1)))
            return EngineReply(hits=found)

        return Script(retrieve=retrieve, capabilities={"filter": {"fields": {"lang": "keyword"}}})

    asked = {"filter": {"field": "lang", "op": "eq", "value": "en"}}
    async with gateway_of({"a": script(None)}, engines={"a": {"timeout": 0.1}}) as gateway:
        result = await gateway.retrieve(**asked)
        assert ids(result) == ["keep"]
        assert "engine a: time ran out before all of it was read" in notes(result)
        assert "degraded" not in result["_meta"]
    pages = 0
    async with gateway_of({"a": script(UpstreamError("broke", retryable=False))}) as gateway:
        assert (await gateway.refused(**asked))["code"] == -32010


async def test_what_was_read_before_time_ran_out_is_held_to_the_engines_own_threshold() -> None:
    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        if query.k > 10:
            await asyncio.Event().wait()
        low = ((f"d{n}", 0.1, {"lang": "en"}) for n in range(2))
        rest = ((f"e{n}", 0.1, {"lang": "fr"}) for n in range(7))
        return EngineReply(hits=hits(("keep", 0.9, {"lang": "en"}), *low, *rest))

    script = Script(retrieve=retrieve, capabilities={"filter": {"fields": {"lang": "keyword"}}})
    settings = {"a": {"timeout": 0.1, "min_score": 0.5}}
    async with gateway_of({"a": script}, engines=settings, fusion={"window": 10}) as gateway:
        result = await gateway.retrieve(filter={"field": "lang", "op": "eq", "value": "en"})
    assert ids(result) == ["keep"]


async def test_an_engines_own_threshold_leaves_hits_without_a_score() -> None:
    script = Script(hits(("x", 0.9), ("y", 0.2), ("z", None), ("n", float("nan")), ("e", 0.5)))
    async with gateway_of({"a": script}, engines={"a": {"min_score": 0.5}}) as gateway:
        assert sorted(ids(await gateway.retrieve())) == ["e", "n", "x", "z"]


async def test_an_engine_that_swallows_its_own_time_out_holds_the_answer_no_longer_than_that() -> None:
    release = asyncio.Event()
    scripts = {"a": Script(hits("x")), "b": stubborn(release)}
    async with gateway_of(scripts, engines={"b": {"timeout": 0.05, "concurrency": 1}}) as gateway:
        began = time.perf_counter()
        result = await gateway.retrieve()
        assert time.perf_counter() - began < 2
        assert ids(result) == ["x"]
        assert "engine b timed out: no answer in time" in notes(result)
        # It holds its place until it ends.
        assert "it could not be asked" in notes(await gateway.retrieve())
        release.set()
        while gateway.gateway.fleet.members["b"].limiter._slots.locked():
            await asyncio.sleep(0)
        assert "b" in (await gateway.retrieve())["_meta"]["x-gateway"]["engines"]


@obligation(243)
async def test_an_engine_that_will_not_end_does_not_carry_the_answer_over_the_deadline() -> None:
    release = asyncio.Event()
    limits = {"reserve": 0.2}
    async with gateway_of({"a": Script(hits("x")), "b": stubborn(release)}, limits=limits) as gateway:
        began = time.perf_counter()
        assert ids(await gateway.retrieve(_meta={"deadlineMs": 400})) == ["x"]
        assert time.perf_counter() - began < 0.4
        release.set()


@obligation(243)
async def test_an_engine_that_will_not_end_is_late_like_any_other() -> None:
    release = asyncio.Event()
    async with gateway_of({"b": stubborn(release)}) as gateway:
        assert (await gateway.refused(_meta={"deadlineMs": 80}))["code"] == -32014
        release.set()


async def test_the_reserve_never_takes_most_of_a_short_deadline() -> None:
    left: list[float] = []

    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        left.append(call.remaining())
        return EngineReply(hits=hits("x"))

    async with gateway_of({"a": Script(retrieve=retrieve)}, limits={"reserve": 5.0}) as gateway:
        await gateway.retrieve(_meta={"deadlineMs": 1000})
        await gateway.retrieve(_meta={"deadlineMs": 25_000})
        await gateway.retrieve()
    assert 0.65 < left[0] <= 0.75
    assert left[1] == pytest.approx(10, abs=0.2)
    assert left[2] == pytest.approx(10, abs=0.2)


async def test_the_reserve_is_kept_from_engines() -> None:
    deadline = Deadline.after(10, client=True, reserve=2, limit=30)
    assert deadline.remaining() == pytest.approx(8, abs=0.1)
    assert deadline.cuts(8.5)
    assert not deadline.cuts(7.5)


@obligation(244)
@pytest.mark.parametrize("deadline", [10**400, 10**18, 1e300], ids=["endless", "long", "float"])
async def test_a_deadline_beyond_all_numbers_is_the_gateways_own(deadline: Any) -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert ids(await gateway.retrieve(_meta={"deadlineMs": deadline})) == ["x"]


async def test_the_deadline_of_the_gateway_bounds_the_clients() -> None:
    async with gateway_of({"a": hanging()}, limits={"deadline": 0.1}) as gateway:
        async with asyncio.timeout(5):
            assert (await gateway.refused(_meta={"deadlineMs": 60_000}))["code"] == -32010


@obligation(216)
async def test_no_engine_is_asked_again_sooner_than_it_wants() -> None:
    times: list[float] = []

    async def busy(query: EngineQuery, call: Call) -> EngineReply:
        times.append(time.perf_counter())
        if len(times) == 1:
            raise RateLimited("busy", retry_after_ms=80)
        return EngineReply(hits=hits("x"))

    async with gateway_of({"a": Script(retrieve=busy)}, engines={"a": {"retry": {"base": 0.001}}}) as gateway:
        assert ids(await gateway.retrieve()) == ["x"]
    assert times[1] - times[0] >= 0.075


async def test_a_required_failure_leaves_no_task_and_waits_only_so_long_for_those_that_will_not_end() -> None:
    release = asyncio.Event()
    scripts = {"a": stubborn(release), "b": failing(BackendUnavailable("down", retryable=False))}
    began = time.perf_counter()
    async with gateway_of(scripts, engines={"b": {"required": True}}) as gateway:
        assert (await gateway.refused())["code"] == -32010
        assert time.perf_counter() - began < 3
        release.set()
        while any(task.get_name().startswith("leg ") for task in asyncio.all_tasks()):
            await asyncio.sleep(0)


async def test_what_an_engine_says_to_the_client_is_one_short_line() -> None:
    from tests.federation.test_progress import asked

    async def talks(query: EngineQuery, call: Call) -> EngineReply:
        call.log("info", "a\nb" + "x" * 5000)
        call.progress(0.5, "c\rd" + "y" * 5000)
        await asyncio.sleep(0)
        call.progress(float("nan"), "no number")
        call.progress(7, "too far")
        await asyncio.sleep(0)
        return EngineReply(hits=hits("x"))

    async with gateway_of({"a": Script(retrieve=talks)}) as gateway:
        frames = await asked(gateway, _meta={"progressToken": 1, "logLevel": "debug"})
    told = [frame["params"].get("message", "") for frame in frames]
    assert all(message.isprintable() and len(message) < 350 for message in told)
    assert any(message.startswith("a b") for message in told)
    assert not any("no number" in message or "too far" in message for message in told)


@pytest.mark.parametrize("error", [RateLimited("busy", retry_after_ms=9_000_000), Cancelled("taken back")])
async def test_neither_being_busy_nor_a_cancellation_clears_an_engines_name(error: Exception) -> None:
    script = failing(BackendUnavailable("down"))
    async with gateway_of({"a": script, "b": Script(hits("x"))}, engines={"a": ONCE}) as gateway:
        for one in [BackendUnavailable("down")] * 4 + [error] + [BackendUnavailable("down")]:
            script.retrieve = failing(one).retrieve
            assert state(gateway) == "closed"
            await gateway.retrieve()
        assert state(gateway) == "open"


async def test_an_answer_clears_an_engines_name() -> None:
    script = failing(BackendUnavailable("down"))
    async with gateway_of({"a": script, "b": Script(hits("x"))}, engines={"a": ONCE}) as gateway:
        for good in ([False] * 4 + [True]) * 2:
            script.retrieve = None if good else failing(BackendUnavailable("down")).retrieve
            await gateway.retrieve()
            assert state(gateway) == "closed"


@obligation(216)
async def test_each_wait_between_attempts_is_longer_than_the_one_before() -> None:
    times: list[float] = []

    async def down(query: EngineQuery, call: Call) -> EngineReply:
        times.append(time.perf_counter())
        raise BackendUnavailable("down")

    settings = {"a": {"retry": {"attempts": 4, "base": 0.04}}}
    async with gateway_of({"a": Script(retrieve=down)}, engines=settings) as gateway:
        gateway.gateway.fleet.members["a"].jitter = lambda: 1.0  # type: ignore[method-assign]
        await gateway.refused()
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert waits[1] >= 0.075
    assert waits[2] >= 0.155


async def test_a_write_may_take_what_the_call_has_and_is_not_cut_off_at_the_engines_time() -> None:
    async def slow(documents: Any, call: Call) -> IndexAddResult:
        assert call.remaining() > 5
        await asyncio.sleep(0.15)
        return IndexAddResult(ids=("1",))

    script = Script(capabilities={"index": {"writable": True}}, add=slow)
    async with gateway_of({"a": script}, writes="a", engines={"a": {"timeout": 0.05}}) as gateway:
        answer = await gateway.call("index/add", {"documents": [{"id": "1", "text": "t"}]})
    assert answer["result"]["ids"] == ["1"]
