"""The query's vectors: made once for each distinct embedder, awaited by each leg inside its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.errors import BackendUnavailable, RcpError, Timeout, UpstreamError
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings
from gateway.federation.fleet import Member, identity_of
from gateway.federation.leg import Ask, Leg
from gateway.federation.loss import Failure
from gateway.federation.replies import Vector, sound_sparse
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.federation.transform import Form
from gateway.spi.call import Call, Route
from gateway.spi.engine import EmbedQuery, Engine, SparseVector, VectorNeed

__all__ = ["QueryVectors", "Vectors", "made_by"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Vectors:
    """What one question is asked with."""

    dense: Vector | None = None
    sparse: SparseVector | None = None


_NONE = Vectors()


class QueryVectors:
    """The embeddings of a call's queries. Text legs never wait for them; ``tasks`` are to be ended with the legs.

    ``made`` is told of each embedder that has answered.
    """

    def __init__(
        self,
        legs: Sequence[Leg],
        forms: Sequence[Form],
        snapshot: Snapshot,
        shared: Embeddings,
        route: Route,
        deadline: Deadline,
        made: Callable[[str], None] | None = None,
    ) -> None:
        self._forms = forms
        self._snapshot = snapshot
        self._shared = shared
        self._route = route
        self._deadline = deadline
        self._made = made
        asks = [ask for leg in legs for ask in leg.asks]
        dense = dict.fromkeys(ask.need.embedder for ask in asks if ask.need is not None)
        sparse = dict.fromkeys(ask.sparse.embedder for ask in asks if ask.sparse is not None)
        self._dense = {id: asyncio.create_task(self._embed(id), name=f"embed {id}") for id in dense}
        self._sparse = {id: asyncio.create_task(self._embed_sparse(id), name=f"embed {id}") for id in sparse}

    @property
    def tasks(self) -> set[asyncio.Task[Sequence[Vector] | Failure] | asyncio.Task[list[SparseVector] | Failure]]:
        return {*self._dense.values(), *self._sparse.values()}

    async def of(self, ask: Ask, form: Form) -> Vectors:
        """The vectors this question needs. Raises :class:`~gateway.errors.RcpError` if one cannot be had or misfits."""
        if ask.need is None and ask.sparse is None:
            return _NONE
        dense: Vector | None = None
        sparse: SparseVector | None = None
        place = self._forms.index(form)
        # Shielded: one leg running out of time must not take the vectors from the others.
        if ask.need is not None:
            dense = self._usable(ask.need, await asyncio.shield(self._dense[ask.need.embedder]))[place]
            if ask.need.dimension and len(dense) != ask.need.dimension:
                told = f"it needs vectors of {ask.need.dimension} numbers; {self._name(ask.need)} gives {len(dense)}"
                raise UpstreamError(told)
            made_by(ask.need, self._snapshot)
        if ask.sparse is not None:
            sparse = self._usable(ask.sparse, await asyncio.shield(self._sparse[ask.sparse.embedder]))[place]
        return Vectors(dense, sparse)

    async def _embed(self, id: str) -> Sequence[Vector] | Failure:
        member = self._reachable(id)
        if isinstance(member, Failure):
            return member
        texts = [form.embedded for form in self._forms]
        # All forms of one call stand on one side of the search: HyDE makes a single one.
        kind = self._forms[0].kind
        found = await self._shared.vectors(member, texts, kind, self._route, self._deadline)
        if not isinstance(found, Failure):
            self._tell(id)
        return found

    async def _embed_sparse(self, id: str) -> list[SparseVector] | Failure:
        member = self._reachable(id)
        if isinstance(member, Failure):
            return member
        if member.capabilities.sparse_embed is None:
            return Failure(id, UpstreamError("it makes no sparse vectors"))
        query = EmbedQuery(inputs=tuple(form.embedded for form in self._forms))

        async def ask(engine: Engine, call: Call) -> list[SparseVector]:
            return sound_sparse(await engine.embed_sparse(query, call), len(query.inputs))

        found = await run(member, ask, EngineCall(self._route), self._deadline)
        if not isinstance(found, Failure):
            self._tell(id)
        return found

    def _tell(self, id: str) -> None:
        """An embedder that the caller may not see is not told of."""
        if self._made is not None:
            self._made(id if self._snapshot.view(id) is not None else "")

    def _reachable(self, id: str) -> Member | Failure:
        """The embedder, if there is one and the request may go to it."""
        member = self._snapshot.embedder(id)
        if member is None:
            return Failure(id, BackendUnavailable("it is not there"))
        if member.federates and self._route.depth < 0:
            return Failure(id, UpstreamError("the request may not be forwarded any further (depth 0)"))
        return member

    def _name(self, need: VectorNeed) -> str:
        """An embedder that the caller may not see is not named."""
        return f"its embedder {need.embedder}" if self._snapshot.view(need.embedder) is not None else "its embedder"

    def _usable(self, need: VectorNeed, found: T | Failure) -> T:
        """The vector, or the embedder's failure as this leg's own; not quoted if the caller may not see it."""
        if not isinstance(found, Failure):
            return found
        seen = self._snapshot.view(need.embedder) is not None
        told = f"{self._name(need)} failed: {found.error.message}" if seen else f"{self._name(need)} failed"
        raise Timeout(told) if found.client_deadline else _unavailable(told, found.error)


def made_by(need: VectorNeed, snapshot: Snapshot) -> str:
    """The identity of the embedder, ``""`` if it is not known.

    Raises ``UpstreamError`` if the stored vectors are another's, which cannot be compared with its own. That is found
    at the start, unless the embedder was first seen later. One that the caller may not see is not named.
    """
    embedder = snapshot.embedder(need.embedder)
    made = "" if embedder is None else identity_of(embedder)
    if need.identity and made not in ("", need.identity):
        told = f"it holds vectors made by {need.identity!r}; its embedder {need.embedder} makes those of {made!r}"
        seen = snapshot.view(need.embedder) is not None
        raise UpstreamError(told if seen else "it holds vectors made by another embedder than its own")
    return made


def _unavailable(message: str, error: RcpError) -> BackendUnavailable:
    wait = error.data.get("retryAfterMs")
    return BackendUnavailable(message, retryable=error.retryable, data=None if wait is None else {"retryAfterMs": wait})
