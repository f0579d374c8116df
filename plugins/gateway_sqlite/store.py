"""The database: one table of documents, one full-text index over it. Blocking, thread-safe, ignorant of RCP.

Reading threads borrow a connection each from a pool; writing goes through one connection under one lock. The file is in
WAL mode, so readers and the writer do not wait for each other. A database in memory belongs to its connection, so there
everybody shares one, in turn.

The index holds no copy of the texts: it reads them through the view ``searchable`` (FTS5's external content), which is
why an index entry must be deleted before its document changes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gateway.errors import BackendUnavailable, ConfigError
from gateway.spi.codec import loads
from gateway.spi.versions import MODULUS, digest
from gateway_sqlite.text import indexed

__all__ = ["Found", "Row", "Store"]

APPLICATION_ID = 0x52435031  # "RCP1", in the file's header: this database is one of ours
SCHEMA_VERSION = 2  # 2 keeps the version of the content
BUSY_SECONDS = 5.0
_STEPS = 10_000  # virtual machine steps between two looks at whether anybody still waits

_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    meta TEXT NOT NULL,      -- JSON
    title TEXT NOT NULL,     -- as indexed
    folded TEXT,             -- the text as indexed, NULL where that is the text itself
    text TEXT NOT NULL
);
CREATE VIEW searchable (number, title, body) AS SELECT number, title, coalesce(folded, text) FROM documents;
"""

_RANKED = """
SELECT words.rowid, words.rank, documents.id, documents.meta
FROM words CROSS JOIN documents ON documents.number = words.rowid
WHERE words MATCH ? ORDER BY words.rank
"""  # CROSS JOIN fixes the order of the loops: the index ranks, documents are looked up one by one as they are wanted


class Row(NamedTuple):
    """A document to store; ``meta`` is encoded JSON."""

    id: str
    text: str
    meta: str
    title: str = ""


class Found(NamedTuple):
    """A document that matched. ``score`` is 0 or more, higher is better."""

    id: str
    score: float
    meta: dict[str, Any]
    text: str | None


