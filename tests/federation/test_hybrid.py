"""``mode: hybrid`` over engines that have both halves, one half, or all of it (RCP section 7.7)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.spi import Call, EngineQuery, EngineReply, VectorNeed
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.federation.scripts import failing
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def modes(*names: str, **more: Any) -> dict[str, Any]:
    return {"retrieve": {"maxK": 100, "modes": list(names), **more}}


def asked(script: Script) -> list[str | None]:
    return [query.mode for query in script.queries]


@obligation(143, 254)
async def test_dense_only_and_sparse_only_engines_answer_hybrid_together() -> None:
    scripts = {"d": Script(hits("x", "y"), modes("dense")), "s": Script(hits("y", "z"), modes("sparse"))}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["retrieve"]["modes"]
        result = await gateway.retrieve(mode="hybrid")
    assert told == ["dense", "sparse", "hybrid"]
    assert (asked(scripts["d"]), asked(scripts["s"])) == (["dense"], ["sparse"])
    assert ids(result) == ["y", "x", "z"]
    assert notes(result) == ""


async def test_beside_an_engine_that_is_hybrid_itself_the_others_serve_the_half_they_have() -> None:
    scripts = {
        "h": Script(hits("x"), modes("dense", "sparse", "hybrid")),
        "d": Script(hits("y"), modes("dense")),
        "n": Script(hits("z")),
    }
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mode="hybrid")
    assert (asked(scripts["h"]), asked(scripts["d"]), asked(scripts["n"])) == (["hybrid"], ["dense"], [])
    assert sorted(ids(result)) == ["x", "y"]
    assert "engine n was not asked: it does not offer mode 'hybrid'" in notes(result)


@obligation(60)
async def test_one_half_alone_is_not_hybrid() -> None:
    async with gateway_of({"d": Script(hits("x"), modes("dense")), "n": Script(hits("y"))}) as gateway:
        assert (await gateway.refused(mode="hybrid"))["code"] == -32005
    both = {"d": Script(hits("x"), modes("dense")), "s": Script(hits("y"), modes("sparse"))}
    async with gateway_of(both) as gateway:
        # Offered by all together, but not by the one that is asked.
        only = {"x-gateway": {"engines": ["d"]}}
        assert (await gateway.refused(mode="hybrid", _meta=only))["code"] == -32005
        assert ids(await gateway.retrieve(mode="hybrid", strict=False, _meta=only)) == ["x"]


async def test_an_engine_with_both_halves_is_asked_twice_and_votes_once() -> None:
    async def both(query: EngineQuery, call: Call) -> EngineReply:
        found = {"dense": hits(("x", 0.9), ("y", 0.8)), "sparse": hits(("y", 20.0), ("z", 3.0))}
        return EngineReply(hits=found[query.mode or ""])

    scripts = {
        "b": Script(retrieve=both, capabilities=modes("dense", "sparse")),
        "o": Script(hits("z"), modes("dense")),
    }
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mode="hybrid")
    assert sorted(map(str, asked(scripts["b"]))) == ["dense", "sparse"]
    # Within b: y = 1/61 + 1/62, x = 1/61, z = 1/62; b's list y, x, z is what counts against o's z.
    assert ids(result) == ["z", "y", "x"]
    scores = {hit["id"]: hit["score"] for hit in result["hits"]}
    assert scores == {"z": pytest.approx(1 / 63 + 1 / 61), "y": pytest.approx(1 / 61), "x": pytest.approx(1 / 62)}
    assert result["hits"][1]["meta"]["engineScore"] == pytest.approx(1 / 61 + 1 / 62)


async def test_each_half_gets_the_vectors_it_needs() -> None:
    from tests.engines import EMBEDDER

    dense = Script(hits("x"), modes("dense"), need=VectorNeed("e", 2))
    sparse = Script(hits("y"), modes("sparse"))
    embedder = Script(capabilities={"retrieve": None, "embed": {"dimension": EMBEDDER.dimension, "identity": "length"}})
    async with gateway_of({"d": dense, "s": sparse, "e": embedder}) as gateway:
        await gateway.retrieve("four", mode="hybrid")
    assert dense.queries[0].vector == (4.0, 1.0)
    assert sparse.queries[0].vector is None


async def test_if_one_half_fails_the_other_is_an_answer_with_its_loss() -> None:
    scripts = {"d": failing(RuntimeError("bug"), modes("dense")), "s": Script(hits("y"), modes("sparse"))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mode="hybrid")
    assert ids(result) == ["y"]
    assert result["_meta"]["degraded"] == ["d"]


async def test_of_two_questions_to_one_engine_one_may_fail() -> None:
    async def half(query: EngineQuery, call: Call) -> EngineReply:
        if query.mode == "sparse":
            raise RuntimeError("bug")
        return EngineReply(hits=hits("x"))

    async with gateway_of({"b": Script(retrieve=half, capabilities=modes("dense", "sparse"))}) as gateway:
        result = await gateway.retrieve(mode="hybrid")
    assert ids(result) == ["x"]
    assert "engine b: 1 of 2 questions to it failed" in notes(result)


async def test_convex_fusion_takes_no_floor_from_an_engine_that_was_asked_in_two_modes() -> None:
    scripts = {"b": Script(hits("x"), modes("dense", "sparse", scoreFloor=0.0))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(mode="hybrid", fusion={"method": "convex"})
    assert result["_meta"]["x-gateway"]["scale"] == "rrf"
    assert "no score floor from b" in notes(result)
