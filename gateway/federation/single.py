"""Calls that go to exactly one engine: embedding, reranking, transforming a query and writing.

Vectors of different embedders are never mixed (RCP section 15.7) and a write is never fanned out (section 7.10).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gateway.errors import (
    BackendUnavailable,
    Code,
    RcpError,
    Unsupported,
    UpstreamError,
    invalid_params,
    option_unsupported,
)
from gateway.federation.capability import Snapshot, View, batch_limit
from gateway.federation.embeddings import Embeddings, Vector, sound
from gateway.federation.fleet import Member, identity_of
from gateway.federation.loss import Failure
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.federation.vectors import sound_sparse
from gateway.federation.verdict import surfaced
from gateway.model import Document, IndexAddResult
from gateway.spi.call import Call, Route
from gateway.spi.codec import mend
from gateway.spi.engine import EmbedQuery, Engine, RerankQuery, SparseVector, TransformQuery, TransformReply, VectorNeed

__all__ = [
    "Single",
    "embed",
    "embed_sparse",
    "index_add",
    "index_delete",
    "rerank",
    "target",
    "transform",
    "transformer",
]

T = TypeVar("T")


class Single:
    """One engine, and the time and route of the call it serves."""

    __slots__ = ("cycle", "deadline", "member", "route")

    def __init__(self, member: Member, deadline: Deadline, route: Route, *, cycle: bool) -> None:
        self.member = member
        self.deadline = deadline
        self.route = route
        self.cycle = cycle

    def of(self, member: Member) -> Single:
        """The same call, to another engine."""
        return Single(member, self.deadline, self.route, cycle=self.cycle)

    async def ask(self, operation: Callable[[Engine, Call], Awaitable[T]], *, write: bool = False) -> T:
        """Runs the operation on the engine; raises its failure as the gateway's answer.

        A write is tried once: whether it took effect before it failed is not known (section 13.1).
        """
        self.may_forward()
        member = self.member
        call = EngineCall(self.route)
        outcome = await run(member, operation, call, self.deadline, retry=not write, whole=write)
        if isinstance(outcome, Failure):
            # That a document is there already is about the client's document, whoever says it (section 7.10).
            raise surfaced(outcome.engine, outcome.error, (Code.CONFLICT,) if write else ())
        return outcome

    def may_forward(self) -> None:
        """Raises if the engine would hand the request on, and it may go no further."""
        member = self.member
        if member.federates and (self.cycle or self.route.depth < 0):
            why = (
                "has passed this gateway before: a cycle"
                if self.cycle
                else "may not be forwarded any further (depth 0)"
            )
            raise surfaced(member.settings.id, UpstreamError(f"the request {why}"))


def target(snapshot: Snapshot, capability: str, named: str | None) -> View:
    """The engine for a capability: the one the configuration names, else the first that offers it."""
    if named is not None:
        view = snapshot.view(named)
        if view is not None:
            return view
    for view in snapshot.views:
        if named is None and getattr(view.capabilities, capability) is not None:
            return view
    raise Unsupported(f"{capability} is not offered", data={"option": capability})


async def embed(
    single: Single, inputs: Sequence[str], kind: str, known: Embeddings | None = None
) -> tuple[Vector, ...]:
    """One vector per input, in order and all of one dimension. Batches are cut to what the engine takes at once.

    ``known`` is looked at first and remembers what is new; documents that are stored pass it by, as each comes once.
    """
    limit = batch_limit(single.member.capabilities) or len(inputs) or 1
    found: list[Vector] = []
    for start in range(0, len(inputs), limit):
        batch = tuple(inputs[start : start + limit])
        found += await (_fresh(single, batch, kind) if known is None else _known(single, batch, kind, known))
        if len(found[0]) != len(found[-1]):
            raise surfaced(single.member.settings.id, BackendUnavailable("its vectors are not of one dimension"))
    return tuple(found)


async def _fresh(single: Single, batch: tuple[str, ...], kind: str) -> Sequence[Vector]:
    query = EmbedQuery(inputs=batch, kind="document" if kind == "document" else "query")
    offered = single.member.capabilities.embed

    async def ask(engine: Engine, call: Call) -> Sequence[Vector]:
        return sound((await engine.embed(query, call)).vectors, len(batch), offered)

    return await single.ask(ask)


async def _known(single: Single, batch: tuple[str, ...], kind: str, known: Embeddings) -> Sequence[Vector]:
    single.may_forward()
    found = await known.vectors(single.member, batch, kind, single.route, single.deadline)
    if isinstance(found, Failure):
        raise surfaced(found.engine, found.error)
    return found


async def embed_sparse(single: Single, inputs: Sequence[str]) -> list[SparseVector]:
    """One sparse vector per input, in order."""
    query = EmbedQuery(inputs=tuple(inputs), kind="document")

    async def ask(engine: Engine, call: Call) -> list[SparseVector]:
        return sound_sparse(await engine.embed_sparse(query, call), len(inputs))

    return await single.ask(ask)


async def rerank(single: Single, query: RerankQuery) -> tuple[float, ...]:
    """A score per passage, aligned; one that the engine left out gets a value below all others."""

    async def ask(engine: Engine, call: Call) -> list[float | None]:
        scores = [
            None if one is None or not math.isfinite(one) else float(one) for one in await engine.rerank(query, call)
        ]
        if len(scores) > len(query.passages):
            raise BackendUnavailable(f"it gave {len(scores)} scores for {len(query.passages)} passages")
        return [*scores, *[None] * (len(query.passages) - len(scores))]

    scores = await single.ask(ask)
    least = min((score for score in scores if score is not None), default=0.0)
    below = min(least - 1.0, math.nextafter(least, -math.inf))
    return tuple(below if score is None else score for score in scores)


def transformer(snapshot: Snapshot, method: str, named: str | None) -> View:
    """The engine for a way of transforming: the one the configuration names, else the first that offers the method."""
    for view in snapshot.views:
        offered = view.capabilities.transform
        if (named is None or view.id == named) and offered is not None and method in (offered.methods or ()):
            return view
    raise option_unsupported("that way of transforming is not offered", option=method, field="method")


async def transform(single: Single, query: TransformQuery) -> TransformReply:
    """At least one query and at most ``n``: what an engine gives beyond that, or that is blank, is left out."""

    async def ask(engine: Engine, call: Call) -> TransformReply:
        return await engine.transform(query, call)

    reply = await single.ask(ask)
    queries = tuple(mend(one) for one in reply.queries if one.strip())[: query.n]
    hypothetical = mend(reply.hypothetical) if reply.hypothetical is not None else None
    return replace(reply, queries=queries or (query.text,), hypothetical=hypothetical)


async def index_add(single: Single, documents: Sequence[Document], snapshot: Snapshot) -> IndexAddResult:
    """Adds documents; ids come back positional. A document without an id gets one made from its content."""
    member = single.member
    id = member.settings.id
    _check_names(member, documents)
    named = [replace(document, id=_stored_id(member, document)) for document in documents]
    if member.engine is None:
        raise surfaced(id, member.fault or BackendUnavailable("it is not open"))
    need = member.engine.document_need()
    made_by = ""
    if need is not None:
        made_by = _made_by(id, need, snapshot)
        given = await _document_vectors(single, need, [document.text for document in named], snapshot)
        named = [replace(one, vector=list(vector)) for one, vector in zip(named, given, strict=True)]

    async def add(engine: Engine, call: Call) -> IndexAddResult:
        if made_by:
            await engine.embedded_by(made_by, call)
        return await engine.index_add(named, call)

    result = await single.ask(add, write=True)
    # Ids are positional (section 7.10); the ones we gave are right, whatever the engine counts.
    stored = result.ids if len(result.ids) == len(named) else [str(document.id) for document in named]
    return replace(result, ids=tuple(_emitted_id(member, one) for one in stored))


def _made_by(id: str, need: VectorNeed, snapshot: Snapshot) -> str:
    """The identity of the embedder. Raises if the stored vectors are another's: a mixture could not be searched."""
    embedder = snapshot.embedder(need.embedder)
    made = "" if embedder is None else identity_of(embedder)
    if need.identity and made not in ("", need.identity):
        seen = snapshot.view(need.embedder) is not None
        told = f"it holds vectors made by {need.identity!r}; its embedder {need.embedder} makes those of {made!r}"
        raise surfaced(id, UpstreamError(told if seen else "it holds vectors made by another embedder than its own"))
    return made


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


