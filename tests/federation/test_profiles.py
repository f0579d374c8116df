"""Named profiles: engines in scope, a standing filter, fusion and options of their own, in a real gateway."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, ConfigErrors, RcpError
from gateway.federation.profile import Profile, filled
from gateway.model import RerankOptions, RetrieveRequest
from gateway.protocol.methods import decode
from gateway.spi import Call, GraphQuery, GraphReply, MemoryRecall, MemoryReply
from tests.engines import Running, Script, gateway_of, hits, ids

pytestmark = pytest.mark.anyio

FIELDS = {"filter": {"fields": {"lang": "keyword", "year": "int"}}}
GERMAN = {"field": "lang", "op": "eq", "value": "de"}


def under(running: Running, name: str, caller: Caller | None = None) -> Running:
    """The same gateway, asked under a profile."""
    one = running.gateway.endpoint(name)
    gateway = replace(running.gateway, service=one.service, dispatcher=one.dispatcher)
    return Running(gateway, running.scripts, caller or running.caller)


def papers_and_news() -> dict[str, Script]:
    return {
        "papers": Script(
            hits=[*hits("p1", lang="de", year=2020), *hits(("p2", 0.9), lang="en", year=2020)], capabilities=FIELDS
        ),
        "news": Script(hits=hits("n1", "n2", lang="de", year=2021), capabilities=FIELDS),
        "secret": Script(hits=hits("s1"), capabilities={"filter": {"fields": {"clearance": "int"}}}),
    }


@asynccontextmanager
async def profiled(*profiles: Mapping[str, Any], **config: Any) -> AsyncIterator[Running]:
    async with gateway_of(papers_and_news(), profiles=list(profiles), **config) as running:
        yield running


async def test_a_profile_asks_only_its_engines_and_the_base_path_asks_all() -> None:
    async with profiled({"name": "science", "engines": ["papers"]}) as running:
        assert ids(await under(running, "science").retrieve()) == ["p1", "p2"]
        assert set(ids(await running.retrieve())) == {"p1", "p2", "n1", "n2", "s1"}
        assert len(running.scripts["news"].queries) == 1


async def test_an_engine_out_of_a_profile_changes_nothing_that_it_tells() -> None:
    profile = {"name": "science", "engines": ["papers", "news"]}
    scripts = papers_and_news()
    del scripts["secret"]
    async with profiled(profile) as with_secret, gateway_of(scripts, profiles=[profile]) as without:
        for method in ("info", "catalog/list"):
            answer = await under(with_secret, "science").call(method)
            assert answer == await under(without, "science").call(method)
            assert "secret" not in json.dumps(answer)
            assert "clearance" not in json.dumps(answer)
        hidden = await under(with_secret, "science").refused(_meta={"x-gateway": {"engines": ["secret"]}})
        unknown = await under(without, "science").refused(_meta={"x-gateway": {"engines": ["nobody"]}})
        assert hidden == unknown
        unseen = {"field": "clearance", "op": "gte", "value": 1}
        assert (await under(with_secret, "science").refused(filter=unseen))["code"] == -32602


async def test_a_caller_sees_in_a_profile_what_both_allow() -> None:
    async with profiled({"name": "science", "engines": ["papers", "secret"]}) as running:
        narrow = under(running, "science", Caller(engines=frozenset({"papers", "news"})))
        assert ids(await narrow.retrieve()) == ["p1", "p2"]
        assert (await narrow.call("info"))["result"]["capabilities"]["catalog"]["engines"] == 1


async def test_an_engine_of_weight_0_is_asked_by_the_profile_that_names_it() -> None:
    profiles = [{"name": "archive", "engines": ["news"]}, {"name": "all"}]
    async with profiled(*profiles, engines={"news": {"weight": 0}}) as running:
        assert ids(await under(running, "archive").retrieve()) == ["n1", "n2"]
        assert "n1" not in ids(await under(running, "all").retrieve())


@pytest.mark.parametrize(
    "asked",
    [
        None,
        {},
        {"field": "year", "op": "eq", "value": 2020},
        {"field": "lang", "op": "eq", "value": "en"},
        {"not": GERMAN},
        {"or": [GERMAN, {"not": GERMAN}]},
        {"or": [{"field": "lang", "op": "exists", "value": False}, {"field": "lang", "op": "exists"}]},
    ],
    ids=lambda asked: json.dumps(asked),
)
async def test_no_filter_of_a_client_gets_around_the_profiles(asked: Any) -> None:
    async with profiled({"name": "german", "engines": ["papers", "news"], "filter": GERMAN}) as running:
        result = await under(running, "german").retrieve(filter=asked, strict=False)
        found = {hit["id"]: hit["meta"]["lang"] for hit in result["hits"]}
        assert set(found.values()) <= {"de"}
        plain = asked in (None, {}) or "or" in asked
        assert set(found) == ({"p1", "n1", "n2"} if plain else {"p1"} if asked.get("field") == "year" else set())


async def test_an_error_in_the_clients_filter_is_told_of_where_the_client_wrote_it() -> None:
    async with profiled({"name": "german", "engines": ["papers"], "filter": GERMAN}) as running:
        error = await under(running, "german").refused(filter={"and": [{"field": "nope", "op": "eq", "value": 1}]})
        assert (error["code"], error["data"]["path"]) == (-32602, "filter.and[0].field")


async def test_a_profile_whose_filter_no_engine_can_apply_is_refused_at_the_start() -> None:
    unknown = {"name": "science", "engines": ["papers"], "filter": {"field": "clearance", "op": "exists"}}
    with pytest.raises(ConfigErrors) as refused:
        async with profiled({"name": "fine"}, unknown):
            pytest.fail("it opened")
    assert str(refused.value) == (
        "line 1: profiles[1]: the filter of this profile cannot be applied "
        "(not a declared filter field; there are lang, year: clearance)"
    )


async def test_options_that_no_engine_in_scope_offers_are_refused_at_the_start() -> None:
    with pytest.raises(ConfigErrors, match=r"profiles\[0\]: no engine in its scope can serve it: mode 'hybrid'"):
        async with profiled({"name": "science", "engines": ["papers"], "defaults": {"mode": "hybrid"}}):
            pytest.fail("it opened")


async def test_while_an_engine_is_unseen_an_unreadable_filter_is_minus_32010_and_nothing_is_returned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def down() -> None:
        raise BackendUnavailable("down")

    scripts = {"up": Script(hits=hits("u1")), "down": Script(opening=down)}
    profiles = [{"name": "strict", "filter": GERMAN}]
    with caplog.at_level(logging.WARNING, "gateway.app"):
        async with gateway_of(scripts, profiles=profiles) as running:
            error = await under(running, "strict").refused()
    assert error["code"] == -32010
    assert error["data"] == {"retryable": True}
    assert "lang" not in error["message"], "the configuration is the operator's"
    assert scripts["up"].queries == []
    assert "profile strict cannot be served yet" in caplog.text


async def test_a_profile_fuses_in_its_own_way_and_inherits_the_rest() -> None:
    profile = {"name": "confident", "engines": ["papers", "news"], "fusion": {"method": "weighted"}}
    async with profiled(profile, {"name": "plain"}, fusion={"window": 7, "k": 10}) as running:
        result = await under(running, "confident").retrieve(k=2)
        assert result["_meta"]["x-gateway"]["scale"] == "weighted"
        assert running.scripts["papers"].queries[-1].k == 7
        plain = await under(running, "plain").retrieve(k=2)
        assert plain["_meta"]["x-gateway"]["scale"] == "rrf"
        assert plain["hits"][0]["score"] == pytest.approx(1 / 11)


async def test_options_that_a_request_leaves_out_come_from_the_profile() -> None:
    profile = {"name": "short", "engines": ["papers", "news"], "defaults": {"k": 2, "includeText": False, "seed": 1}}
    async with profiled(profile) as running:
        short = await under(running, "short").retrieve()
        assert len(short["hits"]) == 2
        assert all("text" not in hit for hit in short["hits"])
        own = await under(running, "short").retrieve(k=3, includeText=True)
        assert len(own["hits"]) == 3
        assert all("text" in hit for hit in own["hits"])
        absent = await under(running, "short").retrieve(k=None)
        assert len(absent["hits"]) == 2, "null is absent (section 4.6)"


async def test_explain_shows_what_the_profile_makes_of_a_request() -> None:
    async with profiled({"name": "german", "engines": ["papers"], "filter": GERMAN}) as running:
        service = running.gateway.endpoint("german").service
        rows = service.explain(RetrieveRequest(query="q"), Caller()).engines
        assert [(row["engine"], row["residual"]) for row in rows] == [("papers", GERMAN)]


async def test_writes_are_offered_only_where_the_engine_that_takes_them_is_in_scope() -> None:
    scripts = papers_and_news()
    scripts["papers"] = Script(capabilities={"index": {"writable": True}})
    profiles = [{"name": "science", "engines": ["papers"]}, {"name": "press", "engines": ["news"]}]
    async with gateway_of(scripts, profiles=profiles, writes="papers") as running:
        added = await under(running, "science").call("index/add", {"documents": [{"id": "x", "text": "t"}]})
        assert added["result"]["ids"] == ["x"]
        refused = await under(running, "press").call("index/add", {"documents": [{"id": "x", "text": "t"}]})
        assert refused["error"]["code"] == -32003


async def test_a_cursor_holds_only_under_the_profile_that_gave_it() -> None:
    async with profiled({"name": "german", "filter": GERMAN}, {"name": "same", "filter": GERMAN}) as running:
        for here, elsewhere in ((running, "german"), (under(running, "german"), "same")):
            cursor = (await here.retrieve(k=1))["nextCursor"]
            assert len((await here.retrieve(k=1, cursor=cursor))["hits"]) == 1
            assert (await under(running, elsewhere).refused(k=1, cursor=cursor))["code"] == -32015


async def test_a_sessions_trajectory_is_the_callers_whatever_path_it_asks() -> None:
    async with profiled({"name": "science", "engines": ["papers"]}) as running:
        assert ids(await under(running, "science").retrieve(sessionId="s")) == ["p1", "p2"]
        assert set(ids(await running.retrieve("another", sessionId="s"))) == {"n1", "n2", "s1"}


async def test_stages_that_a_profile_asks_for_are_made_here() -> None:
    profile = {"name": "lexical", "engines": ["papers", "news"], "defaults": {"rerank": {"method": "bm25"}}}
    async with profiled(profile) as running:
        lexical = under(running, "lexical")
        assert ids(await lexical.retrieve("n2"))[0] == "n2"
        assert (await lexical.retrieve("n2"))["usage"]["reranked"] == 4
        assert (await lexical.retrieve("n2", rerank=False))["usage"]["reranked"] == 0


# What a request says stands before what the profile says.


def test_false_is_an_answer_and_null_is_none() -> None:
    profile = Profile(options={"rerank": RerankOptions(top_n=5), "rewrite": "hyde", "k": 3})
    off = filled(RetrieveRequest(query="q", rerank=False, rewrite=False), profile)
    assert (off.rerank, off.rewrite, off.k) == (False, False, 3)


def test_an_option_is_taken_whole() -> None:
    profile = Profile(options={"rerank": RerankOptions(method="llm", top_n=5)})
    own = filled(RetrieveRequest(query="q", rerank=RerankOptions(top_n=7)), profile)
    assert own.rerank == RerankOptions(top_n=7)


small = st.none() | st.integers(1, 6)


@given(client=st.tuples(small, small, small), profile=st.tuples(small, small, small))
def test_a_profiles_numbers_never_break_the_funnel_of_a_request(
    client: tuple[int | None, int | None, int | None], profile: tuple[int | None, int | None, int | None]
) -> None:
    def wire(numbers: tuple[int | None, int | None, int | None]) -> dict[str, Any]:
        candidate_k, top_n, k = numbers
        given = {"candidateK": candidate_k, "k": k, "rerank": {"topN": top_n} if top_n else None}
        return {"query": "q", **{name: value for name, value in given.items() if value is not None}}

    def read(numbers: tuple[int | None, int | None, int | None]) -> RetrieveRequest | None:
        try:
            request: RetrieveRequest = decode("retrieve", json.dumps(wire(numbers)).encode())
        except RcpError:
            return None
        return request

    asked, own = read(client), read(profile)
    if asked is None or own is None:
        return
    names = ("k", "candidate_k", "rerank")
    options = {name: getattr(own, name) for name in names if getattr(own, name) is not None}
    made = filled(asked, Profile(options=options))
    top_n = made.rerank.top_n if isinstance(made.rerank, RerankOptions) else None
    assert read((made.candidate_k, top_n, made.k)) is not None
    for name in names:
        given_by_client = getattr(asked, name)
        assert given_by_client is None or getattr(made, name) == given_by_client


async def test_hits_of_graphs_and_memories_are_held_against_the_profiles_filter() -> None:
    found = [*hits("g1", lang="de"), *hits(("g2", 0.9), lang="en"), *hits(("g3", 0.8))]

    async def graph(query: GraphQuery, call: Call) -> GraphReply:
        return GraphReply(hits=found, nodes=found)

    async def recall(query: MemoryRecall, call: Call) -> MemoryReply:
        return MemoryReply(hits=found)

    offers = {**FIELDS, "graph": {"ops": ["local"]}, "memory": {}}
    scripts = {
        "a": Script(hits=found, capabilities=offers, graph=graph, recall=recall),
        # It does not declare the field, so nothing of it can be known to satisfy the filter.
        "b": Script(
            capabilities={"graph": {"ops": ["local"]}, "memory": {}}, graph=graph, recall=recall, meta_complete=False
        ),
    }
    async with gateway_of(scripts, profiles=[{"name": "german", "filter": GERMAN}]) as running:
        german = under(running, "german")
        for method, params in (("graph", {"op": "local", "query": "q"}), ("memory/recall", {"query": "q"})):
            assert ids((await german.call(method, params))["result"]) == ["g1"]
            assert set(ids((await running.call(method, params))["result"])) == {"g1", "g2", "g3"}
        # What a client writes into the call changes nothing of it.
        own = {"filter": {"not": GERMAN}, "_meta": {"x-gateway": {"engines": ["a"]}}}
        assert ids((await german.call("graph", {"op": "local", "query": "q", **own}))["result"]) == ["g1"]
