from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import anyio
import msgspec
import pytest

from gateway.errors import BackendUnavailable, Code, InternalError, RateLimited, Timeout, invalid_params
from gateway.model import RetrieveResult, Usage
from gateway.protocol import Dispatcher, Limits, Session
from tests.obligations import obligation
from tests.schema import check_frame, check_notification
from tests.unit.protocol.fakes import OFFER, Client, Gate, Server, ready

pytestmark = pytest.mark.anyio

QUERY = {"query": "x"}
QUIET = {name: value for name, value in OFFER.items() if name not in ("streaming", "log")}


def _raising(error: BaseException) -> Any:
    async def handler(request: Any, call: Any) -> Any:
        raise error

    return handler


def _cancel(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": id}}


def _code(answer: dict[str, Any]) -> int:
    code: int = answer.get("error", {}).get("code", 0)
    return code


# Errors.


@obligation(34)
@pytest.mark.parametrize(
    ("error", "code", "data"),
    [
        (RateLimited("slow down", retry_after_ms=50), -32011, {"retryAfterMs": 50, "retryable": True}),
        (Timeout("too late"), -32014, {"retryable": True}),
        (BackendUnavailable("gone", upstream_code=-32602), -32010, {"upstreamCode": -32602, "retryable": True}),
        (invalid_params("bad", field="filter.year"), -32602, {"field": "filter.year"}),
        (InternalError(), -32603, {}),
    ],
)
async def test_an_rcp_error_goes_out_as_it_is(error: Exception, code: int, data: dict[str, Any]) -> None:
    assert await (await ready(retrieve=_raising(error))).error("retrieve", QUERY) == (code, data)


@obligation(95)
@pytest.mark.parametrize("error", [ValueError("secret"), KeyError("secret"), RecursionError("secret"), StopIteration()])
async def test_any_other_exception_is_logged_and_says_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client = await ready(retrieve=_raising(error))
    answer = await client.call("retrieve", QUERY)
    assert answer["error"] == {"code": -32603, "message": "internal error"}
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert caplog.records[0].exc_info is not None
    assert await client.result("ping") == {}


async def test_a_cancellation_of_the_handlers_own_making_is_a_fault_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = await ready(retrieve=_raising(asyncio.CancelledError()))
    assert await client.error("retrieve", QUERY) == (-32603, {})
    assert [_code(a) for a in await client.send([{"id": 1, "method": "retrieve", "params": QUERY}])] == [-32603]


@obligation(22)
@pytest.mark.parametrize(
    "result", [{"hits": [{"id": "a", "score": float("nan")}]}, {"hits": [], "x": float("inf")}, [], 5, None, object()]
)
async def test_a_result_that_may_not_be_sent_is_our_fault(result: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Any, call: Any) -> Any:
        return result

    assert await (await ready(retrieve=handler)).error("retrieve", QUERY) == (-32603, {})


async def test_an_error_that_cannot_be_written_is_still_answered(caplog: pytest.LogCaptureFixture) -> None:
    error = invalid_params("bad", field="x", thing=object())
    assert await (await ready(retrieve=_raising(error))).error("retrieve", QUERY) == (-32603, {})


@obligation(27, 72)
async def test_sealed_hits_go_out_on_one_line() -> None:
    async def handler(request: Any, call: Any) -> Any:
        hits = (msgspec.Raw(b'{"id":"a","score":1.0,"text":"null\\n"}'), msgspec.Raw(b'{"id":"b",\n"score":0.5}'))
        return RetrieveResult(hits=hits, usage=Usage(candidates=2, latency_ms=1.0))

    result = await (await ready(retrieve=handler)).result("retrieve", QUERY)
    assert [hit["id"] for hit in result["hits"]] == ["a", "b"]
    assert result["hits"][0]["text"] == "null\n"


# Concurrency.


@obligation(65, 82)
async def test_a_slow_call_blocks_neither_ping_nor_another_call() -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    with anyio.fail_after(5):
        slow = asyncio.create_task(client.call("retrieve", QUERY, id=1))
        await gate.reached.wait()
        await client.result("ping", id=2)
        await client.result("embed", {"inputs": ["a"]}, id=3)
        assert not slow.done()
        gate.open.set()
        assert "result" in await slow


@obligation(66)
async def test_every_one_of_many_pipelined_requests_is_answered_once() -> None:
    client = await ready()
    answers = await asyncio.gather(*(client.call("retrieve", QUERY, id=n) for n in range(200)))
    assert sorted(answer["id"] for answer in answers) == list(range(200))
    assert len(client.server.seen) == 200


@obligation(84, 129)
async def test_a_session_runs_a_bounded_number_of_calls_and_refuses_beyond_a_bounded_queue() -> None:
    gate = Gate()
    client = await ready(retrieve=gate, limits=Limits(concurrent_per_session=2, queued_per_session=3))
    batch = [{"id": n, "method": "retrieve", "params": QUERY} for n in range(10)]
    with anyio.fail_after(5):
        task = asyncio.create_task(client.send(batch))
        await gate.reached.wait()
        assert await client.result("ping") == {}
        gate.open.set()
        answers = await task
    assert [_code(answer) for answer in answers] == [0] * 5 + [-32011] * 5
    assert answers[-1]["error"]["data"]["retryable"] is True
    assert (gate.most_inside, gate.entered) == (2, 5)
    assert "result" in await client.call("retrieve", QUERY)


# Cancelling.


@obligation(202)
async def test_a_cancelled_call_is_stopped_and_answered_once() -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    with anyio.fail_after(5):
        task = asyncio.create_task(client.error("retrieve", QUERY, id=7))
        await gate.reached.wait()
        assert await client.send(_cancel(7)) is None
        assert await task == (-32006, {})
    assert gate.cancelled
    assert await client.send(_cancel(7)) is None
    assert await client.result("ping") == {}


async def test_a_handler_that_finishes_in_spite_of_a_cancel_is_answered_with_its_result() -> None:
    reached = asyncio.Event()

    async def stubborn(request: Any, call: Any) -> Any:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"hits": []}

    client = await ready(retrieve=stubborn)
    with anyio.fail_after(5):
        task = asyncio.create_task(client.result("retrieve", QUERY))
        await reached.wait()
        await client.send(_cancel(1))
        assert await task == {"hits": []}
        assert task.cancelling() == 0


