"""What becomes of each member of a hit when engines return the same document (SEMANTICS section 3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.model import hit
from tests.engines import Script, gateway_of, hits
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

WHOLE: dict[str, Any] = {
    "content": [{"type": "image", "mimeType": "image/png", "data": "aGk="}],
    "modality": "image",
    "unit": "page",
    "level": 0,
    "citation": {"uri": "https://example.org/a", "title": "A", "page": 3},
    "provenance": {"path": ["e:one", "e:two"], "leaves": ["doc:42#1"]},
    "chunk": {"docId": "doc", "index": 3, "context": "before"},
    "scores": {"dense": 0.7},
}


@obligation(189)
async def test_every_member_that_fits_the_schema_comes_through_as_it_was() -> None:
    async with gateway_of({"a": Script([hit("x", 1.0, text="t", confidence=0.5, **WHOLE)])}) as gateway:
        found = (await gateway.retrieve())["hits"][0]
    assert {name: found[name] for name in WHOLE} == WHOLE
    assert (found["text"], found["confidence"]) == ("t", 0.5)


@obligation(249)
async def test_the_body_is_one_copys_and_says_whose() -> None:
    short = hit("x", 1.0, text="short", chunk={"docId": "short"}, citation={"title": "short"})
    long = hit("x", 1.0, text="much longer", chunk={"docId": "long"})
    scripts = {"a": Script([short]), "b": Script([*hits("y"), long])}
    async with gateway_of(scripts) as gateway:
        found = (await gateway.retrieve())["hits"][0]
    assert (found["text"], found["chunk"]) == ("much longer", {"docId": "long"})
    assert "citation" not in found, "what stands together stays together"
    assert (found["meta"]["bodyEngine"], found["meta"]["engine"], found["meta"]["engines"]) == ("b", "a", ["a", "b"])
    trusted = {"a": {"trust": "trusted", "corpus": "one"}, "b": {"trust": "community", "corpus": "one"}}
    async with gateway_of(scripts, engines=trusted) as gateway:
        found = (await gateway.retrieve())["hits"][0]
    assert (found["text"], found["meta"]["bodyEngine"]) == ("short", "a")


@obligation(249)
async def test_a_vector_is_not_lost_with_a_copy_whose_text_is_not_used() -> None:
    def script(text: str, vector: Any = None, *before: str, **meta: Any) -> Script:
        return Script([*hits(*before), hit("x", 0.9, text=text, vector=vector, meta=meta)])

    null = msgspec.Raw(b"null")
    for words in (script("much longer", vectorEngine="liar"), script("much longer", null, vectorEngine="liar")):
        others = {"late": script("short", [0.0, 2.0], "y", "z"), "meaning": script("short", [0.5, 1.0], "y")}
        async with gateway_of({"words": words, **others}) as gateway:
            found = (await gateway.retrieve(includeVectors=True))["hits"][0]
            plain = (await gateway.retrieve())["hits"][0]
        assert (found["text"], found["vector"]) == ("much longer", [0.5, 1.0])
        assert (found["meta"]["bodyEngine"], found["meta"]["vectorEngine"]) == ("words", "meaning")
        assert found["meta"]["x-upstream"] == {"vectorEngine": "liar"}
        assert ("vector" in plain, "vectorEngine" in plain["meta"]) == (False, False)
    async with gateway_of({"words": script("much longer", [3.0]), **others}) as gateway:
        found = (await gateway.retrieve(includeVectors=True))["hits"][0]
    assert (found["vector"], "vectorEngine" in found["meta"]) == ([3.0], False)


@obligation(249, 250)
async def test_metadata_of_copies_merges_and_the_best_rank_wins() -> None:
    scripts = {
        "a": Script([*hits("y"), hit("x", 0.9, meta={"src": "a", "p": 1, "engine": "liar"})]),
        "b": Script([hit("x", 0.8, meta={"src": "b", "q": 2})]),
    }
    async with gateway_of(scripts) as gateway:
        found = (await gateway.retrieve())["hits"][0]
    meta = found["meta"]
    assert (meta["src"], meta["p"], meta["q"]) == ("b", 1, 2)
    assert (meta["engine"], meta["engineRank"], meta["engineScore"]) == ("b", 1, 0.8)
    assert meta["fusedScore"] == found["score"] == pytest.approx(1 / 61 + 1 / 62)


async def test_confidence_is_the_weighted_mean_of_the_copies_that_carry_one() -> None:
    scripts = {
        "a": Script([hit("x", 1.0, confidence=0.9)]),
        "b": Script([hit("x", 1.0, confidence=0.3)]),
        "c": Script([hit("x", 1.0)]),
        "d": Script([hit("x", 1.0, confidence=7.0)]),
    }
    async with gateway_of(scripts, engines={"a": {"weight": 2}}) as gateway:
        found = (await gateway.retrieve())["hits"][0]
    assert found["confidence"] == pytest.approx((2 * 0.9 + 0.3) / 3)


async def test_documents_joined_by_content_keep_all_citations() -> None:
    one = hit("contractA#3", 1.0, text="the same words", citation={"uri": "https://example.org/a"})
    two = hit("contractB#7", 1.0, text="the same words", citation={"uri": "https://example.org/b"})
    scripts = {"a": Script([one]), "b": Script([two])}
    async with gateway_of(scripts) as gateway:
        assert len((await gateway.retrieve())["hits"]) == 2, "two citations are two documents unless it is asked for"
    async with gateway_of(scripts, fusion={"identity": "content"}) as gateway:
        (found,) = (await gateway.retrieve())["hits"]
    assert [cited["uri"] for cited in found["meta"]["citations"]] == ["https://example.org/a", "https://example.org/b"]


# Parameters of the methods of fusion.


@obligation(245)
async def test_the_clients_constant_of_rank_fusion_is_used() -> None:
    async with gateway_of({"a": Script(hits("x")), "b": Script(hits("x"))}) as gateway:
        found = (await gateway.retrieve(fusion={"rrfK": 1}))["hits"][0]
        assert (await gateway.refused(fusion={"rrfK": 0}))["data"]["field"] == "fusion.rrfK"
    assert found["score"] == pytest.approx(1.0)


@obligation(148)
async def test_alpha_without_one_engine_of_each_mode_is_refused() -> None:
    def offers(mode: str) -> dict[str, Any]:
        return {"retrieve": {"maxK": 10, "modes": [mode], "scoreFloor": 0.0}}

    both = {"d": Script(hits(("x", 1.0)), offers("dense")), "s": Script(hits(("y", 1.0)), offers("sparse"))}
    async with gateway_of(both) as gateway:
        result = await gateway.retrieve(fusion={"method": "convex", "alpha": 0.25})
        assert {one["id"]: one["score"] for one in result["hits"]} == {"y": 0.75, "x": 0.25}
        assert (await gateway.refused(fusion={"method": "convex", "alpha": 2}))["code"] == -32602
    async with gateway_of({"d": both["d"]}) as gateway:
        error = await gateway.refused(fusion={"method": "convex", "alpha": 0.25})
    assert (error["code"], error["data"]["option"]) == (-32005, "fusion.alpha")
