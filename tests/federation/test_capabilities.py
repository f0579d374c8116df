"""What the gateway says it can do, per scope, and that it says no more than it does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, CallerError
from gateway.filters import FALSE, Filter, Pushdown
from gateway.model import IndexAddResult, hit
from gateway.spi import Call, EngineQuery
from tests.engines import Running, Script, gateway_of, hits, ids, notes
from tests.federation.scripts import failing
from tests.obligations import obligation
from tests.schema import check_frame

pytestmark = pytest.mark.anyio


async def offered(gateway: Running) -> dict[str, Any]:
    told: dict[str, Any] = (await gateway.call("info"))["result"]["capabilities"]
    return told


@obligation(254, 255)
async def test_what_any_offers_is_offered_and_what_all_offer_is_guaranteed() -> None:
    all_have = {"confidence": True, "deterministic": True}
    a = {
        "retrieve": {"maxK": 30, "modes": ["dense", "hybrid"], "units": ["chunk"], "levels": 2, **all_have},
        "filter": {"fields": {"year": "int", "lang": "keyword"}, "operators": ["eq"]},
        "citations": {},
    }
    b = {
        "retrieve": {"maxK": 20, "modes": ["hybrid", "sparse"], "modalities": ["text", "image"], **all_have},
        "filter": {"fields": {"lang": "keyword", "size": "int"}},
    }
    async with gateway_of({"a": Script(capabilities=a), "b": Script(capabilities=b)}) as gateway:
        told = await offered(gateway)
    retrieve = told["retrieve"]
    assert retrieve["maxK"] == 50
    assert retrieve["modes"] == ["dense", "hybrid", "sparse"]
    assert (retrieve["units"], retrieve["levels"], retrieve["modalities"]) == (["chunk"], 2, ["text", "image"])
    assert (retrieve["confidence"], retrieve["deterministic"]) == (True, True)
    assert not {"scoreFloor", "scoreScale", "defaultMode", "snapshots"} & set(retrieve)
    # What the gateway does itself, whoever retrieves.
    assert (retrieve["mmr"], retrieve["rerankBuiltin"], retrieve["tokenBudget"]) == (True, True, True)
    assert told["filter"]["fields"] == {"year": "int", "lang": "keyword", "size": "int"}
    assert "citations" in told
    guaranteed = told["x-gateway"]["guaranteed"]
    assert guaranteed["retrieve"] == {"maxK": 20, "modes": ["hybrid"], "confidence": True, "deterministic": True}
    assert guaranteed["filter"]["fields"] == {"lang": "keyword"}
    assert "citations" not in guaranteed


@obligation(253)
async def test_a_property_of_every_hit_is_offered_only_if_all_have_it() -> None:
    sure = {"retrieve": {"maxK": 10, "confidence": True, "deterministic": True, "scoreFloor": 0.0}}
    async with gateway_of({"a": Script(capabilities=sure), "b": Script()}) as gateway:
        retrieve = (await offered(gateway))["retrieve"]
    assert not {"confidence", "deterministic", "scoreFloor"} & set(retrieve)


@pytest.mark.parametrize(
    ("limits", "most"), [((0, 20), 1000), ((None, 20), 1000), ((-5, None), 1000), ((30, 20), 50), ((900, 900), 1000)]
)
async def test_a_limit_below_one_says_nothing(limits: tuple[Any, ...], most: int) -> None:
    scripts = {f"e{n}": Script(hits("x"), {"retrieve": {"maxK": one}}) for n, one in enumerate(limits)}
    async with gateway_of(scripts) as gateway:
        assert (await offered(gateway))["retrieve"]["maxK"] == most
        assert ids(await gateway.retrieve()) == ["x"]
    assert all(script.queries[0].k >= 20 for script in scripts.values())


@obligation(22, 136)
async def test_every_number_that_was_cut_is_told() -> None:
    scripts = {"a": Script(hits("x"), {"retrieve": {"maxK": 20}}), "b": Script(hits("x"), {"retrieve": {"maxK": 80}})}
    async with gateway_of(scripts, limits={"max_k": 60}) as gateway:
        assert notes(await gateway.retrieve(k=20)) == ""
        assert notes(await gateway.retrieve(k=60)) == "engine a: it gives at most 20 hits"
        assert notes(await gateway.retrieve(k=5, candidateK=21)) == "engine a: it gives at most 20 hits"
        told = notes(await gateway.retrieve(k=61, candidateK=70))
    assert told.splitlines() == ["k is at most 60", "candidateK is at most 60", "engine a: it gives at most 20 hits"]
    assert [query.k for query in scripts["b"].queries] == [50, 60, 21, 60]


async def test_an_engine_whose_claim_proves_true_settles_what_is_known() -> None:
    release = asyncio.Event()

    async def late() -> None:
        if not release.is_set():
            raise BackendUnavailable("not yet")

    script = Script(hits("x"), opening=late)
    constant = script.offers()
    script.offers = lambda: constant  # type: ignore[method-assign]
    async with gateway_of({"a": script}) as gateway:
        assert (await gateway.refused(mode="dense"))["code"] == -32010
        release.set()
        async with asyncio.timeout(5):
            while gateway.gateway.fleet.members["a"].engine is None:
                await asyncio.sleep(0.01)
        assert (await gateway.refused(mode="dense"))["code"] == -32005


async def test_while_engines_are_unseen_only_what_they_could_know_is_in_doubt() -> None:
    down = Script(hits("x"))

    async def never() -> None:
        raise BackendUnavailable("refused")

    down.opening = never
    fields = {"filter": {"fields": {"lang": "keyword"}}}
    async with gateway_of({"late": down, "b": Script(hits("y"), fields)}) as gateway:

        async def code(**params: Any) -> int:
            error = await gateway.refused(**params)
            assert ("retryable" in error.get("data", {})) == (error["code"] == -32010)
            return int(error["code"])

        assert await code(mode="dense") == -32010
        assert await code(unit="page") == -32010
        assert await code(query=[{"type": "image", "mimeType": "image/png", "data": "aGk="}]) == -32010
        assert await code(filter={"field": "size", "op": "eq", "value": 1}) == -32010
        assert await code(filter={"not": {"field": "filter", "op": "eq", "value": 1}}) == -32010
        # The gateway's own: no engine will change it.
        assert await code(fusion={"method": "magic"}) == -32005
        assert await code(rerank={"method": "llm"}) == -32005
        assert await code(encoding="f16") == -32005
        # The caller's own fault, whoever is there.
        assert await code(filter={"and": []}) == -32602
        assert await code(filter={"field": "size"}) == -32602
        assert await code(filter={"field": 5, "op": "eq", "value": 1}) == -32602
        assert await code(filter={"field": "size", "op": "zap", "value": 1}) == -32602
        assert await code(filter={"field": "lang", "op": "eq", "value": 1}) == -32602
        assert await code(_meta={"x-gateway": {"engines": ["nobody"]}}) == -32602


async def test_every_scope_has_a_snapshot_of_its_own() -> None:
    scripts = {
        "a": Script(hits("x"), {"retrieve": {"maxK": 10, "modes": ["dense"]}}),
        "b": Script(hits("y"), {"retrieve": {"maxK": 20, "modes": ["sparse"]}, "rerank": {"methods": ["llm"]}}),
        "e": Script(capabilities={"retrieve": None, "embed": {"dimension": 2}}),
    }
    async with gateway_of(scripts, embed="e") as gateway:

        def seen(*engines: str) -> Running:
            return Running(gateway.gateway, scripts, Caller(id="n", engines=frozenset(engines)))

        assert len((await offered(gateway))["retrieve"]["modes"]) == 3  # the widest first: nobody is given its snapshot
        only_a, only_e, none = await offered(seen("a")), await offered(seen("e")), await offered(seen())
        assert (only_a["retrieve"]["modes"], only_a["retrieve"]["maxK"]) == (["dense"], 10)
        assert "embed" not in only_a
        assert only_a["rerank"] == {"maxCandidates": 1000}, "only what the gateway does by itself"
        assert "retrieve" not in only_e
        assert "embed" in only_e
        assert not {"retrieve", "embed", "rerank"} & set(none)
        assert (await seen("a").call("embed", {"inputs": ["t"]}))["error"]["code"] == -32003
        assert (await seen("a").refused(mode="sparse"))["code"] == -32005
        assert ids(await seen("b").retrieve(mode="sparse")) == ["y"]


@obligation(178)
@pytest.mark.parametrize("limit", [0, -1, None])
async def test_a_rerank_limit_that_means_nothing_is_none(limit: int | None) -> None:
    script = Script(capabilities={"rerank": {"methods": ["llm"], "maxCandidates": limit}})
    async with gateway_of({"r": script}) as gateway:
        answer = await gateway.call("rerank", {"query": "q", "passages": ["a", "bb"], "method": "llm"})
        assert answer["result"]["order"] == [1, 0]
        assert "maxCandidates" not in (await offered(gateway))["rerank"]


@obligation(178)
async def test_rerank_is_held_to_what_the_engine_offers() -> None:
    async with gateway_of({"r": Script(capabilities={"rerank": {"methods": ["llm"], "maxCandidates": 2}})}) as gateway:

        async def refused(**params: Any) -> tuple[int, Any]:
            error = (await gateway.call("rerank", {"query": "q", **params}))["error"]
            return error["code"], error["data"].get("field") or error["data"].get("option")

        assert await refused(passages=["a"] * 3) == (-32602, "passages")
        assert await refused(passages=["a"], method="colbert") == (-32005, "method")
        assert await refused(passages=["a"], topN=0) == (-32602, "topN")
        assert await refused(passages=[{"type": "image", "mimeType": "i/p", "data": "aGk="}]) == (-32005, "passages[0]")
        assert (await gateway.call("rerank", {"query": "q", "passages": []}))["result"]["scores"] == []
        assert (await gateway.call("rerank", {"query": "q", "passages": ["a"], "topN": 99}))["result"]["order"] == [0]


async def test_a_reranker_is_not_asked_for_more_than_there_is() -> None:
    asked: list[Any] = []

    async def rerank(query: Any, call: Call) -> Any:
        asked.append(query.top_n)
        return [1.0] * len(query.passages)

    async with gateway_of({"r": Script(capabilities={"rerank": {"methods": ["llm"]}}, rerank=rerank)}) as gateway:
        for top in (None, 1, 10**9):
            await gateway.call("rerank", {"query": "q", "passages": ["a", "b"], "topN": top})
    assert asked == [2, 1, 2]


@obligation(177)
@pytest.mark.parametrize(
    ("given", "scores", "order"),
    [
        ([1.0, None, 3.0], [1.0, 0.0, 3.0], [2, 0, 1]),
        ([float("nan"), 2, float("inf")], [1.0, 2.0, 1.0], [1, 0, 2]),
        ([5.0], [5.0, 4.0, 4.0], [0, 1, 2]),
        ([None, None, None], [-1.0, -1.0, -1.0], [0, 1, 2]),
        ([-1e300, None, -1e299], [-1e300, None, -1e299], [2, 0, 1]),
    ],
)
async def test_passages_a_reranker_leaves_out_come_last(given: Any, scores: Any, order: list[int]) -> None:
    async def rerank(query: Any, call: Call) -> Any:
        return given

    async with gateway_of({"r": Script(capabilities={"rerank": {"methods": ["llm"]}}, rerank=rerank)}) as gateway:
        result = (await gateway.call("rerank", {"query": "q", "passages": ["a", "b", "c"]}))["result"]
    assert result["order"] == order
    if None in scores:
        assert result["scores"][1] < -1e300
    else:
        assert result["scores"] == scores


@pytest.mark.parametrize("given", [[1.0] * 4, ["high"], None])
async def test_scores_that_fit_no_passages_are_the_engines_failure(given: Any) -> None:
    async def rerank(query: Any, call: Call) -> Any:
        return given

    async with gateway_of({"r": Script(capabilities={"rerank": {"methods": ["llm"]}}, rerank=rerank)}) as gateway:
        error = (await gateway.call("rerank", {"query": "q", "passages": ["a", "b", "c"]}))["error"]
    assert error["code"] in (-32010, -32603)
    assert error["data"]["engine"] == "r"


@obligation(181)
async def test_ids_come_back_one_for_each_document_whatever_the_engine_counts() -> None:
    async def forgets(documents: Any, call: Call) -> IndexAddResult:
        return IndexAddResult(ids=("only",), chunks=7)

    async with gateway_of(
        {"a": Script(capabilities={"index": {"writable": True}}, add=forgets)}, writes="a"
    ) as gateway:
        result = await gateway.call("index/add", {"documents": [{"id": "1", "text": "t"}, {"id": "2", "text": "t"}]})
    assert result["result"] == {"ids": ["1", "2"], "chunks": 7}


@obligation(181)
async def test_a_document_that_is_there_already_is_a_conflict_and_other_refusals_are_the_gateways_matter() -> None:
    for code, told in ((-32016, -32016), (-32602, -32010), (-32012, -32010), (-32013, -32010)):

        async def refuses(documents: Any, call: Call, code: int = code) -> IndexAddResult:
            raise CallerError("no", code=code)

        script = Script(capabilities={"index": {"writable": True}}, add=refuses)
        async with gateway_of({"a": script}, writes="a") as gateway:
            error = (await gateway.call("index/add", {"documents": [{"id": "1", "text": "t"}]}))["error"]
        assert (error["code"], error["data"]["engine"]) == (told, "a")


async def test_a_conflict_has_a_meaning_for_writes_only() -> None:
    async def refuses(query: Any, call: Call) -> Any:
        raise CallerError("no", code=-32016)

    async with gateway_of({"r": Script(capabilities={"rerank": {"methods": ["llm"]}}, rerank=refuses)}) as gateway:
        error = (await gateway.call("rerank", {"query": "q", "passages": ["a"]}))["error"]
    assert (error["code"], error["data"]["upstreamCode"]) == (-32010, -32016)


@obligation(182)
async def test_one_document_is_removed_once_and_never_less_than_no_time() -> None:
    asked: list[list[str]] = []

    async def delete(given: Any, call: Call) -> int:
        asked.append(list(given))
        return -3

    script = Script(capabilities={"index": {"writable": True}}, delete=delete)
    async with gateway_of({"a": script}, writes="a", engines={"a": {"corpus": "one"}}) as gateway:
        answer = await gateway.call("index/delete", {"ids": ["one/y", "y", 7, "7", 7.0]})
        assert answer["result"] == {"deleted": 0}
        assert (await gateway.call("index/delete", {"ids": []}))["result"] == {"deleted": 0}
    # The pieces of what was cut up here go first, the documents with their first pieces last.
    first, last = asked
    assert {id.partition("#")[0] for id in first} == {"y", "7"}
    assert "y#0" not in first
    assert last == ["y", "7", "y#0", "7#0"]


async def test_a_write_to_an_engine_that_is_down_fails_openly() -> None:
    script = Script(capabilities={"index": {"writable": True}})
    async with gateway_of({"a": script}, writes="a") as gateway:
        gateway.gateway.fleet.members["a"].closed(BackendUnavailable("went away"))
        assert "index" in await offered(gateway)
        for method, params in (("index/add", {"documents": [{"text": "t"}]}), ("index/delete", {"ids": ["x"]})):
            error = (await gateway.call(method, params))["error"]
            assert (error["code"], error["data"]["engine"]) == (-32010, "a")
    assert script.added == []


async def test_ids_of_another_corpus_name_nothing_where_writes_go() -> None:
    a, b = Script(capabilities={"index": {"writable": True}}), Script(hits("x"))
    async with gateway_of(
        {"a": a, "b": b}, writes="a", engines={"a": {"corpus": "one"}, "b": {"corpus": "two"}}
    ) as gateway:
        await gateway.call("index/add", {"documents": [{"id": "two/x", "text": "t"}, {"id": "y", "text": "t"}]})
        assert [document.id for document in a.added] == ["two/x", "y"]
        assert (await gateway.call("index/delete", {"ids": ["two/x"]}))["result"] == {"deleted": 0}
        assert (await gateway.call("index/delete", {"ids": ["one/two/x", "one/y"]}))["result"] == {"deleted": 2}
        anybodys = (await gateway.call("index/delete", {"ids": ["one/y", "y"]}))["error"]
        assert (anybodys["code"], anybodys["data"]["field"]) == (-32602, "ids[1]")


# What is forwarded, and how lists are fused.


async def test_a_fusion_is_told_only_to_engines_that_offer_it_and_only_their_own_weights() -> None:
    fuses = {"retrieve": {"maxK": 100, "modes": ["hybrid"], "fusion": ["rrf", "weighted"]}}
    scripts = {"a": Script(hits("x"), fuses), "b": Script(hits("y"))}

    async def told(**fusion: Any) -> Any:
        await gateway.retrieve(fusion=fusion)
        assert scripts["b"].queries[-1].fusion is None
        given = scripts["a"].queries[-1].fusion
        return None if given is None else (given.method, given.weights, given.rrf_k, given.alpha)

    async with gateway_of(scripts) as gateway:
        assert await told(method="weighted") == ("weighted", None, None, None)
        assert await told(method="convex") is None
        assert await told(weights={"a": 2}) is None
        assert await told() is None
        assert await told(rrfK=9) == (None, None, 9, None)
        weights = {"dense": 2.0, "sparse": 0.5, "b": 3.0}
        assert await told(method="rrf", weights=weights) == ("rrf", {"dense": 2.0, "sparse": 0.5}, None, None)


async def test_a_weight_by_mode_is_for_the_mode_an_engine_really_serves() -> None:
    dense = {"retrieve": {"maxK": 100, "modes": ["dense"]}}
    sparse = {"retrieve": {"maxK": 100, "modes": ["sparse"]}}
    async with gateway_of({"d": Script(hits("x"), dense), "s": Script(hits("y"), sparse)}) as gateway:
        weights = {"dense": 1, "sparse": 3}
        result = await gateway.retrieve(mode="dense", strict=False, fusion={"weights": weights})
    assert [(one["id"], one["score"]) for one in result["hits"]] == [
        ("y", pytest.approx(3 / 61)),
        ("x", pytest.approx(1 / 61)),
    ]


async def test_alpha_is_read_where_one_dense_and_one_sparse_engine_share_also_if_one_is_down() -> None:
    dense = {"retrieve": {"maxK": 100, "modes": ["dense"], "scoreFloor": 0.0}}
    sparse = {"retrieve": {"maxK": 100, "modes": ["sparse"], "scoreFloor": 0.0}}
    scripts = {"d": Script(hits(("x", 1.0)), dense), "s": Script(hits(("y", 1.0)), sparse)}
    async with gateway_of(scripts) as gateway:
        asked: dict[str, Any] = {"fusion": {"method": "convex", "alpha": 0.25}}
        result = await gateway.retrieve(**asked)
        assert [(one["id"], one["score"]) for one in result["hits"]] == [("y", 0.75), ("x", 0.25)]
        gateway.gateway.fleet.members["s"].closed(BackendUnavailable("gone"))
        assert [one["score"] for one in (await gateway.retrieve(**asked))["hits"]] == [0.25]
        error = await gateway.refused(fusion=asked["fusion"], _meta={"x-gateway": {"engines": ["d"]}})
        assert (error["code"], error["data"]["option"]) == (-32005, "fusion.alpha")
        told = notes(await gateway.retrieve(fusion={"alpha": 0.3}))
        assert "fusion.alpha says nothing to fusion by rrf" in told
    config = {"method": "convex", "alpha": 0.25}
    async with gateway_of({**scripts, "t": Script(hits(("z", 1.0)), sparse)}, fusion=config) as gateway:
        # The operator's share is for two; the caller of three did nothing wrong.
        assert [one["score"] for one in (await gateway.retrieve())["hits"]] == [pytest.approx(1 / 3)] * 3


async def test_a_fallback_keeps_the_constants_and_the_threshold_is_void() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("x"))}
    async with gateway_of(scripts, fusion={"k": 9}) as gateway:
        result = await gateway.retrieve(fusion={"method": "convex"}, minScore=0.9)
        assert [one["score"] for one in result["hits"]] == [pytest.approx(2 / 10)]
        assert "minScore was not applied" in notes(result)
        result = await gateway.retrieve(fusion={"method": "convex", "rrfK": 19})
        assert [one["score"] for one in result["hits"]] == [pytest.approx(2 / 20)]
        result = await gateway.retrieve(fusion={"method": "magic"}, strict=False, minScore=0.9)
        assert ids(result) == ["x"]
        result = await gateway.retrieve(rerank={"method": "llm"}, strict=False, minScore=0.9)
        assert ids(result) == ["x"]
        result = await gateway.retrieve(tokenBudget=5, strict=False, minScore=0.9)
        assert ids(result) == []
        told = notes(await gateway.retrieve(fusion={"method": "weighted", "rrfK": 3}))
        assert "fusion.rrfK says nothing to fusion by weighted" in told


@pytest.mark.parametrize("method", ["rrf", "weighted", "convex", "confidence"])
async def test_an_engine_that_is_down_moves_nobodys_score_and_changes_no_method(method: str) -> None:
    sure = {"retrieve": {"maxK": 100, "modes": ["dense"], "scoreFloor": 0.0, "confidence": True}}
    plain = {"retrieve": {"maxK": 100}}
    for capabilities in (sure, plain):
        a = [hit("x", 0.8, confidence=0.9), hit("y", 0.4, confidence=0.5)]
        scripts = {"a": Script(a, sure), "b": failing(BackendUnavailable("gone", retryable=False), capabilities)}
        engines = {"b": {"weight": 4.0}}
        async with gateway_of(scripts, engines=engines) as gateway:
            failed = await gateway.retrieve(fusion={"method": method})
            gateway.gateway.fleet.members["b"].closed(BackendUnavailable("gone"))
            down = await gateway.retrieve(fusion={"method": method})
        async with gateway_of({**scripts, "b": Script([], capabilities)}, engines=engines) as gateway:
            empty = await gateway.retrieve(fusion={"method": method})
        assert failed["hits"] == down["hits"] == empty["hits"]
        assert failed["_meta"]["x-gateway"]["scale"] == down["_meta"]["x-gateway"]["scale"]


async def test_a_modality_of_the_query_is_no_modality_of_the_answer() -> None:
    reads = {"retrieve": {"maxK": 100, "modalities": ["text", "image"]}}
    block = {"type": "image", "mimeType": "image/png", "data": "aGk="}
    script = Script(hits("x"), reads)
    queries: list[EngineQuery] = script.queries
    async with gateway_of({"a": script}) as gateway:
        await gateway.retrieve([block])
        await gateway.retrieve([block], modality="text")
        await gateway.retrieve(modality="image")
        error = await gateway.refused(modality="audio", strict=False)
        assert (error["code"], error["data"]["field"]) == (-32005, "modality")
        error = await gateway.refused([{**block, "type": "audio"}])
        assert (error["code"], error["data"]["field"]) == (-32005, "query")
    assert [query.modality for query in queries] == [None, "text", "image"]


async def test_units_and_levels_go_to_engines_that_have_them() -> None:
    tree = {"retrieve": {"maxK": 100, "units": ["chunk", "page"], "levels": 2}}
    scripts = {"a": Script(hits("x"), tree), "b": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        assert ids(await gateway.retrieve(unit="page", level=1)) == ["x"]
        assert (scripts["a"].queries[0].unit, scripts["a"].queries[0].level) == ("page", 1)
        assert ids(await gateway.retrieve(level=0)) == ["x"]
        assert (await gateway.refused(level=2))["code"] == -32005
        loose = await gateway.retrieve(unit="page", level=1, strict=False)
        assert sorted(ids(loose)) == ["x", "y"]
        assert (scripts["b"].queries[0].unit, scripts["b"].queries[0].level) == (None, None)
        assert "engine b: it does not offer unit 'page'" in notes(loose)
        assert "engine b: it does not offer level '1'" in notes(loose)


async def test_a_seed_reaches_engines_that_honour_it_and_is_promised_only_if_all_do() -> None:
    fixed = {"retrieve": {"maxK": 100, "deterministic": True}}
    scripts = {"a": Script(hits("x"), fixed), "b": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        assert "seed is not honoured" in notes(await gateway.retrieve(seed=7))
    assert (scripts["a"].queries[0].seed, scripts["b"].queries[0].seed) == (7, None)
    async with gateway_of({"a": scripts["a"]}) as gateway:
        assert notes(await gateway.retrieve(seed=7)) == ""


async def test_a_clients_long_words_are_not_sent_back_at_length() -> None:
    long = "m\n" + "x" * 50_000
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        for option in ({"mode": long}, {"unit": long}, {"fusion": {"method": long}}, {"rewrite": long}):
            error = await gateway.refused(**option)
            assert len(str(error)) < 800
            assert error["message"].isprintable()
            assert len(notes(await gateway.retrieve(**option, strict=False))) < 800


async def test_what_an_engine_claims_beyond_the_schema_is_not_repeated_and_still_served() -> None:
    odd = {
        "retrieve": {"maxK": -1, "modes": ["dense", "quantum"], "units": ["page", "atom"], "modalities": ["smell"],
                     "levels": 0, "scoreScale": "vibes", "defaultMode": "quantum", "fusion": ["magic"]},
        "rerank": {"methods": ["llm", "monkey"], "maxCandidates": 0},
        "embed": {"dimension": 0, "modalities": ["smell"], "batchLimit": -1},
        "transform": {"methods": ["magic"]},
    }  # fmt: skip
    script = Script(hits("x"), odd)
    async with gateway_of({"a": script}) as gateway:
        for method in ("info", "catalog/list"):
            answer = await gateway.call(method)
            check_frame(method, json.dumps(answer).encode())
            for word in ("atom", "smell", "vibes", "magic"):
                assert word not in json.dumps(answer["result"]).replace(json.dumps(guaranteed(answer)), "")
        told = await offered(gateway)
        assert (told["retrieve"]["modes"], told["retrieve"]["units"]) == (["dense"], ["page"])
        assert told["rerank"] == {"methods": ["llm"]}
        assert told["x-gateway"]["rerank"]["methods"] == ["bm25", "monkey"]
        assert ids(await gateway.retrieve(mode="quantum")) == ["x"]
        answer = await gateway.call("rerank", {"query": "q", "passages": ["a", "bb"], "method": "monkey"})
        assert answer["result"]["order"] == [1, 0]


def guaranteed(answer: dict[str, Any]) -> Any:
    return answer["result"].get("capabilities", {}).get("x-gateway", {}).get("guaranteed")


async def test_a_query_that_is_not_text_is_never_asked_without_its_content() -> None:
    block = {"type": "image", "mimeType": "image/png", "data": "aGk="}
    scripts = {
        "t": Script(hits("x")),
        "i": Script(hits("y"), {"retrieve": {"maxK": 9, "modalities": ["text", "image"]}}),
        "m": Script(hits("z"), {"retrieve": {"maxK": 9, "modalities": ["multimodal"]}}),
    }
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve([block], strict=False)
        assert sorted(ids(result)) == ["y", "z"]
        assert "engine t was not asked: it does not offer content 'image'" in notes(result)
        assert sorted(ids(await gateway.retrieve(modality="text"))) == ["x", "y"]
    assert [len(script.queries) for script in scripts.values()] == [1, 2, 1]


async def test_an_engine_that_finds_a_filter_impossible_is_proved_empty() -> None:
    def impossible(filter: Filter) -> Pushdown[Any]:
        return Pushdown(None, FALSE)

    fields = {"filter": {"fields": {"lang": "keyword"}}}
    script = Script(hits("x"), fields, push=impossible)
    async with gateway_of({"a": script}) as gateway:
        result = await gateway.retrieve(filter={"field": "lang", "op": "eq", "value": "en"})
    assert result["hits"] == []
    assert script.queries == []
    assert "engine a was not asked: nothing of it can match the filter" in notes(result)


async def test_the_default_mode_of_an_engine_is_the_one_it_is_weighed_by() -> None:
    both = {"maxK": 9, "modes": ["dense", "sparse"]}
    scripts = {
        "d": Script(hits("x"), {"retrieve": {**both, "defaultMode": "dense"}}),
        "s": Script(hits("y"), {"retrieve": {**both, "defaultMode": "sparse"}}),
    }
    async with gateway_of(scripts) as gateway:
        assert ids(await gateway.retrieve(fusion={"weights": {"sparse": 3}})) == ["y", "x"]
        assert ids(await gateway.retrieve(fusion={"weights": {"dense": 3}})) == ["x", "y"]


async def test_vectors_are_asked_for_only_if_the_client_wants_them() -> None:
    script = Script(hits("x"))
    async with gateway_of({"a": script}) as gateway:
        await gateway.retrieve()
        await gateway.retrieve(includeVectors=True)
    assert [query.include_vectors for query in script.queries] == [False, True]


async def test_without_k_the_funnel_decides() -> None:
    async with gateway_of({"a": Script(hits(*"abcdefghijkl"))}) as gateway:
        assert len(ids(await gateway.retrieve(rerank={"topN": 3}, strict=False))) == 3
        assert len(ids(await gateway.retrieve(candidateK=4))) == 4
        assert len(ids(await gateway.retrieve())) == 10


async def test_a_limit_that_the_gateways_own_comes_before_is_not_told_of() -> None:
    async with gateway_of({"a": Script(hits("x"), {"retrieve": {"maxK": 65}})}, limits={"max_k": 60}) as gateway:
        assert notes(await gateway.retrieve(k=70)) == "k is at most 60"
        assert notes(await gateway.retrieve(candidateK=70)) == "candidateK is at most 60"


async def test_fields_of_engines_that_do_not_retrieve_are_in_nobodys_way() -> None:
    scripts = {
        "a": Script(hits("x"), {"filter": {"fields": {"year": "int"}}}),
        "e": Script(capabilities={"retrieve": None, "embed": {"dimension": 2}, "filter": {"fields": {"year": "text"}}}),
    }
    async with gateway_of(scripts) as gateway:
        assert (await offered(gateway))["filter"]["fields"] == {"year": "int"}


async def test_what_vendors_add_is_no_guarantee_and_an_index_to_read_is_none_to_write() -> None:
    own = {"x-acme": {"a": 1}, "index": {"writable": False}}
    scripts = {id: Script(hits(id), own, federates=True) for id in "ab"}
    async with gateway_of(scripts, writes="a") as gateway:
        told = await offered(gateway)
        assert "x-acme" not in told["x-gateway"]["guaranteed"]
        assert "index" not in told
        assert (await gateway.call("index/add", {"documents": [{"text": "t"}]}))["error"]["code"] == -32003