@obligation(204)
@pytest.mark.parametrize(("id", "other"), [(1, "1"), ("1", 1), ("", 0)])
async def test_a_cancel_means_an_id_of_the_same_type(id: Any, other: Any) -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    with anyio.fail_after(5):
        task = asyncio.create_task(client.result("retrieve", QUERY, id=id))
        await gate.reached.wait()
        await client.send(_cancel(other))
        gate.open.set()
        assert await task == {"hits": []}


@obligation(201)
@pytest.mark.parametrize("params", [{"id": 99}, {"id": None}, {"id": [1]}, {}, None, [1], "x", {"id": 1.5}])
async def test_a_cancel_of_nothing_is_ignored(params: Any) -> None:
    client = Client()
    assert await client.send({"method": "notifications/cancel", "params": params}) is None
    await client.initialize()
    assert await client.send({"method": "notifications/cancel", "params": params}) is None
    assert await client.result("ping") == {}


@obligation(126)
async def test_a_cancel_in_a_batch_reaches_the_call_before_it() -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    batch = [{"id": 1, "method": "retrieve", "params": QUERY}, _cancel(1), {"id": 2, "method": "ping"}]
    with anyio.fail_after(5):
        assert [_code(answer) for answer in await client.send(batch)] == [-32006, 0]


async def test_a_cancel_read_right_after_the_call_finds_it() -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    with anyio.fail_after(5):
        task = asyncio.create_task(client.error("retrieve", QUERY))
        await client.send(_cancel(1))
        assert (await task)[0] == -32006


async def test_a_call_that_waits_for_its_turn_can_be_cancelled() -> None:
    gate = Gate()
    client = await ready(retrieve=gate, limits=Limits(concurrent_per_session=1))
    with anyio.fail_after(5):
        first = asyncio.create_task(client.call("retrieve", QUERY, id=1))
        await gate.reached.wait()
        second = asyncio.create_task(client.error("retrieve", QUERY, id=2))
        await client.send(_cancel(2))
        assert (await second)[0] == -32006
        gate.open.set()
        assert "result" in await first
    assert gate.entered == 1


