"""Embedding, reranking and writing go to exactly one engine."""

from __future__ import annotations

import base64
import struct

import pytest

from gateway.caller import Caller
from gateway.errors import BackendUnavailable
from gateway.model import hit
from gateway.spi import Call, EngineQuery, EngineReply, VectorNeed
from tests.engines import Running, Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

WRITABLE = {"index": {"writable": True}}
EMBEDS = {"embed": {"dimension": 2, "identity": "length", "batchLimit": 4}}


def embedder() -> Script:
    return Script(capabilities=EMBEDS)


@obligation(181)
async def test_a_write_goes_to_the_one_engine_that_writes_names() -> None:
    scripts = {"a": Script(capabilities=WRITABLE), "b": Script(capabilities=WRITABLE)}
    async with gateway_of(scripts, writes="b") as gateway:
        answer = await gateway.call("index/add", {"documents": [{"id": "x", "text": "t"}, {"id": 7, "text": "u"}]})
    assert answer["result"] == {"ids": ["x", "7"], "chunks": 2}
    assert scripts["a"].added == []
    assert [document.id for document in scripts["b"].added] == ["x", "7"]


async def test_a_document_without_an_id_gets_one_from_its_content() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        first = await gateway.call("index/add", {"documents": [{"text": "same"}]})
        second = await gateway.call("index/add", {"documents": [{"text": "same"}, {"text": "other"}]})
    assert first["result"]["ids"][0] == second["result"]["ids"][0] != second["result"]["ids"][1]


@obligation(182)
async def test_deleting_twice_deletes_once() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        await gateway.call("index/add", {"documents": [{"id": "x", "text": "t"}]})
        assert (await gateway.call("index/delete", {"ids": ["x", "never"]}))["result"] == {"deleted": 1}
        assert (await gateway.call("index/delete", {"ids": ["x"]}))["result"] == {"deleted": 0}


async def test_ids_of_a_corpus_are_qualified_and_understood_both_ways() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a", engines={"a": {"corpus": "docs"}}) as gateway:
        added = await gateway.call("index/add", {"documents": [{"id": "p/q", "text": "t"}, {"id": "r", "text": "u"}]})
        assert added["result"]["ids"] == ["docs/p/q", "docs/r"]
        assert (await gateway.call("index/delete", {"ids": ["docs/p/q"]}))["result"] == {"deleted": 1}
        assert (await gateway.call("index/delete", {"ids": ["r"]}))["result"] == {"deleted": 1}


async def test_without_writes_the_index_is_not_offered() -> None:
    async with gateway_of({"a": Script(capabilities=WRITABLE)}) as gateway:
        assert (await gateway.call("index/add", {"documents": []}))["error"]["code"] == -32003
        assert "index" not in (await gateway.call("info"))["result"]["capabilities"]


async def test_who_may_not_write_is_refused_before_anything_happens() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        reader = Running(gateway.gateway, gateway.scripts, Caller(id="reader", writable=False))
        answer = await reader.call("index/add", {"documents": [{"id": "x", "text": "t"}]})
    assert answer["error"]["code"] == -32012
    assert script.added == []


