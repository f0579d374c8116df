"""One field, and what each engine calls it."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gateway_memory.plugin
import gateway_sqlite.plugin
from gateway.app import engine_specs, open_gateway, read_config
from gateway.caller import ANONYMOUS
from gateway.config import EngineSettings, GatewayConfig, load_text
from gateway.errors import ConfigErrors
from gateway.federation.aliases import NO_ALIASES, Aliases, aliased
from gateway.filters import Filter, Op, Pushdown, to_json
from gateway.model import Capabilities, Hit, RecencyOptions, RetrieveRequest, hit
from gateway.plugins import load_plugins
from gateway.spi import Engine, EngineQuery
from gateway.spi.probe import Probe
from gateway.testing.filters import HARD_FIELDS, documents, wire_filters
from tests.engines import Running, Script, gateway_of, hits, ids, notes, scripted_plugin
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

YEAR = {"aliases": {"year": "pub_year"}}
RECENT = {"field": "year", "op": "gte", "value": 2020}


def offering(**fields: str) -> dict[str, Any]:
    return {"retrieve": {"maxK": 100}, "filter": {"fields": fields, "operators": [op.value for op in Op]}}


def meta(result: Mapping[str, Any], id: str) -> dict[str, Any]:
    """What a hit carries, without where it comes from."""
    (one,) = [one for one in result["hits"] if one["id"] == id]
    given = ("engine", "bodyEngine", "engines", "engineRank", "engineScore", "fusedScore", "vectorEngine")
    return {name: value for name, value in one["meta"].items() if name not in given}


# What is offered


@obligation(172)
async def test_a_field_of_two_names_is_offered_under_one() -> None:
    scripts = {"a": Script(capabilities=offering(year="int")), "b": Script(capabilities=offering(pub_year="int"))}
    async with gateway_of(scripts, engines={"b": YEAR}) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        catalog = (await gateway.call("catalog/list"))["result"]["engines"]
        error = await gateway.refused(filter={"field": "pub_year", "op": "eq", "value": 2020})
    assert told["filter"]["fields"] == told["x-gateway"]["guaranteed"]["filter"]["fields"] == {"year": "int"}
    assert [one["capabilities"]["filter"]["fields"] for one in catalog] == [{"year": "int"}] * 2
    assert (error["code"], error["data"]["field"]) == (-32602, "pub_year")


@obligation(172)
async def test_types_conflict_under_the_names_of_the_gateway_only() -> None:
    a = Script(capabilities=offering(year="int"))
    apart = Script(capabilities=offering(year="keyword"))
    alike = Script(capabilities=offering(released="keyword"))
    async with gateway_of({"a": a, "b": apart}, engines={"b": {"aliases": {"label": "year"}}}) as gateway:
        assert (await gateway.call("info"))["result"]["capabilities"]["filter"]["fields"] == {
            "year": "int",
            "label": "keyword",
        }
    async with gateway_of({"a": a, "b": alike}, engines={"b": {"aliases": {"year": "released"}}}) as gateway:
        assert "filter" not in (await gateway.call("info"))["result"]["capabilities"]


async def test_an_engine_that_is_not_open_is_known_by_the_same_names() -> None:
    async def never() -> None:
        raise OSError

    script = Script(capabilities=offering(pub_year="int"), opening=never)
    async with gateway_of({"a": script}, engines={"a": YEAR}) as gateway:
        assert (await gateway.call("info"))["result"]["capabilities"]["filter"]["fields"] == {"year": "int"}


# Retrieving


async def test_the_engine_is_asked_in_its_own_words_and_answers_in_the_gateways() -> None:
    pushed: list[Filter] = []

    def push(filter: Filter) -> Pushdown[Any]:
        pushed.append(filter)
        return Pushdown(to_json(filter), None)

    found = hits(("x", 1.0, {"pub_year": 2021, "lang": "en"}))
    script = Script(found, offering(pub_year="int", lang="keyword"), push=push)
    both = {"and": [RECENT, {"not": {"field": "lang", "op": "eq", "value": "fr"}}]}
    async with gateway_of({"a": script}, engines={"a": YEAR}) as gateway:
        result = await gateway.retrieve(filter=both)
    assert [to_json(one) for one in pushed] == [
        {"and": [{**RECENT, "field": "pub_year"}, {"not": {"field": "lang", "op": "eq", "value": "fr"}}]}
    ]
    assert script.queries[0].filter == to_json(pushed[0])
    assert script.queries[0].fields == {"pub_year", "lang"}
    assert meta(result, "x") == {"year": 2021, "lang": "en"}


@obligation(171)
async def test_what_is_checked_here_is_checked_on_the_field_that_is_meant() -> None:
    # The key `year` of this engine is another field, which it does not declare: it is neither checked nor returned.
    found = hits(
        ("new", 1.0, {"pub_year": 2021, "year": 1}),
        ("old", 0.9, {"pub_year": 1999, "year": 2021}),
        ("none", 0.8, {"year": 2021}),
    )
    script = Script(found, offering(pub_year="int"))
    async with gateway_of({"a": script}, engines={"a": YEAR}) as gateway:
        result = await gateway.retrieve(filter=RECENT)
        others = await gateway.retrieve(filter={"not": RECENT})
    assert (ids(result), meta(result, "new")) == (["new"], {"year": 2021})
    assert (ids(others), meta(others, "old"), meta(others, "none")) == (["old", "none"], {"year": 1999}, {})


async def test_an_engine_that_returns_what_it_should_not_is_caught_under_its_own_name_too() -> None:
    found = hits(("old", 1.0, {"pub_year": 1999}), ("new", 0.9, {"pub_year": 2021}))
    script = Script(found, offering(pub_year="int"), push=lambda filter: Pushdown("native", None))
    async with gateway_of({"a": script}, engines={"a": YEAR}) as gateway:
        result = await gateway.retrieve(filter=RECENT)
    assert ids(result) == ["new"]
    assert "hits that the filter excludes were dropped" in notes(result)


async def test_copies_of_a_document_are_merged_under_one_name() -> None:
    scripts = {
        "a": Script(hits(("x", 1.0, {"year": 2021})), offering(year="int")),
        "b": Script(hits(("x", 1.0, {"pub_year": 2022, "pages": 9})), offering(pub_year="int")),
    }
    async with gateway_of(scripts, engines={"b": YEAR}) as gateway:
        result = await gateway.retrieve(filter=RECENT)
        assert meta(result, "x") == {"year": 2021, "pages": 9}
        # Only the copy of b satisfies this.
        result = await gateway.retrieve(filter={**RECENT, "value": 2022})
    assert meta(result, "x") == {"year": 2022, "pages": 9}


async def test_names_can_be_swapped() -> None:
    swapped = {"aliases": {"title": "name", "name": "title"}}
    script = Script(hits(("x", 1.0, {"name": "Dune", "title": "Dr"})), offering(name="keyword", title="keyword"))
    async with gateway_of({"a": script}, engines={"a": swapped}) as gateway:
        result = await gateway.retrieve(filter={"field": "title", "op": "eq", "value": "Dune"})
        nothing = await gateway.retrieve(filter={"field": "name", "op": "eq", "value": "Dune"})
    assert meta(result, "x") == {"title": "Dune", "name": "Dr"}
    assert ids(nothing) == []


async def test_an_engines_field_with_a_name_of_the_gateway_becomes_visible_under_another() -> None:
    script = Script(hits(("x", 1.0, {"engine": "V8"})), offering(engine="keyword"))
    async with gateway_of({"a": script}, engines={"a": {"aliases": {"motor": "engine"}}}) as gateway:
        result = await gateway.retrieve(filter={"field": "motor", "op": "eq", "value": "V8"})
    assert meta(result, "x") == {"motor": "V8"}
    assert result["hits"][0]["meta"]["engine"] == "a"


async def test_encoded_metadata_is_renamed_and_what_cannot_be_read_stays_unknown() -> None:
    raws = {"good": b'{"pub\\u005fyear": 2021}', "bad": b'{"pub_year": 2021', "list": b'["pub_year"]'}
    found = [Hit(id, 1.0, None, {"meta": msgspec.Raw(raw)}) for id, raw in raws.items()]
    async with gateway_of({"a": Script(found, offering(pub_year="int"))}, engines={"a": YEAR}) as gateway:
        assert ids(await gateway.retrieve(filter=RECENT)) == ["good"]
        result = await gateway.retrieve()
    assert [meta(result, id) for id in ("good", "bad", "list")] == [{"year": 2021}, {}, {}]


async def test_under_check_an_own_name_is_nothing_that_a_filter_could_see() -> None:
    a = Script(hits(("x", 1.0, {"pub_year": 2021})), offering(pub_year="int"))
    b = Script(hits(("y", 1.0, {"pub_year": 2021})), offering(pub_year="int"))
    engines = {"a": {**YEAR, "undeclared": "check"}}
    async with gateway_of({"a": a, "b": b}, engines=engines) as gateway:
        assert ids(await gateway.retrieve(filter={"field": "pub_year", "op": "eq", "value": 2021})) == ["y"]


async def test_age_is_read_from_each_engines_own_field() -> None:
    dated = {"a": ("1-old", "date", "2001-01-01"), "b": ("2-new", "created", "2999-01-01")}
    scripts = {
        engine: Script(hits((id, 1.0, {field: day})), offering(**{field: "date"}))
        for engine, (id, field, day) in dated.items()
    }
    async with gateway_of(scripts, engines={"b": {"aliases": {"date": "created"}}}) as gateway:
        plain = await gateway.retrieve()
        aged = await gateway.retrieve(recency={"field": "date", "halfLifeDays": 10})
    assert (ids(plain), ids(aged)) == (["1-old", "2-new"], ["2-new", "1-old"])
    assert [one["score"] for one in aged["hits"]] == [pytest.approx(1.0), pytest.approx(0.0)]
    assert meta(aged, "2-new")["date"] == "2999-01-01"
    # An engine that returns only what is needed must know that the date is.
    assert [script.queries[-1].fields for script in scripts.values()] == [{"date"}, {"created"}]


def test_a_pushed_recency_names_the_engines_own_field() -> None:
    aliases = Aliases({"date": "created_at"})
    query = EngineQuery(text="q", k=1, fields=frozenset({"date", "x"}), recency=RecencyOptions(field="date"))
    told = aliases.query(query)
    assert (told.recency, told.fields) == (RecencyOptions(field="created_at"), frozenset({"created_at", "x"}))
    assert aliases.query(EngineQuery(text="q", k=1, recency=RecencyOptions())).recency == RecencyOptions()


def test_what_has_none_of_the_names_stays_as_it_came() -> None:
    raw = Hit("x", 1.0, None, {"meta": msgspec.Raw(b'{"a": 1}')})
    given = [raw, hit("y", 1.0), hit("z", 1.0, meta={"a": 1})]
    for before, after in zip(given, Aliases({"year": "pub_year"}).hits(given), strict=True):
        assert after is before


async def test_an_engine_without_aliases_is_not_wrapped() -> None:
    async with gateway_of({"a": Script(), "b": Script()}, engines={"b": YEAR}) as gateway:
        plain, wrapped = (gateway.gateway.fleet.members[id].engine for id in ("a", "b"))
    assert isinstance(plain, Engine)
    assert aliased(plain, NO_ALIASES) is plain
    assert not isinstance(wrapped, Engine)


async def test_every_method_of_an_engine_speaks_of_no_metadata_or_is_renamed() -> None:
    """A method that is new to engines has to be put on one side or the other."""
    silent = {
        *("vector_need", "sparse_need", "document_need", "embed", "embed_sparse", "rerank", "transform"),
        *("embed_multi", "embedded_by", "feedback", "memory_build", "vendor"),
        *("index_delete", "ping", "describe", "meta_complete", "rerank_logit"),
    }
    async with gateway_of({"b": Script()}, engines={"b": YEAR}) as gateway:
        wrapped = gateway.gateway.fleet.members["b"].engine
    renamed = {name for name, _ in inspect.getmembers(type(wrapped), inspect.isfunction) if not name.startswith("_")}
    assert renamed | silent == {name for name in dir(Engine) if not name.startswith("_")}
    assert not renamed & silent


# Writing


async def test_documents_are_stored_under_the_engines_names() -> None:
    writable = {**offering(pub_year="int"), "index": {"writable": True}}
    script = Script(capabilities=writable)
    one = {"id": "1", "text": "t", "meta": {"year": 2021, "lang": "en"}}
    async with gateway_of({"a": script}, engines={"a": YEAR}, writes="a") as gateway:
        answer = await gateway.call("index/add", {"documents": [one, {"id": "2", "text": "u"}]})
        error = await gateway.call(
            "index/add", {"documents": [{"text": "t"}, {"text": "t", "meta": {"lang": "en", "pub_year": 1}}]}
        )
    assert answer["result"]["ids"] == ["1", "2"]
    assert [document.meta for document in script.added] == [{"pub_year": 2021, "lang": "en"}, None]
    assert (error["error"]["code"], error["error"]["data"]["field"]) == (-32602, "documents[1].meta.pub_year")
    assert "called 'year' here" in error["error"]["message"]


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


@given(st.dictionaries(NAMES, NAMES).filter(lambda names: len(set(names.values())) == len(names)), st.data())
def test_what_is_renamed_one_way_and_back_is_what_it_was(names: dict[str, str], data: st.DataObject) -> None:
    aliases = Aliases(names)
    meta = data.draw(st.dictionaries(NAMES, st.integers()))
    written, read = aliases.inward(meta), aliases.outward(meta)
    assert aliases.outward(written) == {name: meta[name] for name in meta if name not in aliases.hidden(meta)}
    assert aliases.inward(read) == {own: meta[own] for own in meta if own in names.values() or own not in names}
    assert all(written[names.get(name, name)] == meta[name] for name in meta if name not in aliases.hidden(meta))
    assert all(name in names or name not in names.values() for name in read)


# Explaining and probing


async def test_explain_shows_the_native_part_in_the_engines_words_and_the_rest_in_the_gateways() -> None:
    def push(filter: Filter) -> Pushdown[Any]:
        return Pushdown(to_json(filter), filter)

    script = Script(capabilities=offering(pub_year="int"), push=push)
    async with gateway_of({"a": script}, engines={"a": YEAR}) as gateway:
        (row,) = gateway.gateway.service.explain(RetrieveRequest(query="q", filter=RECENT), ANONYMOUS).engines
    assert row["fields"] == {"year": "int"}
    assert row["native"] == {**RECENT, "field": "pub_year"}
    assert row["residual"] == RECENT


async def test_a_probe_asks_under_aliases_as_it_does_without() -> None:
    own = {"fields": {"tag": "keyword", "seen": "date"}}
    answers = []
    for aliases in ({}, {"label": "tag", "at": "seen"}):
        engine = {"id": "m", "kind": "memory", "with": own, "aliases": aliases}
        async with opened([engine]) as gateway:
            found = await gateway.gateway.service.probe("m", ANONYMOUS)
        answers.append([(one.question.replace("label", "tag").replace("at ", "seen "), one.answer) for one in found])
    plain, renamed = ([answer for _, answer in one] for one in answers)
    assert plain == renamed
    assert any(answer.startswith("yes") for answer in plain)


@pytest.mark.parametrize(("given", "own"), [(("year", "at"), ("pub_year", "at")), ((None, "year"), (None, "pub_year"))])
def test_an_engines_own_questions_are_about_its_own_fields(given: tuple[Any, Any], own: tuple[Any, Any]) -> None:
    asked: list[Any] = []

    class Asking(Engine):
        def capabilities(self) -> Capabilities:
            return Capabilities()

        def probes(self, keyword: str | None, date: str | None) -> Sequence[Probe]:
            asked.append((keyword, date))
            return []

    assert aliased(Asking(), Aliases({"year": "pub_year"})).probes(*given) == []
    assert asked == [own]


# Configuration


def faults(*engines: Mapping[str, Any]) -> list[str]:
    plugins = load_plugins([gateway_memory.plugin], found=[])
    text = json.dumps({"name": "n", "engines": engines})
    with pytest.raises(ConfigErrors) as caught:
        engine_specs(load_text(text, base_dir=Path.cwd()), plugins)
    return [f"{one.path}: {one.message}" for one in caught.value.errors]


def test_aliases_that_would_mean_two_things_are_all_refused_at_once() -> None:
    own = {"fields": {"pub_year": "int", "size": "int"}}
    aliases = {"year": "pub_year", "published": "pub_year", "size": "bytes", "engine": "motor", "lang": "lang"}
    told = faults(
        {"id": "a", "kind": "memory", "with": own, "aliases": aliases},
        {"id": "b", "kind": "memory", "aliases": {"x-upstream": "y"}},
    )
    assert told == [
        "engines[0].aliases.published: the engine's field 'pub_year' is called 'year' already",
        "engines[0].aliases.size: the engine has another field called 'size'; give that one an alias too",
        "engines[0].aliases.engine: is where the gateway says where a hit comes from",
        "engines[0].aliases.lang: is the engine's own name already",
        "engines[1].aliases.x-upstream: is where the gateway says where a hit comes from",
    ]


def test_a_file_with_such_aliases_is_told_of_with_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "engines:\n"
        "  - id: a\n"
        "    kind: memory\n"
        "    aliases: {year: x, engine: y, published: x}\n"
        "  - id: b\n"
        "    kind: memory\n"
        "    aliases: {year: '', n: 5}\n"
        "  - id: c\n"
        "    kind: memory\n"
        "    aliases: [year]\n"
    )
    with pytest.raises(ConfigErrors) as caught:
        read_config(path, load_plugins([gateway_memory.plugin], found=[]))
    assert [(one.line, one.path) for one in caught.value.errors] == [
        (4, "engines[0].aliases.engine"),
        (4, "engines[0].aliases.published"),
        (7, "engines[1].aliases.year"),
        (7, "engines[1].aliases.n"),
        (10, "engines[2].aliases"),
    ]


async def test_aliases_that_do_not_fit_what_an_engine_turns_out_to_have_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that declares another field tomorrow must not keep the gateway from starting."""
    script = Script(hits(("x", 1.0, {"year": 1, "z": 2})), offering(year="int", lang="keyword"))

    async def other() -> None:
        script.capabilities = offering(year="int", lang="keyword")

    script.capabilities = offering(lang="keyword")
    script.opening = other
    with caplog.at_level(logging.WARNING, "gateway.fleet"):
        async with gateway_of({"a": script}, engines={"a": {"aliases": {"year": "pub_yaer"}}}) as gateway:
            told = (await gateway.call("info"))["result"]["capabilities"]
            result = await gateway.retrieve()
    assert told["filter"]["fields"] == {"lang": "keyword"}
    assert meta(result, "x") == {"z": 2}
    assert "declares no field 'pub_yaer'" in caplog.text
    assert "has a field 'year' that is hidden" in caplog.text