@obligation(110)
@pytest.mark.parametrize("kind", ["implicit", "peer"])
async def test_where_clients_share_ids_a_cancel_ends_nobodys_call(kind: Any) -> None:
    gate = Gate()
    client = Client(Server(retrieve=gate), kind=kind)
    await client.initialize()
    with anyio.fail_after(5):
        task = asyncio.create_task(client.result("retrieve", QUERY, id=1))
        await gate.reached.wait()
        await client.send(_cancel(1))
        gate.open.set()
        assert await task == {"hits": []}


async def test_an_id_in_flight_twice_is_answered_twice_and_names_no_one_to_cancel() -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    with anyio.fail_after(5):
        tasks = [asyncio.create_task(client.result("retrieve", QUERY, id=1)) for _ in range(2)]
        await gate.reached.wait()
        await client.send(_cancel(1))
        gate.open.set()
        assert await asyncio.gather(*tasks) == [{"hits": []}] * 2


@obligation(105)
@pytest.mark.parametrize("batch", [False, True])
async def test_cancelled_from_outside_it_cancels_what_it_runs_and_says_so(batch: bool) -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    frame: Any = {"id": 1, "method": "retrieve", "params": QUERY}
    with anyio.fail_after(5):
        task = asyncio.create_task(client.send([frame, {**frame, "id": 2}] if batch else frame))
        await gate.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert gate.cancelled
    assert gate.inside == 0
    gate.open.set()
    assert "result" in await client.call("retrieve", QUERY)


# Closing.


async def test_closing_refuses_new_calls_and_lets_running_ones_finish() -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    with anyio.fail_after(5):
        running = asyncio.create_task(client.result("retrieve", QUERY, id=1))
        await gate.reached.wait()
        closing = asyncio.create_task(client.dispatcher.close())
        await asyncio.sleep(0)
        assert await client.error("retrieve", QUERY, id=2) == (-32010, {"retryable": True})
        assert await client.result("ping", id=3) == {}
        late = Session("strict", client.session.caller)
        answer = await client.dispatcher.answer(b'{"id":1,"method":"initialize"}', late)
        assert answer is not None
        assert _code(check_frame("initialize", answer)) == -32010
        gate.open.set()
        assert await running == {"hits": []}
        await closing


async def test_closing_cancels_and_answers_what_does_not_finish_in_time() -> None:
    gate = Gate()
    client = await ready(retrieve=gate)
    with anyio.fail_after(5):
        running = asyncio.create_task(client.error("retrieve", QUERY))
        await gate.reached.wait()
        await client.dispatcher.close(timeout=0)
        assert await running == (-32010, {"retryable": True})
    assert gate.cancelled


async def test_closing_with_nothing_in_flight_is_at_once() -> None:
    with anyio.fail_after(1):
        await Client().dispatcher.close(timeout=60)


# Progress.


def _reports(*reports: tuple[Any, ...]) -> Any:
    """A handler that makes these reports, each in a turn of the event loop of its own."""

    async def handler(request: Any, call: Any) -> Any:
        for report in reports:
            call.progress(*report)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return {"hits": []}

    return handler


async def _progress(client: Client, token: Any) -> list[dict[str, Any]]:
    await client.result("retrieve", {**QUERY, "_meta": {"progressToken": token}})
    return [check_notification("progress", frame) for frame in client.frames]


async def test_fractions_have_no_more_digits_than_a_bar_can_show() -> None:
    frames = await _progress(await ready(retrieve=_reports((0.1 + 0.2 / 3, "recall"), (2 / 3, "fuse"))), 1)
    assert [frame["progress"] for frame in frames] == [0.1667, 0.6667]


