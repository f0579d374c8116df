"""Rerank, recency, minScore, diversity and budget over any engines, each done once (SEMANTICS section 4)."""

from __future__ import annotations

import asyncio
import base64
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.errors import BackendUnavailable
from gateway.model import hit
from gateway.spi import Call, RerankQuery, VectorNeed
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.federation.scripts import failing, hanging
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

RERANKS = {"retrieve": None, "rerank": {"methods": ["cross-encoder"], "models": ["small"], "maxCandidates": 100}}
BUILT_IN = {"retrieve": {"maxK": 100, "rerankBuiltin": True, "mmr": True}, "rerank": {"methods": ["llm"]}}


def judge(**scores: float | None) -> Script:
    """A reranker that knows the score of each ``text of …``; others get none."""

    async def rerank(query: RerankQuery, call: Call) -> list[float | None]:
        return [scores.get(passage.removeprefix("text of ")) for passage in query.passages]

    return Script(capabilities=RERANKS, rerank=rerank)


def places(result: dict[str, Any]) -> list[float]:
    return [one["score"] for one in result["hits"]]


# Rerank.


@obligation(143, 191)
async def test_an_engine_that_reranks_orders_what_others_found() -> None:
    scripts = {"a": Script(hits("x", "y")), "b": Script(hits("z")), "r": judge(x=0.1, y=0.9, z=0.5)}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["retrieve"]
        result = await gateway.retrieve(rerank={"method": "cross-encoder"})
    assert told["rerankBuiltin"] is True
    assert ids(result) == ["y", "z", "x"]
    assert places(result) == [0.9, 0.5, 0.1]
    assert [one["scores"]["rerank"] for one in result["hits"]] == [0.9, 0.5, 0.1]
    assert result["usage"]["reranked"] == 3
    assert result["_meta"]["x-gateway"]["scale"] == "rerank"
    assert result["hits"][0]["meta"]["fusedScore"] == pytest.approx(1 / 62)


async def test_the_reranker_sees_the_first_top_n_and_the_rest_stays_behind_them() -> None:
    asked: list[RerankQuery] = []

    async def rerank(query: RerankQuery, call: Call) -> list[float]:
        asked.append(query)
        return [float(place) for place in range(len(query.passages))]

    scripts = {"a": Script(hits(*"abcdef")), "r": Script(capabilities=RERANKS, rerank=rerank)}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve("what", k=3, rerank={"topN": 3})
        whole = await gateway.retrieve("what", rerank={"topN": 3}, k=3, candidateK=6)
        page = await gateway.retrieve("what", rerank={"topN": 3}, k=3, candidateK=6, cursor=whole["nextCursor"])
    assert (asked[0].query, asked[0].passages) == ("what", ("text of a", "text of b", "text of c"))
    assert ids(result) == ["c", "b", "a"]
    assert ids(whole) + ids(page) == ["c", "b", "a", "d", "e", "f"]
    assert places(page) == [0.0, 0.0, 0.0]


async def test_without_an_engine_for_it_reranking_goes_by_words() -> None:
    found = [hit("x", 1.0, text="nothing of it"), hit("y", 0.5, text="the cat sat"), hit("z", 0.4, text="cat cat cat")]
    async with gateway_of({"a": Script(found)}) as gateway:
        result = await gateway.retrieve("cat", rerank={})
        named = await gateway.retrieve("cat", rerank={"method": "bm25"})
    assert ids(result) == ["z", "y", "x"] == ids(named)
    assert result["_meta"]["x-gateway"]["scale"] == "rerank"


@obligation(143, 178)
async def test_a_method_or_a_model_that_nobody_has_is_refused_and_nothing_is_asked() -> None:
    script = Script(hits("x"))
    async with gateway_of({"a": script, "r": judge()}) as gateway:
        for option, told in (({"method": "llm"}, "llm"), ({"model": "huge"}, "huge")):
            error = await gateway.refused(rerank=option)
            assert (error["code"], error["data"]["option"]) == (-32005, told)
        assert script.queries == []
        result = await gateway.retrieve(rerank={"method": "llm"}, strict=False)
    assert ids(result) == ["x"]
    assert "rerank 'llm' is not offered and was left out" in notes(result)