# Real stores


@asynccontextmanager
async def opened(engines: Sequence[Mapping[str, Any]], script: Script | None = None) -> AsyncIterator[Running]:
    """A gateway over engines of kinds memory, sqlite and scripted (as ``s``); the first one is written to."""
    scripts = {"s": script or Script()}
    plugins = load_plugins([gateway_memory.plugin, gateway_sqlite.plugin, scripted_plugin(scripts)], found=[])
    listed = tuple(
        EngineSettings(**{"settings" if name == "with" else name: one[name] for name in one}) for one in engines
    )
    config = GatewayConfig(name="under-test", engines=listed, writes=listed[0].id)
    async with open_gateway(config, plugins) as gateway:
        yield Running(gateway, scripts)


async def test_two_stores_that_name_a_field_differently_are_one_corpus(tmp_path: Path) -> None:
    """The file is written by who knows nothing of aliases, then read and written through them."""
    file = {"path": str(tmp_path / "papers.db"), "fields": {"pub_year": "int"}}
    async with opened([{"id": "papers", "kind": "sqlite", "with": file}]) as gateway:
        for id, year in (("p1", 2019), ("p2", 2021)):
            await gateway.call("index/add", {"documents": [{"id": id, "text": "a fox", "meta": {"pub_year": year}}]})
    entries = [{"id": id, "text": "a fox", "meta": {"year": year}} for id, year in (("w1", 2018), ("w2", 2022))]
    papers = {"id": "papers", "kind": "sqlite", "with": file, **YEAR}
    wiki = {"id": "wiki", "kind": "memory", "with": {"documents": entries, "fields": {"year": "int"}}}
    async with opened([papers, wiki]) as gateway:
        told = await gateway.call("index/add", {"documents": [{"id": "p3", "text": "a fox", "meta": {"year": 2023}}]})
        assert told["result"]["ids"] == ["p3"]
        recent = await gateway.retrieve("fox", filter=RECENT)
        assert {id: meta(recent, id) for id in ids(recent)} == {id: {"year": year} for id, year in RECENT_YEARS.items()}
        others = await gateway.retrieve("fox", filter={"not": RECENT})
        assert sorted(ids(others)) == ["p1", "w1"]
        rows = gateway.gateway.service.explain(RetrieveRequest(query="fox", filter=RECENT), ANONYMOUS).engines
    assert [row["native"]["field"] for row in rows if row["engine"] == "wiki"] == ["year"]
    assert "pub_year" in json.dumps([row["native"] for row in rows if row["engine"] == "papers"])
    assert [(row["fields"], row["residual"]) for row in rows] == [({"year": "int"}, None)] * 2
    async with opened([{"id": "papers", "kind": "sqlite", "with": file}]) as gateway:
        assert meta(await gateway.retrieve("fox"), "p3") == {"pub_year": 2023}


