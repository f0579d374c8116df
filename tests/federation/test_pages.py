"""Pages of a frozen window, sessions and pinned versions, as a client sees them (RCP sections 7.7 and 10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.caller import Caller
from gateway.errors import BackendUnavailable
from gateway.federation.version import composite
from gateway.model import hit
from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Running, Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


async def walk(gateway: Running, k: int, **params: Any) -> list[list[str]]:
    pages: list[list[str]] = []
    cursor: dict[str, Any] = {}
    while True:
        result = await gateway.retrieve(k=k, **params, **cursor)
        pages.append(ids(result))
        if "nextCursor" not in result:
            return pages
        assert result["nextCursor"] != ""
        cursor = {"cursor": result["nextCursor"]}


def changing(count: int = 40) -> Script:
    """An engine that answers otherwise each time it is asked."""
    asked = 0

    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        nonlocal asked
        asked += 1
        return EngineReply(hits=hits(*(f"d{(n * 7 + asked) % count}" for n in range(count)))[: query.k])

    return Script(retrieve=retrieve)


@obligation(156, 260, 193)
async def test_a_walk_brings_everything_once_though_engines_change_and_die_in_between() -> None:
    scripts = {"a": Script(hits(*(f"d{n}" for n in range(40)))), "b": changing(), "c": changing()}
    async with gateway_of(scripts) as gateway:
        assert (await gateway.call("info"))["result"]["capabilities"]["pagination"] == {}
        first = await gateway.retrieve(k=7, candidateK=40)
        asked = [len(script.queries) for script in scripts.values()]
        for script in scripts.values():
            script.hits, script.retrieve = (), None
        pages, cursor = [ids(first)], first["nextCursor"]
        while cursor is not None:
            page = await gateway.retrieve(k=7, candidateK=40, cursor=cursor)
            pages.append(ids(page))
            cursor = page.get("nextCursor")
        assert [len(script.queries) for script in scripts.values()] == asked
    assert [len(page) for page in pages] == [7, 7, 7, 7, 7, 5]
    assert len({id for page in pages for id in page}) == 40


async def test_only_the_last_page_is_short() -> None:
    async with gateway_of({"a": Script(hits(*(f"d{n}" for n in range(64))))}) as gateway:
        pages = await walk(gateway, 10, candidateK=64)
    assert [len(page) for page in pages] == [10] * 6 + [4]


@settings(max_examples=15, deadline=None)
@given(
    k=st.integers(1, 12),
    options=st.fixed_dictionaries(
        {},
        optional={
            "mmr": st.sampled_from([{"lambda": 0.3}, {"lambda": 1}]),
            "rerank": st.sampled_from([{}, {"topN": 30}]),
            "minScore": st.just(0.0),
        },
    ),
)
async def test_a_walk_equals_one_request_for_all_of_it(k: int, options: dict[str, Any]) -> None:
    scripts = {
        "a": Script([hit(f"d{n}", 1 - n / 50, text=f"q {'w' * (n % 5)} {n}") for n in range(30)]),
        "b": Script([hit(f"d{n}", 1 - n / 50, text=f"other {n}") for n in range(20, 45)]),
    }
    async with gateway_of(scripts) as gateway:
        pages = await walk(gateway, k, candidateK=45, **options)
        whole = await gateway.retrieve(k=30, candidateK=45, **options)
    assert [id for page in pages for id in page][:30] == ids(whole)


@obligation(157, 155)
async def test_a_cursor_holds_for_its_caller_its_query_and_its_filter_only() -> None:
    fields = {"filter": {"fields": {"lang": "keyword"}}}
    script = Script(hits(*(f"d{n}" for n in range(9)), lang="en"), fields)
    filter = {"field": "lang", "op": "eq", "value": "en"}
    async with gateway_of({"a": script}) as gateway:
        cursor = (await gateway.retrieve(k=3, filter=filter))["nextCursor"]
        other = {**filter, "value": "de"}
        for wrong in ({"query": "p", "filter": filter}, {"filter": other}, {}, {"filter": filter, "mmr": {}}):
            error = await gateway.refused(wrong.pop("query", "q"), k=3, cursor=cursor, **wrong)
            assert (error["code"], error["data"]["field"]) == (-32015, "cursor")
        stranger = Running(gateway.gateway, gateway.scripts, Caller("stranger"))
        assert (await stranger.refused(k=3, filter=filter, cursor=cursor))["code"] == -32015
        assert len(ids(await gateway.retrieve(k=5, filter=filter, cursor=cursor))) == 5


async def test_pages_fill_a_budget_each() -> None:
    found = [hit(f"d{n}", 1 - n / 100, text="word " * 10) for n in range(10)]
    found.insert(3, hit("big", 0.975, text="word " * 99))
    async with gateway_of({"a": Script(found)}) as gateway:
        first = await gateway.retrieve(tokenBudget=35)
        second = await gateway.retrieve(tokenBudget=35, cursor=first["nextCursor"])
    assert (ids(first), first["usage"]["tokens"]) == (["d0", "d1", "d2"], 30)
    assert ids(second) == ["d3", "d4", "d5"]
    assert "big (99)" in notes(first) + notes(second)


async def test_an_answer_that_left_engines_behind_has_one_page() -> None:
    from tests.federation.scripts import hanging

    scripts = {"a": Script(hits(*"abcdef")), "b": hanging()}
    async with gateway_of(scripts, federation={"quorum": 1, "grace": 0}) as gateway:
        result = await gateway.retrieve(k=2)
    assert ids(result) == ["a", "b"]
    assert "nextCursor" not in result


async def test_a_list_too_large_to_keep_says_that_there_is_more() -> None:
    found = [hit(f"d{n}", 1 - n / 100, text="word " * 400) for n in range(20)]
    bytes = {"bytes": 4096, "caller_bytes": 4096}
    async with gateway_of({"a": Script(found)}, pagination=bytes) as gateway:
        result = await gateway.retrieve(k=5)
        whole = await gateway.retrieve(k=20)
    assert "nextCursor" not in result
    assert "there is more than may be kept for pages: ask for a larger k" in notes(result)
    assert notes(whole) == ""


async def test_several_processes_without_a_shared_state_offer_no_pages() -> None:
    async with gateway_of({"a": Script(hits(*"abcdef"))}, state={"processes": 2}) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        result = await gateway.retrieve(k=2)
        assert (await gateway.refused(k=2, cursor="any"))["code"] == -32015
    assert "pagination" not in told
    assert (ids(result), "nextCursor" in result) == (["a", "b"], False)


# Sessions.


async def test_a_session_is_not_given_the_same_twice_but_the_same_question_repeats_its_answer() -> None:
    async with gateway_of({"a": Script(hits(*(f"d{n}" for n in range(100))))}) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["session"]
        assert told["dedup"] is True
        first = await gateway.retrieve("one", k=3, sessionId="s")
        second = await gateway.retrieve("two", k=3, sessionId="s")
        again = await gateway.retrieve("one", k=3, sessionId="s")
        apart = await gateway.retrieve("three", k=3, sessionId="t")
        alone = await gateway.retrieve("three", k=3)
    assert ids(first) == ids(again) == ids(apart) == ids(alone) == ["d0", "d1", "d2"]
    assert ids(second) == ["d3", "d4", "d5"]
    assert second["_meta"]["x-gateway"]["seen"] == 3


async def test_sessions_of_different_callers_know_nothing_of_each_other() -> None:
    async with gateway_of({"a": Script(hits(*"abcdef"))}) as gateway:
        await gateway.retrieve("one", k=3, sessionId="s")
        stranger = Running(gateway.gateway, gateway.scripts, Caller("stranger"))
        assert ids(await stranger.retrieve("two", k=3, sessionId="s")) == ["a", "b", "c"]


async def test_a_page_counts_as_given_when_it_is_given() -> None:
    async with gateway_of({"a": Script(hits(*(f"d{n}" for n in range(12))))}) as gateway:
        first = await gateway.retrieve("one", k=3, sessionId="s")
        await gateway.retrieve("one", k=3, sessionId="s", cursor=first["nextCursor"])
        assert ids(await gateway.retrieve("two", k=3, sessionId="s")) == ["d6", "d7", "d8"]


async def test_the_engines_are_asked_deeper_by_what_the_session_has_had() -> None:
    script = Script(hits(*(f"d{n}" for n in range(100))))
    async with gateway_of({"a": script}) as gateway:
        await gateway.retrieve("one", k=5, sessionId="s", candidateK=10)
        await gateway.retrieve("two", k=5, sessionId="s", candidateK=10)
    assert [query.k for query in script.queries] == [10, 15]


# Versions.

SNAPSHOTS = {"retrieve": {"maxK": 100, "snapshots": True, "deterministic": True}}


def versioned(version: str, *given: str) -> Script:
    async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits(*given), index_version=version)

    return Script(retrieve=retrieve, capabilities=SNAPSHOTS)


@obligation(153)
async def test_one_version_stands_for_those_of_all_engines_and_pins_each_to_its_own() -> None:
    scripts = {"a": versioned("1", "x"), "b": versioned("7", "y")}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["retrieve"]
        assert (told["snapshots"], told["deterministic"]) == (True, True)
        result = await gateway.retrieve(seed=3)
        again = await gateway.retrieve(seed=3, indexVersion=result["indexVersion"])
        assert again["hits"] == result["hits"]
        assert again["indexVersion"] == result["indexVersion"]
        assert [scripts[id].queries[1].index_version for id in "ab"] == ["1", "7"]
        assert [scripts[id].queries[1].seed for id in "ab"] == [3, 3]
        scripts["b"].retrieve = versioned("8", "z").retrieve
        error = await gateway.refused(indexVersion=result["indexVersion"])
        assert (error["code"], error["data"]["retryable"]) == (-32010, False)
        assert (await gateway.refused(indexVersion="garbage"))["code"] == -32010
        one = {"x-gateway": {"engines": ["a"]}}
        assert ids(await gateway.retrieve(indexVersion=result["indexVersion"], _meta=one)) == ["x"]


async def test_a_pinned_version_of_which_an_engine_fails_is_not_served_in_part() -> None:
    scripts = {"a": versioned("1", "x"), "b": versioned("7", "y")}
    async with gateway_of(scripts) as gateway:
        version = (await gateway.retrieve())["indexVersion"]

        async def fails(query: EngineQuery, call: Call) -> EngineReply:
            raise RuntimeError("bug")

        scripts["b"].retrieve = fails
        assert ids(await gateway.retrieve()) == ["x"]
        assert (await gateway.refused(indexVersion=version))["code"] == -32603


@obligation(153)
async def test_a_call_has_a_version_exactly_if_every_engine_it_asks_keeps_them() -> None:
    scripts = {"meaning": Script(hits("m")), "words": versioned("1", "w")}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["retrieve"]
        assert "snapshots" not in told  # of the calls that name no engine
        for asked in (
            {"_meta": {"x-gateway": {"engines": ["words"]}}},
            {"fusion": {"weights": {"meaning": 0}}},
        ):
            found = await gateway.retrieve(**asked)
            again = await gateway.retrieve(**asked, indexVersion=found["indexVersion"])
            assert (again["hits"], again["indexVersion"]) == (found["hits"], found["indexVersion"])
            assert scripts["words"].queries[-1].index_version == "1"
            for unknown in ("garbage", composite({"words": "0"}), composite({"gone": "1"})):
                error = await gateway.refused(**asked, indexVersion=unknown)
                assert (error["code"], error["data"]["retryable"]) == (-32010, False)
        assert "indexVersion" not in await gateway.retrieve()
        for pin in (found["indexVersion"], "garbage"):
            error = await gateway.refused(indexVersion=pin)
            assert (error["code"], error["data"]["option"]) == (-32005, "indexVersion")
            assert list(error["data"]["reasons"]) == ["meaning"]


async def test_no_version_is_given_where_only_those_that_keep_one_have_answered() -> None:
    async def fails(query: EngineQuery, call: Call) -> EngineReply:
        raise BackendUnavailable("down")

    async def tells(query: EngineQuery, call: Call) -> EngineReply:
        return EngineReply(hits=hits("x"), index_version="1")

    for other in (Script(retrieve=fails), Script(retrieve=tells)):
        async with gateway_of({"a": versioned("1", "x"), "b": other}) as gateway:
            assert "indexVersion" not in await gateway.retrieve()


async def test_a_document_that_engines_call_differently_is_given_to_a_session_once() -> None:
    def one(id: str) -> Script:
        return Script([hit(id, 1.0, text="t", citation={"uri": "http://x/doc"}), *hits((f"only-{id}", 0.5))])

    scripts = {"a": one("1"), "b": one("2")}
    async with gateway_of(scripts, fusion={"identity": "uri"}) as gateway:
        both = await gateway.retrieve("q", k=1, sessionId="s")
        assert ids(both) in (["1"], ["2"])
        for engine, left in (("a", "only-1"), ("b", "only-2")):
            own = {"x-gateway": {"engines": [engine]}}
            assert ids(await gateway.retrieve(f"{engine}?", k=1, sessionId="s", _meta=own)) == [left]
