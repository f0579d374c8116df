"""The reference engine, commented as a tutorial. Read from the top; copy the folder to begin an adapter of your own.

An adapter is a *kind* (what the configuration may say, what such an engine offers, how one is opened) and an *engine*
(one open back end). Everything it needs is imported from ``gateway.spi``, ``gateway.model``, ``gateway.filters`` and
``gateway.errors``; nothing else of the gateway may be imported.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.errors import ConfigError
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
from gateway.spi.bm25 import Index
from gateway.spi.call import Call
from gateway.spi.codec import DecodeError, decode, mend
from gateway.spi.engine import Engine, EngineConfig, EngineContext, EngineKind, EngineQuery, EngineReply
from gateway.spi.passage import chunk_of, citation_of, document_id
from gateway.spi.versions import MODULUS, check_pin, digest, told_meta

__all__ = ["MemoryConfig", "MemoryEngine", "MemoryKind"]

MAX_K = 1000
T = TypeVar("T")


# 1. What the configuration may say. Unknown keys are refused for you, with the nearest known one; for what types
#    cannot say, raise ConfigError from __post_init__, its path relative to your own settings.


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One document. ``title`` and ``uri`` are short for the metadata keys of the same names."""

    text: str
    id: str | int | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict)
    title: str | None = None
    uri: str | None = None

    def document(self) -> Document:
        named = {"title": self.title, "uri": self.uri}
        return Document(
            id=self.id, text=self.text, meta=self.meta | {key: value for key, value in named.items() if value}
        )


class MemoryConfig(EngineConfig, frozen=True):
    documents: list[Entry] = msgspec.field(default_factory=list)
    """Documents written in the configuration itself."""
    file: Path | None = None
    """A file with more: a JSON list, or one JSON object to a line."""
    fields: dict[str, FieldType] = msgspec.field(default_factory=dict)
    """Metadata fields that callers may filter on, with their types."""


# 2. What such an engine offers. Claim only what you override below: the gateway checks when the engine opens, and asks
#    for nothing that is not claimed. ``scoreScale`` and ``scoreFloor`` tell fusion what your numbers mean: omit the
#    floor if you do not know it, a wrong one is worse than none. ``snapshots`` promises that every answer says which
#    version of the index it is from, and that a call for another version fails.


def _capabilities(config: MemoryConfig) -> Capabilities:
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


# 3. The engine. Its methods run concurrently on one event loop and may be cancelled wherever they await. This one never
#    awaits, so each call sees the documents as they are at one moment. That is right for a few thousand documents; an
#    engine that computes for longer than a millisecond or waits for anything belongs into ``context.run_blocking``.


class MemoryEngine(Engine):
    # Hits carry their whole metadata. So a field that is missing from a hit is missing from the document, and the
    # gateway can tell "absent" from "not returned".
    meta_complete = True

    def __init__(self, config: MemoryConfig) -> None:
        self._config = config
        self._documents: dict[str, Document] = {}
        self._index = Index()
        self._digests: dict[str, int] = {}
        self._content = 0

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    def push_down(self, filter: Filter) -> Pushdown[Filter]:
        # ``native`` is whatever your back end understands and comes back in ``query.filter``; ``residual`` is what the
        # gateway must still check. This engine evaluates the gateway's own trees, so all of it is native. With a query
        # language of its own, derive from gateway.filters.FilterCompiler; with none, do not override push_down.
        return Pushdown(native=filter, residual=None)

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        # Never serve another version than the one that is asked for.
        check_pin(query.index_version, self._version)
        # Filter before the cut to k: a limit that is applied first loses documents that satisfy the filter.
        admits = compiled(query.filter) if query.filter is not None else None
        found = [
            (-score, id)
            for id, score in self._index.scores(query.text).items()
            if admits is None or admits(self._documents[id].meta or {})
        ]
        # Equal scores are ordered by id, so that the same question always gets the same answer.
        best = heapq.nsmallest(query.k, found)
        hits = []
        for negated, id in best:
            document = self._documents[id]
            meta = document.meta or {}
            hits.append(
                hit(
                    id,  # the store's own, stable id; never a position in this list
                    -negated,  # higher is better, always; 0 is a score, None is "no score"
                    text=document.text if query.include_text else None,
                    meta=meta,
                    citation=citation_of(id, meta),
                    chunk=chunk_of(meta),
                )
            )
        return EngineReply(hits=hits, exhausted=len(found) <= query.k, index_version=self._version)

    @property
    def _version(self) -> str:
        # Opaque to everybody else. The prefix changes when the same documents would be ranked in another way.
        return f"m1-{self._content:032x}"

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        ids = [self._put(document) for document in documents]
        return IndexAddResult(ids=tuple(ids), chunks=len(set(ids)))

    async def index_delete(self, ids: Sequence[str], call: Call) -> int:
        there = [id for id in dict.fromkeys(ids) if self._documents.pop(id, None) is not None]
        for id in there:
            self._index.drop(id)
            self._content = (self._content - self._digests.pop(id)) % MODULUS
        return len(there)

    def load(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._put(entry.document())

    def _put(self, document: Document) -> str:
        id = document_id(document)
        text = mend(document.text)
        self._documents[id] = msgspec.structs.replace(document, id=id, text=text)
        now = digest(id, text, told_meta(document.meta or {}))
        self._content = (self._content - self._digests.get(id, 0) + now) % MODULUS
        self._digests[id] = now
        title = (document.meta or {}).get("title")
        self._index.put(id, f"{title}\n{text}" if isinstance(title, str) else text)
        return id


# 4. The kind ties it together. ``open`` is one context manager, entered and left by one task: what is opened on the way
#    in is closed on the way out, whatever happens. Paths, HTTP clients, threads and clocks come from the context.


class MemoryKind(EngineKind[MemoryConfig]):
    name = "memory"
    config = MemoryConfig
    summary = "Documents in this process, searched by their words (BM25); nothing is kept when the gateway stops."

    def offers(self, config: MemoryConfig) -> Capabilities:
        return _capabilities(config)

    @asynccontextmanager
    async def open(self, config: MemoryConfig, context: EngineContext) -> AsyncIterator[Engine]:
        engine = MemoryEngine(config)
        engine.load(config.documents)
        if config.file is not None:
            path = context.base_dir / config.file
            engine.load(await context.run_blocking(lambda: read_entries(path)))
        yield engine


def read_entries(path: Path) -> list[Entry]:
    """The documents of a JSON or NDJSON file. Raises ConfigError that names the place."""
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read: {error.strerror}", path="file") from None
    if data.lstrip().startswith(b"["):
        return _entries(data, list[Entry], path.name)
    lines = enumerate(data.split(b"\n"), 1)
    return [_entries(line, Entry, f"{path.name}, line {number}") for number, line in lines if line.strip()]


def _entries(data: bytes, type: type[T], place: str) -> T:
    try:
        return decode(data, type)
    except DecodeError as error:
        raise ConfigError(f"{place}: {error}", path="file") from None
