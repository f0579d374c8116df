"""One filter over engines that push it, half push it, or know nothing of it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.caller import Caller
from gateway.filters import Filter, Pushdown
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

FIELDS = {"retrieve": {"maxK": 100}, "filter": {"fields": {"lang": "keyword", "year": "int"}, "operators": ["eq"]}}
ENGLISH = {"field": "lang", "op": "eq", "value": "en"}


@obligation(171)
async def test_an_engine_that_pushes_nothing_is_filtered_here_before_ranks_are_counted() -> None:
    a = Script(hits(("fr", 0.9, {"lang": "fr"}), ("en", 0.8, {"lang": "en"})), FIELDS)
    async with gateway_of({"a": a}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
    assert [(one["id"], one["score"]) for one in result["hits"]] == [("en", pytest.approx(1 / 61))]


async def test_a_window_that_the_residual_empties_is_refilled() -> None:
    documents = hits(*((f"d{n}", 1 - n / 1000, {"lang": "en" if n % 10 == 0 else "fr"}) for n in range(100)))
    script = Script(documents, {"retrieve": {"maxK": 100}, "filter": FIELDS["filter"]})
    async with gateway_of({"a": script}, fusion={"window": 10}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH, k=10)
    assert ids(result) == [f"d{n}" for n in range(0, 100, 10)]
    assert [query.k for query in script.queries] == [10, 20, 40, 80, 100]


async def test_a_refill_that_ends_early_says_what_it_scanned() -> None:
    documents = hits(*((f"d{n}", 1 - n / 1000, {"lang": "fr"}) for n in range(1000)))
    script = Script(documents, {"retrieve": {"maxK": 1000}, "filter": FIELDS["filter"]})
    async with gateway_of({"a": script}, fusion={"window": 10}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
    assert result["hits"] == []
    assert "scanned 160, kept 0, may be incomplete" in notes(result)


async def test_a_field_missing_from_incomplete_metadata_is_unknown_and_drops_the_hit() -> None:
    bare = Script(hits(("x", 1.0)), FIELDS, meta_complete=False)
    whole = Script(hits(("x", 1.0)), FIELDS, meta_complete=True)
    negative = {"not": ENGLISH}
    async with gateway_of({"a": bare}) as gateway:
        assert ids(await gateway.retrieve(filter=negative)) == []
    async with gateway_of({"a": whole}) as gateway:
        assert ids(await gateway.retrieve(filter=negative)) == ["x"]


async def test_a_pushed_filter_is_verified_on_what_comes_back() -> None:
    def exact(filter: Filter) -> Pushdown[str]:
        return Pushdown("native", None)

    liar = Script(hits(("fr", 0.9, {"lang": "fr"}), ("en", 0.8, {"lang": "en"})), FIELDS, push=exact)
    async with gateway_of({"a": liar}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
    assert ids(result) == ["en"]
    assert "hits that the filter excludes were dropped" in notes(result)
    assert liar.queries[0].filter == "native"
    async with gateway_of({"a": liar}, federation={"verify": False}) as gateway:
        assert ids(await gateway.retrieve(filter=ENGLISH)) == ["fr", "en"]


@obligation(159, 160, 145)
@pytest.mark.parametrize("strict", [True, False])
async def test_a_field_nobody_declares_is_the_callers_fault_and_asks_nobody(strict: bool) -> None:
    script = Script(hits("x"), FIELDS)
    async with gateway_of({"a": script}) as gateway:
        error = await gateway.refused(filter={"field": "zzz", "op": "eq", "value": 1}, strict=strict)
    assert error["code"] == -32602
    assert "zzz" in error["data"]["field"]
    assert script.queries == []


@obligation(171)
async def test_an_engine_that_does_not_declare_the_field_is_left_out_never_asked_unfiltered() -> None:
    scripts = {"a": Script(hits(("x", 1.0, {"lang": "en"})), FIELDS), "b": Script(hits("y"))}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
    assert ids(result) == ["x"]
    assert scripts["b"].queries == []
    assert "engine b was not asked: it does not declare lang" in notes(result)


async def test_undeclared_fields_can_be_checked_on_the_metadata_instead() -> None:
    scripts = {
        "a": Script(hits(("x", 1.0, {"lang": "en"})), FIELDS),
        "b": Script(hits(("y", 1.0, {"lang": "en"}), ("z", 0.9, {"lang": "fr"}))),
    }
    async with gateway_of(scripts, engines={"b": {"undeclared": "check"}}) as gateway:
        assert ids(await gateway.retrieve(filter=ENGLISH)) == ["x", "y"]


async def test_a_closed_schema_proves_that_nothing_can_match() -> None:
    scripts = {"b": Script(hits("y"), {"filter": {"fields": {"other": "int"}}}), "a": Script([], FIELDS)}
    async with gateway_of(scripts, engines={"b": {"undeclared": "absent"}}) as gateway:
        result = await gateway.retrieve(filter=ENGLISH)
        assert result["hits"] == []
        assert scripts["b"].queries == []
        assert ids(await gateway.retrieve(filter={"not": ENGLISH})) == ["y"]


async def test_when_no_engine_can_be_asked_safely_the_request_is_refused_with_the_reasons() -> None:
    both = {"a": Script(hits("x"), FIELDS), "b": Script(hits("y"), {"filter": {"fields": {"size": "int"}}})}
    filter = {"and": [ENGLISH, {"field": "size", "op": "eq", "value": 1}]}
    async with gateway_of(both) as gateway:
        error = await gateway.refused(filter=filter)
    assert error["code"] == -32005
    assert set(error["data"]["reasons"]) == {"a", "b"}
    assert (error["data"]["option"], error["data"]["field"]) == ("filter", "size")


@obligation(172, 255)
async def test_a_field_of_two_types_is_not_offered() -> None:
    scripts = {
        "a": Script(hits("x"), {"filter": {"fields": {"year": "int", "lang": "keyword"}}}),
        "b": Script(hits("y"), {"filter": {"fields": {"year": "keyword"}}}),
    }
    async with gateway_of(scripts) as gateway:
        info = (await gateway.call("info"))["result"]
        assert info["capabilities"]["filter"]["fields"] == {"lang": "keyword"}
        assert (await gateway.refused(filter={"field": "year", "op": "eq", "value": 1}))["code"] == -32602


async def test_merged_metadata_that_no_longer_satisfies_the_filter_is_not_made() -> None:
    scripts = {
        "a": Script(hits(("x", 1.0, {"lang": "en"})), FIELDS),
        "b": Script(hits(("x", 1.0, {"lang": "fr", "year": 2000})), FIELDS),
    }
    # Either copy satisfies it; {"lang": "en", "year": 2000} does not.
    english = {"and": [ENGLISH, {"field": "year", "op": "exists", "value": False}]}
    french = {"and": [{"not": ENGLISH}, {"field": "year", "op": "eq", "value": 2000}]}
    async with gateway_of(scripts) as gateway:
        (one,) = (await gateway.retrieve(filter={"or": [english, french]}))["hits"]
        assert (one["meta"]["lang"], one["meta"].get("year"), one["meta"]["engines"]) == ("en", None, ["a", "b"])
        (one,) = (await gateway.retrieve())["hits"]
        assert (one["meta"]["lang"], one["meta"].get("year")) == ("en", 2000)


@obligation(169, 170)
async def test_values_are_data_and_case_matters() -> None:
    script = Script(hits(("x", 1.0, {"lang": "en"})), FIELDS)
    async with gateway_of({"a": script}) as gateway:
        for value in ("en' OR '1'='1", "EN", "en ", ""):
            assert ids(await gateway.retrieve(filter={"field": "lang", "op": "eq", "value": value})) == []


@obligation(159)
async def test_a_refusal_tells_the_nearest_field_and_those_the_caller_can_see() -> None:
    scripts = {"a": Script(hits("x"), FIELDS), "b": Script(hits("y"), {"filter": {"fields": {"colour": "keyword"}}})}
    misspelt = {"field": "color", "op": "eq", "value": "red"}
    async with gateway_of(scripts) as gateway:
        error = await gateway.refused(filter=misspelt)
        assert error["message"] == "not a declared filter field (did you mean colour?); there are lang, year, colour"
        gateway.caller = Caller(engines=frozenset({"a"}))
        error = await gateway.refused(filter=misspelt)
    assert error["message"] == "not a declared filter field; there are lang, year"
    assert error["data"] == {"field": "color", "path": "filter.field"}


async def test_hits_that_came_without_metadata_are_kept_on_the_engines_word_and_a_note_says_so() -> None:
    def pushing(*found: Any) -> Script:
        return Script(hits(*found), FIELDS, push=lambda filter: Pushdown("native", None), meta_complete=False)

    scripts = {
        "bare": pushing("x", "y", ("z", 0.5, {"lang": "en"})),
        "partly": pushing(("p", 0.9, {"year": 2024})),
        "told": pushing(("t", 0.9, {"lang": "en"})),
    }
    async with gateway_of(scripts) as gateway:
        checked = await gateway.retrieve(filter=ENGLISH)
        unfiltered = await gateway.retrieve()
    async with gateway_of(scripts, federation={"verify": False}) as gateway:
        unverified = await gateway.retrieve(filter=ENGLISH)
    told = "engine bare: 2 hits could not be checked against the filter: they came without metadata"
    assert sorted(ids(checked)) == sorted(ids(unverified)) == ["p", "t", "x", "y", "z"]
    assert notes(checked) == told
    assert notes(unfiltered) == notes(unverified) == ""
