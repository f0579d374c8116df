"""What holds whatever carries the frames."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anyio import fail_after

from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import HANDSHAKE, KINDS, Client, connect, notification, request

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("kind", KINDS)]


def code(frame: Any) -> int:
    found: int = frame["error"]["code"]
    return found


@obligation(72, 86, 90)
async def test_a_call_is_answered_with_its_result(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frame = await client.call("retrieve", {"query": "paris"}, id="a")
    assert frame["id"] == "a"
    assert frame["result"]["hits"][0]["id"] == "d1"


@obligation(120)
async def test_the_message_is_the_same_on_every_transport(kind: str) -> None:
    params = {"query": "東京 🗼", "k": 1}
    async with connect("stdio", Bench()) as plain, connect(kind, Bench()) as client:
        with fail_after(5):
            expected = await plain.call("retrieve", params, id=7)
            found = await client.call("retrieve", params, id=7)
    for frame in (expected, found):
        frame["result"]["usage"].pop("latencyMs")
    assert found == expected


@obligation(91)
async def test_an_error_is_an_answer_like_any_other(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            assert code(await client.call("retrieve", {"query": "paris", "k": -1})) == -32602
            assert code(await client.call("does/not/exist")) == -32004


@obligation(93)
async def test_what_is_not_json_is_answered_as_such(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frame = await client.send_raw(b'{"jsonrpc":')
            assert code(frame) == -32700
            assert frame["id"] is None
            assert "result" in await client.call("ping")


@obligation(96)
async def test_a_notification_gets_no_answer(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            await client.send_raw(notification("notifications/brand-new"), silent=True)
            await client.send_raw(notification("retrieve", {"k": -1}), silent=True)


@obligation(121, 122)
async def test_a_batch_is_answered_with_one_entry_for_each_request(kind: str) -> None:
    members = [request("ping", id=1), notification("notifications/cancel", {"id": 9}), request("ping", id="2")]
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frames = await client.send_raw(b"[" + b",".join(members) + b"]")
    assert sorted(str(frame["id"]) for frame in frames) == ["1", "2"]


@obligation(123, 97)
async def test_empty_and_silent_batches_are_the_two_special_cases(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frame = await client.send_raw(b"[]")
            assert (frame["id"], code(frame)) == (None, -32600)
            silent = b"[" + notification("notifications/x") + b"]"
            await client.send_raw(silent, silent=True)


@obligation(124, 125)
async def test_a_malformed_member_does_not_fail_the_others(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frames = await client.send_raw(b"[1,{},[" + request("ping") + b"]," + request("ping", id=4) + b"]")
    answers = [frame for frame in frames if "result" in frame]
    assert [frame["id"] for frame in answers] == [4]
    errors = [frame for frame in frames if "error" in frame]
    assert [(frame["id"], code(frame)) for frame in errors] == [(None, -32600)] * len(errors)
    assert len(errors) == 3


@obligation(128)
async def test_a_handshake_and_a_call_in_one_batch_are_both_answered(kind: str) -> None:
    batch = b"[" + request("initialize", HANDSHAKE, 1) + b"," + request("retrieve", {"query": "x"}, 2) + b"]"
    async with connect(kind, Bench(), handshake=False) as client:
        with fail_after(5):
            frames = await client.send_raw(batch)
    assert sorted(frame["id"] for frame in frames if "result" in frame) == [1, 2]


@obligation(65)
async def test_ping_is_answered_while_a_call_is_in_flight(kind: str) -> None:
    bench = Bench()
    async with connect(kind, bench) as client:
        with fail_after(5):
            slow = asyncio.create_task(client.call("retrieve", {"query": "hold"}))
            await bench.started.wait()
            assert "result" in await client.call("ping")
            bench.release.set()
            assert "result" in await slow


@obligation(66, 84, 85)
async def test_each_of_many_calls_at_once_is_answered_exactly_once(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        ids = [f"call-{number}" for number in range(200)]
        params = {"query": "steps", "_meta": {"progressToken": "t"}}
        with fail_after(20):
            frames = await asyncio.gather(*(client.call("retrieve", params, id=id) for id in ids))
    assert [frame["id"] for frame in frames] == ids
    assert all("result" in frame for frame in frames)


async def test_a_large_answer_arrives_whole(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frame = await client.call("retrieve", {"query": "big"})
    assert len(frame["result"]["hits"][0]["text"]) == 200 << 10


@obligation(83, 117)
async def test_a_message_over_the_limit_is_refused_and_the_client_goes_on(kind: str) -> None:
    limit = {"line_limit": 4096} if kind == "stdio" else {"body_limit": 4096}
    async with connect(kind, Bench(), **limit) as client:
        with fail_after(10):
            frame = await client.send_raw(request("ping", {"nonce": "x" * 8192}))
            assert (frame["id"], code(frame)) == (None, -32013)
            assert "result" in await client.call("ping")


@obligation(103, 98)
async def test_without_a_token_there_is_no_progress(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            assert "result" in await client.call("retrieve", {"query": "steps"})
        assert client.frames == []


@obligation(196, 98, 100)
@pytest.mark.parametrize("token", [42, "42"])
async def test_progress_carries_the_clients_token_where_the_transport_has_room_for_it(kind: str, token: Any) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            await client.call("retrieve", {"query": "steps", "_meta": {"progressToken": token}})
        tokens = [frame["params"]["progressToken"] for frame in client.frames]
    if kind == "http":
        assert tokens == []
    else:
        assert tokens
        assert {json.dumps(found) for found in tokens} == {json.dumps(token)}


@obligation(199)
async def test_a_flood_of_progress_keeps_nobody_waiting(kind: str) -> None:
    bench = Bench()
    async with connect(kind, bench) as client:
        with fail_after(10):
            frame = await client.call("retrieve", {"query": "flood", "_meta": {"progressToken": 1}})
    assert "result" in frame


async def _cancel(client: Client, id: Any) -> None:
    await client.notify("notifications/cancel", {"id": id})


@obligation(201)
async def test_cancelling_what_is_not_in_flight_changes_nothing(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            await _cancel(client, 99)
            assert "result" in await client.call("ping")


@obligation(95)
async def test_a_fault_of_ours_is_an_answer_that_tells_nothing(kind: str) -> None:
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frame = await client.call("retrieve", {"query": "bug"})
            assert code(frame) == -32603
            assert "secret" not in json.dumps(frame)
            assert "result" in await client.call("ping")


@obligation(126, 127)
async def test_each_member_of_a_batch_is_judged_alone_and_there_may_not_be_too_many(kind: str) -> None:
    members = [request("memory/build", {}, 1), request("retrieve", {"query": "x", "k": -1}, 2), request("ping", id=3)]
    async with connect(kind, Bench()) as client:
        with fail_after(5):
            frames = await client.send_raw(b"[" + b",".join(members) + b"]")
            assert {frame["id"]: frame.get("error", {}).get("code") for frame in frames} == {
                1: -32003,
                2: -32602,
                3: None,
            }
            frame = await client.send_raw(b"[" + b",".join(request("ping", id=id) for id in range(5000)) + b"]")
            assert code(frame) == -32602
