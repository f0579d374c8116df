"""Progress from an upstream to the client, and cancellation from the client to an upstream."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import fail_after

from gateway.federation.recall import SHARE
from gateway.transports.server import serve
from tests.end_to_end.running import HOSTILE, SDK, Whole, child, memory, opened, peer_over_http, upstream
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import Wire, connect, request

pytestmark = pytest.mark.anyio

QUERY = {"query": "Paris", "k": 10}


@asynccontextmanager
async def gateway_over(over: str, behaviour: str, reports: Reports, **host: Any) -> AsyncIterator[Whole]:
    """A healthy engine, and one that streams or hangs behind either transport."""
    if over == "stdio":
        async with opened(memory(), upstream(own=child(HOSTILE, behaviour, reports=reports), **host)) as gateway:
            yield gateway
    else:
        async with peer_over_http(reports, HOSTILE, behaviour) as url:
            async with opened(memory(), upstream(own={"url": url}, **host)) as gateway:
                yield gateway


@obligation(71, 196, 198, 199, 200)
@pytest.mark.parametrize("token", [42, "42"])
@pytest.mark.parametrize("front", ["sse", "stdio"])
@pytest.mark.parametrize("over", ["stdio", "sse"])
async def test_each_engine_makes_a_frame_and_no_upstreams_word_leaks(
    over: str, front: str, token: int | str, reports: Reports
) -> None:
    with fail_after(20):
        async with gateway_over(over, "progress", reports) as gateway, connect(front, gateway) as client:
            frame = await client.call("retrieve", {**QUERY, "_meta": {"progressToken": token}})
            told = [one["params"] for one in client.frames]
            await client.call("retrieve", QUERY)
            assert len(client.frames) == len(told)  # without a token there is none
            sent = [one["params"]["_meta"] for one in reports.frames("retrieve")]
    assert [one["progressToken"] for one in told] == [token] * len(told)
    assert all(type(one["progressToken"]) is type(token) for one in told)
    fractions = [one["progress"] for one in told]
    assert fractions == sorted(fractions)
    # Each frame with hits shows what has been found so far: one engine's, then both engines'.
    engines = [{hit["meta"]["engine"] for hit in one["partial"]["hits"]} for one in told if "partial" in one]
    assert len(engines[0]) == 1
    assert engines[-1] == {"far", "memory"}
    assert all(one <= other for one, other in itertools.pairwise(engines))
    assert "unchecked" not in str(told)
    assert "too late" not in str(told)
    assert {hit["id"] for hit in frame["result"]["hits"]} == {"m1", "m3", "a", "b", "c"}
    assert sent[0]["progressToken"] != token
    assert all("progressToken" not in one or one["progressToken"] != token for one in sent)


@obligation(104, 200)
@pytest.mark.parametrize("front", ["sse", "stdio"])
@pytest.mark.parametrize("over", ["stdio", "sse"])
async def test_an_upstreams_own_progress_counts_before_it_has_answered(over: str, front: str, reports: Reports) -> None:
    behaviour = "halfway" if over == "stdio" else "halfway,ssehangs"
    with fail_after(20):
        async with gateway_over(over, behaviour, reports, timeout=1, retry={"attempts": 1}) as gateway:
            async with connect(front, gateway) as client:
                frame = await client.call("retrieve", {**QUERY, "_meta": {"progressToken": 1}})
    assert frame["result"]["_meta"]["degraded"] == ["far"]
    told = [one["params"] for one in client.frames]
    fractions = [round(one["progress"], 6) for one in told]  # the healthy one; half of the other beside it; its end
    begin, end = SHARE
    half, three_quarters = (round(begin + (end - begin) * part, 6) for part in (0.5, 0.75))
    recalled = [one for one in fractions if begin <= one <= end]
    assert fractions == sorted(fractions)
    assert three_quarters in recalled
    assert set(recalled) <= {begin, round(begin + (end - begin) / 4, 6), half, three_quarters, end}
    assert all("unchecked" not in str(one) for one in told)


@obligation(198)
async def test_engines_that_answer_at_the_same_moment_have_a_frame_each() -> None:
    engines = [memory(f"e{n}", documents=[{"id": f"d{n}", "text": "Paris"}]) for n in range(5)]
    with fail_after(20):
        async with opened(*engines) as gateway, connect("sse", gateway) as client:
            await client.call("retrieve", {**QUERY, "_meta": {"progressToken": 1}})
    partial = [one["params"]["partial"]["hits"] for one in client.frames if "partial" in one["params"]]
    assert [len(found) for found in partial[:5]] == [1, 2, 3, 4, 5]
    assert {hit["id"] for hit in partial[-1]} == {"d0", "d1", "d2", "d3", "d4"}


@obligation(71, 98, 103)
async def test_without_a_stream_or_without_a_token_there_is_only_the_answer(reports: Reports) -> None:
    with_token = {**QUERY, "_meta": {"progressToken": 1}}
    with fail_after(20):
        async with gateway_over("stdio", "progress", reports) as gateway:
            for kind, params in (("http", with_token), ("sse", QUERY), ("stdio", QUERY)):
                async with connect(kind, gateway) as client:
                    assert "result" in await client.call("retrieve", params)
                    assert client.frames == []


async def test_progress_of_an_sdk_server_reaches_the_client(reports: Reports) -> None:
    with fail_after(20):
        async with peer_over_http(reports, SDK, "--stream") as url, opened(upstream(own={"url": url})) as gateway:
            async with connect("sse", gateway) as client:
                await client.call("retrieve", {**QUERY, "_meta": {"progressToken": 1}})
    assert client.frames[-1]["params"]["progress"] > SHARE[1]
    found = [one["params"]["partial"]["hits"] for one in client.frames if "partial" in one["params"]]
    assert [hit["id"] for hit in found[-1]] == ["d1", "d2", "d3"]
    assert "unchecked" not in str(client.frames)


@obligation(105, 203)
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_an_upstream_learns_within_a_second_that_the_client_has_gone(
    over: str, accept: str, reports: Reports
) -> None:
    async with gateway_over(over, "hang", reports) as gateway, serve(gateway.app()) as address:
        with fail_after(20):
            async with Wire.to(address) as wire:
                await wire.post("/rcp/retrieve", request("retrieve", QUERY, id="mine"), accept=accept)
                asked = await reports.frame("retrieve")
        with fail_after(1):
            if over == "stdio":
                cancel = await reports.frame("notifications/cancel")
                assert cancel["params"]["id"] == asked["id"] != "mine"
            else:
                await reports.until("gone")


@obligation(202, 203)
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_a_cancelled_call_is_answered_once_and_its_upstream_told(over: str, reports: Reports) -> None:
    async with gateway_over(over, "hang", reports) as gateway, connect("stdio", gateway) as client:
        with fail_after(20):
            call = asyncio.create_task(client.call("retrieve", QUERY, id="1"))
            asked = await reports.frame("retrieve")
            await client.notify("notifications/cancel", {"id": 1})  # another id
            await client.call("ping")
            assert not call.done()
            await client.notify("notifications/cancel", {"id": "1"})
            assert (await call)["error"]["code"] == -32006
        with fail_after(1):
            if over == "stdio":
                assert (await reports.frame("notifications/cancel"))["params"]["id"] == asked["id"]
            else:
                await reports.until("gone")


@obligation(225, 243)
async def test_a_deadline_is_kept_and_handed_on(reports: Reports) -> None:
    async with gateway_over("http", "hang", reports, timeout=20) as gateway, connect("http", gateway) as client:
        with fail_after(5):
            frame = await client.call("retrieve", {**QUERY, "_meta": {"deadlineMs": 1500}})
            sent = (await reports.frame("retrieve"))["params"]["_meta"]["deadlineMs"]
            await reports.until("gone")
    assert frame["result"]["_meta"]["degraded"] == ["far"]
    assert 1 <= sent < 1500
