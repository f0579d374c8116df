"""What the embedded engines promise by ``snapshots`` and ``deterministic``."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable
from gateway.federation.context import HostContext
from gateway.model import Document
from gateway.spi.call import Call
from gateway.spi.engine import Engine, EngineQuery, EngineReply
from gateway.spi.http import HttpSettings
from gateway_memory.engine import Entry, MemoryConfig, MemoryKind
from gateway_sqlite.engine import SqliteConfig, SqliteKind, Tokenizer
from gateway_sqlite.store import Row, Store
from tests.obligations import obligation

T = TypeVar("T")
CALL = cast(Call, SimpleNamespace())
KINDS = ("memory", "sqlite")
every_kind = pytest.mark.parametrize("kind", KINDS)


@asynccontextmanager
async def opened(kind: str, base: Path = Path(), **settings: Any) -> AsyncIterator[Engine]:
    context = HostContext("e", base, http=HttpSettings())
    if kind == "memory":
        async with MemoryKind().open(MemoryConfig(**settings), context) as engine:
            yield engine
    else:
        async with SqliteKind().open(SqliteConfig(**{"path": ":memory:", **settings}), context) as engine:
            yield engine


def run(use: Callable[[Engine], Awaitable[T]], kind: str, base: Path = Path(), **settings: Any) -> T:
    async def inside() -> T:
        async with opened(kind, base, **settings) as engine:
            return await use(engine)

    return asyncio.run(inside())


async def ask(engine: Engine, text: str = "one", pin: str | None = None) -> EngineReply:
    return await engine.retrieve(EngineQuery(text=text, k=10, index_version=pin), CALL)


async def version(engine: Engine) -> str:
    found = (await ask(engine)).index_version
    assert found is not None
    return found


ONE, TWO = Document(id="a", text="one", meta={"n": 1}), Document(id="b", text="one two")


@every_kind
def test_both_are_advertised(kind: str) -> None:
    async def use(engine: Engine) -> None:
        retrieve = engine.capabilities().retrieve
        assert retrieve is not None
        assert (retrieve.snapshots, retrieve.deterministic) == (True, True)

    run(use, kind)


@every_kind
def test_every_write_that_changes_something_changes_the_version_and_no_other(kind: str) -> None:
    async def use(engine: Engine) -> list[str]:
        seen = [await version(engine)]

        async def after(write: Awaitable[Any], *, same: bool = False) -> None:
            await write
            now = await version(engine)
            assert (now == seen[-1]) is same
            seen.append(now)

        await after(engine.index_add([ONE], CALL))
        await after(engine.index_add([TWO], CALL))
        await after(engine.index_add([ONE], CALL), same=True)
        await after(engine.index_add([Document(id="a", text="one more", meta={"n": 1})], CALL))
        await after(engine.index_add([Document(id="a", text="one", meta={"n": 2})], CALL))
        await after(engine.index_delete(["a"], CALL))
        await after(engine.index_delete(["a", "gone"], CALL), same=True)
        await after(engine.index_delete(["b"], CALL))
        return seen

    seen = run(use, kind)
    assert seen[0] == seen[-1]
    assert len(set(seen)) == 6


@obligation(153)
@every_kind
@pytest.mark.parametrize("text", ["one", "?!"])
def test_a_pinned_version_is_served_until_it_is_gone(kind: str, text: str) -> None:
    async def use(engine: Engine) -> None:
        await engine.index_add([ONE], CALL)
        pin = await version(engine)
        assert (await ask(engine, text, pin)).index_version == pin
        await engine.index_add([TWO], CALL)
        with pytest.raises(BackendUnavailable) as raised:
            await ask(engine, text, pin)
        assert raised.value.to_wire()["data"] == {"retryable": False}
        assert raised.value.code == -32010
        await engine.index_delete(["b"], CALL)
        assert len((await ask(engine, "one", pin)).hits) == 1

    run(use, kind)


WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["one", "one two", "東京", None])), max_size=10)


@every_kind
@given(writes=WRITES)
def test_equal_content_has_an_equal_version_and_equal_answers_however_it_came_about(
    kind: str, writes: list[tuple[str, str | None]]
) -> None:
    async def use() -> None:
        left: dict[str, str] = {}
        async with opened(kind) as engine, opened(kind) as other:
            for id, text in writes:
                if text is None:
                    await engine.index_delete([id], CALL)
                    left.pop(id, None)
                else:
                    await engine.index_add([Document(id=id, text=text)], CALL)
                    left[id] = text
            await other.index_add([Document(id=id, text=left[id]) for id in sorted(left, reverse=True)], CALL)
            assert await ask(engine) == await ask(other)

    asyncio.run(use())


@every_kind
def test_where_one_part_of_a_document_ends_makes_a_difference(kind: str) -> None:
    async def of(documents: Sequence[Document]) -> str:
        async with opened(kind) as engine:
            await engine.index_add(documents, CALL)
            return await version(engine)

    pairs = [Document(id="a", text="bc"), Document(id="ab", text="c")]
    assert len({asyncio.run(of([one])) for one in pairs}) == 2
    swapped = [[Document(id="a", text="x"), Document(id="b", text="y")]]
    swapped.append([Document(id="a", text="y"), Document(id="b", text="x")])
    assert len({asyncio.run(of(documents)) for documents in swapped}) == 2


def test_documents_of_the_configuration_give_the_same_version_after_a_restart() -> None:
    settings = {"documents": [Entry(text="one", id="a", meta={"n": 1})]}
    assert run(version, "memory", **settings) == run(version, "memory", **settings)


def test_metadata_that_cannot_be_printed_is_stored_and_never_taken_for_equal() -> None:
    async def use(engine: Engine) -> None:
        deep: dict[str, Any] = {}
        for _ in range(5000):
            deep = {"x": deep}
        await engine.index_add([Document(id="a", text="one", meta=deep)], CALL)
        before = await version(engine)
        await engine.index_add([Document(id="a", text="one", meta=deep)], CALL)
        assert await version(engine) != before
        await engine.index_delete(["a"], CALL)
        assert await version(engine) == empty

    empty = run(version, "memory")
    run(use, "memory")


# In a file


def test_the_version_is_kept_in_the_file(tmp_path: Path) -> None:
    async def fill(engine: Engine) -> str:
        await engine.index_add([ONE, TWO], CALL)
        return await version(engine)

    before = run(fill, "sqlite", tmp_path, path="w.db")
    assert run(version, "sqlite", tmp_path, path="w.db") == before
    assert run(fill, "sqlite", tmp_path, path="other.db") == before


def test_what_ranks_in_another_way_is_another_version(tmp_path: Path) -> None:
    async def use(engine: Engine) -> str:
        await engine.index_add([ONE], CALL)
        return await version(engine)

    every: list[dict[str, Any]] = [{}, {"match": "all"}, {"tokenizer": Tokenizer(stem=False)}]
    assert len({run(use, "sqlite", tmp_path, path="w.db", **one) for one in every}) == 3
    assert run(use, "sqlite", tmp_path, path="w.db") == run(use, "sqlite")


def test_a_write_through_another_connection_is_seen(tmp_path: Path) -> None:
    async def use(engine: Engine) -> None:
        before = await version(engine)
        elsewhere = Store(tmp_path / "w.db")
        elsewhere.put([Row("z", "one", "{}")])
        with pytest.raises(BackendUnavailable, match="gone"):
            await ask(engine, pin=before)
        elsewhere.drop(["z"])
        elsewhere.close()
        assert await version(engine) == before

    run(use, "sqlite", tmp_path, path="w.db")


def test_a_write_that_fails_leaves_the_version(tmp_path: Path) -> None:
    store = Store(tmp_path / "w.db")
    before = store.version()
    connection = sqlite3.connect(tmp_path / "w.db")
    connection.execute(
        "CREATE TRIGGER t BEFORE INSERT ON documents WHEN new.id = 'b' BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    connection.close()
    with pytest.raises(BackendUnavailable):
        store.put([Row("a", "one", "{}"), Row("b", "two", "{}")])
    assert (store.version(), store.count()) == (before, 0)
    store.close()


@pytest.mark.parametrize("path", ["w.db", None])
def test_version_and_hits_are_of_one_moment(tmp_path: Path, path: str | None) -> None:
    """A writer goes to and fro between two states; no reader ever sees hits of the one under the name of the other."""
    store = Store(tmp_path / path if path else None)
    expected: dict[str, list[str]] = {}
    for count in (0, 30):
        store.put([Row(f"d{n}", "word", "{}") for n in range(count)])
        found, _, name = store.search('"word"', 50)
        expected[name] = [one.id for one in found]
    assert sorted(map(len, expected.values())) == [0, 30]
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(20):
                store.drop([f"d{n}" for n in range(30)])
                store.put([Row(f"d{n}", "word", "{}") for n in range(30)])
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        found, _, name = store.search('"word"', 50)
        assert [one.id for one in found] == expected[name]
        seen.add(name)
    writer.join()
    store.close()
    assert seen


def test_a_file_of_the_first_schema_gets_the_version_its_documents_have(tmp_path: Path) -> None:
    store = Store(tmp_path / "w.db")
    store.put([Row("a", "one", "{}"), Row("b", "東京", '{"n":1}')])
    before = store.version()
    store.close()
    connection = sqlite3.connect(tmp_path / "w.db")
    with connection:
        connection.execute("DELETE FROM settings WHERE name = 'content'")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    store = Store(tmp_path / "w.db")
    assert store.version() == before
    store.put([Row("a", "two", "{}")])
    assert store.version() != before
    store.close()
