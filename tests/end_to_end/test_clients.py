"""Real clients of whole gateways: the public SDK over each transport, several at once, and the same bytes for all."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rcp
from anyio import fail_after, to_thread

from gateway.transports.server import serve
from tests.end_to_end.running import (
    COMMAND,
    HOSTILE,
    SDK,
    child,
    config,
    memory,
    on_stdio,
    opened,
    peer_over_http,
    serving,
    upstream,
    written,
)
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import KINDS, connect, exchange, notification, request, stdio

pytestmark = pytest.mark.anyio


def session(connect: Callable[[], rcp.Client], rounds: int) -> list[list[str]]:
    """One SDK client's whole life, and what each of its questions found."""
    client = connect()
    try:
        return _asked(client, rounds)
    finally:
        client.shutdown()


def _asked(client: rcp.Client, rounds: int) -> list[list[str]]:
    assert client.capabilities["catalog"]["engines"] == 3
    found = []
    for _ in range(rounds):
        assert client.ping(nonce="n") == {"nonce": "n"}
        found.append([hit["id"] for hit in client.retrieve("Paris", k=4)])
    with pytest.raises(rcp.RcpError) as caught:
        client.call("retrieve", {"query": "Paris", "k": -1})
    assert caught.value.code == -32602
    return found


@obligation(109, 110, 208)
@pytest.mark.parametrize("sessions", ["stateless", "peer"])
async def test_sdk_clients_over_http_and_stdio_at_once_before_sdk_servers_over_both(
    sessions: str, tmp_path: Path, reports: Reports
) -> None:
    with fail_after(60):
        async with peer_over_http(reports, SDK) as url:
            near = upstream("near", own=child(SDK, reports=reports), corpus="near")
            path = written(
                tmp_path, config(memory(corpus="own"), near, upstream("far", own={"url": url}, corpus="far"))
            )
            async with serving(path, "--sessions", sessions) as gateway:
                over_http = functools.partial(session, functools.partial(rcp.connect_http, gateway.url), 5)
                argv = [str(COMMAND), "stdio", "-c", str(path)]
                over_stdio = functools.partial(session, functools.partial(rcp.connect_stdio, argv), 5)
                lives = await asyncio.gather(*map(to_thread.run_sync, (over_http, over_http, over_stdio)))
    (answer,) = {tuple(found) for life in lives for found in life}
    assert {id.partition("/")[0] for id in answer} == {"own", "near", "far"}


@obligation(211)
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_clients_that_use_the_same_id_have_each_their_own_answer(over: str, reports: Reports) -> None:
    with fail_after(30):
        async with peer_over_http(reports, HOSTILE, "echo") as url:
            own = {"url": url} if over == "http" else child(HOSTILE, "reorder", reports=reports)
            async with opened(upstream(own=own)) as gateway, serve(gateway.app()) as address:
                queries = [f"query {number}" for number in range(12)]
                sent = [request("retrieve", {"query": query}, id=1) for query in queries]
                answers = await asyncio.gather(*(exchange(address, "/rcp/retrieve", one) for one in sent))
    for query, answer in zip(queries, answers, strict=True):
        assert (answer.json["id"], answer.json["result"]["hits"][0]["id"]) == (1, query)
    forwarded = [frame["id"] for frame in reports.frames("retrieve")]
    assert len(set(forwarded)) == len(queries)


ASKED: list[tuple[str, Any]] = [
    ("info", None),
    ("ping", {"nonce": "東京"}),
    ("ping", {"nonce": 9007199254740991}),
    ("catalog/list", {}),
    ("retrieve", {"query": "Paris"}),
    ("retrieve", {"query": "Paris \u2028 \x00 🗼", "k": 1, "includeText": False}),
    ("retrieve", {"query": "capital", "k": 2, "filter": {"field": "lang", "op": "eq", "value": "fr"}}),
    ("retrieve", {"query": "capital", "filter": {"field": "nothing", "op": "eq", "value": 1}}),
    ("retrieve", {"query": "capital", "fusion": {"method": "weighted"}, "minScore": 0.1}),
    ("retrieve", {"query": "zebra"}),
    ("retrieve", {"query": "Paris", "k": -1}),
    ("retrieve", {"query": "Paris", "mode": "bogus"}),
    ("retrieve", {"query": "Paris", "mode": "bogus", "strict": False}),
    ("retrieve", {}),
    ("retrieve", []),
    ("embed", {"inputs": ["x"]}),
    ("rerank", {"query": "x", "passages": ["y"]}),
    ("memory/build", {}),
    ("does/not/exist", {}),
]


