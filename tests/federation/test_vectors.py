"""Engines that take their vectors from another engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, ConfigErrors, UpstreamError
from gateway.protocol.session import Session
from gateway.spi import Call, EmbedQuery, EmbedReply, SparseVector, VectorNeed
from tests.engines import Running, Script, gateway_of, hits, ids, notes

pytestmark = pytest.mark.anyio

NEED = VectorNeed(embedder="e")


def embedder(embed: Any = None, **more: Any) -> Script:
    return Script(capabilities={"retrieve": None, "embed": {"dimension": 2, "batchLimit": 4, **more}}, embed=embed)


def vectors(*given: tuple[float, ...]) -> Any:
    async def embed(query: EmbedQuery, call: Call) -> EmbedReply:
        return EmbedReply(vectors=given)

    return embed


def raising(error: Exception) -> Any:
    async def embed(query: EmbedQuery, call: Call) -> EmbedReply:
        raise error

    return embed


def state(gateway: Running, id: str) -> str:
    return gateway.gateway.fleet.members[id].breaker.state


async def test_an_embedder_that_is_down_is_not_held_against_the_engines_that_need_it() -> None:
    scripts = {
        "a": Script(hits("x"), need=NEED),
        "b": Script(hits("y")),
        "e": embedder(raising(BackendUnavailable("out"))),
    }
    once = {"retry": {"attempts": 1}}
    async with gateway_of(scripts, engines={"e": once}) as gateway:
        for _ in range(6):
            result = await gateway.retrieve()
        assert ids(result) == ["y"]
        assert (state(gateway, "a"), state(gateway, "e")) == ("closed", "open")
        assert scripts["a"].queries == []


async def test_an_embedder_that_hangs_is_not_held_against_the_engines_that_need_it() -> None:
    async def hangs(query: EmbedQuery, call: Call) -> EmbedReply:
        await asyncio.Event().wait()
        raise AssertionError

    scripts = {"a": Script(hits("x"), need=NEED), "b": Script(hits("y")), "e": embedder(hangs)}
    async with gateway_of(scripts, engines={"a": {"timeout": 0.02}}) as gateway:
        for _ in range(6):
            result = await gateway.retrieve()
        assert "engine a timed out: it could not be asked within 0.02 s" in notes(result)
        assert state(gateway, "a") == "closed"


async def test_a_query_is_embedded_as_a_query_and_a_passage_as_the_client_says() -> None:
    scripts = {"a": Script(hits("x"), need=NEED), "e": embedder()}
    async with gateway_of(scripts) as gateway:
        await gateway.retrieve("words")
        for kind in (None, "query", "document"):
            await gateway.call("embed", {"inputs": ["t"], "kind": kind})
    assert [query.inputs for query in scripts["e"].embedded] == [("words",), ("t",), ("t",), ("t",)]
    assert [query.kind for query in scripts["e"].embedded] == ["query", "document", "query", "document"]


async def test_one_engine_running_out_of_time_leaves_the_vector_to_the_others() -> None:
    release = asyncio.Event()

    async def slow(query: EmbedQuery, call: Call) -> EmbedReply:
        await release.wait()
        return EmbedReply(vectors=((1.0, 2.0),))

    scripts = {"a": Script(hits("x"), need=NEED), "b": Script(hits("y"), need=NEED), "e": embedder(slow)}
    async with gateway_of(scripts, engines={"a": {"timeout": 0.05}}) as gateway:

        def emit(frame: bytes) -> None:
            if b'"a: failed"' in frame:
                release.set()

        asked = {"jsonrpc": "2.0", "id": 1, "method": "retrieve",
                 "params": {"query": "q", "_meta": {"progressToken": 1}}}  # fmt: skip
        session = Session("implicit", gateway.caller)
        answer = await gateway.gateway.dispatcher.answer(json.dumps(asked).encode(), session, emit=emit)
    assert ids(json.loads(answer or b"")["result"]) == ["y"]
    assert len(scripts["e"].embedded) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((), "it gave 0 vectors for 1 texts"),
        (((1.0, 2.0), (3.0, 4.0)), "it gave 2 vectors for 1 texts"),
        (((),), "its vectors are not of one dimension"),
        (((1.0, float("nan")),), "its vectors hold something that is not a finite number"),
        (((1.0, float("inf")),), "its vectors hold something that is not a finite number"),
    ],
)
async def test_a_vector_that_is_none_is_the_embedders_failure(given: Any, told: str) -> None:
    scripts = {"a": Script(hits("x"), need=NEED), "b": Script(hits("y")), "e": embedder(vectors(*given))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve()
        assert ids(result) == ["y"]
        assert f"engine a failed: its embedder e failed: {told}" in notes(result)
        assert (await gateway.call("embed", {"inputs": ["q"]}))["error"]["code"] == -32010
    assert scripts["a"].queries == []


async def test_a_dimension_that_does_not_fit_is_told_and_the_engine_is_not_asked() -> None:
    need = VectorNeed(embedder="e", dimension=2)
    scripts = {"a": Script(hits("x"), need=need), "b": Script(hits("y")), "e": embedder(vectors((1.0, 2.0, 3.0)))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["y"]
    assert "engine a failed: its embedder e failed: it gave vectors of 3 numbers and offers 2" in notes(result)
    assert scripts["a"].queries == []


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (Script(need=VectorNeed(embedder="e", dimension=3)), "engine a: needs vectors of 3 numbers; engine e gives 2"),
        (
            Script(capabilities={"index": {"writable": True}}, document_need=VectorNeed(embedder="e", dimension=3)),
            "engine a: needs vectors of 3 numbers; engine e gives 2",
        ),
        (Script(need=VectorNeed(embedder="b")), "engine a: takes its vectors from 'b', which does not embed"),
        (Script(need=VectorNeed(embedder="zz")), "engine a: takes its vectors from 'zz', which is not configured"),
        (Script(sparse=VectorNeed(embedder="e")), "engine a: takes its sparse vectors from 'e', which makes none"),
        (
            Script(sparse=VectorNeed(embedder="zz")),
            "engine a: takes its sparse vectors from 'zz', which is not configur",
        ),
    ],
)
async def test_engines_that_do_not_go_together_stop_the_start_by_name(script: Script, told: str) -> None:
    scripts = {"a": script, "b": Script(hits("y")), "e": embedder()}
    with pytest.raises(ConfigErrors, match=told):
        async with gateway_of(scripts):
            raise AssertionError("it must not start")


async def test_an_embedder_that_has_not_been_seen_yet_may_still_prove_to_be_one() -> None:
    unseen = Script(capabilities={"retrieve": None})

    async def down() -> None:
        raise BackendUnavailable("not yet")

    unseen.opening = down
    scripts = {"a": Script(hits("x"), need=NEED), "b": Script(hits("y")), "e": unseen}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["y"]
    assert "engine a failed: its embedder e failed: not yet" in notes(result)


async def test_an_embedder_of_unknown_dimension_may_serve_whom_it_fits() -> None:
    scripts = {
        "a": Script(hits("x"), need=VectorNeed(embedder="e", dimension=2)),
        "e": Script(capabilities={"retrieve": None, "embed": {}}),
    }
    async with gateway_of(scripts) as gateway:
        assert ids(await gateway.retrieve()) == ["x"]


async def test_a_need_for_a_sparse_vector_that_shows_late_fails_that_engine_alone() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y")), "e": embedder()}
    async with gateway_of(scripts) as gateway:
        scripts["a"].sparse = VectorNeed(embedder="e")
        result = await gateway.retrieve()
    assert ids(result) == ["y"]
    assert "engine a failed: its embedder e failed" in notes(result)


async def test_a_hybrid_engine_gets_a_dense_and_a_sparse_vector_each_made_once() -> None:
    dense, sparse = VectorNeed(embedder="e", dimension=2), VectorNeed(embedder="s")
    scripts = {
        "a": Script(hits("x"), need=dense, sparse=sparse),
        "b": Script(hits("y"), sparse=sparse),
        "e": embedder(),
        "s": Script(capabilities={"retrieve": None, "sparseEmbed": {"identity": "letters"}}),
    }
    async with gateway_of(scripts) as gateway:
        assert sorted(ids(await gateway.retrieve("aab"))) == ["x", "y"]
        told = await gateway.call("embed/sparse", {"texts": ["ba", ""]})
    both, one = scripts["a"].queries[0], scripts["b"].queries[0]
    assert both.vector == (3.0, 1.0)
    assert both.sparse_vector == one.sparse_vector == SparseVector((97, 98), (2.0, 1.0))
    assert one.vector is None
    assert told["result"]["sparse"] == [{"indices": [98, 97], "values": [1.0, 1.0]}, {"indices": [], "values": []}]


async def test_an_embedder_out_of_the_callers_scope_serves_and_is_never_named() -> None:
    need = VectorNeed(embedder="hidden", dimension=2)
    scripts = {"a": Script(hits("x"), need=need), "b": Script(hits("y")), "hidden": embedder()}
    scripts["a"].capabilities = {"index": {"writable": True}}
    scripts["a"].document_need = need
    async with gateway_of(scripts, writes="a") as gateway:
        narrow = Running(gateway.gateway, scripts, Caller(id="n", engines=frozenset({"a", "b"})))
        assert sorted(ids(await narrow.retrieve())) == ["x", "y"]
        added = await narrow.call("index/add", {"documents": [{"id": "1", "text": "t"}]})
        assert added["result"]["ids"] == ["1"]
        told = []
        for embed in (raising(UpstreamError("hidden: no", retryable=False)), vectors((1.0,)), vectors()):
            scripts["hidden"].embed = embed
            told.append(await narrow.call("retrieve", {"query": "q"}))
            told.append(await narrow.call("index/add", {"documents": [{"id": "1", "text": "t"}]}))
        assert [one["error"]["code"] for one in told if "error" in one] == [-32010] * 3
        assert [ids(one["result"]) for one in told if "result" in one] == [["y"]] * 3
        assert "hidden" not in json.dumps(told)
        wide = await gateway.call("index/add", {"documents": [{"id": "1", "text": "t"}]})
        assert wide["error"]["data"]["engine"] == "hidden"


async def test_an_embedder_that_federates_is_not_asked_when_nothing_may_be_forwarded() -> None:
    scripts = {"a": Script(hits("x"), need=NEED), "b": Script(hits("y")), "e": embedder()}
    scripts["e"].federates = True
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(_meta={"federation": {"depth": 0}})
        assert ids(result) == ["y"]
        embed = await gateway.call("embed", {"inputs": ["t"], "_meta": {"federation": {"depth": 0}}})
        assert (embed["error"]["code"], embed["error"]["data"]["engine"]) == (-32010, "e")
        path = {"federation": {"depth": 3, "path": ["x", "under-test"]}}
        assert "cycle" in (await gateway.call("embed", {"inputs": ["t"], "_meta": path}))["error"]["message"]
    assert scripts["e"].embedded == []


async def test_documents_are_embedded_in_batches_the_embedder_takes_and_stored_once() -> None:
    need = VectorNeed(embedder="e", dimension=2)
    scripts = {"a": Script(capabilities={"index": {"writable": True}}, document_need=need), "e": embedder()}
    documents = [{"id": str(n), "text": "x" * n} for n in range(1, 11)]
    async with gateway_of(scripts, writes="a") as gateway:
        answer = await gateway.call("index/add", {"documents": documents})
    assert answer["result"]["ids"] == [str(n) for n in range(1, 11)]
    assert [len(query.inputs) for query in scripts["e"].embedded] == [4, 4, 2]
    assert {query.kind for query in scripts["e"].embedded} == {"document"}
    assert [document.vector for document in scripts["a"].added] == [[float(n), 1.0] for n in range(1, 11)]


async def test_a_batch_that_fails_stores_nothing_and_one_deadline_covers_all() -> None:
    need = VectorNeed(embedder="e")

    async def second_hangs(query: EmbedQuery, call: Call) -> EmbedReply:
        if len(scripts["e"].embedded) > 1:
            await asyncio.Event().wait()
        return EmbedReply(vectors=((1.0, 2.0),) * len(query.inputs))

    scripts = {"a": Script(capabilities={"index": {"writable": True}}, document_need=need), "e": embedder(second_hangs)}
    documents = [{"id": str(n), "text": "x"} for n in range(10)]
    async with gateway_of(scripts, writes="a") as gateway:
        async with asyncio.timeout(5):
            answer = await gateway.call("index/add", {"documents": documents, "_meta": {"deadlineMs": 100}})
    assert (answer["error"]["code"], answer["error"]["data"]["engine"]) == (-32014, "e")
    assert scripts["a"].added == []


async def test_batches_of_different_dimensions_are_no_embedding() -> None:
    async def grows(query: EmbedQuery, call: Call) -> EmbedReply:
        return EmbedReply(vectors=tuple((0.0,) * len(scripts["e"].embedded) for _ in query.inputs))

    need = VectorNeed(embedder="e")
    scripts = {"a": Script(capabilities={"index": {"writable": True}}, document_need=need), "e": embedder(grows)}
    async with gateway_of(scripts, writes="a") as gateway:
        answer = await gateway.call("index/add", {"documents": [{"id": str(n), "text": "x"} for n in range(5)]})
    assert answer["error"]["code"] == -32010
    assert scripts["a"].added == []


@pytest.mark.parametrize("limit", [0, -3])
async def test_a_batch_limit_that_means_nothing_is_none(limit: int) -> None:
    async with gateway_of({"e": embedder(batchLimit=limit)}) as gateway:
        answer = await gateway.call("embed", {"inputs": ["a"] * 9})
        assert len(answer["result"]["vectors"]) == 9
        assert "batchLimit" not in (await gateway.call("info"))["result"]["capabilities"]["embed"]


async def test_numbers_beyond_32_bits_are_the_largest_there_are() -> None:
    async with gateway_of({"e": embedder(vectors((1e300, -1e300)))}) as gateway:
        answer = await gateway.call("embed", {"inputs": ["a"], "encoding": "f32-base64"})
    assert answer["result"]["dimension"] == 2


async def test_an_embedder_of_another_identity_than_the_stored_vectors_stops_the_start_naming_both() -> None:
    scripts = {"a": Script(hits("x"), need=VectorNeed("e", identity="old/model")), "e": embedder(identity="new/model")}
    with pytest.raises(ConfigErrors) as refused:
        async with gateway_of(scripts):
            pass
    told = str(refused.value)
    assert all(word in told for word in ("engine a", "engine e", "'old/model'", "'new/model'", "fill it anew"))


@pytest.mark.parametrize(("held", "made"), [("m", "m"), ("", "m"), ("m", None)])
async def test_identities_that_agree_or_are_not_told_start(held: str, made: str | None) -> None:
    more = {} if made is None else {"identity": made}
    scripts = {"a": Script(hits("x"), need=VectorNeed("e", identity=held)), "e": embedder(**more)}
    async with gateway_of(scripts) as gateway:
        assert ids(await gateway.retrieve()) == ["x"]


async def test_an_identity_that_shows_late_costs_the_engine_alone_in_reading_and_in_writing() -> None:
    tried, opened = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        if not tried.is_set():
            tried.set()
            raise BackendUnavailable("not yet")
        opened.set()

    need = VectorNeed("e", identity="old/model")
    writable = {"index": {"writable": True}}
    scripts = {
        "a": Script(hits("x"), need=need, document_need=need, capabilities=writable),
        "b": Script(hits("y")),
        "e": embedder(identity="new/model"),
    }
    scripts["e"].opening = late
    async with gateway_of(scripts, writes="a") as gateway:
        async with asyncio.timeout(10):
            await opened.wait()
        while not gateway.gateway.fleet.members["e"].observed:
            await asyncio.sleep(0)
        result = await gateway.retrieve()
        assert ids(result) == ["y"]
        assert "it holds vectors made by 'old/model'; its embedder e makes those of 'new/model'" in notes(result)
        answer = await gateway.call("index/add", {"documents": [{"text": "t"}]})
        assert "'old/model'" in answer["error"]["message"]
        assert scripts["a"].added == []


async def test_a_store_is_told_whose_vectors_come_before_they_do() -> None:
    scripts = {
        "a": Script(document_need=NEED, capabilities={"index": {"writable": True}}),
        "e": embedder(identity="the/model"),
    }
    async with gateway_of(scripts, writes="a") as gateway:
        await gateway.call("index/add", {"documents": [{"text": "t"}]})
    assert scripts["a"].told == [("embedded_by", "the/model", 0)]