@obligation(183)
async def test_a_write_that_fails_is_not_tried_again() -> None:
    calls = 0

    class Dying(Script):
        pass

    script = Dying(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        engine = gateway.gateway.fleet.members["a"].engine

        async def dies(documents: object, call: Call) -> None:
            nonlocal calls
            calls += 1
            raise BackendUnavailable("broke off")

        engine.index_add = dies  # type: ignore[union-attr,method-assign]
        answer = await gateway.call("index/add", {"documents": [{"text": "t"}]})
    assert answer["error"]["code"] == -32010
    assert answer["error"]["data"]["engine"] == "a"
    assert calls == 1


@obligation(173)
@pytest.mark.parametrize("key", ["inputs", "texts"])
async def test_inputs_and_texts_embed_alike(key: str) -> None:
    async with gateway_of({"e": embedder(), "a": Script(hits("x"))}) as gateway:
        answer = await gateway.call("embed", {key: ["a", "bb"]})
    assert answer["result"] == {"vectors": [[1.0, 1.0], [2.0, 1.0]], "dimension": 2}


async def test_compact_vectors_are_four_bytes_a_number() -> None:
    async with gateway_of({"e": embedder()}) as gateway:
        result = (await gateway.call("embed", {"inputs": ["abc"], "encoding": "f32-base64"}))["result"]
    assert result["encoding"] == "f32-base64"
    assert struct.unpack("<2f", base64.b64decode(result["vectors"][0])) == (3.0, 1.0)


async def test_what_cannot_be_embedded_is_refused_precisely() -> None:
    async with gateway_of({"e": embedder()}) as gateway:
        assert (await gateway.call("embed", {"inputs": ["x"] * 5}))["error"]["data"]["field"] == "inputs"
        assert (await gateway.call("embed", {}))["error"]["data"]["field"] == "inputs"
        assert (await gateway.call("embed", {"inputs": ["a"], "texts": ["b"]}))["error"]["code"] == -32602
        assert (await gateway.call("embed", {"inputs": ["a"], "encoding": "f16"}))["error"]["code"] == -32005
        assert (await gateway.call("embed", {"inputs": ["a"], "kind": "odd"}))["error"]["code"] == -32602
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert (await gateway.call("embed", {"inputs": ["a"]}))["error"]["code"] == -32003


@obligation(254)
async def test_a_method_that_one_engine_offers_is_offered_and_routed_to_it() -> None:
    scripts = {"a": Script(hits("x")), "e": Script(capabilities={**EMBEDS, "retrieve": None})}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["embed"]["identity"] == "length"
        assert ids(await gateway.retrieve()) == ["x"]


@obligation(177)
@pytest.mark.parametrize("key", ["passages", "documents"])
async def test_both_spellings_of_rerank_give_scores_aligned_and_results_sorted(key: str) -> None:
    async with gateway_of({"r": Script(capabilities={"rerank": {"methods": ["cross-encoder"]}})}) as gateway:
        result = (await gateway.call("rerank", {"query": "q", key: ["aa", "b", "cccc"], "topN": 2}))["result"]
    assert result["scores"] == [2.0, 1.0, 4.0]
    assert result["order"] == [2, 0]
    assert result["results"] == [{"index": 2, "score": 4.0}, {"index": 0, "score": 2.0}]


async def test_a_query_is_embedded_once_however_many_engines_need_it() -> None:
    embedded: list[str] = []
    need = VectorNeed(embedder="e")
    scripts = {
        "a": Script(hits("x"), need=need),
        "b": Script(hits("y"), need=need),
        "e": Script(capabilities={**EMBEDS, "retrieve": None}),
    }
    async with gateway_of(scripts) as gateway:
        engine = gateway.gateway.fleet.members["e"].engine
        assert engine is not None
        original = engine.embed

        async def counting(query: object, call: Call) -> object:
            embedded.append("once")
            return await original(query, call)  # type: ignore[arg-type]

        engine.embed = counting  # type: ignore[method-assign,assignment]
        assert sorted(ids(await gateway.retrieve("four"))) == ["x", "y"]
    assert embedded == ["once"]
    assert scripts["a"].queries[0].vector == scripts["b"].queries[0].vector == (4.0, 1.0)


async def test_a_failed_embedder_takes_down_only_the_legs_that_need_it_and_is_named() -> None:
    scripts = {
        "a": Script(hits("x"), need=VectorNeed(embedder="e")),
        "b": Script(hits("y")),
        "e": Script(capabilities={**EMBEDS, "retrieve": None}),
    }
    async with gateway_of(scripts) as gateway:
        engine = gateway.gateway.fleet.members["e"].engine
        assert engine is not None

        async def fails(query: object, call: Call) -> object:
            raise BackendUnavailable("out of order", retryable=False)

        engine.embed = fails  # type: ignore[method-assign,assignment]
        result = await gateway.retrieve()
    assert ids(result) == ["y"]
    assert "its embedder e failed: out of order" in notes(result)


@obligation(256, 257, 258)
async def test_the_catalog_tells_what_engines_offer_and_nothing_that_leads_to_them() -> None:
    import json

    async with gateway_of({"a": Script(hits("x"), WRITABLE)}) as gateway:
        answer = await gateway.call("catalog/list")
    (entry,) = answer["result"]["engines"]
    assert entry["id"] == "a"
    assert entry["server"] == {"name": "scripted"}
    assert entry["capabilities"]["index"] == {"writable": True}
    assert "endpoint" not in json.dumps(answer)
    assert "command" not in json.dumps(answer)


async def test_progress_brings_each_engines_hits_as_it_answers_filtered_and_sealed() -> None:
    import asyncio
    import json

    from gateway.caller import ANONYMOUS
    from gateway.protocol.session import Session

    second = asyncio.Event()

    async def late(query: EngineQuery, call: Call) -> EngineReply:
        call.progress(0.5, "thinking")
        await second.wait()
        return EngineReply(hits=[hit("y", 1.0, text="t")])

    scripts = {"a": Script(hits("x", "z")), "b": Script(retrieve=late)}
    frames: list[dict[str, object]] = []

    def emit(frame: bytes) -> None:
        frames.append(json.loads(frame))
        if b'"x"' in frame:
            second.set()

    async with gateway_of(scripts) as gateway:
        request = {"jsonrpc": "2.0", "id": 9, "method": "retrieve",
                   "params": {"query": "q", "k": 1, "_meta": {"progressToken": "t"}}}  # fmt: skip
        session = Session("implicit", ANONYMOUS)
        await gateway.gateway.dispatcher.answer(json.dumps(request).encode(), session, emit=emit)
    told = [frame["params"] for frame in frames]
    assert [one["progressToken"] for one in told] == ["t"] * len(told)  # type: ignore[index]
    fractions = [one["progress"] for one in told]  # type: ignore[index]
    assert fractions == sorted(fractions)
    partial = [[one["id"] for one in frame["partial"]["hits"]] for frame in told if "partial" in frame]  # type: ignore[operator,index]
    # As they fuse: a alone, then both, where x has the better weight of the first; then the fused list itself.
    assert partial == [["x"], ["x"], ["x"]]


# Several vectors to a text


@obligation(175, 176)
@pytest.mark.parametrize("key", ["inputs", "texts"])
async def test_a_text_becomes_a_matrix_of_one_fixed_engine(key: str) -> None:
    first = {"retrieve": None, "multiVector": {"dimension": 2, "identity": "words"}}
    other = {"retrieve": None, "multiVector": {"dimension": 2, "identity": "other"}}
    scripts = {"a": Script(capabilities=first), "b": Script(capabilities=other)}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["multiVector"] == {"dimension": 2, "identity": "words"}
        for _ in range(3):
            result = (await gateway.call("embed/multi", {key: ["a bb", "ccc"]}))["result"]
            assert result == {"matrices": [[[1.0, 1.0], [2.0, 1.0]], [[3.0, 1.0]]], "dimension": 2}
        asked = (await gateway.call("embed/multi", {key: ["a"], "encoding": "json"}))["result"]
        assert asked == {"matrices": [[[1.0, 1.0]]], "dimension": 2, "encoding": "json"}
        assert (await gateway.call("embed/multi", {key: []}))["result"] == {"matrices": [], "dimension": 2}


@obligation(176)
async def test_rows_of_a_matrix_are_compact_where_that_is_asked_for() -> None:
    """The schema of results knows numbers only; a client that asks for base64 has read section 7.3.1."""
    import json

    from gateway.caller import ANONYMOUS
    from gateway.protocol.session import Session

    async with gateway_of({"a": Script(capabilities={"multiVector": {}})}) as gateway:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "embed/multi",
                 "params": {"inputs": ["a bb"], "encoding": "f32-base64"}}  # fmt: skip
        session = Session("implicit", ANONYMOUS)
        answer = await gateway.gateway.dispatcher.answer(json.dumps(asked).encode(), session)
    result = json.loads(answer or b"")["result"]
    assert (result["encoding"], result["dimension"]) == ("f32-base64", 2)
    (rows,) = result["matrices"]
    assert [struct.unpack("<2f", base64.b64decode(row)) for row in rows] == [(1.0, 1.0), (2.0, 1.0)]


