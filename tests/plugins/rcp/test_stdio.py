"""Children: many calls on one pipe, noise, death, restarts, and the end."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from gateway.errors import BackendUnavailable, UpstreamError
from gateway.spi.engine import EngineQuery
from tests.obligations import obligation
from tests.peers.reports import DEADLINE
from tests.plugins.rcp.conftest import HOSTILE, FakeCall

pytestmark = pytest.mark.anyio

QUERY = EngineQuery(text="paris", k=3)


@obligation(211, 212)
async def test_answers_out_of_order_find_their_calls(upstreams):
    async with upstreams.stdio("reorder") as engine:
        queries = [EngineQuery(text=text, k=1) for text in ("one", "two", "three")]
        replies = await asyncio.gather(*(engine.retrieve(query, FakeCall()) for query in queries))
    assert [reply.hits[0].id for reply in replies] == ["one", "two", "three"]


@obligation(214)
@pytest.mark.parametrize("behaviour", ["noise", "noise,bom", "progress"])
async def test_noise_on_stdout_is_passed_over(upstreams, behaviour):
    async with upstreams.stdio(behaviour) as engine:
        assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3


async def test_a_megabyte_on_stderr_blocks_nobody(upstreams):
    async with upstreams.stdio("stderr") as engine:
        async with asyncio.timeout(DEADLINE):
            assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3


async def test_progress_is_handed_on_without_the_hits_in_it(upstreams):
    call = FakeCall()
    async with upstreams.stdio("progress") as engine:
        await engine.retrieve(QUERY, call)
    assert call.told == [(0.25, "recall"), (1.0, "fuse")]


@obligation(212)
async def test_an_answer_to_an_older_call_is_dropped(upstreams):
    async with upstreams.stdio("latethenright") as engine:
        assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3


@obligation(212, 213)
@pytest.mark.parametrize("behaviour", ["wrongid", "nullid", "nullresponse", "batch"])
async def test_a_call_without_its_own_answer_ends_at_its_deadline_and_the_engine_lives_on(upstreams, behaviour):
    async with upstreams.stdio(behaviour) as engine:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await engine.retrieve(QUERY, FakeCall())
        await engine.ping(FakeCall())


@obligation(213, 214)
@pytest.mark.parametrize("behaviour", ["deep", "broken", "brokenwithoutid", "noise,broken"])
async def test_an_answer_that_cannot_be_read_ends_its_call_at_once(upstreams, behaviour):
    async with upstreams.stdio(behaviour) as engine:
        async with asyncio.timeout(DEADLINE):
            with pytest.raises(BackendUnavailable):
                await engine.retrieve(QUERY, FakeCall())
            await engine.ping(FakeCall())


@obligation(212, 214)
async def test_a_broken_answer_ends_its_own_call_and_no_other(upstreams, reports):
    async with upstreams.stdio("brokenonce") as engine, asyncio.timeout(DEADLINE):
        first, second = (asyncio.create_task(engine.retrieve(QUERY, FakeCall())) for _ in range(2))
        found = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(found[0], BackendUnavailable)
        assert len(found[1].hits) == 3


@obligation(212, 214)
async def test_a_broken_answer_without_an_id_is_nobodys_while_several_wait(upstreams):
    async with upstreams.stdio("brokenamongmany") as engine, asyncio.timeout(DEADLINE):
        found = await asyncio.gather(*(engine.retrieve(QUERY, FakeCall()) for _ in range(2)))
    assert [len(reply.hits) for reply in found] == [3, 3]


@obligation(213)
async def test_on_a_serial_connection_an_error_without_an_id_is_the_answer(upstreams):
    async with upstreams.stdio("nullid", serial=True) as engine:
        with pytest.raises(BackendUnavailable) as caught:
            await engine.retrieve(QUERY, FakeCall())
    assert caught.value.data["upstreamCode"] == -32700


async def test_a_serial_child_gets_one_request_at_a_time(upstreams, reports):
    async with upstreams.stdio("hang", serial=True) as engine:
        first = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        await reports.frame("retrieve")
        second = asyncio.create_task(engine.ping(FakeCall()))
        await asyncio.sleep(0)
        assert not reports.frames("ping")
        first.cancel()
        await second


async def test_time_spent_waiting_for_a_serial_child_is_not_handed_on_as_time_left(upstreams, reports):
    call = FakeCall(seconds=20.0)
    async with upstreams.stdio("hang", serial=True) as engine:
        first = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        await reports.frame("retrieve")
        second = asyncio.create_task(engine.ping(call))
        await asyncio.sleep(0)
        call.seconds = 10.0
        first.cancel()
        await second
    assert reports.frames("ping")[0]["params"]["_meta"]["deadlineMs"] < 10_000


async def test_a_hanging_child_does_not_hold_up_closing(upstreams, reports):
    async with asyncio.timeout(DEADLINE):
        async with upstreams.stdio("hang,ignoresshutdown") as engine:
            call = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
            await reports.frame("retrieve")
    with pytest.raises(BackendUnavailable):
        await call


@obligation(224)
async def test_a_line_of_200_megabytes_is_skipped_and_the_child_stays(upstreams):
    async with upstreams.stdio("longline") as engine:
        call = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        async with asyncio.timeout(DEADLINE):
            await engine.ping(FakeCall())  # answered behind the long line
        assert not call.done()
        call.cancel()


@obligation(225)
async def test_a_cancelled_call_is_cancelled_upstream_by_its_own_id(upstreams, reports):
    async with upstreams.stdio("hang") as engine:
        call = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        request = await reports.frame("retrieve")
        call.cancel()
        cancelled = await reports.frame("notifications/cancel")
        assert "id" not in cancelled
        assert cancelled["params"] == {"id": request["id"]}


@obligation(215)
async def test_death_fails_every_call_in_flight_at_once(upstreams, reports):
    async with upstreams.stdio("hang", restart_delay=1000.0, restart_limit=1000.0) as engine:
        calls = [asyncio.create_task(engine.retrieve(QUERY, FakeCall())) for _ in range(5)]
        await reports.frame("retrieve", 5)
        os.kill(reports.all("start")[0]["pid"], signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, BackendUnavailable) and error.retryable for error in errors)


@obligation(215)
async def test_a_child_that_dies_of_a_call_fails_that_call(upstreams):
    async with upstreams.stdio("die") as engine:
        async with asyncio.timeout(DEADLINE):
            with pytest.raises(BackendUnavailable):
                await engine.retrieve(QUERY, FakeCall())


@obligation(216)
async def test_a_dead_child_is_started_again_and_serves(upstreams, reports):
    async with upstreams.stdio("ok", restart_delay=0.01) as engine:
        os.kill(reports.all("start")[0]["pid"], signal.SIGKILL)
        await reports.frame("initialize", 2)
        async with asyncio.timeout(DEADLINE):
            await until(lambda: engine._session._link.up)
            assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3
    assert len(reports.all("start")) == 2


async def test_while_a_child_is_down_calls_fail_at_once_and_may_be_retried(upstreams, reports):
    async with upstreams.stdio("ok", restart_delay=1000.0, restart_limit=1000.0) as engine:
        os.kill(reports.all("start")[0]["pid"], signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            await until(lambda: not engine._session._link.up)
            with pytest.raises(BackendUnavailable) as caught:
                await engine.retrieve(QUERY, FakeCall())
    assert caught.value.retryable


@obligation(216)
async def test_restarts_wait_longer_each_time_up_to_a_limit(upstreams, monkeypatch):
    waits: list[float] = []
    enough = asyncio.Event()
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 6:
            enough.set()
        await sleep(0)

    real, opened = upstreams.context.spawn, []

    def spawn(argv, **options):
        @asynccontextmanager
        async def dead():
            raise BackendUnavailable("cannot start")
            yield

        opened.append(argv)
        return real(argv, **options) if len(opened) == 1 else dead()

    monkeypatch.setattr(upstreams.context, "spawn", spawn)
    async with upstreams.stdio("die", restart_delay=1.0, restart_limit=10.0) as engine:
        monkeypatch.setattr("gateway_rcp.stdio_link.asyncio.sleep", noted)
        with pytest.raises(BackendUnavailable):
            await engine.retrieve(QUERY, FakeCall())
        async with asyncio.timeout(DEADLINE):
            await enough.wait()
        monkeypatch.undo()
    for wait, full in zip(waits, [1, 2, 4, 8, 10, 10], strict=False):
        assert full / 2 <= wait <= full


async def test_closing_asks_the_child_to_end_and_waits_for_it(upstreams, reports):
    async with upstreams.stdio("ok") as engine:
        await engine.ping(FakeCall())
    assert len(reports.frames("shutdown")) == 1
    await reports.until("end")
    assert gone(reports.all("start")[0]["pid"])


async def test_a_child_that_will_not_go_is_ended(upstreams, reports):
    async with asyncio.timeout(DEADLINE):
        async with upstreams.stdio("ok,ignoresshutdown") as engine:
            await engine.ping(FakeCall())
    assert gone(reports.all("start")[0]["pid"])


@obligation(222)
async def test_a_command_is_an_argument_list_without_a_shell_and_without_our_environment(
    upstreams, reports, monkeypatch
):
    monkeypatch.setenv("GATEWAY_TEST_SECRET", "x")
    command = [*upstreams.command(HOSTILE, "ok;exit 7,$HOME")]
    async with upstreams.engine(command=command, env={"GIVEN": "1"}):
        pass
    start = reports.all("start")[0]
    assert start["arguments"][0] == "ok;exit 7,$HOME"
    assert "GIVEN" in start["environment"]
    assert "GATEWAY_TEST_SECRET" not in start["environment"]


async def test_a_request_over_the_line_limit_is_not_written(upstreams, reports):
    async with upstreams.stdio("ok", max_line_bytes=4096) as engine:
        with pytest.raises(UpstreamError) as caught:
            await engine.retrieve(EngineQuery(text="x" * 5000, k=3), FakeCall())
        assert (caught.value.code, caught.value.retryable) == (-32013, False)
        assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3


async def test_calls_to_a_child_that_reads_nothing_do_not_pile_up_in_memory(upstreams, reports):
    async with upstreams.stdio("stopsreading") as engine:
        query = EngineQuery(text="x" * 1_000_000, k=3)
        for _ in range(10):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await engine.retrieve(query, FakeCall())
        assert engine._session._link._process._stdin.transport.get_write_buffer_size() < 3_000_000


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)
