"""``index/add`` and ``index/delete``: to exactly one engine, and tried once (RCP sections 7.10, 7.11, 13.1)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.errors import BackendUnavailable, RcpError, UpstreamError, invalid_params
from gateway.federation.capability import Snapshot
from gateway.federation.fleet import Member
from gateway.federation.ids import emitted_id, id_text, own_id
from gateway.federation.replies import Vector
from gateway.federation.single import Single, embed
from gateway.federation.vectors import made_by
from gateway.federation.verdict import surfaced
from gateway.model import Document, IndexAddResult
from gateway.spi.call import Call
from gateway.spi.codec import mend
from gateway.spi.engine import Engine, VectorNeed
from gateway.spi.methods import Cutting
from gateway.spi.passage import passage_id

__all__ = ["Cut", "index_add", "index_delete"]

Cut = Callable[[Sequence[Document]], Awaitable[list[list[Document]]]]
"""Cuts documents into pieces, named by :func:`~gateway.spi.passage.passage_id` from 0, one list for each."""

_MOST = 2**53 - 1
_FEWEST = 4
_PIECES = 256
"""How many pieces are looked for at once, over all documents; each has its share, ``_FEWEST`` at least."""
_AT_ONCE = 10_000
_ASKED = 100_000
"""So many ids are asked for, whatever the engine says of them."""
_PIECE = re.compile(r"#\d+\Z")


async def index_add(
    single: Single,
    documents: Sequence[Document],
    snapshot: Snapshot,
    *,
    cut: Cut | None = None,
    cutting: Cutting | None = None,
) -> IndexAddResult:
    """Adds documents; ids come back positional. A document without an id gets one made from its content.

    ``cut`` cuts them up here, ``cutting`` lets the engine do it. Pieces that an earlier and longer version of a
    document left behind are removed.
    """
    member = single.member
    id = member.settings.id
    _check_names(member, documents)
    named = [replace(document, id=_stored_id(member, document)) for document in documents]
    if member.engine is None:
        raise surfaced(id, member.fault or BackendUnavailable("it is not open"))
    if cut is not None:
        return await _add_pieces(single, named, snapshot, cut)
    stored = await _add(single, named, snapshot, cutting)
    # Ids are positional (section 7.10); the ones we gave are right, whatever the engine counts.
    ids = stored.ids if len(stored.ids) == len(named) else [str(document.id) for document in named]
    return IndexAddResult(ids=tuple(emitted_id(member, one) for one in ids), chunks=stored.chunks)


async def _add(
    single: Single, named: Sequence[Document], snapshot: Snapshot, cutting: Cutting | None = None
) -> IndexAddResult:
    assert single.member.engine is not None
    need = single.member.engine.document_need()
    made = ""
    if need is not None:
        try:
            made = made_by(need, snapshot)
        except UpstreamError as error:
            raise surfaced(single.member.settings.id, error) from error
        given = await _document_vectors(single, need, [document.text for document in named], snapshot)
        named = [replace(one, vector=list(vector)) for one, vector in zip(named, given, strict=True)]

    async def add(engine: Engine, call: Call) -> IndexAddResult:
        if made:
            await engine.embedded_by(made, call)
        return _sound(
            await (engine.index_add(named, call) if cutting is None else engine.index_cut(named, cutting, call))
        )

    return await single.ask(add, write=True)


def _sound(stored: Any) -> IndexAddResult:
    """What an engine says it has stored. It has, so that what cannot be read of it is left out and no failure."""
    ids: Any = getattr(stored, "ids", ())
    fits = isinstance(ids, list | tuple) and all(isinstance(one, str) and one for one in ids)
    chunks: Any = getattr(stored, "chunks", None)
    counted = isinstance(chunks, int) and not isinstance(chunks, bool) and 0 <= chunks <= _MOST
    return IndexAddResult(ids=tuple(map(mend, ids)) if fits else (), chunks=chunks if counted else None)


async def _add_pieces(single: Single, named: Sequence[Document], snapshot: Snapshot, cut: Cut) -> IndexAddResult:
    # Of one id given twice the last counts, as if it had been added after the other.
    latest = {str(document.id): document for document in named}
    pieces = dict(zip(latest, await cut(list(latest.values())), strict=True))
    await _add(single, [piece for own in pieces.values() for piece in own], snapshot)
    await _clear(single, {id: len(own) for id, own in pieces.items()}, whole=True)
    count = sum(map(len, pieces.values()))
    return IndexAddResult(ids=tuple(emitted_id(single.member, str(document.id)) for document in named), chunks=count)


def _check_names(member: Member, documents: Sequence[Document]) -> None:
    """A field goes by its name here: under the engine's own it would be read back as another one."""
    aliases = member.settings.aliases
    for place, document in enumerate(documents if aliases else ()):
        for name in aliases.hidden(document.meta or ()):
            told = f"this field is called {aliases.told[name]!r} here"
            raise invalid_params(told, field=f"documents[{place}].meta.{name}")