ROW = (1.0, 2.0)


@pytest.mark.parametrize(
    "wrong", [[], [(ROW,)] * 2, [(ROW, (1.0,))], [((1.0,),)], [((),)], [((float("nan"), 1.0),)]], ids=str
)
async def test_matrices_that_are_none_are_the_engines_failure(wrong: list[tuple[tuple[float, ...], ...]]) -> None:
    given = wrong

    async def multi(query: object, call: Call) -> list[tuple[tuple[float, ...], ...]]:
        return given

    script = Script(capabilities={"multiVector": {"dimension": 2}}, multi=multi)
    async with gateway_of({"a": script}) as gateway:
        error = (await gateway.call("embed/multi", {"inputs": ["a"]}))["error"]
        assert (error["code"], error["data"]["engine"]) == (-32010, "a")
        given = [()]
        assert (await gateway.call("embed/multi", {"inputs": [""]}))["result"] == {"matrices": [[]], "dimension": 2}
        refused = (await gateway.call("embed/multi", {"inputs": ["a"], "encoding": "f16"}))["error"]
        assert (refused["code"], refused["data"]["option"]) == (-32005, "f16")


# Several engines that rerank


@obligation(178)
async def test_a_method_of_reranking_goes_to_the_engine_that_offers_it() -> None:
    scripts = {
        "a": Script(capabilities={"rerank": {"methods": ["cross-encoder"], "models": ["small"], "maxCandidates": 9}}),
        "b": Script(capabilities={"rerank": {"methods": ["llm", "own"], "models": ["large"], "maxCandidates": 2}}),
        "c": Script(capabilities={"rerank": {"methods": ["llm", "colbert"]}}),
    }
    asked: list[str] = []

    def reranks(id: str) -> object:
        async def rerank(query: object, call: Call) -> list[float]:
            asked.append(id)
            return [1.0]

        return rerank

    for id, script in scripts.items():
        script.rerank = reranks(id)  # type: ignore[assignment]
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        methods, models = ["cross-encoder", "colbert", "llm"], ["small", "large"]
        assert told["rerank"] == {"methods": methods, "maxCandidates": 2, "models": models}
        assert told["x-gateway"]["rerank"]["methods"] == ["bm25", "own"]

        async def rerank(**params: object) -> dict[str, object]:
            answer: dict[str, object] = await gateway.call("rerank", {"query": "q", "passages": ["p"], **params})
            return answer

        for params in ({}, {"method": "llm"}, {"method": "colbert"}, {"method": "own"}, {"model": "large"},
                       {"method": "llm", "model": "dear"}, {"method": "llm", "model": "large"}):  # fmt: skip
            assert "result" in await rerank(**params)
        assert asked == ["a", "b", "c", "b", "b", "c", "b"]
        for params, option in (
            ({"method": "telepathy"}, "telepathy"),
            ({"method": "cross-encoder", "model": "large"}, "large"),
        ):
            error = (await gateway.call("rerank", {"query": "q", "passages": ["p"], **params}))["error"]
            assert (error["code"], error["data"]["option"]) == (-32005, option)
        many = (await gateway.call("rerank", {"query": "q", "passages": ["p"] * 3, "method": "llm"}))["error"]
        assert (many["code"], many["data"]["field"]) == (-32602, "passages")
        assert "result" in await rerank(passages=["p"] * 9)