async def index_delete(single: Single, ids: Sequence[str], snapshot: Snapshot) -> int:
    """Removes documents; returns how many were there. An id of another corpus names nothing here."""
    corpus = single.member.settings.corpus
    others = {view.member.settings.corpus for view in snapshot.views} - {corpus} if corpus is not None else set()
    own = [_own_id(single.member, id) for id in ids if id.partition("/")[0] not in others]
    own = list(dict.fromkeys(own))
    if not own:
        return 0

    async def delete(engine: Engine, call: Call) -> int:
        return max(0, int(await engine.index_delete(own, call)))

    return await single.ask(delete, write=True)


def _stored_id(member: Member, document: Document) -> str:
    if document.id is None:
        return "sha256-" + hashlib.sha256(document.text.encode("utf-8", "replace")).hexdigest()[:32]
    return _own_id(member, id_text(document.id))


def id_text(id: str | float) -> str:
    """An id as text: ``7`` and ``7.0`` are ``"7"`` (section 16.3)."""
    return str(int(id)) if isinstance(id, float) and id.is_integer() else str(id)


def _own_id(member: Member, id: str) -> str:
    """The id inside the engine. With a corpus the qualified form is understood, and so is the plain one."""
    corpus = member.settings.corpus
    return id if corpus is None else id.removeprefix(f"{corpus}/")


def _emitted_id(member: Member, id: str) -> str:
    corpus = member.settings.corpus
    return id if corpus is None else f"{corpus}/{id}"