async def _document_vectors(
    single: Single, need: VectorNeed, texts: Sequence[str], snapshot: Snapshot
) -> tuple[Vector, ...]:
    """The documents' vectors. An embedder that the caller may not see is not named, nor quoted."""
    id = single.member.settings.id
    embedder = snapshot.embedder(need.embedder)
    if embedder is None:
        raise surfaced(id, UpstreamError("its embedder cannot serve it"))
    try:
        found = await embed(single.of(embedder), texts, "document")
    except RcpError as error:
        if snapshot.view(need.embedder) is not None:
            raise
        raise surfaced(id, BackendUnavailable("its embedder failed", retryable=error.retryable)) from error
    if need.dimension and found and len(found[0]) != need.dimension:
        told = f"it needs vectors of {need.dimension} numbers; its embedder gives {len(found[0])}"
        raise surfaced(id, UpstreamError(told))
    return found


async def index_delete(single: Single, ids: Sequence[str], snapshot: Snapshot, *, pieces: bool = False) -> int:
    """Removes documents; returns how many were there. An id of another corpus names nothing here.

    With ``pieces`` those that documents were cut into here go too. Where there are several corpora an id must say which
    it is of, else ``-32602``.
    """
    corpus = single.member.settings.corpus
    others = {view.member.settings.corpus for view in snapshot.views} - {corpus, None} if corpus is not None else set()
    own: dict[str, None] = {}
    for place, id in enumerate(ids):
        named, slash, _ = id.partition("/")
        if slash and named in others:
            continue
        if others and not (slash and named == corpus):
            raise invalid_params("the id names none of the corpora", field=f"ids[{place}]")
        own[own_id(single.member, id)] = None
    if not own:
        return 0
    cut = [id for id in own if not _PIECE.search(id)] if pieces else []
    # The first piece goes last: as long as it is there, a call that broke off can be made again.
    await _clear(single, dict.fromkeys(cut, 1))
    return min(len(own), await _delete(single, [*own, *(passage_id(id, 0) for id in cut)]))


async def _clear(single: Single, kept: dict[str, int], *, whole: bool = False) -> None:
    """Removes the pieces of documents from the given numbers on, and the documents as wholes if ``whole``.

    It looks for more while some are found; not for ever, since some engines count what they were asked to remove.
    """
    width = max(_FEWEST, _PIECES // max(1, len(kept)))
    widest = max(width, _AT_ONCE // max(1, len(kept)))
    start = asked = 0
    wholes = list(kept) if whole else []
    while kept and asked < _ASKED:
        numbered = [passage_id(id, first + start + n) for id, first in kept.items() for n in range(width)]
        if await _delete(single, [*wholes, *numbered]) == 0:
            return
        asked += len(numbered)
        start, width, wholes = start + width, min(width * 2, widest), []


async def _delete(single: Single, ids: Sequence[str]) -> int:
    async def delete(engine: Engine, call: Call) -> int:
        return max(0, min(int(await engine.index_delete(ids, call)), len(ids)))

    return await single.ask(delete, write=True)


def _stored_id(member: Member, document: Document) -> str:
    if document.id is None:
        return "sha256-" + hashlib.sha256(document.text.encode("utf-8", "replace")).hexdigest()[:32]
    return own_id(member, id_text(document.id))
