"""``rewrite``: what is searched with in the query's place (RCP sections 7.7 and 7.8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import BackendUnavailable
from gateway.spi import Call, EngineQuery, EngineReply, TransformQuery, TransformReply, VectorNeed
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

METHODS = ["rewrite", "hyde", "multi-query", "decompose", "step-back"]


def language_model(*queries: str, hypothetical: str | None = None) -> Script:
    """An engine that transforms any query into these."""

    async def transform(query: TransformQuery, call: Call) -> TransformReply:
        return TransformReply(queries=queries or (query.text,), hypothetical=hypothetical)

    return Script(capabilities={"retrieve": None, "transform": {"methods": METHODS}}, transform=transform)


def library(**found: list[str]) -> Script:
    """An engine that finds these for a query, and nothing for others."""

    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits(*found.get(query.text, [])))

    return Script(retrieve=retrieve)


def texts(script: Script) -> list[str]:
    return sorted(query.text for query in script.queries)


@pytest.mark.parametrize(
    ("method", "searched"),
    [
        ("rewrite", ["a", "b"]),
        ("multi-query", ["a", "b", "q"]),
        ("decompose", ["a", "b"]),
        ("step-back", ["a", "b", "q"]),
    ],
)
@obligation(143)
async def test_every_query_is_searched_and_the_client_is_told_of_them(method: str, searched: list[str]) -> None:
    script = library()
    async with gateway_of({"r": script, "m": language_model("a", "b", "a")}) as gateway:
        result = await gateway.retrieve(rewrite=method)
    assert texts(script) == searched
    assert result["rewrittenQuery"] == "a\nb"


async def test_an_engine_votes_once_however_many_queries_found_a_document() -> None:
    # To r, y is first: found by all three. To s, x alone.
    r = library(q=["x", "y"], a=["y"], b=["z", "y"])
    s = library(q=["x"])
    async with gateway_of({"r": r, "s": s, "m": language_model("a", "b")}) as gateway:
        result = await gateway.retrieve(rewrite="multi-query")
    scores = {hit["id"]: hit["score"] for hit in result["hits"]}
    assert scores == {"x": pytest.approx(1 / 62 + 1 / 61), "y": pytest.approx(1 / 61), "z": pytest.approx(1 / 63)}


async def test_hyde_embeds_the_hypothetical_and_words_stay_the_clients() -> None:
    words = Script(hits("x"))
    meaning = Script(hits("y"), need=VectorNeed("e", 2))
    embedder = Script(capabilities={"retrieve": None, "embed": {"dimension": 2, "identity": "length"}})
    model = language_model(hypothetical="a passage")
    async with gateway_of({"w": words, "v": meaning, "e": embedder, "m": model}) as gateway:
        result = await gateway.retrieve("q", rewrite="hyde")
    assert (words.queries[0].text, meaning.queries[0].text) == ("q", "q")
    assert meaning.queries[0].vector == (float(len("a passage")), 1.0)
    assert [(query.inputs, query.kind) for query in embedder.embedded] == [(("a passage",), "document")]
    assert result["rewrittenQuery"] == "a passage"


async def test_all_queries_are_embedded_in_one_call() -> None:
    meaning = Script(hits("y"), need=VectorNeed("e", 2))
    embedder = Script(capabilities={"retrieve": None, "embed": {"dimension": 2, "identity": "length"}})
    async with gateway_of({"v": meaning, "e": embedder, "m": language_model("aa", "bbb")}) as gateway:
        await gateway.retrieve("q", rewrite="multi-query")
    assert [query.inputs for query in embedder.embedded] == [("q", "aa", "bbb")]
    assert {query.text: query.vector for query in meaning.queries} == {
        "q": (1.0, 1.0),
        "aa": (2.0, 1.0),
        "bbb": (3.0, 1.0),
    }


async def test_a_transform_that_fails_or_says_nothing_leaves_the_query_as_it_was() -> None:
    async def fails(query: TransformQuery, call: Call) -> TransformReply:
        raise BackendUnavailable("overloaded")

    model = language_model()
    model.transform = fails
    script = library(q=["x"])
    async with gateway_of({"r": script, "m": model}) as gateway:
        result = await gateway.retrieve(rewrite="rewrite")
        assert ids(result) == ["x"]
        assert "rewrittenQuery" not in result
        assert "engine m: the query was not transformed: overloaded" in notes(result)
        (lost,) = result["_meta"]["x-gateway"]["losses"]
        assert (lost["kind"], lost["engine"], lost["code"], lost["option"]) == ("degraded", "m", -32010, "rewrite")
        assert "degraded" not in result["_meta"]
    silent = language_model(" ", "")
    async with gateway_of({"r": script, "m": silent}) as gateway:
        assert ids(await gateway.retrieve(rewrite="rewrite")) == ["x"]


@pytest.mark.parametrize("deadline", [400, None])
async def test_a_transform_that_hangs_leaves_the_engines_their_time(deadline: int | None) -> None:
    async def hangs(query: TransformQuery, call: Call) -> TransformReply:
        await asyncio.Event().wait()
        raise AssertionError

    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        assert call.remaining() > 0.05
        return EngineReply(hits=hits("x"))

    model = language_model()
    model.transform = hangs
    meta = {"_meta": {"deadlineMs": deadline}} if deadline else {}
    async with gateway_of({"r": Script(retrieve=retrieve), "m": model}, limits={"deadline": 0.5}) as gateway:
        result = await gateway.retrieve(rewrite="rewrite", **meta)
    assert ids(result) == ["x"]
    assert "engine m: the query was not transformed: no answer within" in notes(result)


async def test_what_nobody_rewrites_is_refused_and_without_strict_left_out() -> None:
    script = library(q=["x"])
    async with gateway_of({"r": script}) as gateway:
        error = await gateway.refused(rewrite="hyde")
        assert (error["code"], error["data"]["option"]) == (-32005, "hyde")
        assert script.queries == []
        result = await gateway.retrieve(rewrite="hyde", strict=False)
        assert ids(result) == ["x"]
        assert "was left out" in notes(result)
        assert ids(await gateway.retrieve(rewrite=False)) == ["x"]


async def test_blocks_of_other_kinds_stay_when_the_text_is_rewritten() -> None:
    script = Script(hits("x"), {"retrieve": {"maxK": 10, "modalities": ["text", "image"]}})
    image: dict[str, Any] = {"type": "image", "mimeType": "image/png", "data": "aGk="}
    async with gateway_of({"r": script, "m": language_model("better")}) as gateway:
        await gateway.retrieve([{"type": "text", "text": "q"}, image], rewrite="rewrite")
    assert [block.type for block in script.queries[0].content] == ["text", "image"]
    assert script.queries[0].content[0].text == "better"
    assert script.queries[0].content[1].data == "aGk="


async def test_a_plan_of_one_engine_that_rewrites_itself_leaves_it_to_that_engine() -> None:
    script = Script(hits("x"), {"retrieve": {"maxK": 10, "rewrite": ["rewrite"]}})
    model = language_model("other")
    async with gateway_of({"r": script, "m": model}) as gateway:
        await gateway.retrieve(rewrite="rewrite")
    assert (script.queries[0].text, script.queries[0].rewrite) == ("q", "rewrite")
    scripts = {"r": Script(hits("x"), script.capabilities), "s": library(other=["y"]), "m": model}
    async with gateway_of(scripts) as gateway:
        assert sorted(ids(await gateway.retrieve(rewrite="rewrite"))) == ["x", "y"]
    assert (scripts["r"].queries[0].text, scripts["r"].queries[0].rewrite) == ("other", None)