@obligation(196, 198)
@pytest.mark.parametrize("token", [42, "42", "", 0, -1, 9007199254740993, "☃"])
async def test_a_token_is_echoed_with_its_type(token: Any) -> None:
    frames = await _progress(await ready(retrieve=_reports((0.5, "recall", "half"), (1, ""))), token)
    assert frames == [
        {"progressToken": token, "progress": 0.5, "stage": "recall", "message": "half"},
        {"progressToken": token, "progress": 1.0},
    ]
    assert type(frames[0]["progressToken"]) is type(token)


@obligation(71, 197)
@pytest.mark.parametrize(
    "meta", [None, {}, *({"progressToken": token} for token in (True, 1.5, 1.0, None, [1], {"a": 1}))]
)
async def test_without_a_token_that_may_be_one_there_are_no_frames(meta: Any) -> None:
    client = await ready(retrieve=_reports((0.5, "recall")))
    await client.result("retrieve", {**QUERY, "_meta": meta})
    assert client.frames == []


@obligation(98)
async def test_without_somewhere_to_send_them_there_are_no_frames() -> None:
    client = await ready(retrieve=_reports((0.5, "recall")))
    frame = {"id": 1, "method": "retrieve", "params": {**QUERY, "_meta": {"progressToken": 1}}}
    assert await client.dispatcher.answer(json.dumps(frame).encode(), client.session) is not None


async def test_a_server_that_does_not_offer_streaming_or_logs_sends_none() -> None:
    client = await ready(offer=QUIET, retrieve=_reports((0.5, "recall")))
    assert await _progress(client, 1) == []


@obligation(198)
async def test_fractions_stay_within_0_and_1_and_never_fall() -> None:
    reports = [(0.5, "a"), (0.2, "b"), (float("nan"), "c"), (-3, "d"), (7, "e"), (0.9, "f")]
    frames = await _progress(await ready(retrieve=_reports(*reports)), 1)
    assert [frame["progress"] for frame in frames] == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]