class Store:
    """``path`` is a file or ``None`` for memory. Methods may be called from any thread."""

    def __init__(self, path: Path | None, *, stem: bool = True) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._pool = threading.Lock()
        self._turn = threading.Lock()
        self._closed = False
        with _opening(path):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = self._connect()
            try:
                self._prepare(stem)
            except BaseException:
                self._writer.close()
                raise

    # Opening and closing

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path if self._path is not None else ":memory:",
            timeout=BUSY_SECONDS,
            isolation_level=None,  # transactions are written out below
            check_same_thread=False,  # a connection is used by one thread at a time, but not always the same
            cached_statements=64,
        )
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute(
            "PRAGMA synchronous = NORMAL"
        )  # survives a killed process; the last second may die with power
        return connection

    def _prepare(self, stem: bool) -> None:
        connection = self._writer
        application = _number(connection, "PRAGMA application_id")
        version = _number(connection, "PRAGMA user_version")
        if application != APPLICATION_ID and (application or _number(connection, "SELECT count(*) FROM sqlite_schema")):
            raise ConfigError("is a database of another program; give a path of its own", path="path")
        if version > SCHEMA_VERSION:
            raise ConfigError(
                "was written by a newer version of this engine; upgrade, or give another path", path="path"
            )
        if self._path is not None:
            connection.execute("PRAGMA journal_mode = WAL")
        with self._transaction(connection):
            # Read again inside: another process may have been faster.
            before = _number(connection, "PRAGMA user_version")
            if not before:
                for statement in _SCHEMA.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            if before < SCHEMA_VERSION:
                rows = connection.execute("SELECT id, meta, text FROM documents")
                self._set(connection, "content", f"{sum(digest(*row) for row in rows) % MODULUS:032x}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._tokenize(connection, _tokenizer(stem))

    def _tokenize(self, connection: sqlite3.Connection, tokenizer: str) -> None:
        """Makes the index, or makes it again if it was made with another tokenizer: the documents are all there."""
        if self._setting(connection, "tokenizer") == tokenizer:
            return
        connection.execute("DROP TABLE IF EXISTS words")
        connection.execute(
            "CREATE VIRTUAL TABLE words USING fts5 "
            f"(title, body, content='searchable', content_rowid='number', tokenize=\"{tokenizer}\")"
        )
        connection.execute("INSERT INTO words (words) VALUES ('rebuild')")
        self._set(connection, "tokenizer", tokenizer)

    @staticmethod
    def _set(connection: sqlite3.Connection, name: str, value: str) -> None:
        connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    @staticmethod
    def _setting(connection: sqlite3.Connection, name: str) -> str:
        row = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def close(self) -> None:
        """Closes what is idle; a connection that is still reading is closed when it is given back."""
        with self._pool:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        with self._turn:
            self._writer.close()

    # Reading

    def search(
        self,
        expression: str,
        k: int,
        *,
        admits: Callable[[dict[str, Any]], bool] | None = None,
        with_text: bool = True,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[list[Found], bool, str]:
        """The best ``k`` documents that match and that ``admits`` lets through, whether there are no more, the version.

        Equal scores are ordered by id. The ranking is walked from the top until ``k`` are found, so a filter is asked
        about as few documents as possible, and never loses one to a limit. ``stopped`` is looked at now and then.
        """
        with self._reading() as connection:
            connection.set_progress_handler(stopped, _STEPS)
            connection.execute("BEGIN")  # version, ranking, metadata and texts as of one moment
            try:
                version = self._version(connection)
                return *self._walk(connection, expression, k, admits, with_text, stopped), version
            finally:
                connection.set_progress_handler(None, 0)
                connection.rollback()

    def _walk(
        self,
        connection: sqlite3.Connection,
        expression: str,
        k: int,
        admits: Callable[[dict[str, Any]], bool] | None,
        with_text: bool,
        stopped: Callable[[], bool],
    ) -> tuple[list[Found], bool]:
        kept: list[tuple[float, str, int, dict[str, Any]]] = []
        exhausted = True
        cursor = connection.execute(_RANKED, (expression,))
        for number, rank, id, encoded in cursor:
            if len(kept) >= k and rank > kept[-1][0]:
                exhausted = False
                break
            meta = loads(encoded)
            if admits is None or admits(meta):
                kept.append((rank, id, number, meta))
            if stopped():
                break
        cursor.close()
        # The last of the k may share its score with others: all of them were walked, so that the id decides.
        kept.sort(key=lambda one: one[:2])
        found = [
            # bm25() of FTS5 is the negated score; 0.0 - x instead of -x keeps 0 from becoming -0.
            Found(id, 0.0 - rank, meta, self._text(connection, number) if with_text else None)
            for rank, id, number, meta in kept[:k]
        ]
        return found, exhausted and len(kept) <= k

    @staticmethod
    def _text(connection: sqlite3.Connection, number: int) -> str | None:
        row = connection.execute("SELECT text FROM documents WHERE number = ?", (number,)).fetchone()
        return row[0] if row else None

    def version(self) -> str:
        """The same for the same documents under the same tokenizer, also in another file; otherwise another."""
        with self._reading() as connection:
            return self._version(connection)

    def _version(self, connection: sqlite3.Connection) -> str:
        settings = connection.execute("SELECT value FROM settings WHERE name IN ('content', 'tokenizer') ORDER BY name")
        return f"{digest(*(value for (value,) in settings)):032x}"

    def count(self) -> int:
        with self._reading() as connection:
            return _number(connection, "SELECT count(*) FROM documents")

    # Writing

    def put(self, rows: Sequence[Row]) -> None:
        """Stores all of the documents or none; one whose id is there replaces it, the last of several wins."""
        with self._writing() as connection:
            self._changed(connection, sum([self._put(connection, row) for row in rows]))

    @staticmethod
    def _put(connection: sqlite3.Connection, row: Row) -> int:
        """Stores one document; what it adds to the content's digest."""
        title, body = indexed(row.title), indexed(row.text)
        folded = None if body == row.text else body
        now = digest(row.id, row.meta, row.text)
        there = connection.execute("SELECT number, meta, text FROM documents WHERE id = ?", (row.id,)).fetchone()
        if there:
            number, meta, text = there
            now -= digest(row.id, meta, text)
            connection.execute("DELETE FROM words WHERE rowid = ?", (number,))
            connection.execute(
                "UPDATE documents SET meta = ?, title = ?, folded = ?, text = ? WHERE number = ?",
                (row.meta, title, folded, row.text, number),
            )
        else:
            number = connection.execute(
                "INSERT INTO documents (id, meta, title, folded, text) VALUES (?, ?, ?, ?, ?)",
                (row.id, row.meta, title, folded, row.text),
            ).lastrowid
        connection.execute("INSERT INTO words (rowid, title, body) VALUES (?, ?, ?)", (number, title, body))
        return now

    def drop(self, ids: Sequence[str]) -> int:
        """Removes the documents; how many were there."""
        removed = change = 0
        with self._writing() as connection:
            for id in dict.fromkeys(ids):
                there = connection.execute("SELECT number, meta, text FROM documents WHERE id = ?", (id,)).fetchone()
                if there:
                    number, meta, text = there
                    connection.execute("DELETE FROM words WHERE rowid = ?", (number,))
                    connection.execute("DELETE FROM documents WHERE number = ?", (number,))
                    change -= digest(id, meta, text)
                    removed += 1
            self._changed(connection, change)
        return removed

    def _changed(self, connection: sqlite3.Connection, change: int) -> None:
        """Takes the change into the version, in one transaction: nobody sees the one without the other."""
        if change:
            before = int(self._setting(connection, "content"), 16)
            self._set(connection, "content", f"{(before + change) % MODULUS:032x}")

    def verify(self) -> None:
        """Raises ``sqlite3.DatabaseError`` if the index does not agree with the documents."""
        with self._writing() as connection:
            connection.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")

    # Connections

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._path is None:
            with self._turn, _using():
                yield self._writer
            return
        with self._pool:
            if self._closed:
                raise BackendUnavailable("the index is closed")
            connection = self._idle.pop() if self._idle else None
        with _using():
            if connection is None:
                connection = self._connect()
            try:
                yield connection
            finally:
                with self._pool:
                    keep = not self._closed
                    if keep:
                        self._idle.append(connection)
                if not keep:
                    connection.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._turn, _using(), self._transaction(self._writer):
            yield self._writer

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def _tokenizer(stem: bool) -> str:
    # Marks belong to the words they stand on (without this, Hindi falls to pieces); accents make no difference.
    base = "unicode61 remove_diacritics 2 categories 'L* N* Co M*'"
    return f"porter {base}" if stem else base


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])


