"""Gateways that share a Redis are one to their clients; without it they go on as far as they can."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Code
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation
from tests.servers.redis import Server, redis_server

pytestmark = pytest.mark.anyio

ASKED: dict[str, Any] = {"query": "q", "k": 2}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with redis_server(tmp_path) as running:
        yield running


def state(server: Server) -> dict[str, Any]:
    return {"kind": "redis", "url": server.url, "timeout": 5.0}


@obligation(156, 260)
async def test_the_next_page_may_be_asked_of_another_replica(server: Server) -> None:
    one, other = Script(hits=hits("a", "b", "c", "d", "e")), Script(hits=hits("x"))
    async with (
        gateway_of({"engine": one}, state=state(server)) as first,
        gateway_of({"engine": other}, state=state(server)) as second,
    ):
        page = await first.retrieve(**ASKED)
        walked = ids(page)
        for replica in (second, first):
            page = await replica.retrieve(**ASKED, cursor=page["nextCursor"])
            walked += ids(page)
    assert walked == ["a", "b", "c", "d", "e"]
    assert "nextCursor" not in page
    assert other.queries == []


async def test_replicas_share_what_a_session_has_seen(server: Server) -> None:
    script = Script(hits=hits("a", "b", "c", "d"))
    async with (
        gateway_of({"engine": script}, state=state(server)) as first,
        gateway_of({"engine": script}, state=state(server)) as second,
    ):
        assert ids(await first.retrieve(query="q", k=2, sessionId="s")) == ["a", "b"]
        assert ids(await second.retrieve(query="another", k=2, sessionId="s")) == ["c", "d"]
        assert ids(await second.retrieve(query="q", k=2, sessionId="s")) == ["a", "b"]


async def test_without_the_server_answers_come_with_notes_and_cursors_wait(server: Server) -> None:
    async with gateway_of({"engine": Script(hits=hits("a", "b", "c"))}, state=state(server)) as gateway:
        cursor = (await gateway.retrieve(**ASKED))["nextCursor"]
        server.kill()
        answer = await gateway.retrieve(**ASKED, sessionId="s")
        assert ids(answer) == ["a", "b"]
        assert "nextCursor" not in answer
        assert "pages cannot be kept at the moment" in notes(answer)
        assert notes(answer).count("what this session has been given already is not known") == 1
        error = await gateway.refused(**ASKED, cursor=cursor)
        assert (error["code"], error["data"]["retryable"]) == (Code.BACKEND_UNAVAILABLE, True)


async def test_a_gateway_starts_without_the_server(server: Server) -> None:
    server.kill()
    async with gateway_of({"engine": Script(hits=hits("a"))}, state=state(server)) as gateway:
        assert ids(await gateway.retrieve(**ASKED)) == ["a"]


async def test_a_server_that_hangs_costs_no_call_more_than_its_time(server: Server) -> None:
    hasty: dict[str, Any] = {"_meta": {"deadlineMs": 300}, "sessionId": "s"}
    async with gateway_of({"engine": Script(hits=hits("a", "b", "c"))}, state=state(server)) as gateway:
        cursor = (await gateway.retrieve(**ASKED, **hasty))["nextCursor"]
        server.stop()
        try:
            began = time.perf_counter()
            answer = await gateway.retrieve("other", k=2, **hasty)
            error = await gateway.refused(**ASKED, **hasty, cursor=cursor)
            assert time.perf_counter() - began < 2  # the server alone would be given five seconds each time
        finally:
            server.go_on()
        assert ids(answer) == ["a", "b"]
        told = answer["usage"]["notes"]
        assert len(told) == len(set(told)) == 2
        assert (error["code"], error["data"]["retryable"]) == (Code.BACKEND_UNAVAILABLE, True)
