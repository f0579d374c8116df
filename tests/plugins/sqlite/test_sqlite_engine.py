"""The embedded lexical engine: any text may be asked, every script is found, filters are exact, nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.config.walk import Walker
from gateway.errors import BackendUnavailable, CallerError, ConfigError
from gateway.federation.context import HostContext
from gateway.filters import FieldType, Filter, compiled, parse
from gateway.model import Document
from gateway.spi.call import Call
from gateway.spi.engine import Engine, EngineQuery, EngineReply
from gateway.spi.http import HttpSettings
from gateway.testing.filters import HARD_DOCUMENTS, HARD_FIELDS, assert_push_down_law, documents, filters
from gateway_sqlite.engine import SqliteConfig, SqliteKind, Tokenizer
from gateway_sqlite.plugin import gateway_engine_kinds
from gateway_sqlite.store import Row, Store
from gateway_sqlite.text import TERM_LIMIT, indexed, match_expression, terms

T = TypeVar("T")
CALL = cast(Call, SimpleNamespace())
ROOT = Path(__file__).parents[3]


def run(use: Callable[[Engine], Awaitable[T]], base: Path = Path(), **settings: Any) -> T:
    async def opened() -> T:
        config = SqliteConfig(**{"path": ":memory:", **settings})
        async with SqliteKind().open(config, HostContext("s", base, http=HttpSettings())) as engine:
            return await use(engine)

    return asyncio.run(opened())


def ask(texts: dict[str, str] | list[str], query: str, k: int = 10, **settings: Any) -> EngineReply:
    named = texts if isinstance(texts, dict) else {f"d{n}": text for n, text in enumerate(texts)}

    async def use(engine: Engine) -> EngineReply:
        await engine.index_add([Document(id=id, text=text) for id, text in named.items()], CALL)
        return await engine.retrieve(EngineQuery(text=query, k=k), CALL)

    return run(use, **settings)


def ids(reply: EngineReply) -> list[str]:
    return [hit.id for hit in reply.hits]


def found(store: Store, query: str, k: int = 10, **options: Any) -> list[str]:
    return [row.id for row in store.search(match_expression(terms(query), "any"), k, **options)[0]]


# What may be asked


def hostile() -> st.SearchStrategy[str]:
    pieces = st.sampled_from(
        [
            '"',
            "'",
            "*",
            "(",
            ")",
            "AND",
            "OR",
            "NOT",
            "NEAR",
            "NEAR(",
            "^",
            ":",
            "body:",
            "-",
            "+",
            "{",
            "}",
            "\0",
            "\\",
            "%",
            "😀",
            "\ud800",
            "\udc00",
            "東",
            "東京",
            "e\u0301",
            "\u0301",
            "हिन्दी",
            "ـ",
            "ß",
            "İ",
            "²",
            "½",
            "𞤀",
            "\U0002a6d6",
            "a",
            "rank",
            ";--",
        ]
    )
    return st.lists(pieces | st.text(max_size=5), max_size=12).map(" ".join) | st.text(max_size=60)


STORE = Store(None)
STORE.put([Row("a", 'quotes " and NEAR(things) 東京', "{}"), Row("b", "nothing", "{}")])


@given(hostile(), st.sampled_from(["any", "all"]))
@example('"', "any")
@example("a\0b", "all")
@example("x " * 5000, "any")
def test_no_text_raises_whatever_is_in_it(text: str, match: Any) -> None:
    words = terms(text)
    if words:
        STORE.search(match_expression(words, match), 5)


@given(hostile())
def test_any_text_can_be_stored_and_found_by_itself(text: str) -> None:
    store = Store(None)
    try:
        store.put([Row("a", text.replace("\ud800", "").replace("\udc00", ""), "{}")])
        store.put([Row("a", text.encode("utf-8", "replace").decode(), "{}")])
        store.verify()
        seen = [word for word in terms(text) if word.isascii() and word.isalnum()]
        if seen:
            assert found(store, " ".join(seen)) == ["a"]
    finally:
        store.close()


@pytest.mark.parametrize("query", ["", "  ", "?!", '"', "*", "😀", "\0"])
def test_a_query_without_words_finds_nothing_and_is_no_error(query: str) -> None:
    reply = ask(["x"], query)
    assert ids(reply) == []
    assert reply.exhausted


def test_operators_are_words_like_any_other() -> None:
    texts = ["either or", "neither nor", "not this"]
    assert ids(ask(texts, "NOT")) == ["d2"]
    assert set(ids(ask(texts, "this OR nor"))) == {"d0", "d1", "d2"}  # the first has an "or"
    assert ids(ask(texts, "body:this")) == ["d2"]


def test_lone_surrogates_are_mended_in_texts_ids_and_queries() -> None:
    async def use(engine: Engine) -> None:
        added = await engine.index_add([Document(id="a\ud800", text="one\udc00 two")], CALL)
        assert added.ids == ("a\ufffd",)
        assert ids(await engine.retrieve(EngineQuery(text="\ud800 two", k=1), CALL)) == ["a\ufffd"]
        assert await engine.index_delete(["a\ud800"], CALL) == 1

    run(use)


def test_a_query_of_very_many_words_is_cut_with_a_note() -> None:
    reply = ask(["w1", f"w{TERM_LIMIT + 5}"], " ".join(f"w{n}" for n in range(TERM_LIMIT + 10)))
    assert ids(reply) == ["d0"]
    assert len(reply.notes) == 1


# What is found


def test_any_word_is_enough_and_more_words_rank_higher() -> None:
    assert ids(ask(["red", "red fox", "blue"], "red fox")) == ["d1", "d0"]


def test_with_match_all_every_word_must_be_there() -> None:
    assert ids(ask(["red", "red fox", "blue"], "red fox", match="all")) == ["d1"]


def test_scores_are_higher_for_the_better_and_never_negative() -> None:
    scores = [hit.score for hit in ask(["x x x", "x y", "x z z z z z", "q"], "x y").hits]
    assert all(score is not None and score >= 0 for score in scores)
    assert scores == sorted(scores, reverse=True)


def test_a_word_that_is_everywhere_still_has_a_score_at_the_floor_or_above() -> None:
    scores = [hit.score for hit in ask(["x", "x", "x"], "x").hits]
    assert len(scores) == 3
    assert all(score is not None and score >= 0 for score in scores)


def test_equal_scores_are_ordered_by_id_and_a_smaller_k_is_a_prefix() -> None:
    texts = dict.fromkeys(("c", "a", "d", "b"), "same words")
    assert ids(ask(texts, "words")) == ["a", "b", "c", "d"]
    assert ids(ask(texts, "words", k=2)) == ["a", "b"]


def test_exhausted_says_whether_more_could_be_had() -> None:
    assert not ask(["x", "x", "x y"], "x", k=2).exhausted
    assert ask(["x", "x", "x y"], "x", k=3).exhausted
    assert ask(["x"], "x", k=9).exhausted


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("東京大学の図書館", "図書館はどこですか"),
        ("東京大学の図書館", "京"),
        ("東京大学の図書館", "館"),
        ("iPhone手机壳", "手机"),
        ("iPhone手机壳", "iphone"),
        ("서울에서 열린 회의", "서울"),
        ("ภาษาไทยง่ายมาก", "ไทย"),
        ("हिन्दी की किताब", "हिन्दी"),
        ("الْكِتَابُ الجديد", "الكتاب"),
        ("שָׁלוֹם עולם", "שלום"),
        ("Crème brûlée", "creme BRULEE"),
        ("cafe\u0301", "café"),
        ("ｆｕｌｌ ｗｉｄｔｈ", "full"),
        ("\U0002a6d6\U0002a6d7 rare", "\U0002a6d6\U0002a6d7"),
        ("naïve 3.14 résumé", "14"),
        ("snake_case_name", "case"),
    ],
)
def test_words_are_found_in_scripts_of_every_kind(text: str, query: str) -> None:
    assert ids(ask(["unrelated", text], query)) == ["d1"]


def test_stemming_is_a_setting() -> None:
    assert ids(ask(["many connections"], "connected")) == ["d0"]
    assert ids(ask(["many connections"], "connected", tokenizer=Tokenizer(stem=False))) == []


def test_ascii_is_indexed_as_it_stands() -> None:
    text = "plain text"
    assert indexed(text) is text


def xquad() -> Path:
    places = [Path(os.environ["GATEWAY_SHARED"])] if "GATEWAY_SHARED" in os.environ else []
    places += [parent / "shared" for parent in ROOT.parents[:2]]
    for place in places:
        if (place / "data" / "xquad").is_dir():
            return place / "data" / "xquad"
    pytest.skip("needs shared/data/xquad (set GATEWAY_SHARED)")


@pytest.mark.parametrize(("language", "least"), [("en", 0.95), ("de", 0.92), ("zh", 0.95), ("ar", 0.88), ("hi", 0.93)])
def test_paragraphs_of_five_languages_are_found_by_their_questions(language: str, least: float) -> None:
    data = json.loads((xquad() / f"xquad.{language}.json").read_text("utf-8"))
    paragraphs = [paragraph for article in data["data"] for paragraph in article["paragraphs"]]
    store = Store(None)
    store.put([Row(str(n), paragraph["context"], "{}") for n, paragraph in enumerate(paragraphs)])
    questions = [(str(n), qa["question"]) for n, paragraph in enumerate(paragraphs) for qa in paragraph["qas"][:2]]
    hits = sum(id in found(store, question, 3) for id, question in questions)
    store.close()
    assert hits / len(questions) >= least, f"{language}: {hits} of {len(questions)}"


# Filters


@given(filters(), st.lists(documents(), max_size=8))
def test_the_push_down_law_holds(filter: Filter, metas: list[dict[str, Any]]) -> None:
    metas = [*metas, *HARD_DOCUMENTS[::5]]

    async def use(engine: Engine) -> None:
        await engine.index_add([Document(id=str(n), text="x", meta=meta) for n, meta in enumerate(metas)], CALL)
        pushdown = engine.push_down(filter)
        reply = await engine.retrieve(EngineQuery(text="x", k=1000, filter=pushdown.native), CALL)
        assert pushdown.exact
        assert_push_down_law(filter, pushdown, metas, {int(id) for id in ids(reply)})

    run(use, fields=dict(HARD_FIELDS))


def test_every_hard_document_is_stored_as_it_is() -> None:
    async def use(engine: Engine) -> dict[str, Any]:
        await engine.index_add(
            [Document(id=str(n), text="x", meta=meta) for n, meta in enumerate(HARD_DOCUMENTS)], CALL
        )
        reply = await engine.retrieve(EngineQuery(text="x", k=1000), CALL)
        return {hit.id: hit.members["meta"] for hit in reply.hits}

    stored = run(use)
    assert [stored[str(n)] for n in range(len(HARD_DOCUMENTS))] == list(HARD_DOCUMENTS)


def test_a_limit_never_loses_a_document_that_satisfies_the_filter() -> None:
    store = Store(None)
    store.put([Row(f"d{n:03}", "x " * (200 - n), f'{{"n": {n}}}') for n in range(200)])
    tree = parse({"field": "n", "op": "gte", "value": 197}, HARD_FIELDS)
    assert tree is not None
    rows, exhausted, _ = store.search('"x"', 2, admits=compiled(tree))
    assert len(rows) == 2
    assert not exhausted
    assert len(store.search('"x"', 9, admits=compiled(tree))[0]) == 3
    store.close()


# Writing


def test_documents_are_replaced_by_id_and_deletions_are_counted(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        batch = [Document(id=1, text="one"), Document(id="b", text="東京 two"), Document(id=1.0, text="three")]
        added = await engine.index_add(batch, CALL)
        assert added.ids == ("1", "b", "1")
        assert added.chunks == 2
        assert ids(await engine.retrieve(EngineQuery(text="one", k=9), CALL)) == []
        assert ids(await engine.retrieve(EngineQuery(text="three", k=9), CALL)) == ["1"]
        assert await engine.index_delete(["b", "gone", "b"], CALL) == 1
        assert await engine.index_delete(["b"], CALL) == 0
        assert ids(await engine.retrieve(EngineQuery(text="東京", k=9), CALL)) == []

    run(use)
    run(use, tmp_path, path="w.db")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["one 東京", "two", "café", "", None])), max_size=12))
def test_the_index_agrees_with_the_documents_after_any_writes(writes: list[tuple[str, str | None]]) -> None:
    store = Store(None)
    left: dict[str, str] = {}
    for id, text in writes:
        if text is None:
            assert store.drop([id]) == int(left.pop(id, None) is not None)
        else:
            store.put([Row(id, text, "{}", title=text)])
            left[id] = text
    store.verify()
    assert store.count() == len(left)
    for text in ("one 東京", "two", "café"):
        assert set(found(store, text)) == {id for id, its in left.items() if its == text}
    store.close()


def test_ids_are_kept_as_given() -> None:
    async def use(engine: Engine) -> list[str]:
        given = ["doc/1#äö", " ", "a\0b", "A", "a", "é", "e\u0301"]
        await engine.index_add([Document(id=id, text="x") for id in given], CALL)
        reply = await engine.retrieve(EngineQuery(text="x", k=99), CALL)
        assert sorted(ids(reply)) == sorted(given)
        return ids(reply)

    assert len(run(use)) == 7


def test_metadata_that_is_no_json_is_the_callers_fault_and_stores_nothing() -> None:
    async def use(engine: Engine) -> None:
        batch = [Document(id="a", text="x"), Document(id="b", text="x", meta={"n": 10**30})]
        with pytest.raises(CallerError) as caught:
            await engine.index_add(batch, CALL)
        assert caught.value.data["field"] == "documents[1].meta"
        assert ids(await engine.retrieve(EngineQuery(text="x", k=9), CALL)) == []

    run(use)


def test_a_hit_carries_text_metadata_citation_and_place() -> None:
    meta = {"path": "a.md", "title": "A › B", "passage": 3, "start": 10, "end": 20, "year": 2024}

    async def use(engine: Engine) -> None:
        await engine.index_add([Document(id="a.md#3", text="x", meta=meta)], CALL)
        [found] = (await engine.retrieve(EngineQuery(text="x", k=1), CALL)).hits
        assert found.members == {
            "text": "x",
            "meta": meta,
            "citation": {"source": "a.md", "title": "A › B", "start": 10, "end": 20},
            "chunk": {"docId": "a.md", "index": 3},
        }
        [bare] = (await engine.retrieve(EngineQuery(text="B", k=1, include_text=False), CALL)).hits
        assert "text" not in bare.members

    run(use)


# The file


def test_documents_are_there_after_opening_again(tmp_path: Path) -> None:
    async def add(engine: Engine) -> None:
        await engine.index_add([Document(id="a", text="kept words")], CALL)

    async def retrieve(engine: Engine) -> list[str]:
        return ids(await engine.retrieve(EngineQuery(text="kept", k=1), CALL))

    run(add, tmp_path, path="deep/er/w.db")
    assert run(retrieve, tmp_path, path="deep/er/w.db") == ["a"]
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["w.db"]


def test_another_tokenizer_rebuilds_the_index_from_the_documents(tmp_path: Path) -> None:
    store = Store(tmp_path / "w.db", stem=False)
    store.put([Row("a", "connections 東京大学", "{}"), Row("b", "other", "{}")])
    assert found(store, "connected") == []
    store.close()
    store = Store(tmp_path / "w.db", stem=True)
    assert found(store, "connected") == ["a"]
    assert found(store, "大学") == ["a"]
    store.put([Row("a", "changed", "{}")])
    store.verify()
    store.close()


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from gateway_sqlite.store import Row, Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for n in range(10**6):\n"
        "    store.put([Row(str(n), 'word', '{}')])\n"
        "    print(n, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")])}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "w.db")], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        for _ in range(50):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        acknowledged = 50 + len(child.stdout.readlines())
    store = Store(tmp_path / "w.db")
    assert store.count() >= acknowledged
    store.verify()
    store.close()


def test_a_file_that_another_process_holds_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway_sqlite.store.BUSY_SECONDS", 0.05)
    Store(tmp_path / "w.db").close()
    other = sqlite3.connect(tmp_path / "w.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(BackendUnavailable, match=r"w\.db is locked by another process; stop that one"):
        Store(tmp_path / "w.db")
    other.close()
    Store(tmp_path / "w.db").close()


def test_a_write_that_finds_the_file_locked_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway_sqlite.store.BUSY_SECONDS", 0.05)
    store = Store(tmp_path / "w.db")
    other = sqlite3.connect(tmp_path / "w.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendUnavailable, match="locked by another process") as caught:
        store.put([Row("a", "x", "{}")])
    assert caught.value.retryable
    assert found(store, "x") == []
    other.close()
    store.put([Row("a", "x", "{}")])
    assert found(store, "x") == ["a"]
    store.close()


@pytest.mark.parametrize(("content", "message"), [(b"no database at all, but text" * 99, "is not a SQLite database")])
def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "w.db").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Store(tmp_path / "w.db")
    assert (tmp_path / "w.db").read_bytes() == content


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "w.db")
    other.execute("CREATE TABLE documents (x)")
    other.close()
    before = (tmp_path / "w.db").read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        Store(tmp_path / "w.db")
    assert (tmp_path / "w.db").read_bytes() == before


def test_a_path_that_cannot_be_a_file_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "w.db", tmp_path):
        with pytest.raises(ConfigError):
            Store(path)


def test_a_damaged_file_is_an_error_that_quotes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "w.db")
    store.put([Row(str(n), "secret words " * 50, "{}") for n in range(200)])
    store.close()
    data = bytearray((tmp_path / "w.db").read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    (tmp_path / "w.db").write_bytes(data)
    with pytest.raises((BackendUnavailable, ConfigError)) as caught:
        store = Store(tmp_path / "w.db")
        try:
            found(store, "secret")
        finally:
            store.close()
    assert "secret" not in str(caught.value)


# Threads


@pytest.mark.parametrize("path", [":memory:", "w.db"])
def test_twenty_slow_calls_at_once_do_not_hold_up_the_event_loop(tmp_path: Path, path: str) -> None:
    release = threading.Event()
    entered = threading.Semaphore(0)

    def slow(meta: Any) -> bool:
        entered.release()
        return release.wait(20)

    async def use(engine: Engine) -> None:
        await engine.index_add([Document(id="a", text="x")], CALL)
        native = SimpleNamespace()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway_sqlite.engine.compiled", lambda filter: slow)
            async with asyncio.TaskGroup() as group:
                query = EngineQuery(text="x", k=1, filter=native)
                calls = [group.create_task(engine.retrieve(query, CALL)) for _ in range(20)]
                with anyio.fail_after(10):
                    while not entered.acquire(blocking=False):
                        await asyncio.sleep(0)
                # Here the loop runs while a thread stands still inside SQLite.
                assert not any(call.done() for call in calls)
                release.set()
        assert [ids(call.result()) for call in calls] == [["a"]] * 20

    run(use, tmp_path, path=path)


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    store = Store(tmp_path / "w.db")
    store.put([Row("a", "x", "{}")])
    with store._writing() as connection:
        connection.execute("DELETE FROM documents")
        assert found(store, "x") == ["a"]
    store.close()


def test_reading_and_writing_from_many_threads_ends_in_agreement(tmp_path: Path) -> None:
    store = Store(tmp_path / "w.db")
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for n in range(15):
                store.put([Row(f"{worker}-{n % 5}", f"word {worker} {n}", "{}")])
                assert store.search('"word"', 3)[0]
                if n % 4 == 0:
                    store.drop([f"{worker}-{n % 5}"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store.verify()
    store.close()


def test_a_call_that_was_cancelled_gives_its_thread_back(tmp_path: Path) -> None:
    judged: list[int] = []
    entered = threading.Event()
    proceed = threading.Event()

    def slow(meta: dict[str, Any]) -> bool:
        judged.append(1)
        entered.set()
        proceed.wait(20)
        return False

    async def use(engine: Engine) -> None:
        await engine.index_add([Document(id=str(n), text="x") for n in range(50)], CALL)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway_sqlite.engine.compiled", lambda filter: slow)
            call = asyncio.create_task(engine.retrieve(EngineQuery(text="x", k=1, filter=SimpleNamespace()), CALL))
            await anyio.to_thread.run_sync(entered.wait)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            proceed.set()
        assert ids(await engine.retrieve(EngineQuery(text="x", k=1), CALL)) == ["0"]

    run(use, tmp_path, path=":memory:")
    assert len(judged) == 1


def test_a_closed_index_says_so(tmp_path: Path) -> None:
    for path in (None, tmp_path / "w.db"):
        store = Store(path)
        store.close()
        with pytest.raises(BackendUnavailable, match="closed"):
            store.search('"x"', 1)
        with pytest.raises(BackendUnavailable, match="closed"):
            store.put([])


def test_settings_are_read_as_they_are_written_in_the_configuration() -> None:
    walker = Walker(Path("/base"))
    written = {"path": "w.db", "fields": {"year": "int"}, "tokenizer": {"stem": False}, "match": "all"}
    config = walker.read(SqliteConfig, written, "with")
    assert walker.errors == []
    assert config.fields == {"year": FieldType.INT}
    assert not config.tokenizer.stem
    walker.read(SqliteConfig, {"path": "", "fields": {"year": "integer"}, "match": "some"}, "with")
    assert sorted(error.path for error in walker.errors) == ["with.fields.year", "with.match"]


def test_the_plugin_brings_one_kind() -> None:
    assert [kind.name for kind in gateway_engine_kinds()] == ["sqlite"]


def test_what_is_offered_before_opening_is_what_is_there_afterwards() -> None:
    async def capabilities(engine: Engine) -> Any:
        return engine.capabilities()

    assert run(capabilities) == SqliteKind().offers(SqliteConfig(path=":memory:"))