@pytest.mark.parametrize(
    ("reranker", "code"), [("fails", -32010), ("hangs", -32014), ("says nothing", None), ("gives too many", -32010)]
)
async def test_a_reranker_that_does_not_deliver_leaves_the_fused_order(reranker: str, code: int | None) -> None:
    async def rerank(query: RerankQuery, call: Call) -> list[float]:
        match reranker:
            case "fails":
                raise BackendUnavailable("overloaded")
            case "hangs":
                await asyncio.Event().wait()
            case "gives too many":
                return [1.0] * 99
        return []

    scripts = {"a": Script(hits("x", "y")), "r": Script(capabilities=RERANKS, rerank=rerank)}
    settings = {"r": {"timeout": 0.05, "retry": {"attempts": 1}}}
    async with gateway_of(scripts, engines=settings) as gateway:
        result = await gateway.retrieve(rerank={}, minScore=0.5)
    assert ids(result) == ["x", "y"]
    assert result["_meta"]["x-gateway"]["scale"] == "rrf"
    assert "engine r: not reranked, the order is that of fusion: " in notes(result)
    (lost,) = [loss for loss in result["_meta"]["x-gateway"]["losses"] if loss["kind"] == "degraded"]
    assert (lost["engine"], lost["option"], lost.get("code")) == ("r", "rerank", code)
    assert "degraded" not in result["_meta"]
    assert "minScore 0.5 was meant for reranked scores and is not applied" in notes(result)


async def test_slow_engines_leave_the_reranker_its_time() -> None:
    scripts = {"a": Script(hits("x", "y")), "b": hanging(), "r": judge(x=0.1, y=0.2)}
    async with gateway_of(scripts, engines={"r": {"timeout": 1}}) as gateway:
        result = await gateway.retrieve(rerank={}, _meta={"deadlineMs": 600})
    assert ids(result) == ["y", "x"]
    assert "engine b timed out" in notes(result)


async def test_a_window_beyond_what_the_reranker_takes_is_clamped_with_a_note() -> None:
    scripts = {"a": Script(hits(*"xyz")), "r": judge(x=0.1, y=0.2, z=0.3)}
    scripts["r"].capabilities = {"retrieve": None, "rerank": {"methods": ["cross-encoder"], "maxCandidates": 2}}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(k=2, candidateK=3, rerank={"topN": 3})
        usual = await gateway.retrieve(rerank={})
    assert ids(result) == ["y", "x"]
    assert result["usage"]["reranked"] == 2
    assert "engine r: rerank.topN is at most 2" in notes(result)
    assert ids(usual) == ["y", "x", "z"]
    assert notes(usual) == ""


async def test_a_hit_without_text_keeps_its_place_among_the_unscored() -> None:
    found = [hit("x", 1.0), hit("y", 0.9, text="text of y"), hit("w", 0.8, text="  "), hit("z", 0.7, text="text of z")]
    async with gateway_of({"a": Script(found), "r": judge(y=-5.0, z=-1.0)}) as gateway:
        result = await gateway.retrieve(rerank={})
    assert ids(result) == ["z", "y", "x", "w"]
    assert places(result) == [-1.0, -5.0, -5.0, -5.0]


async def test_min_score_reads_the_scale_of_the_rerank() -> None:
    async with gateway_of({"a": Script(hits("x", "y", "z")), "r": judge(x=0.1, y=0.9)}) as gateway:
        assert ids(await gateway.retrieve(rerank={}, minScore=0.5)) == ["y"]
        result = await gateway.retrieve(rerank={}, minScore=2)
    assert "scale of rerank, where the best score was 0.9" in notes(result)


# What the one engine of a plan does itself.


async def test_the_only_engine_reranks_in_its_own_way_and_nobody_else_does() -> None:
    only, other = Script(hits("x", "y"), BUILT_IN), judge(x=0.0, y=1.0)
    async with gateway_of({"a": only, "r": other}) as gateway:
        result = await gateway.retrieve(k=5, rerank={"method": "llm", "topN": 20})
        assert ids(result) == ["x", "y"]
        asked = only.queries[0]
        assert (asked.rerank.method, asked.rerank.top_n, asked.k, asked.candidate_k) == ("llm", 20, 20, 50)  # type: ignore[union-attr]
        # What it does not do itself is done here, and it is told not to.
        result = await gateway.retrieve(rerank={"method": "cross-encoder"})
        assert ids(result) == ["y", "x"]
        assert only.queries[1].rerank is False
        await gateway.retrieve(rerank=False)
        assert only.queries[2].rerank is False
        await gateway.retrieve()
        assert only.queries[3].rerank is None