RECENT_YEARS = {"p2": 2021, "p3": 2023, "w2": 2022}

# The law


OWN = {"kw": "txt", "txt": "kw", "n": "number", "at": "meta.at", "x": "engine"}
"""Swapped, dotted, and one that is the gateway's own word."""


def swapped(one: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in one.items()}


async def answers(
    kind: str, fields: Mapping[str, Any], metas: Sequence[Any], aliases: Mapping[str, str], asked: Sequence[Any]
) -> list[Any]:
    """What a gateway over one engine of these fields and documents says without a filter, and to each of them."""
    texts = [{"id": f"d{n}", "text": f"word {n}", "meta": one} for n, one in enumerate(metas)]
    own: dict[str, Any] = {"name": "s"}
    if kind == "memory":
        own = {"documents": texts, "fields": fields}
    elif kind == "sqlite":
        own = {"path": ":memory:", "fields": fields}
    script = Script(
        [hit(one["id"], 1 - n / 100, text=one["text"], meta=one["meta"]) for n, one in enumerate(texts)],
        {**offering(**fields), "index": {"writable": True}},
        meta_complete=kind != "incomplete",
    )
    engine = {"id": "e", "kind": "scripted" if kind == "incomplete" else kind, "with": own, "aliases": aliases}
    async with opened([engine], script) as gateway:
        if kind == "sqlite" and texts:
            names = {own: name for name, own in aliases.items()}
            given = [{**one, "meta": swapped(one["meta"], names)} for one in texts]
            assert "result" in await gateway.call("index/add", {"documents": given})
        results = [
            await gateway.retrieve("word", k=50, **params) for params in ({}, *({"filter": one} for one in asked))
        ]
    return [(result["hits"], result["usage"].get("notes")) for result in results]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "scripted", "incomplete"])
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(metas=st.lists(documents(), max_size=8), asked=st.lists(wire_filters(), min_size=1, max_size=4))
def test_an_engine_with_other_names_gives_what_one_with_these_names_gives(
    kind: str, metas: list[Any], asked: list[Any]
) -> None:
    async def run() -> None:
        fields = {name: type.value for name, type in HARD_FIELDS.items()}
        expected = await answers(kind, fields, metas, {}, asked)
        other = await answers(kind, swapped(fields, OWN), [swapped(one, OWN) for one in metas], OWN, asked)
        assert other == expected
        assert len(expected[0][0]) == len(metas)

    asyncio.run(run())


async def test_hits_of_graphs_and_memories_go_by_the_gateways_names() -> None:
    from gateway.model import hit
    from gateway.spi import Call
    from gateway.spi.methods import GraphQuery, GraphReply, MemoryRecall, MemoryReply

    found = [hit("x", 1.0, text="t", meta={"pub_year": 2020})]

    async def graph(query: GraphQuery, call: Call) -> GraphReply:
        return GraphReply(hits=found)

    async def recall(query: MemoryRecall, call: Call) -> MemoryReply:
        return MemoryReply(hits=found)

    offered = {**offering(pub_year="int"), "graph": {"ops": ["local"]}, "memory": {}}
    script = Script(capabilities=offered, graph=graph, recall=recall)
    async with gateway_of({"a": script}, engines={"a": YEAR}) as gateway:
        local = (await gateway.call("graph", {"op": "local", "query": "q"}))["result"]
        recalled = (await gateway.call("memory/recall", {"query": "q"}))["result"]
    assert [one["hits"][0]["meta"]["year"] for one in (local, recalled)] == [2020, 2020]
    assert all("pub_year" not in one["hits"][0]["meta"] for one in (local, recalled))
