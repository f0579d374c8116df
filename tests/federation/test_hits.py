"""What a hit looks like when it leaves, whatever it looked like when it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway._json import Raw
from gateway.model import Hit, hit
from gateway.refine.seal import seal
from tests.engines import Script, gateway_of, hits, ids
from tests.obligations import obligation
from tests.schema import check_frame

pytestmark = pytest.mark.anyio


def sealed(one: Hit) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(bytes(seal(one, 0.5, include_text=True, include_vectors=True)))
    return result


@obligation(189)
def test_members_that_do_not_fit_the_schema_are_left_out() -> None:
    bad = hit(
        "x",
        1.0,
        confidence=7.0,
        text=5,  # type: ignore[arg-type]
        meta=["no"],  # type: ignore[arg-type]
        vector=[1.0, float("nan")],
        scores={"dense": float("inf"), "sparse": 0.5},
        citation={"title": 5, "page": 3.0, "uri": "u", "start": "x"},
        chunk={"docId": "d", "index": "one"},
        unit="paragraph",
        level=-1,
        modality="smell",
        trust={"level": "corpus"},
        content=[{"type": "image", "data": "x"}, {"type": "text", "text": "t"}, "junk"],
        provenance={"path": ["a", 5], "nodes": ["b"], "edges": [{"src": 1}]},
    )
    assert sealed(bad) == {
        "id": "x",
        "score": 0.5,
        "scores": {"sparse": 0.5},
        "citation": {"page": 3, "uri": "u"},
        "chunk": {"docId": "d"},
        "content": [{"type": "text", "text": "t"}],
        "provenance": {"nodes": ["b"]},
    }


def test_parts_that_contradict_the_schema_are_left_out_one_by_one() -> None:
    both = {"data": "aGk=", "uri": "u"}
    one = hit(
        "x",
        1.0,
        trust={"level": "trusted", "score": 1.5, "sanitized": "yes", "injectionSuspected": True},
        content=[
            {"type": "image", "mimeType": "image/png", **both},
            {"type": "text", "text": "t", **both},
            {"type": "text", "text": "t", "data": "aGk="},
            {"type": "image", "mimeType": "image/png"},
            {"type": "image", "mimeType": "image/png", "uri": "u"},
        ],
        provenance={"edges": [{"src": 1, "dst": "b"}], "leaves": ["l"], "score": float("nan"), "x": [1]},
    )
    assert sealed(one) == {
        "id": "x",
        "score": 0.5,
        "trust": {"level": "trusted", "injectionSuspected": True},
        "content": [
            {"type": "text", "text": "t", "data": "aGk="},
            {"type": "image", "mimeType": "image/png", "uri": "u"},
        ],
        "provenance": {"leaves": ["l"], "x": [1]},
    }


def test_unknown_members_survive_and_unsound_ones_do_not() -> None:
    members = {
        "x-vendor": Raw(b'{"a":[1,2]}'),
        "x-broken": Raw(b'{"a":1e400}'),
        "x-null": Raw(b"null"),
        "id": "spoofed",
    }
    assert sealed(Hit("x", 1.0, None, members)) == {"id": "x", "score": 0.5, "x-vendor": {"a": [1, 2]}}


def test_an_integer_that_no_float_can_hold_is_no_number() -> None:
    vast = Raw(b"1" + b"0" * 400)
    members = {
        "level": vast,
        "scores": {"a": 10**400, "b": 2},
        "citation": {"page": 10**400, "uri": "u"},
        "trust": {"level": "trusted", "score": 10**400},
        "meta": {"a": 10**400, "b": 10**40},
        "x-vendor": vast,
    }
    assert sealed(Hit("x", 1.0, None, members)) == {
        "id": "x",
        "score": 0.5,
        "scores": {"b": 2.0},
        "citation": {"uri": "u"},
        "trust": {"level": "trusted"},
        "meta": {"b": 10**40},
    }


@obligation(27)
def test_no_null_leaves_but_inside_metadata() -> None:
    assert sealed(hit("x", 1.0, meta={"a": None}, citation={"title": None, "uri": "u"})) == {
        "id": "x",
        "score": 0.5,
        "meta": {"a": None},
        "citation": {"uri": "u"},
    }


def test_lone_surrogates_are_mended_everywhere() -> None:
    one = sealed(hit("x\ud800", 1.0, text="a\udfff", meta={"k\ud800": ["\ud800"]}))
    assert one == {"id": "x\ufffd", "score": 0.5, "text": "a\ufffd", "meta": {"k\ufffd": ["\ufffd"]}}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["text", "meta", "trust", "citation", "content", "vector", "x-y"]), json_values))
def test_whatever_a_hit_holds_what_leaves_is_one_line_of_sound_json(members: dict[str, Any]) -> None:
    data = bytes(seal(Hit("x", 1.0, None, members), 0.5, include_text=True, include_vectors=True))
    assert b"\n" not in data
    json.loads(data, parse_constant=lambda token: pytest.fail(f"{token} left"))


@obligation(249, 250, 259)
async def test_a_merged_hit_names_every_origin_and_keeps_the_longest_text() -> None:
    a = hit("s1", 0.5, text="short", meta={"from_a": 1, "both": "a", "engine": "spoof"})
    b = hit("s1", 9.0, text="a much longer text", meta={"from_b": 2, "both": "b"})
    async with gateway_of({"a": Script([a]), "b": Script([b])}) as gateway:
        one = (await gateway.retrieve())["hits"][0]
    assert one["text"] == "a much longer text"
    assert one["meta"] == {
        "from_a": 1,
        "from_b": 2,
        "both": "a",
        "engine": "a",
        "bodyEngine": "b",
        "engines": ["a", "b"],
        "engineRank": 1,
        "engineScore": 0.5,
        "fusedScore": one["score"],
        "x-upstream": {"engine": "spoof"},
    }


@obligation(190)
async def test_trust_is_never_raised() -> None:
    claims = [hit("x", 1.0, trust={"level": "trusted", "score": 0.9})]
    doubts = [hit("x", 1.0, trust={"level": "untrusted", "injectionSuspected": True})]
    engines = {"a": {"trust": "community"}, "b": {"trust": "community"}}
    async with gateway_of({"a": Script(claims)}, engines={"a": engines["a"]}) as gateway:
        assert (await gateway.retrieve())["hits"][0]["trust"] == {"level": "community", "score": 0.9}
    async with gateway_of({"a": Script(claims), "b": Script(doubts)}, engines=engines) as gateway:
        trust = (await gateway.retrieve())["hits"][0]["trust"]
    assert trust == {"level": "untrusted", "score": 0.9, "injectionSuspected": True}


async def test_of_several_copies_the_least_trust_and_any_suspicion_count() -> None:
    each = [{"score": 0.9, "injectionSuspected": False}, {"score": 0.2, "injectionSuspected": True}, {}]
    scripts = {f"e{n}": Script([hit("x", 1.0, trust=trust)]) for n, trust in enumerate(each)}
    async with gateway_of(scripts) as gateway:
        trust = (await gateway.retrieve())["hits"][0]["trust"]
    assert trust == {"level": "community", "score": 0.2, "injectionSuspected": True}


async def test_equal_ids_of_unrelated_corpora_stay_apart() -> None:
    async with gateway_of(
        {"a": Script(hits("d4")), "b": Script(hits("d4"))}, engines={"a": {"corpus": "one"}, "b": {"corpus": "two"}}
    ) as gateway:
        assert ids(await gateway.retrieve()) == ["one/d4", "two/d4"]


@obligation(22)
async def test_scores_that_are_no_numbers_never_leave() -> None:
    odd = [hit("x", float("nan")), hit("y", float("inf")), hit("z", None)]
    async with gateway_of({"a": Script(odd)}) as gateway:
        answer = await gateway.call("retrieve", {"query": "q"})
    assert ids(answer["result"]) == ["x", "y", "z"]
    check_frame("retrieve", json.dumps(answer).encode())


@obligation(187, 188, 191, 192, 193)
async def test_an_answer_is_valid_descending_unique_and_within_k() -> None:
    scripts = {id: Script(hits(*(f"d{(n * 7 + ord(id)) % 30}" for n in range(30)))) for id in "abc"}
    async with gateway_of(scripts) as gateway:
        answer = await gateway.call("retrieve", {"query": "q", "k": 12})
    check_frame("retrieve", json.dumps(answer).encode())
    found = answer["result"]["hits"]
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert len({one["id"] for one in found}) == len(found) == 12
    usage = answer["result"]["usage"]
    assert usage["candidates"] == 90
    assert usage["latencyMs"] >= 0
    assert answer["result"]["nextCursor"]