async def test_with_several_engines_none_reranks_and_none_diversifies_by_itself() -> None:
    scripts = {"a": Script(hits("x", "y"), BUILT_IN), "b": Script(hits("z"), BUILT_IN), "r": judge(z=1.0, y=0.5, x=0.1)}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(rerank={"method": "cross-encoder"}, mmr={"lambda": 0.9})
        refused = await gateway.refused(rerank={"method": "colbert"})
    assert ids(result)[0] == "z"
    assert [(query.rerank, query.mmr) for script in "ab" for query in scripts[script].queries] == [(False, None)] * 2
    assert refused["code"] == -32005


async def test_the_only_engine_diversifies_itself_unless_something_comes_before() -> None:
    only = Script(hits("x", "y"), BUILT_IN)
    async with gateway_of({"a": only}) as gateway:
        await gateway.retrieve(mmr={})
        await gateway.retrieve(mmr={"lambda": 0.3}, recency={"field": "date", "halfLifeDays": 3})
    assert only.queries[0].mmr is not None
    assert only.queries[0].mmr.lambda_ == 0.5
    assert only.queries[1].mmr is None


async def test_the_only_engine_does_not_diversify_where_fusion_goes_by_its_scores() -> None:
    twins = [
        hit("x", 0.9, text="one text"),
        hit("twin", 0.8, text="one text"),
        hit("other", 0.7, text="something else"),
    ]
    only = Script(twins, BUILT_IN)
    async with gateway_of({"a": only}) as gateway:
        result = await gateway.retrieve(mmr={"lambda": 0.3}, fusion={"method": "weighted"})
    assert only.queries[0].mmr is None
    assert ids(result) == ["x", "other", "twin"]


# Recency.


async def test_what_is_newer_counts_more_by_the_half_life() -> None:
    now = datetime.now(UTC)
    dated = [
        hit("old", 1.0, text="a", meta={"at": (now - timedelta(days=60)).isoformat()}),
        hit("new", 0.9, text="b", meta={"at": int(now.timestamp() * 1000)}),
        hit("undated", 0.8, text="c"),
    ]
    async with gateway_of({"a": Script(dated)}) as gateway:
        result = await gateway.retrieve(recency={"field": "at", "halfLifeDays": 30})
    # Relevance by min-max from 0.05: 1, about a half, 0.05; ages of two, no and an unknown number of half-lives.
    assert ids(result) == ["new", "old", "undated"]
    assert places(result)[1:] == [pytest.approx(0.25, abs=1e-4), pytest.approx(0.025)]
    assert result["_meta"]["x-gateway"]["scale"] == "recency"


async def test_what_an_undated_hit_keeps_is_configured() -> None:
    async with gateway_of({"a": Script(hits("x"))}, fusion={"undated": 0.25}) as gateway:
        result = await gateway.retrieve(recency={"field": "at", "halfLifeDays": 30})
    assert places(result) == [0.25]


async def test_recency_says_where_it_found_no_date_and_which_field_may_have_been_meant() -> None:
    declares = {"filter": {"fields": {"when": "date", "lang": "keyword"}, "operators": ["eq"]}}
    script = Script(hits(("x", 1.0, {"when": "2024-01-31"}), ("y", 0.9, {"lang": "never"})), declares)

    async def told(field: str) -> list[str]:
        return (await gateway.retrieve(recency={"field": field, "halfLifeDays": 30}))["usage"].get("notes", [])

    async with gateway_of({"a": script}) as gateway:
        assert await told("when") == []
        assert await told("lang") == ["recency: no hit has a readable date under 'lang'"]
        assert await told("wen") == [
            "recency: no hit has a readable date under 'wen', which no engine declares (did you mean when?)"
        ]
        assert len((await told("f" * 9999))[0]) <= 300
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert await told("wen") == ["recency: no hit has a readable date under 'wen'"]
    async with gateway_of({"a": Script()}) as gateway:
        assert await told("wen") == []


