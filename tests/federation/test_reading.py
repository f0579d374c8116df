"""What an engine returns, made sound: nothing of it is trusted."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from gateway._json import Raw
from gateway.filters import Filter, Pushdown
from gateway.model import Hit, hit
from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation
from tests.schema import check_frame

pytestmark = pytest.mark.anyio

FIELDS = {"filter": {"fields": {"lang": "keyword", "year": "int"}, "operators": ["eq"]}}
ENGLISH = {"field": "lang", "op": "eq", "value": "en"}


async def answer(*found: Hit, **params: Any) -> dict[str, Any]:
    async with gateway_of({"a": Script(list(found))}) as gateway:
        frame = await gateway.call("retrieve", {"query": "q", **params})
    return check_frame("retrieve", json.dumps(frame).encode())["result"]  # type: ignore[no-any-return]


@obligation(187)
async def test_hits_without_an_id_are_dropped_with_a_word_and_numbers_are_read_as_text() -> None:
    odd: list[Any] = [None, "", True, ["x"], float("nan"), 7, 8.0, 8.5, "y"]
    result = await answer(*(Hit(id, 1.0) for id in odd))
    assert ids(result) == ["7", "8", "8.5", "y"]
    assert "engine a: hits without a usable id were dropped" in notes(result)
    assert result["usage"]["candidates"] == len(odd)


@obligation(188)
async def test_ids_that_are_equal_once_they_can_be_written_are_one_document() -> None:
    result = await answer(Hit("a\ud800", 1.0), Hit("a\ufffd", 0.9), Hit("b", 0.8))
    assert ids(result) == ["a\ufffd", "b"]


@pytest.mark.parametrize("method", ["rrf", "weighted", "convex", "confidence"])
async def test_scores_of_any_kind_fuse_by_every_method(method: str) -> None:
    class Odd(float):
        pass

    odd: list[Any] = [Odd(0.5), "0.9", True, None, float("nan"), float("-inf"), 10**400, 3, -0.0, [1]]
    found = [Hit(str(n), one, confidence=one) for n, one in enumerate(odd)]
    capabilities = {"retrieve": {"maxK": 100, "modes": ["dense"], "scoreFloor": -1.0, "confidence": True}}
    async with gateway_of({"a": Script(found, capabilities), "b": Script(hits("0"), capabilities)}) as gateway:
        frame = await gateway.call("retrieve", {"query": "q", "fusion": {"method": method}, "k": 50})
    result = check_frame("retrieve", json.dumps(frame).encode())["result"]
    assert len(ids(result)) == len(odd)
    assert result["_meta"]["x-gateway"]["scale"] == method


async def test_members_of_any_kind_never_end_an_answer() -> None:
    class Text(str):
        pass

    class Number(float):
        pass

    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    loop: dict[str, Any] = {}
    loop["again"] = loop
    nested = {"n": 1}
    for _ in range(300):
        nested = {"n": nested}  # type: ignore[dict-item]
    odd = hit(
        "x",
        1.0,
        text=Text("words"),
        meta=MappingProxyType[Any, Any](
            {
                "deep": deep,
                "loop": loop,
                5: Number(1.5),
                "set": {1},
                "big": 10**30,
                "ok": [{"a": Text("b")}],
                "inf": 1e999,
            }
        ),
        vector=[Number(1.0), 2],
        trust={"level": Text("trusted"), "score": Number(0.5)},
        content=[{"type": ["text"]}, {"type": "text", "text": Text("t"), 3: "x"}],
        provenance={"path": [Text("p")], "edges": [{"src": "a", "dst": "b", "deep": deep}]},
        **{"x-deep": deep, "x-raw": Raw(json.dumps(nested).encode()), "x-ok": {"a": (1, 2)}},
    )
    one = (await answer(odd, includeVectors=True))["hits"][0]
    meta = {
        name: value for name, value in one["meta"].items() if name in ("deep", "loop", "5", "set", "big", "ok", "inf")
    }
    assert meta == {"5": 1.5, "set": "{1}", "big": 10**30, "ok": [{"a": "b"}]}
    assert (one["text"], one["vector"], one["content"]) == (
        "words",
        [1.0, 2.0],
        [{"type": "text", "text": "t", "3": "x"}],
    )
    assert one["provenance"] == {"path": ["p"]}
    assert one["x-ok"] == {"a": [1, 2]}
    assert not {"x-deep", "x-raw"} & set(one)


ODD: Any = EngineReply


async def test_what_is_no_hit_is_dropped_among_those_that_are() -> None:
    none: Any = None

    async def odd(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=[*hits("x"), none, *hits("z")])

    async with gateway_of({"a": Script(retrieve=odd)}) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["x", "z"]
    assert "engine a: hits without a usable id were dropped" in notes(result)


@pytest.mark.parametrize("reply", [None, {}, ODD(hits=None), ODD(hits=hits("x"), notes=None)])
async def test_a_reply_that_is_none_costs_that_engine_only(reply: Any) -> None:
    async def odd(query: EngineQuery, call: Call) -> EngineReply:
        return reply  # type: ignore[no-any-return]

    async with gateway_of({"a": Script(retrieve=odd), "b": Script(hits("y"))}) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["y"]
    assert result["_meta"]["degraded"] == ["a"]


async def test_metadata_nobody_can_read_never_passes_for_absent() -> None:
    for meta in (Raw(b'{"lang":'), Raw(b"[1]"), ["lang"], "text", 5):
        broken = Script([Hit("x", 1.0, None, {"meta": meta})], FIELDS, meta_complete=True)
        async with gateway_of({"a": broken}) as gateway:
            result = await gateway.retrieve(filter={"not": ENGLISH})
        assert ids(result) == []
        assert "without the metadata that the filter needs" in notes(result)


async def test_what_a_pushed_filter_says_of_metadata_that_is_missing_is_believed() -> None:
    def exact(filter: Filter) -> Pushdown[str]:
        return Pushdown("native", None)

    script = Script([hit("x", 1.0), hit("y", 0.9, meta={"lang": "fr"})], FIELDS, push=exact, meta_complete=False)
    async with gateway_of({"a": script}) as gateway:
        assert ids(await gateway.retrieve(filter=ENGLISH)) == ["x"]
    script.meta_complete = True
    async with gateway_of({"a": script}) as gateway:
        assert ids(await gateway.retrieve(filter=ENGLISH)) == []


async def test_of_a_half_pushed_filter_the_other_half_must_hold() -> None:
    both = {"and": [ENGLISH, {"field": "year", "op": "eq", "value": 1}]}

    def half(filter: Filter) -> Pushdown[str]:
        return Pushdown("native", next(part for part in filter.parts if part.field == "year"))  # type: ignore[union-attr]

    found = [
        hit("x", 1.0, meta={"year": 1}),
        hit("y", 0.9, meta={"lang": "en"}),
        hit("z", 0.8, meta={"lang": "fr", "year": 1}),
    ]
    script = Script(found, FIELDS, push=half, meta_complete=False)
    async with gateway_of({"a": script}) as gateway:
        assert ids(await gateway.retrieve(filter=both)) == ["x"]
    async with gateway_of({"a": script}, federation={"verify": False}) as gateway:
        assert ids(await gateway.retrieve(filter=both)) == ["x", "z"]


async def test_an_engine_of_no_stated_limit_is_refilled_up_to_the_gateways() -> None:
    documents = hits(*((f"d{n}", 1 - n / 1000, {"lang": "en" if n > 80 else "fr"}) for n in range(100)))
    for limit in ({}, {"maxK": 0}, {"maxK": -5}):
        script = Script(documents, {"retrieve": {"maxK": None, **limit}, **FIELDS})
        async with gateway_of({"a": script}, fusion={"window": 10}, limits={"max_k": 120}) as gateway:
            result = await gateway.retrieve(filter=ENGLISH, k=5)
        assert ids(result) == [f"d{n}" for n in range(81, 86)]
        assert [query.k for query in script.queries] == [10, 20, 40, 80, 120]


async def test_an_engine_that_gives_all_it_can_is_not_asked_for_the_same_again() -> None:
    script = Script(hits(*(f"d{n}" for n in range(50)), lang="fr"), {"retrieve": {"maxK": 10}, **FIELDS})
    async with gateway_of({"a": script}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
    assert [query.k for query in script.queries] == [10]
    assert "scanned 10, kept 0" in notes(result)


async def test_a_refill_stops_when_the_window_is_full() -> None:
    documents = hits(*((f"d{n}", 1 - n / 1000, {"lang": "en" if n % 2 else "fr"}) for n in range(100)))
    script = Script(documents, FIELDS)
    async with gateway_of({"a": script}, fusion={"window": 10}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH, k=3)
    assert [query.k for query in script.queries] == [10, 20]
    assert result["usage"]["candidates"] == 20
    assert "incomplete" not in notes(result)


async def test_an_exhausted_engine_is_not_asked_again_and_nothing_is_missing() -> None:
    async def few(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits(*(f"d{n}" for n in range(query.k)), lang="fr"), exhausted=True)

    script = Script(retrieve=few, capabilities=FIELDS)
    async with gateway_of({"a": script}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
    assert len(script.queries) == 1
    assert notes(result) == ""


async def test_where_a_hit_comes_from_is_no_field_to_filter_by() -> None:
    own = {
        "filter": {"fields": {"engine": "keyword", "engineScore": "float", "x-upstream": "keyword", "lang": "keyword"}}
    }
    async with gateway_of({"a": Script(hits("x", engine="other"), own)}) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["filter"]["fields"]
        assert told == {"lang": "keyword"}
        assert (await gateway.refused(filter={"field": "engine", "op": "eq", "value": "other"}))["code"] == -32602


async def test_an_answer_that_says_it_is_partial_is_a_loss_of_its_engine_with_names_cut_to_size() -> None:
    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits("x"), partial=("down", "a\nb\u202e", "", "n" * 1000, *("more",) * 20))

    async def unnamed(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits("y"), partial=())

    async with gateway_of({"a": Script(retrieve=retrieve), "b": Script(retrieve=unnamed), "c": Script()}) as gateway:
        result = await gateway.retrieve()
    assert result["_meta"]["degraded"] == ["a", "b"]
    names = ", ".join(["down", "a b", "n" * 64, *["more"] * 4])
    assert [(loss["kind"], loss["engine"], loss["message"]) for loss in result["_meta"]["x-gateway"]["losses"]] == [
        ("partial", "a", f"its answer is partial, without {names}"),
        ("partial", "b", "its answer is partial"),
    ]
