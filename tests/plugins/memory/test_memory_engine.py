"""The reference engine does what an engine must, by the shortest way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ConfigError
from gateway.federation.context import HostContext
from gateway.filters import FieldType, Filter, parse
from gateway.model import Document, Hit
from gateway.spi.bm25 import Index, words
from gateway.spi.call import Call
from gateway.spi.engine import Engine, EngineQuery, EngineReply
from gateway.spi.http import HttpSettings
from gateway.testing.filters import HARD_DOCUMENTS, HARD_FIELDS, assert_push_down_law, documents, filters
from gateway_memory.engine import Entry, MemoryConfig, MemoryEngine, MemoryKind
from gateway_memory.plugin import gateway_engine_kinds

T = TypeVar("T")
CALL = cast(Call, SimpleNamespace())


def run(config: MemoryConfig, use: Callable[[Engine], Awaitable[T]], base: Path = Path()) -> T:
    async def opened() -> T:
        async with MemoryKind().open(config, HostContext("m", base, http=HttpSettings())) as engine:
            return await use(engine)

    return asyncio.run(opened())


def ask(config: MemoryConfig, text: str, k: int = 10, filter: Filter | None = None, **options: Any) -> EngineReply:
    return run(config, lambda engine: engine.retrieve(EngineQuery(text=text, k=k, filter=filter, **options), CALL))


def ids(reply: EngineReply) -> list[str]:
    return [hit.id for hit in reply.hits]


def config(*texts: str, **meta: Any) -> MemoryConfig:
    return MemoryConfig(documents=[Entry(id=f"d{n}", text=text, meta=dict(meta)) for n, text in enumerate(texts)])


def test_the_document_with_more_of_the_rarer_words_comes_first() -> None:
    reply = ask(config("a common word", "a rare word", "a common common word", "something else"), "rare word")
    assert ids(reply)[0] == "d1"
    assert set(ids(reply)) == {"d0", "d1", "d2"}


def test_scores_fall_and_are_never_below_the_floor_that_is_claimed() -> None:
    scores = [hit.score or 0.0 for hit in ask(config("x x", "x", "x y", "x z z z"), "x y").hits]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) >= 0.0


def test_equal_scores_are_ordered_by_id() -> None:
    entries = [Entry(id=id, text="same words") for id in ("c", "a", "b")]
    assert ids(ask(MemoryConfig(documents=entries), "words")) == ["a", "b", "c"]


def test_a_query_without_words_finds_nothing() -> None:
    assert ask(config("x"), "?! ").hits == []
    assert ask(config("x"), "").exhausted


def test_exhausted_says_whether_more_could_be_had() -> None:
    assert not ask(config("x", "x", "x"), "x", k=2).exhausted
    assert ask(config("x", "x", "x"), "x", k=3).exhausted


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("東京大学の図書館", "図書館はどこ"),
        ("東京大学の図書館", "学"),
        ("हिन्दी की किताब", "हिन्दी"),
        ("Straße und Café", "STRASSE"),
        ("ｆｕｌｌ ｗｉｄｔｈ", "full"),
        ("서울에서 열린 회의", "서울"),
    ],
)
def test_words_are_found_in_scripts_of_every_kind(text: str, query: str) -> None:
    assert ids(ask(config("nothing of it", text), query)) == ["d1"]


@given(st.text())
def test_any_text_can_be_indexed_and_searched(text: str) -> None:
    index = Index()
    index.put("a", text)
    assert all(score >= 0 for score in index.scores(text).values())
    assert bool(index.scores(text)) == bool(words(text))


def test_replacing_and_dropping_leave_no_trace_in_the_scores() -> None:
    index, fresh = Index(), Index()
    for id, text in (("a", "old words"), ("b", "to be dropped words"), ("a", "new words")):
        index.put(id, text)
    index.drop("b")
    fresh.put("a", "new words")
    assert index.scores("words new old dropped") == fresh.scores("words new old dropped")


def test_a_filter_is_applied_before_the_limit() -> None:
    entries = [Entry(id=f"d{n}", text="x " * (9 - n), meta={"n": n}) for n in range(9)]
    tree = parse({"field": "n", "op": "eq", "value": 0}, {"n": FieldType.INT})
    assert ids(ask(MemoryConfig(documents=entries), "x", k=1, filter=tree)) == ["d0"]


@given(filters(), st.lists(documents(), max_size=12))
def test_the_push_down_law_holds(filter: Filter, metas: list[dict[str, Any]]) -> None:
    metas = [*metas, *HARD_DOCUMENTS[::3]]
    engine = MemoryEngine(MemoryConfig(fields=dict(HARD_FIELDS)))
    engine.load(Entry(id=str(n), text="x", meta=meta) for n, meta in enumerate(metas))
    pushdown = engine.push_down(filter)
    query = EngineQuery(text="x", k=1000, filter=pushdown.native)
    reply = asyncio.run(engine.retrieve(query, CALL))
    assert pushdown.exact
    assert_push_down_law(filter, pushdown, metas, {int(id) for id in ids(reply)})


def test_documents_are_replaced_by_id_and_deletions_are_counted() -> None:
    async def use(engine: Engine) -> None:
        added = await engine.index_add(
            [Document(id=1, text="one"), Document(id="b", text="two"), Document(id="1", text="three")], CALL
        )
        assert added.ids == ("1", "b", "1")
        assert added.chunks == 2
        assert [
            hit.members["text"] for hit in (await engine.retrieve(EngineQuery(text="one three", k=9), CALL)).hits
        ] == ["three"]
        assert await engine.index_delete(["1", "gone", "1"], CALL) == 1
        assert await engine.index_delete(["1"], CALL) == 0

    run(MemoryConfig(), use)


def test_a_document_without_id_gets_one_from_its_content() -> None:
    async def use(engine: Engine) -> tuple[str, ...]:
        return (await engine.index_add([Document(text="a"), Document(text="b"), Document(text="a")], CALL)).ids

    first, second, third = run(MemoryConfig(), use)
    assert first == third != second
    assert run(MemoryConfig(), use) == (first, second, third)


def test_a_hit_carries_text_metadata_citation_and_place() -> None:
    entry = Entry(
        id="docs/ü.md#2", text="x", meta={"path": "docs/ü.md", "passage": 2, "start": 5}, title="T", uri="http://h/"
    )
    [found] = ask(MemoryConfig(documents=[entry]), "x").hits
    assert found.id == "docs/ü.md#2"
    assert found.members["text"] == "x"
    assert found.members["meta"]["title"] == "T"
    assert found.members["citation"] == {"source": "docs/ü.md", "uri": "http://h/", "title": "T", "start": 5}
    assert found.members["chunk"] == {"docId": "docs/ü.md", "index": 2}


def test_every_hit_can_be_cited_even_by_its_id_alone() -> None:
    [found] = ask(config("x"), "x").hits
    assert found.members["citation"] == {"source": "d0"}


def test_text_is_left_out_where_it_is_not_wanted() -> None:
    found: list[Hit] = list(ask(config("x"), "x", include_text=False).hits)
    assert "text" not in found[0].members


def test_titles_are_searched_too() -> None:
    assert ids(ask(MemoryConfig(documents=[Entry(id="a", text="x", title="Rare")]), "rare")) == ["a"]


@pytest.mark.parametrize("content", ['[{"id": 1, "text": "one"}]', '{"id": "1", "text": "one"}\n\n'])
def test_documents_are_read_from_a_json_or_ndjson_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "d.json").write_text("\ufeff" + content)
    found = run(
        MemoryConfig(file=Path("d.json")), lambda engine: engine.retrieve(EngineQuery(text="one", k=1), CALL), tmp_path
    )
    assert ids(found) == ["1"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"text": "a"}\n{"id": 1}', "line 2"),
        ('{"text": "a", "tilte": ""}', "tilte"),
        ("[{]", "d.json"),
        (None, "cannot be read"),
    ],
)
def test_a_faulty_file_is_named_with_the_place(tmp_path: Path, content: str | None, place: str) -> None:
    if content is not None:
        (tmp_path / "d.json").write_text(content)
    with pytest.raises(ConfigError, match=place):
        run(MemoryConfig(file=Path("d.json")), lambda engine: engine.ping(CALL), tmp_path)


def test_the_plugin_brings_one_kind() -> None:
    assert [kind.name for kind in gateway_engine_kinds()] == ["memory"]


def test_what_is_offered_before_opening_is_what_is_there_afterwards() -> None:
    async def capabilities(engine: Engine) -> Any:
        return engine.capabilities()

    assert run(config("x"), capabilities) == MemoryKind().offers(config("x"))
