"""Vectors that are already known, and embeddings that several calls share.

One instance serves a gateway. What is kept is bounded in number and in bytes; the longest unused goes first. Texts are
not kept: a key holds their digest.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from gateway.errors import BackendUnavailable, Timeout
from gateway.federation.capability import batch_limit
from gateway.federation.fleet import Member
from gateway.federation.loss import Failure
from gateway.federation.replies import Vector, sound_vectors
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.model import EmbedCapability
from gateway.spi.call import Call, Route
from gateway.spi.engine import EmbedQuery, Engine

__all__ = ["Embeddings"]

_Key = tuple[object, ...]
_LAST_WAIT = 1.0
"""Seconds that an embedder has to end: one that swallows its cancellation must not hold up the end of the gateway."""
_OVERHEAD = 300
"""About what Python needs for an entry beside its numbers, in bytes."""


class _Flight:
    """A call to an embedder that belongs to nobody: it ends with its answer, or when the last waiter has left."""

    __slots__ = ("keys", "task", "waiters")

    def __init__(self, keys: Sequence[_Key]) -> None:
        self.keys = keys
        self.waiters = 0
        self.task: asyncio.Task[Sequence[Vector] | Failure]


class Embeddings:
    """``entries`` vectors are kept, none if it is 0, in at most ``size`` bytes.

    Kept is what an embedder with an identity made: without one, nothing says that a later vector would be comparable.
    Calls that want the same text at the same time share one request either way.
    """

    def __init__(self, entries: int, *, size: int = 64 * 1024 * 1024) -> None:
        self._entries = entries
        self._size = size
        self._used = 0
        self._kept: OrderedDict[_Key, array[float]] = OrderedDict()
        self._flights: dict[_Key, _Flight] = {}
        self._ending: set[asyncio.Task[Sequence[Vector] | Failure]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    async def vectors(
        self, member: Member, texts: Sequence[str], kind: str, route: Route, deadline: Deadline
    ) -> tuple[Vector, ...] | Failure:
        """One vector per text, in order, asked for in as many batches as the engine wants.

        A caller waits until its own deadline; the request goes on for the others that wait for it.
        """
        size = batch_limit(member.capabilities) or len(texts)
        if len(texts) <= size:
            return await self._batch(member, texts, kind, route, deadline)
        vectors: list[Vector] = []
        for start in range(0, len(texts), size):
            found = await self._batch(member, texts[start : start + size], kind, route, deadline)
            if isinstance(found, Failure):
                return found
            vectors += found
        return tuple(vectors)

    async def _batch(
        self, member: Member, texts: Sequence[str], kind: str, route: Route, deadline: Deadline
    ) -> tuple[Vector, ...] | Failure:
        offered = member.capabilities.embed
        keys = [_key(member, offered, kind, text, route) for text in texts]
        known = {key: vector for key in dict.fromkeys(keys) if (vector := self._known(key)) is not None}
        flights = self._flights_for(member, texts, keys, known, kind, route)
        missing = await self._awaited(member, flights, known, deadline) if flights else None
        return missing if missing is not None else tuple(known[key] for key in keys)

    async def close(self) -> None:
        """Ends the requests there are, and waits for those that end."""
        flights = {flight.task for flight in self._flights.values()}
        for task in flights:
            task.cancel()
        if ending := flights | self._ending:
            await asyncio.wait(ending, timeout=_LAST_WAIT)

    def _flights_for(
        self,
        member: Member,
        texts: Sequence[str],
        keys: Sequence[_Key],
        known: dict[_Key, Vector],
        kind: str,
        route: Route,
    ) -> list[_Flight]:
        """Those under way that bring some of what is missing, and one more for the rest."""
        joined: dict[int, _Flight] = {}
        rest: dict[_Key, str] = {}
        for key, text in zip(keys, texts, strict=True):
            if key in known:
                continue
            flight = self._flights.get(key)
            if flight is None:
                rest[key] = text
            else:
                joined[id(flight)] = flight
        flights = list(joined.values())
        if rest:
            flight = _Flight(tuple(rest))
            query = EmbedQuery(inputs=tuple(rest.values()), kind="document" if kind == "document" else "query")
            flight.task = asyncio.create_task(
                self._fly(flight, member, query, route), name=f"embed {member.settings.id}"
            )
            self._flights.update(dict.fromkeys(flight.keys, flight))
            flights.append(flight)
        for flight in flights:
            flight.waiters += 1
        return flights

    async def _fly(
        self, flight: _Flight, member: Member, query: EmbedQuery, route: Route
    ) -> Sequence[Vector] | Failure:
        """The embedder's full time is given to it, whoever asks: a caller in a hurry must not fail the others."""
        offered = member.capabilities.embed

        async def ask(engine: Engine, call: Call) -> Sequence[Vector]:
            return sound_vectors((await engine.embed(query, call)).vectors, len(query.inputs), offered)

        try:
            # A little more than the engine's timeout, so that it is that which ends the call and counts against it.
            deadline = Deadline.after(member.settings.timeout * 1.1, client=False, reserve=0.0)
            found = await run(member, ask, EngineCall(route), deadline)
        finally:
            self._forget(flight)
        if not isinstance(found, Failure) and offered is not None and offered.identity is not None:
            for key, vector in zip(flight.keys, found, strict=True):
                self._keep(key, vector)
        return found

    async def _awaited(
        self, member: Member, flights: Sequence[_Flight], known: dict[_Key, Vector], deadline: Deadline
    ) -> Failure | None:
        """Adds what the flights bring to ``known``; the failure of the first that failed."""
        id, left = member.settings.id, deadline.remaining()
        tasks = {flight.task for flight in flights}
        try:
            _, late = await asyncio.wait(tasks, timeout=left)
        finally:
            for flight in flights:
                self._leave(flight)
        if late:
            cut = deadline.client and left < member.settings.timeout
            return Failure(id, Timeout(f"no answer within {left:.3g} s"), True, cut)
        for flight in flights:
            found = Failure(id, BackendUnavailable("it broke off")) if flight.task.cancelled() else flight.task.result()
            if isinstance(found, Failure):
                return found
            known.update(zip(flight.keys, found, strict=True))
        return None

    def _leave(self, flight: _Flight) -> None:
        flight.waiters -= 1
        if not flight.waiters and not flight.task.done():
            self._forget(flight)
            self._ending.add(flight.task)
            flight.task.add_done_callback(self._ending.discard)
            flight.task.cancel()

    def _forget(self, flight: _Flight) -> None:
        """Nobody joins it from now on."""
        for key in flight.keys:
            if self._flights.get(key) is flight:
                del self._flights[key]

    def _known(self, key: _Key) -> Vector | None:
        packed = self._kept.get(key)
        if packed is None:
            return None
        self._kept.move_to_end(key)
        return tuple(packed)

    def _keep(self, key: _Key, vector: Vector) -> None:
        packed = array("d", vector)
        self._drop(key)
        self._kept[key] = packed
        self._used += _bytes(packed)
        while self._kept and (len(self._kept) > self._entries or self._used > self._size):
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        packed = self._kept.pop(key, None)
        if packed is not None:
            self._used -= _bytes(packed)


def _key(member: Member, offered: EmbedCapability | None, kind: str, text: str, route: Route) -> _Key:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).digest()
    # Of an embedder that is a gateway itself, the answer may depend on how the request came here.
    way = (route.depth, route.path) if member.federates else ()
    identity = (offered.identity, offered.dimension) if offered is not None else None
    return (member.settings.id, identity, kind, digest, way)


def _bytes(packed: array[float]) -> int:
    return packed.itemsize * len(packed) + _OVERHEAD
