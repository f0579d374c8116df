"""The engine: RCP on one side, :class:`~gateway_sqlite.store.Store` on the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import msgspec

from gateway.errors import ConfigError, invalid_params
from gateway.filters import FieldType, Filter, Op, Pushdown, compiled
from gateway.model import (
    Capabilities,
    Document,
    Empty,
    FilterCapability,
    IndexAddResult,
    IndexCapability,
    RetrieveCapability,
    hit,
)
from gateway.spi.call import Call
from gateway.spi.codec import dumps, mend
from gateway.spi.engine import Engine, EngineConfig, EngineContext, EngineKind, EngineQuery, EngineReply
from gateway.spi.passage import chunk_of, citation_of, document_id
from gateway.spi.versions import check_pin
from gateway_sqlite.store import Row, Store
from gateway_sqlite.text import TERM_LIMIT, match_expression, terms

__all__ = ["SqliteConfig", "SqliteEngine", "SqliteKind"]

MAX_K = 1000


class Tokenizer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    stem: bool = True
    """English endings make no difference: ``connected`` finds ``connection``."""


class SqliteConfig(EngineConfig, frozen=True):
    path: str
    """The database file, made if it is not there; ``:memory:`` keeps nothing."""
    fields: dict[str, FieldType] = msgspec.field(default_factory=dict)
    """Metadata fields that callers may filter on, with their types."""
    tokenizer: Tokenizer = Tokenizer()
    match: Literal["any", "all"] = "any"
    """Whether one word of the query is enough (and more of them rank higher), or all must be there."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("must name a file, or be :memory:", path="path")


def _capabilities(config: SqliteConfig) -> Capabilities:
    return Capabilities(
        retrieve=RetrieveCapability(
            max_k=MAX_K,
            modes=("sparse",),
            default_mode="sparse",
            score_scale="bm25",
            score_floor=0.0,
            deterministic=True,
            snapshots=True,
        ),
        index=IndexCapability(writable=True),
        filter=FilterCapability(
            fields={name: type.value for name, type in config.fields.items()}, operators=tuple(op.value for op in Op)
        ),
        citations=Empty(),
    )


class SqliteEngine(Engine):
    meta_complete = True

    def __init__(self, config: SqliteConfig, store: Store, context: EngineContext) -> None:
        self._config = config
        self._store = store
        self._run = context.run_blocking

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    def push_down(self, filter: Filter) -> Pushdown[Filter]:
        # The store asks the gateway's own oracle about each document before it counts it against k.
        return Pushdown(native=filter, residual=None)

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        found = terms(query.text)
        notes: tuple[str, ...] = ()
        if len(found) > TERM_LIMIT:
            found = found[:TERM_LIMIT]
            notes = (f"only the first {TERM_LIMIT} distinct words of the query were searched for",)
        if not found:
            version = self._version(await self._run(self._store.version))
            check_pin(query.index_version, version)
            return EngineReply(hits=(), exhausted=True, index_version=version)
        expression = match_expression(found, self._config.match)
        admits = compiled(query.filter) if query.filter is not None else None
        stop = threading.Event()
        try:
            rows, exhausted, content = await self._run(
                lambda: self._store.search(
                    expression, query.k, admits=admits, with_text=query.include_text, stopped=stop.is_set
                )
            )
        except asyncio.CancelledError:
            stop.set()  # nobody waits for the thread any more; it gives up its connection soon
            raise
        version = self._version(content)
        check_pin(query.index_version, version)
        hits = [
            hit(
                row.id,
                row.score,
                text=row.text,
                meta=row.meta,
                citation=citation_of(row.id, row.meta),
                chunk=chunk_of(row.meta),
            )
            for row in rows
        ]
        return EngineReply(hits=hits, exhausted=exhausted, index_version=version, notes=notes)

    def _version(self, content: str) -> str:
        # The prefix changes when the same documents would be ranked in another way.
        return f"s1-{self._config.match}-{content}"

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        rows = [_row(document, position) for position, document in enumerate(documents)]
        await self._run(lambda: self._store.put(rows))
        return IndexAddResult(ids=tuple(row.id for row in rows), chunks=len({row.id for row in rows}))

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        wanted = [mend(id) for id in ids]
        return await self._run(lambda: self._store.drop(wanted))

    async def ping(self, call: Call) -> None:
        await self._run(self._store.count)


def _row(document: Document, position: int) -> Row:
    meta = document.meta or {}
    try:
        encoded = dumps(meta).decode()
    except (TypeError, ValueError):
        # Numbers beyond 64 bits, lone surrogates, nesting beyond any use.
        raise invalid_params("metadata that cannot be stored", field=f"documents[{position}].meta") from None
    title = meta.get("title")
    return Row(document_id(document), mend(document.text), encoded, mend(title) if isinstance(title, str) else "")


class SqliteKind(EngineKind[SqliteConfig]):
    name = "sqlite"
    config = SqliteConfig
    summary = "Documents in one SQLite file, searched by their words (FTS5, BM25); nothing to install or to run."

    def offers(self, config: SqliteConfig) -> Capabilities:
        return _capabilities(config)

    @asynccontextmanager
    async def open(self, config: SqliteConfig, context: EngineContext) -> AsyncIterator[Engine]:
        path = None if config.path == ":memory:" else context.base_dir / config.path
        store = await context.run_blocking(lambda: Store(path, stem=config.tokenizer.stem))
        try:
            yield SqliteEngine(config, store, context)
        finally:
            with anyio.CancelScope(shield=True):
                await context.run_blocking(store.close)