async def test_reports_of_one_turn_become_one_frame_but_hits_have_their_own() -> None:
    hit = b'{"id":"a","score":1.0}'

    async def handler(request: Any, call: Any) -> Any:
        for n in range(1000):
            call.progress(n / 1000, "recall", hits=[hit] if n == 500 else None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.progress(1.0, "fuse")
        return {"hits": []}

    frames = await _progress(await ready(retrieve=handler), 1)
    assert [frame["progress"] for frame in frames] == [0.5, 0.999, 1.0]
    assert frames[0]["partial"] == {"hits": [{"id": "a", "score": 1.0}]}
    assert ["partial" in frame for frame in frames] == [True, False, False]


async def test_hits_reported_in_one_turn_are_all_sent_with_their_own_words_whatever_the_limit() -> None:
    async def handler(request: Any, call: Any) -> Any:
        call.progress(0.1, "recall", "begun")
        for n, id in enumerate("abc"):
            call.progress(n / 10, "recall", id, hits=[b'{"id":"%s","score":1.0}' % id.encode()])
            call.progress(n / 10, "recall", "chatter")
        return {"hits": []}

    client = await ready(retrieve=handler, limits=Limits(notifications_per_call=1))
    frames = [frame for frame in await _progress(client, 1) if "partial" in frame]
    assert [(frame["message"], frame["partial"]["hits"][0]["id"]) for frame in frames] == [(x, x) for x in "abc"]


@obligation(199)
async def test_nothing_follows_the_answer() -> None:
    kept: list[Any] = []

    async def handler(request: Any, call: Any) -> Any:
        kept.append(call)
        call.progress(0.5, "recall")
        return {"hits": []}

    client = await ready(retrieve=handler)
    assert [frame["progress"] for frame in await _progress(client, 1)] == [0.5]
    kept[0].progress(1.0, "late")
    kept[0].log("error", "late")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(client.frames) == 1


async def test_the_number_of_frames_of_a_call_is_bounded() -> None:
    client = await ready(
        retrieve=_reports(*((n / 100, "x") for n in range(100))), limits=Limits(notifications_per_call=10)
    )
    assert len(await _progress(client, 1)) == 10


async def test_a_transport_that_fails_costs_the_notification_only(caplog: pytest.LogCaptureFixture) -> None:
    def broken(frame: bytes) -> None:
        raise OSError("gone")

    client = await ready(retrieve=_reports((0.5, "recall")))
    frame = {"id": 1, "method": "retrieve", "params": {**QUERY, "_meta": {"progressToken": 1}}}
    answer = await client.dispatcher.answer(json.dumps(frame).encode(), client.session, emit=broken)
    assert answer is not None
    assert "result" in check_frame("retrieve", answer)


async def test_a_refused_request_makes_no_progress() -> None:
    client = await ready(retrieve=_reports((0.5, "recall")))
    await client.error("retrieve", {**QUERY, "k": 0, "_meta": {"progressToken": 1}})
    assert client.frames == []


# Logs.


async def _logs(client: Client, **meta: Any) -> list[dict[str, Any]]:
    await client.result("retrieve", {**QUERY, "_meta": meta})
    return [check_notification("log", frame) for frame in client.frames]


async def _talks(request: Any, call: Any) -> Any:
    for level in ("debug", "info", "notice", "warning", "error", "bogus"):
        call.log(level, f"a\ud800 {level}", {"n": 1} if level == "error" else None)
    return {"hits": []}


async def _client_with(log: Any, **meta: Any) -> Client:
    client = Client(Server(retrieve=_talks))
    await client.initialize(capabilities={"log": log}, _meta=meta)
    return client


@obligation(70)
@pytest.mark.parametrize("log", [None, False])
async def test_a_client_that_did_not_ask_for_logs_gets_none(log: Any) -> None:
    assert await _logs(await _client_with(log, logLevel="debug")) == []


@obligation(70)
@pytest.mark.parametrize(("level", "count"), [("debug", 5), ("info", 4), ("error", 1), ("bogus", 4), (None, 4), (5, 4)])
async def test_a_client_gets_logs_from_its_level_on(level: Any, count: int) -> None:
    frames = await _logs(await _client_with({}, logLevel=level), progressToken="t")
    assert len(frames) == count
    assert frames[-1] == {
        "level": "error",
        "message": "a\ufffd error",
        "data": {"n": 1},
        "_meta": {"progressToken": "t"},
    }


async def test_a_request_may_ask_for_logs_itself() -> None:
    client = Client(Server(retrieve=_talks), kind="implicit")
    assert [frame["level"] for frame in await _logs(client, logLevel="warning")] == ["warning", "error"]


async def test_log_data_that_cannot_be_written_does_not_break_the_call() -> None:
    async def handler(request: Any, call: Any) -> Any:
        call.log("error", "x", {"thing": object()})
        return {"hits": []}

    client = Client(Server(retrieve=handler))
    await client.initialize(capabilities={"log": {}})
    assert len(await _logs(client)) == 1


# What handlers are given, and what observers are told.


async def test_a_handler_gets_its_params_its_caller_and_its_meta() -> None:
    client = await ready()
    await client.result("retrieve", {**QUERY, "k": 3, "_meta": {"deadlineMs": "x", "federation": {"depth": 1}}})
    method, request, call = client.server.seen[-1]
    assert (method, request.k, call.caller) == ("retrieve", 3, client.session.caller)
    assert call.meta == {"deadlineMs": "x", "federation": {"depth": 1}}
    await client.result("catalog/list", {"_meta": {"a": 1}})
    assert client.server.seen[-1][2].meta == {"a": 1}


async def test_every_answer_is_observed_under_a_known_name(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, int]] = []

    def observe(method: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        seen.append((method, code))
        raise ValueError("observers do not matter")

    client = await ready()
    client.dispatcher = Dispatcher(client.server, observe=observe)
    await client.send([{"id": 1, "method": "ping"}, 5, {"id": 2, "method": "x" * 1000}, {"method": "ping"}])
    await client.result("retrieve", QUERY)
    assert seen == [("ping", 0), ("unknown", -32600), ("unknown", -32004), ("retrieve", 0)]


def test_all_codes_are_those_of_the_specification() -> None:
    assert {int(code) for code in Code} == {
        *(-32700, -32600, -32602, -32603),
        *range(-32006, -32000),
        *range(-32016, -32009),
    }
