"""The query's vectors: made once for each distinct embedder, awaited by each leg inside its own time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.errors import BackendUnavailable, RcpError, Timeout, UpstreamError
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings, Vector
from gateway.federation.fleet import Member, identity_of
from gateway.federation.loss import Failure
from gateway.federation.plan import Leg
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.spi.call import Call, Route
from gateway.spi.engine import EmbedQuery, Engine, SparseVector, VectorNeed

__all__ = ["QueryVectors", "Vectors", "sound_sparse"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Vectors:
    """What one leg is asked with."""

    dense: Vector | None = None
    sparse: SparseVector | None = None


_NONE = Vectors()


class QueryVectors:
    """The embeddings of one query. Text legs never wait for them; ``tasks`` are to be ended with the legs."""

    def __init__(
        self, legs: Sequence[Leg], text: str, snapshot: Snapshot, shared: Embeddings, route: Route, deadline: Deadline
    ) -> None:
        self._text = text
        self._snapshot = snapshot
        self._shared = shared
        self._route = route
        self._deadline = deadline
        dense = dict.fromkeys(leg.need.embedder for leg in legs if leg.need is not None)
        sparse = dict.fromkeys(leg.sparse.embedder for leg in legs if leg.sparse is not None)
        self._dense = {id: asyncio.create_task(self._embed(id), name=f"embed {id}") for id in dense}
        self._sparse = {id: asyncio.create_task(self._embed_sparse(id), name=f"embed {id}") for id in sparse}

    @property
    def tasks(self) -> set[asyncio.Task[Vector | Failure] | asyncio.Task[SparseVector | Failure]]:
        return {*self._dense.values(), *self._sparse.values()}

    async def of(self, leg: Leg) -> Vectors:
        """The vectors this leg needs. Raises :class:`~gateway.errors.RcpError` if one cannot be had or does not fit."""
        if leg.need is None and leg.sparse is None:
            return _NONE
        dense: Vector | None = None
        sparse: SparseVector | None = None
        # Shielded: one leg running out of time must not take the vectors from the others.
        if leg.need is not None:
            dense = self._usable(leg.need, await asyncio.shield(self._dense[leg.need.embedder]))
            if leg.need.dimension and len(dense) != leg.need.dimension:
                told = f"it needs vectors of {leg.need.dimension} numbers; {self._name(leg.need)} gives {len(dense)}"
                raise UpstreamError(told)
            self._check_identity(leg.need)
        if leg.sparse is not None:
            sparse = self._usable(leg.sparse, await asyncio.shield(self._sparse[leg.sparse.embedder]))
        return Vectors(dense, sparse)

    async def _embed(self, id: str) -> Vector | Failure:
        member = self._reachable(id)
        if isinstance(member, Failure):
            return member
        found = await self._shared.vectors(member, (self._text,), "query", self._route, self._deadline)
        return found if isinstance(found, Failure) else found[0]

    async def _embed_sparse(self, id: str) -> SparseVector | Failure:
        member = self._reachable(id)
        if isinstance(member, Failure):
            return member
        if member.capabilities.sparse_embed is None:
            return Failure(id, UpstreamError("it makes no sparse vectors"))
        query = EmbedQuery(inputs=(self._text,))

        async def ask(engine: Engine, call: Call) -> SparseVector:
            return sound_sparse(await engine.embed_sparse(query, call), 1)[0]

        return await run(member, ask, EngineCall(self._route), self._deadline)

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

    def _check_identity(self, need: VectorNeed) -> None:
        """Found at the start, unless the embedder was first seen later. Raises ``UpstreamError``."""
        member = self._snapshot.embedder(need.embedder)
        made = "" if member is None else identity_of(member)
        if need.identity and made not in ("", need.identity):
            told = f"it holds vectors made by {need.identity!r}; {self._name(need)} makes those of {made!r}"
            seen = self._snapshot.view(need.embedder) is not None
            raise UpstreamError(told if seen else "it holds vectors made by another embedder than its own")

    def _usable(self, need: VectorNeed, found: T | Failure) -> T:
        """The vector, or the embedder's failure as this leg's own; not quoted if the caller may not see it."""
        if not isinstance(found, Failure):
            return found
        seen = self._snapshot.view(need.embedder) is not None
        told = f"{self._name(need)} failed: {found.error.message}" if seen else f"{self._name(need)} failed"
        raise Timeout(told) if found.client_deadline else _unavailable(told, found.error)


def sound_sparse(vectors: Sequence[SparseVector], count: int) -> list[SparseVector]:
    """The engine's sparse vectors, if they are what was asked for. Raises ``BackendUnavailable``."""
    if len(vectors) != count:
        raise BackendUnavailable(f"it gave {len(vectors)} sparse vectors for {count} texts")
    for one in vectors:
        paired = len(one.indices) == len(one.values)
        if not paired or not all(map(math.isfinite, one.values)) or min(one.indices, default=0) < 0:
            raise BackendUnavailable("it gave a sparse vector that is none")
    return list(vectors)


def _unavailable(message: str, error: RcpError) -> BackendUnavailable:
    wait = error.data.get("retryAfterMs")
    return BackendUnavailable(message, retryable=error.retryable, data=None if wait is None else {"retryAfterMs": wait})
