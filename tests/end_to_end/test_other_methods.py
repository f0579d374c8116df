"""Every other method through a whole gateway, over upstreams made with the public SDK."""

from __future__ import annotations

import base64
import json
import struct
from contextlib import asynccontextmanager
from typing import Any

import pytest
import rcp
from anyio import fail_after, to_thread

from gateway.caller import ANONYMOUS
from gateway.protocol.session import Session
from gateway.transports.server import serve
from tests.end_to_end.running import HOSTILE, SDK, child, memory, opened, peer_over_http, upstream
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import KINDS, connect

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def over_sdk(reports: Reports, over: str, *more: Any, **host: Any) -> Any:
    """A gateway over the reference engine and an SDK server with everything, over stdio or HTTP."""
    if over == "stdio":
        own = child(SDK, "--whole", "--writable", reports=reports)
        async with opened(memory(**host), upstream(own=own, **host), *more, writes="far") as gateway:
            yield gateway
    else:
        async with peer_over_http(reports, SDK, "--whole", "--writable") as url:
            async with opened(memory(**host), upstream(own={"url": url}, **host), *more, writes="far") as gateway:
                yield gateway


async def result(client: Any, name: str, /, **params: Any) -> Any:
    answer = await client.call(name, params)
    assert "result" in answer, answer
    return answer["result"]


@obligation(173, 174, 175, 176, 179, 184, 185, 186)
@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("kind", KINDS)
async def test_everything_an_sdk_server_offers_is_offered_and_works(kind: str, over: str, reports: Reports) -> None:
    with fail_after(30):
        async with over_sdk(reports, over) as gateway, connect(kind, gateway) as client:
            told = (await client.call("info"))["result"]["capabilities"]
            assert told["multiVector"]["identity"] == "sdk-words"
            assert told["graph"] == {"ops": ["local", "communities", "neighbors"]}
            assert (told["feedback"], told["memory"]) == ({}, {"scopes": ["global"], "clues": True})

            multi = await result(client, "embed/multi", texts=["a bb"])
            assert multi == {"matrices": [[[1.0, 1.0], [2.0, 1.0]]], "dimension": 2}

            local = await result(client, "graph", op="local", query="paris")
            assert [(hit["id"], hit["unit"]) for hit in local["hits"]] == [
                ("d1", "node"),
                ("d2", "node"),
                ("d3", "node"),
            ]
            assert local["followups"] == ["and then?"]
            around = await result(client, "graph", op="neighbors", seedIds=["d1"])
            assert {edge["word"] for edge in around["edges"]} == {"paris", "france"}
            assert all(edge["src"] == "d1" for edge in around["edges"])
            communities = await result(client, "graph", op="communities")
            assert [(one["id"], one["summary"]) for one in communities["communities"]] == [("0", "All about capitals")]
            assert communities["usage"]["notes"] == ["engine far: one"]
            error = (await client.call("graph", {"op": "drift", "query": "q"}))["error"]
            assert (error["code"], error["data"]["option"]) == (-32005, "drift")

            assert (await result(client, "feedback", signals=[{"hitId": "d1", "used": True}])) == {"accepted": 1}

            built = await result(client, "memory/build", documents=[{"text": "one two"}], memoryId="mine")
            assert built == {"memoryId": "far/mine", "tokens": 2}
            recalled = await result(client, "memory/recall", query="q", memoryId="far/mine")
            assert recalled["clues"] == [{"query": "one two", "seedIds": ["d1"], "weight": 1.0}]
            unknown = (await client.call("memory/recall", {"query": "q", "memoryId": "far/other"}))["error"]
            assert unknown["code"] == -32015

            assert (await result(client, "query/transform", query="q", method="rewrite"))["queries"] == ["Q"]
            assert (await client.call("x-other/count"))["error"]["code"] == -32004


@obligation(210, 223)
async def test_what_reaches_the_upstream_is_made_of_checked_values(reports: Reports) -> None:
    with fail_after(30):
        async with over_sdk(reports, "stdio") as gateway, connect("http", gateway) as client:
            await result(client, "graph", op="local", query="paris", sessionId="s", zz=1, _meta={"deep": {"a": 1}})
            await result(client, "feedback", signals=[{"hitId": "d1", "reward": 1, "zz": 1}], zz=1)
            await client.call("graph", {"op": "global", "query": "q"})
            sent = {method: reports.frames(method) for method in ("graph", "feedback")}
    (graph,), (feedback,) = ([{**frame["params"]} for frame in sent[method]] for method in ("graph", "feedback"))
    for params in (graph, feedback):
        assert set(params.pop("_meta")) <= {"federation", "deadlineMs", "progressToken"}
    assert graph.pop("sessionId") != "s"
    assert graph == {"op": "local", "query": "paris", "k": 10}
    assert feedback == {"signals": [{"hitId": "d1", "reward": 1}]}


@obligation(184)
@pytest.mark.parametrize("over", ["stdio", "http"])
async def test_with_corpora_ids_lead_back_to_the_engine_they_are_of(over: str, reports: Reports) -> None:
    with fail_after(30):
        async with over_sdk(reports, over, corpus="far") as gateway, connect("http", gateway) as client:
            found = await result(client, "graph", op="neighbors", seedIds=["far/d1"])
            assert {edge["src"] for edge in found["edges"]} == {"far/d1"}
            assert {node["id"] for node in found["nodes"]} == {edge["dst"] for edge in found["edges"]}
            await result(client, "feedback", signals=[{"hitId": "far/d2"}])
            recalled = await result(client, "memory/recall", query="q")
            assert [hit["id"] for hit in recalled["hits"]] == ["far/d1"]
            assert (await client.call("feedback", {"signals": [{"hitId": "near/d2"}]}))["error"]["code"] == -32602
            (feedback,) = reports.frames("feedback")
    assert [signal["hitId"] for signal in feedback["params"]["signals"]] == ["d2"]