async def test_the_scores_of_a_reranker_that_gives_logits_are_made_shares_before_they_age() -> None:
    judging = judge(x=3.0, y=0.0, z=-3.0)
    recency = {"field": "at", "halfLifeDays": 30}
    async with gateway_of({"a": Script(hits("x", "y", "z")), "r": judging}, fusion={"undated": 1}) as gateway:
        stretched = await gateway.retrieve(rerank={}, recency=recency)
        judging.logit = True
        shares = await gateway.retrieve(rerank={}, recency=recency)
    assert places(stretched) == pytest.approx([1.0, 0.525, 0.05])
    assert places(shares) == pytest.approx([0.952574, 0.5, 0.047426], abs=1e-6)


async def test_recency_needs_a_field_and_a_half_life() -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        for given, field in (({"halfLifeDays": 3}, "recency.field"), ({"field": "at"}, "recency.halfLifeDays")):
            error = await gateway.refused(recency=given)
            assert (error["code"], error["data"]["field"]) == (-32602, field)


# Diversity.


async def test_mmr_takes_the_unlike_before_the_alike() -> None:
    found = [
        hit("a", 1.0, text="red apples grow on trees"),
        hit("b", 0.9, text="red apples grow on trees too"),
        hit("c", 0.8, text="steam engines pulled trains"),
    ]
    async with gateway_of({"s": Script(found)}) as gateway:
        assert ids(await gateway.retrieve(mmr={"lambda": 1})) == ["a", "b", "c"]
        assert ids(await gateway.retrieve(mmr={"lambda": 0.3})) == ["a", "c", "b"]
        assert ids(await gateway.retrieve(mmr={"lambda": 0.3}, k=2)) == ["a", "c"]


async def test_mmr_goes_by_vectors_where_all_come_from_one_embedder_and_does_not_send_them() -> None:
    found = [
        hit("a", 1.0, text="one", vector=[1.0, 0.0]),
        hit("b", 0.9, text="two", vector=[1.0, 0.01]),
        hit("c", 0.8, text="one", vector=[0.0, 1.0]),
    ]
    embedder = Script(capabilities={"retrieve": None, "embed": {"dimension": 2, "identity": "length"}})
    scripts = {"s": Script(found, need=VectorNeed("e", 2)), "e": embedder}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mmr={"lambda": 0.3})
    assert ids(result) == ["a", "c", "b"]
    assert scripts["s"].queries[0].include_vectors
    assert all("vector" not in one for one in result["hits"])


async def test_at_most_so_many_passages_of_one_document() -> None:
    found = [hit(f"doc#{n}", 1 - n / 10, text=str(n)) for n in range(3)] + [hit("other#1", 0.1, text="o")]
    async with gateway_of({"s": Script(found)}, fusion={"per_document": 2}) as gateway:
        assert ids(await gateway.retrieve()) == ["doc#0", "doc#1", "other#1"]
        one = {"x-gateway": {"perDocument": 1}}
        assert ids(await gateway.retrieve(_meta=one)) == ["doc#0", "other#1"]
        for wrong in (0, True, "1"):
            error = await gateway.refused(_meta={"x-gateway": {"perDocument": wrong}})
            assert (error["code"], error["data"]["field"]) == (-32602, "_meta.x-gateway.perDocument")


# Budget, vectors.


@obligation(151)
async def test_a_token_budget_takes_the_longest_prefix_that_fits_instead_of_ten() -> None:
    found = [hit(f"d{n}", 1 - n / 100, text="word " * 10) for n in range(30)]
    async with gateway_of({"s": Script(found)}) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["retrieve"]
        many = await gateway.retrieve(tokenBudget=205)
        few = await gateway.retrieve(tokenBudget=205, k=3)
        bare = await gateway.retrieve(tokenBudget=205, includeText=False)
    assert told["tokenBudget"] is True
    assert (len(ids(many)), many["usage"]["tokens"]) == (20, 200)
    assert (len(ids(few)), few["usage"]["tokens"]) == (3, 30)
    assert ids(bare) == ids(many)
    assert all("text" not in one for one in bare["hits"])


