"""Calls that go to exactly one engine: embedding, reranking, transforming a query and writing.

Vectors of different embedders are never mixed (RCP section 15.7) and a write is never fanned out (section 7.10).
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gateway.errors import BackendUnavailable, Code, Unsupported, option_unsupported
from gateway.federation.capability import Snapshot, View
from gateway.federation.embeddings import Embeddings, sound
from gateway.federation.loss import Failure
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.federation.verdict import surfaced
from gateway.model import Document, IndexAddResult
from gateway.spi.call import Call, Route
from gateway.spi.codec import mend
from gateway.spi.engine import EmbedQuery, Engine, RerankQuery, TransformQuery, TransformReply

__all__ = ["Single", "embed", "index_add", "index_delete", "rerank", "target", "transform", "transformer"]

T = TypeVar("T")


class Single:
    """One engine, and the time and route of the call it serves."""

    __slots__ = ("deadline", "route", "view")

    def __init__(self, view: View, deadline: Deadline, route: Route) -> None:
        self.view = view
        self.deadline = deadline
        self.route = route

    def may_forward(self) -> None:
        """Raises ``-32005`` if the engine would hand the request on, and it may go no further."""
        if self.view.member.federates and self.route.depth < 0:
            raise Unsupported("the request may not be forwarded any further", code=Code.OPTION_UNSUPPORTED)

    def another(self, view: View) -> Single:
        return Single(view, self.deadline, self.route)

    async def ask(self, operation: Callable[[Engine, Call], Awaitable[T]], *, write: bool = False) -> T:
        """Runs the operation on the engine; raises its failure as the gateway's answer.

        A write is tried once: whether it took effect before it failed is not known (section 13.1).
        """
        member = self.view.member
        self.may_forward()
        call = EngineCall(self.route)
        outcome = await run(member, operation, call, self.deadline, retry=not write, whole=write)
        if isinstance(outcome, Failure):
            raise surfaced(outcome.engine, outcome.error)
        return outcome


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
) -> tuple[tuple[float, ...], ...]:
    """One vector per input, in order. Batches are cut to what the engine takes at once.

    ``known`` is looked at first and remembers what is new; documents that are stored pass it by, as each comes once.
    """
    offered = single.view.capabilities.embed
    limit = (offered.batch_limit if offered else None) or len(inputs) or 1
    vectors: list[tuple[float, ...]] = []
    for start in range(0, len(inputs), limit):
        batch = tuple(inputs[start : start + limit])
        if known is not None:
            single.may_forward()
            found = await known.vectors(single.view.member, batch, kind, single.route, single.deadline)
            if isinstance(found, Failure):
                raise surfaced(found.engine, found.error)
            vectors += found
            continue
        query = EmbedQuery(inputs=batch, kind="document" if kind == "document" else "query")

        async def ask(engine: Engine, call: Call, query: EmbedQuery = query) -> Sequence[tuple[float, ...]]:
            return sound((await engine.embed(query, call)).vectors, len(query.inputs), offered)

        vectors += await single.ask(ask)
    return tuple(vectors)


async def rerank(single: Single, query: RerankQuery) -> tuple[float, ...]:
    """A score per passage, aligned; one that the engine left out gets a value below all others."""
    scores = await single.ask(lambda engine, call: engine.rerank(query, call))
    given = [score for score in scores if score is not None]
    below = min(given, default=0.0) - 1.0
    padded = [*scores, *([None] * (len(query.passages) - len(scores)))]
    return tuple(below if score is None else score for score in padded[: len(query.passages)])


def transformer(snapshot: Snapshot, method: str, named: str | None) -> View:
    """The engine for a way of transforming: the one the configuration names, else the first that offers the method."""
    for view in snapshot.views:
        offered = view.capabilities.transform
        if (named is None or view.id == named) and offered is not None and method in (offered.methods or ()):
            return view
    raise option_unsupported("that way of transforming is not offered", option=method, field="method")


async def transform(single: Single, query: TransformQuery) -> TransformReply:
    """At least one query and at most ``n``: what an engine gives beyond that, or that is blank, is left out."""
    reply = await single.ask(lambda engine, call: engine.transform(query, call))
    queries = tuple(mend(one) for one in reply.queries if one.strip())[: query.n]
    hypothetical = mend(reply.hypothetical) if reply.hypothetical is not None else None
    return replace(reply, queries=queries or (query.text,), hypothetical=hypothetical)


async def index_add(single: Single, documents: Sequence[Document], snapshot: Snapshot) -> IndexAddResult:
    """Adds documents; ids come back positional. A document without an id gets one made from its content."""
    view = single.view
    named = [replace(document, id=_stored_id(view, document)) for document in documents]
    engine = view.member.engine
    need = engine.document_need() if engine is not None else None
    if need is not None:
        embedder = snapshot.view(need.embedder)
        if embedder is None:
            raise BackendUnavailable(f"engine {view.id} takes its vectors from {need.embedder}, which is not there")
        vectors = await embed(single.another(embedder), [document.text for document in named], "document")
        named = [replace(one, vector=list(vector)) for one, vector in zip(named, vectors, strict=True)]
    result = await single.ask(lambda engine, call: engine.index_add(named, call), write=True)
    return replace(result, ids=tuple(_emitted_id(view, id) for id in result.ids))


async def index_delete(single: Single, ids: Sequence[str]) -> int:
    """Removes documents; returns how many were there."""
    own = [_own_id(single.view, id) for id in ids]
    if not own:
        return 0
    return await single.ask(lambda engine, call: engine.index_delete(own, call), write=True)


def _stored_id(view: View, document: Document) -> str:
    if document.id is None:
        return "sha256-" + hashlib.sha256(document.text.encode("utf-8", "replace")).hexdigest()[:32]
    return _own_id(view, id_text(document.id))


def id_text(id: str | float) -> str:
    """An id as text: ``7`` and ``7.0`` are ``"7"`` (section 16.3)."""
    return str(int(id)) if isinstance(id, float) and id.is_integer() else str(id)


def _own_id(view: View, id: str) -> str:
    """The id inside the engine. With a corpus the qualified form is understood, and so is the plain one."""
    corpus = view.member.settings.corpus
    return id if corpus is None else id.removeprefix(f"{corpus}/")


def _emitted_id(view: View, id: str) -> str:
    corpus = view.member.settings.corpus
    return id if corpus is None else f"{corpus}/{id}"