@obligation(176)
async def test_matrices_are_compact_where_that_is_asked_for(reports: Reports) -> None:
    frame = {"jsonrpc": "2.0", "id": 1, "method": "embed/multi",
             "params": {"inputs": ["a bb"], "encoding": "f32-base64"}}  # fmt: skip
    with fail_after(30):
        async with over_sdk(reports, "stdio") as gateway:
            sent = json.dumps(frame).encode()
            answer = await gateway.dispatcher.answer(sent, Session("implicit", ANONYMOUS))
    result = json.loads(answer)["result"]
    assert (result["encoding"], result["dimension"]) == ("f32-base64", 2)
    rows = [struct.unpack("<2f", base64.b64decode(row)) for row in result["matrices"][0]]
    assert rows == [(1.0, 1.0), (2.0, 1.0)]


@obligation(181)
async def test_documents_that_an_upstream_cannot_cut_are_cut_on_the_way_to_it(reports: Reports) -> None:
    text = "Paris " + "word " * 1000
    with fail_after(30):
        async with over_sdk(reports, "stdio") as gateway, connect("http", gateway) as client:
            added = await result(client, "index/add", documents=[{"id": "doc", "text": text}], chunk=True)
            assert added["ids"] == ["doc"]
            assert added["chunks"] > 2
            found = await result(client, "retrieve", query="word", k=50)
            ids = {hit["id"] for hit in found["hits"]}
            assert ids == {f"doc#{n}" for n in range(added["chunks"])}
            assert await result(client, "index/delete", ids=["doc"]) == {"deleted": 1}
            assert (await result(client, "retrieve", query="word", k=50))["hits"] == []


@obligation(240)
async def test_a_gateway_behind_a_gateway_hands_every_method_on(reports: Reports) -> None:
    with fail_after(40):
        acme = upstream("acme", own=child(HOSTILE, "more,logs", reports=reports))
        async with over_sdk(reports, "stdio", acme) as inner, serve(inner.app()) as address:
            async with opened(upstream("inner", own={"url": f"{address.url}/rcp"}), name="outer") as outer:
                async with connect("sse", outer) as client:
                    told = (await client.call("info"))["result"]["capabilities"]
                    assert told["x-acme"] == {"dances": ["waltz"]}
                    assert told["graph"] == {"ops": ["local", "communities", "neighbors"]}
                    found = await result(client, "graph", op="local", query="berlin")
                    (hit,) = found["hits"]
                    assert (hit["id"], hit["meta"]["engine"]) == ("d4", "inner")
                    built = await result(client, "memory/build", memoryId="mine")
                    assert built["memoryId"] == "inner/far/mine"
                    clues = (await result(client, "memory/recall", query="q", memoryId="inner/far/mine"))["clues"]
                    assert len(clues) == 4
                    assert await result(client, "feedback", signals=[{"hitId": "d4"}]) == {"accepted": 1}
                    assert await result(client, "x-acme/dance", to="waltz") == {"danced": True}
                    assert (await result(client, "embed/multi", inputs=["a"]))["matrices"] == [[[1.0, 1.0]]]
                    assert client.frames == []
                    await result(client, "x-acme/dance", _meta={"logLevel": "info"})
                    assert [frame["params"]["message"] for frame in client.frames] == ["of True"]


def asked(url: str) -> dict[str, Any]:
    """What the public SDK's own client gets from the methods it has."""
    client = rcp.connect_http(url)
    try:
        built = client.memory_build(documents=[{"text": "one two"}], memory_id="mine")
        found = client.retrieve("Paris", k=10)
        return {
            "matrices": client.embed_multi(["a"])["matrices"],
            "sparse": "sparseEmbed" in client.capabilities,
            "nodes": {node["id"] for node in client.graph("neighbors", {"seedIds": ["d1"]})["nodes"]},
            "queries": client.transform("q", "rewrite")["queries"],
            "feedback": client.feedback([{"hitId": hit["id"], "used": True} for hit in found])["accepted"],
            "memory": built["memoryId"],
            "clues": client.memory_recall("q", memory_id=built["memoryId"], n=1)["clues"],
        }
    finally:
        client.shutdown()


@obligation(109, 173, 179, 184, 185)
async def test_the_sdks_own_client_uses_them(reports: Reports) -> None:
    with fail_after(30):
        async with over_sdk(reports, "http") as gateway, serve(gateway.app()) as address:
            found = await to_thread.run_sync(asked, f"{address.url}/rcp")
            (feedback,) = reports.frames("feedback")
    assert found == {
        "matrices": [[[1.0, 1.0]]],
        "sparse": False,
        "nodes": {"d2"},
        "queries": ["Q"],
        "feedback": 3,
        "memory": "far/mine",
        "clues": [{"query": "one two", "seedIds": ["d1"], "weight": 1.0}],
    }
    # The reference engine's hits are not the upstream's business.
    assert {signal["hitId"] for signal in feedback["params"]["signals"]} == {"d1", "d2", "d3"}