async def test_what_is_larger_than_the_whole_budget_is_passed_over_by_name() -> None:
    found = [hit("big", 1.0, text="word " * 100), hit("small", 0.9, text="word")]
    async with gateway_of({"s": Script(found)}) as gateway:
        result = await gateway.retrieve(tokenBudget=50)
    assert ids(result) == ["small"]
    told = "passed over, having more tokens than the whole tokenBudget of 50: big (100)"
    assert result["usage"]["notes"] == [told]
    assert result["_meta"]["x-gateway"]["losses"] == [{"kind": "note", "message": told}]


@obligation(176)
async def test_vectors_come_packed_if_they_are_asked_for_so() -> None:
    async with gateway_of({"s": Script([hit("x", 1.0, text="t", vector=[0.5, -1.0])])}) as gateway:
        plain = await gateway.retrieve(includeVectors=True, encoding="json")
        packed = await gateway.call("retrieve", {"query": "q", "includeVectors": True, "encoding": "f32-base64"})
    assert plain["hits"][0]["vector"] == [0.5, -1.0]
    result = packed["result"]
    assert struct.unpack("<2f", base64.b64decode(result["hits"][0]["vector"])) == (0.5, -1.0)
    assert result["encoding"] == "f32-base64"


async def test_refinements_compose_in_their_order() -> None:
    """Reranked, aged, cut, diversified, packed: the answer is that of the steps by hand."""
    now = datetime.now(UTC)
    found = [
        hit("a", 1.0, text="text of a", meta={"at": now.isoformat()}),
        hit("b", 0.9, text="text of b", meta={"at": (now - timedelta(days=10)).isoformat()}),
        hit("c", 0.8, text="text of c", meta={"at": now.isoformat()}),
    ]
    async with gateway_of({"s": Script(found), "r": judge(a=0.0, b=1.0, c=0.5)}) as gateway:
        result = await gateway.retrieve(rerank={}, recency={"field": "at", "halfLifeDays": 10}, minScore=0.1)
    # Min-max from 0.05 over 0, 1, 0.5: a 0.05, b 1, c 0.525; b has aged one half-life; a is below the threshold.
    assert ids(result) == ["c", "b"]
    assert places(result) == [pytest.approx(0.525, abs=1e-4), pytest.approx(0.5, abs=1e-4)]


async def test_a_failed_engine_and_a_rerank_go_together() -> None:
    scripts = {"a": Script(hits("x")), "b": failing(RuntimeError("bug")), "r": judge(x=0.7)}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(rerank={})
    assert result["_meta"]["degraded"] == ["b"]
    assert places(result) == [0.7]


async def test_explain_says_who_does_which_stage_and_asks_nobody() -> None:
    from gateway.caller import ANONYMOUS
    from gateway.model import MmrOptions, RerankOptions, RetrieveRequest

    only = Script(hits("x"), BUILT_IN)
    request = RetrieveRequest(query="q", rerank=RerankOptions(method="llm"), mmr=MmrOptions(), token_budget=99)
    async with gateway_of({"a": only}) as gateway:
        told = gateway.gateway.service.explain(request, ANONYMOUS)
    assert told.stages == [
        {"stage": "rerank", "by": "a"},
        {"stage": "mmr", "by": "a"},
        {"stage": "fuse", "by": "gateway", "method": "rrf", "depth": 50},
        {"stage": "pack", "by": "gateway", "k": 50, "tokenBudget": 99},
    ]
    model = Script(capabilities={"retrieve": None, "transform": {"methods": ["hyde"]}})
    scripts = {"a": Script(hits("x")), "b": Script(hits("y")), "r": judge(), "m": model}
    request = RetrieveRequest(query="q", rewrite="hyde", rerank=RerankOptions(top_n=20), mmr=MmrOptions(), k=5)
    async with gateway_of(scripts) as gateway:
        told = gateway.gateway.service.explain(request, ANONYMOUS)
    assert [(one["stage"], one["by"]) for one in told.stages] == [
        ("rewrite", "m"),
        ("fuse", "gateway"),
        ("rerank", "r"),
        ("mmr", "gateway"),
        ("pack", "gateway"),
    ]
    assert told.stages[3]["compares"] == "words"
    assert [script.queries for script in scripts.values()] == [[], [], [], []]