def timeless(frame: Any) -> str:
    """Without what no two answers have in common: how long it took, and the cursor of the next page."""
    if isinstance(frame, dict):
        frame.get("result", {}).get("usage", {}).pop("latencyMs", None)
        frame.get("result", {}).pop("nextCursor", None)
    return json.dumps(frame)


@obligation(120)
@pytest.mark.parametrize(("method", "params"), ASKED, ids=lambda value: str(value)[:40])
async def test_the_same_request_has_the_same_answer_over_every_transport(method: str, params: Any) -> None:
    engines = [memory("a"), memory("b", weight=2, documents=[{"id": "m1", "text": "Paris", "meta": {"x": 1}}])]
    answers = set()
    with fail_after(20):
        async with opened(*engines) as gateway:
            for kind in KINDS:
                async with connect(kind, gateway) as client:
                    answers.add(timeless(await client.call(method, params, id="same")))
    assert len(answers) == 1, answers


@obligation(120, 121, 122, 124)
async def test_a_batch_has_the_same_answers_over_every_transport() -> None:
    calls = [request("ping", id=1), b"5", notification("notifications/cancel", {"id": 1}), request("retrieve", id=2)]
    batch = b"[" + b",".join([*calls, request("retrieve", {"query": "Paris"}, id=3)]) + b"]"
    answers = set()
    with fail_after(20):
        async with opened(memory()) as gateway:
            for kind in KINDS:
                async with connect(kind, gateway) as client:
                    answers.add(json.dumps(sorted(map(timeless, await client.send_raw(batch)))))
    assert len(answers) == 1, answers


@obligation(128)
@pytest.mark.parametrize("front", ["stdio", "peer"])
async def test_a_batch_may_begin_with_initialize(front: str) -> None:
    hello, call = request("initialize", {"protocolVersion": 1}, id=1), request("retrieve", {"query": "Paris"}, id=2)
    batch = b"[" + hello + b"," + call + b"]"
    with fail_after(20):
        async with opened(memory()) as gateway:
            if front == "stdio":
                async with stdio(gateway) as pipes:
                    pipes.send(batch + b"\n")
                    answers = await pipes.frame()
            else:
                async with serve(gateway.app(mode="peer")) as address:
                    answers = (await exchange(address, "/rcp", batch)).json
    assert {answer["id"]: "result" in answer for answer in answers} == {1: True, 2: True}


# Configurations and documents that users have ------------------------------------------------------------------------


@obligation(227)
async def test_an_rcp_json_registry_is_a_configuration(tmp_path: Path, reports: Reports) -> None:
    with fail_after(30):
        async with peer_over_http(reports, HOSTILE, "ok") as url:
            registry = {
                "$schema": "https://example.org/rcp.json",
                "futureKey": {"x": 1},
                "engines": [
                    {"id": "near", "transport": "stdio", "command": [sys.executable, str(SDK)], "priority": 10},
                    {"id": "far", "url": url, "weight": 1.5, "required": False, "futureKey": 2},
                ],
            }
            async with on_stdio(written(tmp_path, registry, "rcp.json")) as gateway:
                catalog = await gateway.call("catalog/list")
                frame = await gateway.call("retrieve", {"query": "Paris"})
    assert [entry["id"] for entry in catalog["result"]["engines"]] == ["near", "far"]
    assert {hit["meta"]["engine"] for hit in frame["result"]["hits"]} == {"near", "far"}


@obligation(228)
async def test_engine_ids_that_are_given_twice_are_refused_at_the_start(tmp_path: Path) -> None:
    path = written(tmp_path, config(memory("same"), memory("same")))
    process = await asyncio.create_subprocess_exec(
        *(str(COMMAND), "stdio", "-c", str(path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, told = await process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert b"same" in told
    assert b"Traceback" not in told


@obligation(195)
@pytest.mark.parametrize("format", ["text", "json"])
async def test_what_is_asked_and_answered_is_not_logged(format: str, tmp_path: Path, reports: Reports) -> None:
    far = upstream(own=child(HOSTILE, "internal", reports=reports), retry={"attempts": 1})
    content = config(memory(), far, log={"level": "info", "format": format})
    with fail_after(30):
        async with on_stdio(written(tmp_path, content)) as gateway:
            for _ in range(7):  # the breaker opens on the way
                frame = await gateway.call("retrieve", {"query": "Paris unspeakable"})
            assert frame["result"]["hits"]
            await gateway.call("retrieve", {"query": "unspeakable", "k": -1})
            gateway.close_stdin()
            assert await gateway.ended() == 0
    assert gateway.said
    said = "\n".join(gateway.said)
    assert "unspeakable" not in said
    assert "capital" not in said