# SQLite's own messages never leave this module: some of them quote what was asked.

_LOCKED = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_RECOVERY", "SQLITE_BUSY_TIMEOUT"}


@contextmanager
def _using() -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise BackendUnavailable("the index is closed") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if name in _LOCKED:
            raise BackendUnavailable("the index is locked by another process") from error
        raise BackendUnavailable(f"the index cannot be used ({name})", retryable=False) from error


@contextmanager
def _opening(path: Path | None) -> Iterator[None]:
    name = path.name if path is not None else ":memory:"
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{name} {error.message}", path=error.path) from error
    except OSError as error:
        raise ConfigError(f"the folder of {name} cannot be made: {error.strerror}", path="path") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorname", type(error).__name__)
        if code in _LOCKED:
            raise BackendUnavailable(
                f"{name} is locked by another process; stop that one, or give this engine a path of its own"
            ) from error
        if code == "SQLITE_NOTADB":
            raise ConfigError(
                f"{name} is not a SQLite database; move it away or give another path", path="path"
            ) from error
        if "fts5" in str(error):
            raise ConfigError(
                "this Python's SQLite was built without FTS5; use another build of Python, or the memory engine",
                path="path",
            ) from error
        raise ConfigError(
            f"{name} cannot be opened ({code}); the file and its folder must be readable and writable", path="path"
        ) from error
