"""Options of retrieve over engines that do not all offer them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

DENSE = {"retrieve": {"maxK": 100, "modes": ["dense"], "scoreFloor": 0.0}}
SPARSE = {"retrieve": {"maxK": 100, "modes": ["sparse"], "scoreFloor": 0.0}}


RERANKS = {"rerank": {"methods": ["llm"], "models": ["m-1"]}}
GRAPH = {"graph": {"ops": ["local", "neighbors"]}}
TRANSFORM = {"transform": {"methods": ["hyde"]}}


@pytest.mark.parametrize(
    ("method", "params", "told"),
    [
        ("retrieve", {"mode": "sparse"}, "mode 'sparse' is not offered (offered: dense)"),
        ("retrieve", {"unit": "page"}, "unit 'page' is not offered (offered: passage)"),
        ("retrieve", {"level": 7}, "level '7' is not offered (offered: 0 to 2)"),
        ("retrieve", {"modality": "image"}, "modality 'image' is not offered (offered: text)"),
        ("retrieve", {"rerank": {"method": "colbert"}}, "rerank 'colbert' is not offered (offered: llm, bm25)"),
        ("retrieve", {"rerank": {"model": "m-2"}}, "rerank.model 'm-2' is not offered (offered: m-1)"),
        ("retrieve", {"rewrite": "step-back"}, "rewrite 'step-back' is not offered (offered: hyde)"),
        ("retrieve", {"encoding": "f16"}, "encoding 'f16' is not offered (offered: json, f32-base64)"),
        ("retrieve", {"fusion": {"method": "x"}},
         "fusion.method 'x' is not offered (offered: rrf, weighted, convex, confidence)"),
        ("query/transform", {"method": "rewrite"}, "that way of transforming is not offered (offered: hyde)"),
        ("graph", {"op": "drift"}, "that operation is not offered (offered: local, neighbors)"),
        ("graph", {"op": "walk"}, "that operation is not offered (offered: local, neighbors)"),
    ],
)  # fmt: skip
async def test_what_is_not_offered_is_refused_with_what_is(method: str, params: dict[str, Any], told: str) -> None:
    retrieve = {"retrieve": {"maxK": 9, "modes": ["dense"], "units": ["passage"], "levels": 3}}
    async with gateway_of({"a": Script(hits("x"), {**retrieve, **RERANKS, **GRAPH, **TRANSFORM})}) as gateway:
        error = (await gateway.call(method, {"query": "q", **params}))["error"]
    assert (error["code"], error["message"]) == (-32005, told)


async def test_a_refusal_names_a_bounded_part_of_what_is_offered() -> None:
    many = {"rerank": {"methods": ["llm"], "models": [f"model-{number}" + "x" * 500 for number in range(500)]}}
    async with gateway_of({"a": Script(hits("x"), many)}) as gateway:
        error = await gateway.refused(rerank={"model": "none"})
    assert error["message"].endswith(" and 488 more)")
    assert len(error["message"]) < 1000


@obligation(255, 210)
async def test_a_mode_only_one_engine_has_asks_only_that_engine_and_says_so() -> None:
    scripts = {"d": Script(hits("x"), DENSE), "s": Script(hits("y"), SPARSE)}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mode="dense")
    assert ids(result) == ["x"]
    assert scripts["d"].queries[0].mode == "dense"
    assert scripts["s"].queries == []
    assert "engine s was not asked: it does not offer mode 'dense'" in notes(result)


@obligation(144, 210)
async def test_without_strict_the_other_engine_is_asked_in_its_own_mode() -> None:
    scripts = {"d": Script(hits("x"), DENSE), "s": Script(hits("y"), SPARSE)}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mode="dense", strict=False)
    assert sorted(ids(result)) == ["x", "y"]
    assert scripts["s"].queries[0].mode is None
    assert "it does not offer mode 'dense'" in notes(result)


@obligation(143, 60, 28)
@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("mode", "bogus", "bogus"),
        ("mode", "DENSE", "DENSE"),
        ("unit", "page", "page"),
        ("fusion", {"method": "magic"}, "magic"),
        ("rerank", {"method": "llm"}, "llm"),
        ("rewrite", "hyde", "hyde"),
        ("rerank", {"model": "huge"}, "huge"),
        ("encoding", "f16", "f16"),
    ],
)
async def test_an_option_nobody_offers_is_refused_and_nothing_is_asked(option: str, value: Any, told: str) -> None:
    script = Script(hits("x"), DENSE)
    async with gateway_of({"a": script}) as gateway:
        error = await gateway.refused(**{option: value})
        assert error["code"] == -32005
        assert error["data"]["option"] == told
        assert script.queries == []
        result = await gateway.retrieve(**{option: value}, strict=False)
    assert ids(result) == ["x"]
    assert "was left out" in notes(result)


@obligation(153)
async def test_a_pinned_version_is_never_silently_another() -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert (await gateway.refused(indexVersion="v1"))["code"] == -32005
        assert (await gateway.refused(indexVersion="v1", strict=False))["code"] == -32005


@obligation(152, 154)
async def test_seed_and_session_are_hints_that_never_fail() -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        result = await gateway.retrieve(seed=7, sessionId="s")
    assert ids(result) == ["x"]
    assert "seed is not honoured" in notes(result)


@obligation(155)
async def test_a_cursor_that_was_never_given_out_is_not_found() -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert (await gateway.refused(cursor="!!"))["code"] == -32015


@obligation(150)
async def test_text_and_vectors_come_as_asked() -> None:
    from gateway.model import hit

    one = hit("x", 1.0, text="words", vector=[0.5, 1.0])
    async with gateway_of({"a": Script([one])}) as gateway:
        plain = (await gateway.retrieve())["hits"][0]
        bare = (await gateway.retrieve(includeText=False))["hits"][0]
        full = (await gateway.retrieve(includeVectors=True))["hits"][0]
    assert ("text" in plain, "vector" in plain) == (True, False)
    assert ("text" in bare, "vector" in bare) == (False, False)
    assert full["vector"] == [0.5, 1.0]


@obligation(149)
async def test_min_score_is_read_on_the_fused_scale_and_says_so_when_nothing_is_left() -> None:
    script = Script(hits(("x", 0.99), ("y", 0.98)))
    async with gateway_of({"a": script}) as gateway:
        assert ids(await gateway.retrieve(minScore=1 / 61)) == ["x"]
        result = await gateway.retrieve(minScore=0.5)
    assert result["hits"] == []
    assert "scale of rrf, where the best score was 0.0163934" in notes(result)


@obligation(251)
@pytest.mark.parametrize("method", ["convex", "confidence"])
async def test_a_fusion_some_engine_cannot_serve_falls_back_to_ranks_with_a_note(method: str) -> None:
    async with gateway_of({"a": Script(hits("x"), DENSE), "b": Script(hits("x"))}) as gateway:
        result = await gateway.retrieve(fusion={"method": method})
    assert result["hits"][0]["score"] == pytest.approx(2 / 61)
    assert result["_meta"]["x-gateway"]["scale"] == "rrf"
    assert "rrf" in notes(result)


async def test_every_method_fuses_by_its_own_formula() -> None:
    a = {"retrieve": {"maxK": 100, "modes": ["dense"], "scoreFloor": 0.0, "confidence": True}}
    b = {"retrieve": {"maxK": 100, "modes": ["sparse"], "scoreFloor": 0.0, "confidence": True}}
    from gateway.model import hit

    first = [hit("x", 0.8, confidence=0.9), hit("y", 0.4, confidence=0.5)]
    second = [hit("y", 10.0, confidence=0.8), hit("z", 5.0, confidence=0.1)]
    async with gateway_of({"a": Script(first, a), "b": Script(second, b)}) as gateway:
        scores = {
            method: {one["id"]: one["score"] for one in (await gateway.retrieve(fusion={"method": method}))["hits"]}
            for method in ("rrf", "weighted", "convex", "confidence")
        }
    approx = pytest.approx
    assert scores["rrf"] == {"y": approx(1 / 61 + 1 / 62), "x": approx(1 / 61), "z": approx(1 / 62)}
    assert scores["weighted"] == {"x": approx(1.0), "y": approx(1.0), "z": approx(0.0)}
    assert scores["convex"] == {"x": approx(0.5), "y": approx(0.25 + 0.5), "z": approx(0.25)}
    assert scores["confidence"] == {"x": approx(0.9), "y": approx(1 - 0.5 * 0.2), "z": approx(0.1)}


async def test_weights_of_a_call_are_honoured_and_a_weight_of_zero_asks_nobody() -> None:
    scripts = {"a": Script(hits("x")), "b": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        assert ids(await gateway.retrieve(fusion={"weights": {"a": 1, "b": 4}})) == ["y", "x"]
        assert ids(await gateway.retrieve(fusion={"weights": {"a": 4, "b": 1}})) == ["x", "y"]
        asked = len(scripts["a"].queries)
        result = await gateway.retrieve(fusion={"weights": {"a": 0}})
        assert ids(result) == ["y"]
        assert len(scripts["a"].queries) == asked
        error = await gateway.refused(fusion={"weights": {"typo": 1}})
        assert (error["code"], error["data"]["field"]) == (-32602, "fusion.weights.typo")
        assert (await gateway.refused(fusion={"weights": {"a": 0, "b": 0}}))["code"] == -32602


async def test_dense_and_sparse_weigh_the_engines_of_that_mode() -> None:
    async with gateway_of({"d": Script(hits("x"), DENSE), "s": Script(hits("y"), SPARSE)}) as gateway:
        assert ids(await gateway.retrieve(fusion={"weights": {"dense": 1, "sparse": 2}})) == ["y", "x"]


@obligation(132)
async def test_content_goes_only_to_engines_that_read_it() -> None:
    both = {"retrieve": {"maxK": 100, "modalities": ["text", "image"]}}
    scripts = {"t": Script(hits("x")), "i": Script(hits("y"), both)}
    block = {"type": "image", "mimeType": "image/png", "data": "aGk="}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve([block])
        assert ids(result) == ["y"]
        assert scripts["i"].queries[0].content[0].data == "aGk="
        assert "engine t was not asked" in notes(result)
    async with gateway_of({"t": Script(hits("x"))}) as gateway:
        assert (await gateway.refused([block]))["code"] == -32005
        assert (await gateway.refused([block], strict=False))["code"] == -32005


@obligation(131)
async def test_a_text_block_is_a_plain_string() -> None:
    script = Script(hits("x"))
    async with gateway_of({"a": script}) as gateway:
        plain = await gateway.retrieve("paris")
        block = await gateway.retrieve({"type": "text", "text": "paris"})
        several = await gateway.retrieve([{"type": "text", "text": "paris"}])
    assert plain["hits"] == block["hits"] == several["hits"]
    assert [query.text for query in script.queries] == ["paris"] * 3


@obligation(136, 142, 137)
async def test_sizes_beyond_the_limit_are_clamped_and_ten_is_the_default() -> None:
    script = Script(hits(*(f"d{n}" for n in range(100))))
    async with gateway_of({"a": script}, limits={"max_k": 40}) as gateway:
        assert len(ids(await gateway.retrieve(k=10**9))) == 40
        assert len(ids(await gateway.retrieve(candidateK=10**9))) == 10
        assert len(ids(await gateway.retrieve(candidateK=3))) == 3
    assert [query.k for query in script.queries] == [40, 40, 3]


@obligation(141)
async def test_what_is_asked_upstream_keeps_the_funnel() -> None:
    script = Script(hits("x"))
    async with gateway_of({"a": script}) as gateway:
        await gateway.retrieve(k=5, candidateK=5)
        await gateway.retrieve(k=5, candidateK=80)
        await gateway.retrieve(k=5)
    assert [(query.k, query.candidate_k) for query in script.queries] == [(5, 5), (80, 80), (50, None)]


async def test_json_is_the_encoding_there_is() -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert ids(await gateway.retrieve(encoding="json")) == ["x"]


async def test_a_query_longer_than_the_limit_is_refused_before_anybody_reads_it() -> None:
    script = Script(hits("x"))
    async with gateway_of({"a": script}, limits={"query": 100}) as gateway:
        error = await gateway.refused("x" * 101)
        assert (error["code"], error["data"]["field"]) == (-32602, "query")
        assert ids(await gateway.retrieve("x" * 100)) == ["x"]
    assert len(script.queries) == 1


async def test_a_score_that_is_just_enough_is_enough_and_of_nothing_there_is_no_best() -> None:
    async with gateway_of({"a": Script(hits("x", "y"))}) as gateway:
        least = (await gateway.retrieve())["hits"][1]["score"]
        assert ids(await gateway.retrieve(minScore=least)) == ["x", "y"]
    async with gateway_of({"a": Script([])}) as gateway:
        result = await gateway.retrieve(minScore=0.5)
    assert result["hits"] == []
    assert notes(result) == ""
