"""Engines of different corpora in one answer: by rank, or scored again together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import BackendUnavailable, ConfigErrors
from gateway.model import Hit, hit
from gateway.spi import Call, EngineQuery, EngineReply, RerankQuery
from tests.engines import Script, gateway_of, ids, notes

pytestmark = pytest.mark.anyio

QUERY = "migratory birds of the arctic"
PERFECT = [f"migratory birds of the arctic, part {number}" for number in "xyz"]
CORPORA: dict[str, dict[str, Any]] = {id: {"corpus": id} for id in "ABCDE"}
RESCORE = {"x-gateway": {"across": "rescore"}}


def passages(*texts: str) -> list[Hit]:
    return [hit(str(place), 1 / place, text=text) for place, text in enumerate(texts, 1)]


def report_r19() -> dict[str, Script]:
    noise = [f"a note about arctic {word} and nothing else" for word in ("roads", "wages", "ice", "music", "law")]
    return {"A": Script(passages(*PERFECT)), **{id: Script(passages(*noise)) for id in "BCDE"}}


async def test_three_perfect_passages_of_one_corpus_stand_above_the_first_places_of_others() -> None:
    async with gateway_of(report_r19(), engines=CORPORA, fusion={"across": "rescore"}) as gateway:
        result = await gateway.retrieve(QUERY, k=5)
    assert ids(result)[:3] == ["A/1", "A/2", "A/3"]
    assert result["_meta"]["x-gateway"]["scale"] == "rescore"
    assert result["hits"][0]["score"] == 1.0


async def test_by_rank_every_corpus_gets_its_turn_and_that_is_the_default() -> None:
    async with gateway_of(report_r19(), engines=CORPORA) as gateway:
        result = await gateway.retrieve(QUERY, k=5)
    assert ids(result) == ["A/1", "B/1", "C/1", "D/1", "E/1"]
    assert result["_meta"]["x-gateway"]["scale"] == "rrf"


async def test_a_call_chooses_for_itself() -> None:
    async with gateway_of(report_r19(), engines=CORPORA) as gateway:
        assert ids(await gateway.retrieve(QUERY, k=3, _meta=RESCORE)) == ["A/1", "A/2", "A/3"]
        refused = await gateway.refused(QUERY, _meta={"x-gateway": {"across": "chance"}})
    assert (refused["code"], refused["data"]["field"]) == (-32602, "_meta.x-gateway.across")
    async with gateway_of(report_r19(), engines=CORPORA, fusion={"across": "rescore"}) as gateway:
        by_rank = await gateway.retrieve(QUERY, k=3, _meta={"x-gateway": {"across": "rrf"}})
    assert ids(by_rank) == ["A/1", "B/1", "C/1"]


@pytest.mark.parametrize("engines", [{}, {id: {"corpus": "one"} for id in "ABCDE"}])
async def test_engines_over_one_corpus_are_fused_as_ever(engines: dict[str, dict[str, Any]]) -> None:
    async with gateway_of(report_r19(), engines=engines, fusion={"across": "rescore"}) as gateway:
        again = await gateway.retrieve(QUERY)
        plain = await gateway.retrieve(QUERY, _meta={"x-gateway": {"across": "rrf"}})
    assert again["hits"] == plain["hits"]
    assert again["_meta"]["x-gateway"]["scale"] == "rrf"


async def test_within_the_window_fewer_are_the_beginning_of_more() -> None:
    async with gateway_of(report_r19(), engines=CORPORA, fusion={"across": "rescore"}) as gateway:
        whole = await gateway.retrieve(QUERY, k=23)
        for k in range(1, 23):
            assert (await gateway.retrieve(QUERY, k=k))["hits"] == whole["hits"][:k]


async def test_passages_count_even_where_the_client_wants_no_text() -> None:
    async with gateway_of(report_r19(), engines=CORPORA, fusion={"across": "rescore"}) as gateway:
        result = await gateway.retrieve(QUERY, k=3, includeText=False)
    assert ids(result) == ["A/1", "A/2", "A/3"]
    assert all("text" not in one for one in result["hits"])


async def test_a_corpus_that_fails_leaves_the_scale_as_it_was() -> None:
    async def fail(query: EngineQuery, call: Call) -> EngineReply:
        raise RuntimeError("broken")

    scripts = {"A": Script(passages(*PERFECT)), "B": Script(retrieve=fail)}
    async with gateway_of(scripts, engines={id: CORPORA[id] for id in "AB"}, fusion={"across": "rescore"}) as gateway:
        result = await gateway.retrieve(QUERY)
    assert result["_meta"]["x-gateway"]["scale"] == "rescore"
    assert result["_meta"]["degraded"] == ["B"]


async def test_the_threshold_is_read_on_the_scale_of_the_scores() -> None:
    async with gateway_of(report_r19(), engines=CORPORA, fusion={"across": "rescore"}) as gateway:
        assert ids(await gateway.retrieve(QUERY, minScore=0.9)) == ["A/1", "A/2", "A/3"]


async def test_the_share_of_the_passages_is_configured() -> None:
    async with gateway_of(report_r19(), engines=CORPORA, fusion={"across": "rescore", "mix": 0}) as gateway:
        assert ids(await gateway.retrieve(QUERY, k=5)) == ["A/1", "B/1", "C/1", "D/1", "E/1"]


@pytest.mark.parametrize("late", "ABC")
async def test_whoever_answers_last_the_hits_are_the_same(late: str) -> None:
    async with gateway_of(report_r19(), engines=CORPORA, fusion={"across": "rescore"}) as gateway:
        expected = (await gateway.retrieve(QUERY, k=15))["hits"]
    scripts = report_r19()
    rest = [script for id, script in scripts.items() if id != late]
    hits = scripts[late].hits

    async def wait(query: EngineQuery, call: Call) -> EngineReply:
        await asyncio.gather(*(script.started.wait() for script in rest))
        return EngineReply(hits=hits, exhausted=True)

    scripts[late].retrieve = wait
    async with gateway_of(scripts, engines=CORPORA, fusion={"across": "rescore"}) as gateway:
        assert (await gateway.retrieve(QUERY, k=15))["hits"] == expected


def judging(engine_fails: bool = False, short: bool = False) -> Script:
    """A reranker that likes what speaks of music."""

    async def rerank(query: RerankQuery, call: Call) -> list[float]:
        if engine_fails:
            raise BackendUnavailable("overloaded")
        found = [float("music" in passage) for passage in query.passages]
        return found[:-1] if short else found

    return Script(capabilities={"retrieve": None, "rerank": {"methods": ["llm"], "maxCandidates": 7}}, rerank=rerank)


async def test_an_engine_that_reranks_may_score_the_passages() -> None:
    scripts = {**report_r19(), "judge": judging()}
    scorer = {"across": "rescore", "mix": 0.9, "scorer": "judge"}
    async with gateway_of(scripts, engines={**CORPORA}, fusion=scorer) as gateway:
        result = await gateway.retrieve(QUERY, k=4)
    assert ids(result) == ["B/4", "C/4", "D/4", "E/4"]
    assert result["_meta"]["x-gateway"]["scale"] == "rescore"
    assert notes(result) == ""


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        (judging(engine_fails=True), "overloaded"),
        (judging(short=True), "it gave 6 scores for 7"),
    ],
)
async def test_where_it_does_not_score_them_words_do(judge: Script, told: str) -> None:
    scorer = {"across": "rescore", "scorer": "judge"}
    async with gateway_of({**report_r19(), "judge": judge}, engines={**CORPORA}, fusion=scorer) as gateway:
        result = await gateway.retrieve(QUERY, k=3)
    assert ids(result) == ["A/1", "A/2", "A/3"]
    assert f"engine judge: it did not score the passages, words did: {told}" in notes(result)
    (lost,) = result["_meta"]["x-gateway"]["losses"]
    assert (lost["kind"], lost["engine"], lost["code"]) == ("degraded", "judge", -32010)
    assert "degraded" not in result["_meta"]


async def test_the_scorer_must_be_an_engine_that_reranks() -> None:
    with pytest.raises(ConfigErrors, match=r"fusion\.scorer: .*cannot serve that"):
        async with gateway_of(report_r19(), engines=CORPORA, fusion={"scorer": "A"}):
            raise AssertionError
