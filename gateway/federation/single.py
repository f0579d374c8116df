"""Calls that go to exactly one engine: embedding, reranking, transforming a query, a vendor's own methods.

Vectors of different embedders are never mixed (RCP section 15.7).
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from gateway.errors import BackendUnavailable, CallerError, Code, Unsupported, UpstreamError, option_unsupported
from gateway.federation.capability import Snapshot, View, batch_limit, vendor_members
from gateway.federation.embeddings import Embeddings
from gateway.federation.fleet import Member
from gateway.federation.loss import Failure
from gateway.federation.offers import not_offered
from gateway.federation.replies import Vector, aligned, sound_matrices, sound_sparse, sound_transform, sound_vectors
from gateway.federation.runner import Deadline, run_alone
from gateway.federation.select import rerank_methods, rerank_models, reranker, transform_methods, transformer
from gateway.federation.several import Journey, barred, engine_call
from gateway.federation.verdict import surfaced
from gateway.spi.call import Call, ClientCall, Route
from gateway.spi.codec import encode, sound
from gateway.spi.engine import EmbedQuery, Engine, RerankQuery, SparseVector, TransformQuery, TransformReply
from gateway.spi.methods import Matrix

__all__ = [
    "Single",
    "embed",
    "embed_multi",
    "embed_sparse",
    "rerank",
    "reranking",
    "target",
    "transform",
    "transforming",
    "vendor",
    "vendors",
]

T = TypeVar("T")

_VENDOR_METHOD = re.compile(r"x-[a-z0-9-]+(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){1,4}\Z")
"""A name that means the same in a path of HTTP: it goes into one."""
_VENDOR_LENGTH = 128
_MOST = sys.float_info.max
_VENDOR_DEPTH = 64
_VENDOR_BYTES = 4 * 1024 * 1024
_VENDORS_OWN = (
    Code.INVALID_PARAMS,
    Code.METHOD_NOT_FOUND,
    Code.OPTION_UNSUPPORTED,
    Code.PAYLOAD_TOO_LARGE,
    Code.NOT_FOUND,
)


class Single:
    """One engine, and the time and route of the call it serves; ``client`` hears what the engine says meanwhile."""

    __slots__ = ("asked", "client", "cycle", "deadline", "member", "route", "wrote")

    def __init__(
        self, member: Member, deadline: Deadline, route: Route, *, cycle: bool, client: ClientCall | None = None
    ) -> None:
        self.member = member
        self.deadline = deadline
        self.route = route
        self.cycle = cycle
        self.client = client
        self.asked = False
        """Whether an operation has begun on the engine, so that it may have taken effect."""
        self.wrote = False
        """Whether one that writes has taken effect."""

    @classmethod
    def on(cls, journey: Journey, view: View) -> Single:
        return cls(view.member, journey.deadline, journey.route, cycle=journey.cycle, client=journey.call)

    def of(self, member: Member) -> Single:
        """The same call, to another engine. If the client may not see that, it hears nothing of it."""
        return Single(member, self.deadline, self.route, cycle=self.cycle)

    async def ask(
        self,
        operation: Callable[[Engine, Call], Awaitable[T]],
        *,
        write: bool = False,
        also: Collection[Code] = (),
        stage: str | None = None,
    ) -> T:
        """Runs the operation on the engine; raises its failure as the gateway's answer.

        A write is tried once: whether it took effect before it failed is not known (section 13.1). ``also`` are codes
        that mean the same to the client as to the engine. Without a ``stage`` the client hears of no progress.
        """
        self.may_forward()
        member = self.member

        async def begin(engine: Engine, call: Call) -> T:
            self.asked = True
            return await operation(engine, call)

        call = engine_call(self.client, self.route, member.settings.id, stage=stage)
        outcome = await run_alone(member, begin, call, self.deadline, retry=not write, whole=write)
        if isinstance(outcome, Failure):
            # That a document is there already is about the client's document, whoever says it (section 7.10).
            raise surfaced(outcome.engine, outcome.error, (*also, *((Code.CONFLICT,) if write else ())))
        self.wrote = self.wrote or write
        return outcome

    def may_forward(self) -> None:
        """Raises if the engine would hand the request on, and it may go no further."""
        reason = barred(self.member, self.route, cycle=self.cycle)
        if reason is not None:
            raise surfaced(reason.engine, UpstreamError(reason.message))


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
    if known is not None:
        single.may_forward()
        given = await known.vectors(single.member, inputs, kind, single.route, single.deadline)
        if isinstance(given, Failure):
            raise surfaced(given.engine, given.error)
        found = list(given)
    else:
        limit = batch_limit(single.member.capabilities) or len(inputs) or 1
        found = []
        for start in range(0, len(inputs), limit):
            found += await _fresh(single, tuple(inputs[start : start + limit]), kind)
    if len(set(map(len, found))) > 1:  # each batch is of one dimension, but all have to be of the same
        raise surfaced(single.member.settings.id, BackendUnavailable("its vectors are not of one dimension"))
    return tuple(found)


async def _fresh(single: Single, batch: tuple[str, ...], kind: str) -> Sequence[Vector]:
    query = EmbedQuery(inputs=batch, kind="document" if kind == "document" else "query")
    offered = single.member.capabilities.embed

    async def ask(engine: Engine, call: Call) -> Sequence[Vector]:
        return sound_vectors((await engine.embed(query, call)).vectors, len(batch), offered)

    return await single.ask(ask, stage="embed")


async def embed_sparse(single: Single, inputs: Sequence[str]) -> list[SparseVector]:
    """One sparse vector per input, in order."""
    query = EmbedQuery(inputs=tuple(inputs), kind="document")

    async def ask(engine: Engine, call: Call) -> list[SparseVector]:
        return sound_sparse(await engine.embed_sparse(query, call), len(inputs))

    return await single.ask(ask, stage="embed")


async def embed_multi(single: Single, inputs: Sequence[str], kind: str) -> list[Matrix]:
    """A matrix per input, in order; the rows of all are finite and of one dimension."""
    query = EmbedQuery(inputs=tuple(inputs), kind="document" if kind == "document" else "query")
    offered = single.member.capabilities.multi_vector

    async def ask(engine: Engine, call: Call) -> list[Matrix]:
        return sound_matrices(await engine.embed_multi(query, call), len(inputs), offered)

    return await single.ask(ask, stage="embed")


async def rerank(single: Single, query: RerankQuery) -> tuple[float, ...]:
    """A score per passage, aligned; one that the engine left out gets a value below all others."""

    async def ask(engine: Engine, call: Call) -> list[float | None]:
        return aligned(await engine.rerank(query, call), len(query.passages))

    scores = await single.ask(ask, stage="rerank")
    least = min((score for score in scores if score is not None), default=0.0)
    below = max(min(least - 1.0, math.nextafter(least, -math.inf)), -_MOST)  # and no infinity
    return tuple(below if score is None else score for score in scores)


def transforming(snapshot: Snapshot, method: str, named: str | None) -> View:
    """The engine for a way of transforming. Raises ``-32005`` if nobody offers it."""
    view = transformer(snapshot, method, named)
    if view is None:
        known = transform_methods(snapshot, named)
        raise not_offered(snapshot, "that way of transforming", option=method, field="method", offered=known)
    return view


def reranking(snapshot: Snapshot, method: str | None, model: str | None, *, own: str) -> View | None:
    """The engine that reranks; ``None`` if nothing is asked for and nobody does.

    Raises ``-32005`` for what is asked for and nobody offers. ``own`` is the gateway's own method, for that error.
    """
    view = reranker(snapshot, method, model)
    if view is not None or (method is None and model is None):
        return view
    if method is not None and reranker(snapshot, method, None) is None:
        known = [*rerank_methods(snapshot), own]
        raise not_offered(snapshot, "that rerank method", option=method, field="method", offered=known)
    models = rerank_models(snapshot, method)
    raise not_offered(snapshot, "that model", option=model or "", field="model", offered=models)


async def transform(single: Single, query: TransformQuery) -> TransformReply:
    """At least one query and at most ``n``: what an engine gives beyond that, or that is blank, is left out."""

    async def ask(engine: Engine, call: Call) -> TransformReply:
        return sound_transform(await engine.transform(query, call), query.n)

    reply = await single.ask(ask, stage="transform")
    return replace(reply, queries=reply.queries or (query.text,))


def vendors(snapshot: Snapshot, method: str, named: Collection[str] | None) -> View:
    """The engine for a method below an ``x-…`` capability: the first that advertises it, or that is named and does.

    Raises ``-32004`` for what is no method's name, ``-32005`` if no engine that is named advertises it.
    """
    if len(method) > _VENDOR_LENGTH or not _VENDOR_METHOD.match(method):
        raise CallerError("no such method", code=Code.METHOD_NOT_FOUND)
    member = method.partition("/")[0]
    able = [view for view in snapshot.views if view.member.own_methods and member in vendor_members(view.capabilities)]
    if not able:
        raise CallerError("no such method", code=Code.METHOD_NOT_FOUND)
    for view in able:
        if named is None or view.id in named:
            return view
    raise option_unsupported("no engine that is asked advertises that", option=member)


async def vendor(single: Single, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A vendor's method, asked once: what it does is not known. The result is sound JSON of a bounded size.

    What the engine says of parameters and names speaks about the client's own: they went as they came.
    """

    async def ask(engine: Engine, call: Call) -> dict[str, Any]:
        found: Any = await engine.vendor(method, params, call)
        if not isinstance(found, Mapping):
            raise BackendUnavailable("its answer is not an object", retryable=False)
        try:
            plain: dict[str, Any] = sound(found, _VENDOR_DEPTH)
            size = len(encode(plain))
        except (ValueError, OverflowError, RecursionError):
            raise BackendUnavailable("its answer is not sound JSON", retryable=False) from None
        if size > _VENDOR_BYTES:
            raise BackendUnavailable(f"its answer is longer than {_VENDOR_BYTES} bytes", retryable=False)
        return plain

    return await single.ask(ask, write=True, also=_VENDORS_OWN)
