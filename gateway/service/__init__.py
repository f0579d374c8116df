"""The handlers of the RCP methods, by name.

``retrieval`` is the straight line; ``single`` and ``writes`` are what one engine does; ``graph`` and ``advice`` what
several do together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.caller import Caller
from gateway.federation.capability import Offer, Snapshot, full, published
from gateway.federation.embeddings import Embeddings
from gateway.federation.explain import Explained
from gateway.federation.fleet import Fleet
from gateway.federation.origins import Origins
from gateway.federation.plan import Defaults
from gateway.federation.probe import Found, probe
from gateway.federation.profile import EVERYTHING, filled, narrowed
from gateway.federation.runner import Deadline
from gateway.federation.single import Single, target
from gateway.model import CatalogEntry, CatalogResult, PeerInfo, RetrieveRequest, capabilities_to_wire
from gateway.refine.tokens import Tokens
from gateway.service.advice import Advice
from gateway.service.graph import Graph
from gateway.service.keeping import Keeping
from gateway.service.retrieval import Retrieval
from gateway.service.single import OneEngine
from gateway.service.writes import Writes
from gateway.spi.call import ClientCall, Route
from gateway.state import Rate

__all__ = ["Service"]

_PROBE_SECONDS = 120.0

Handler = Callable[[Any, ClientCall], Awaitable[Any]]


class Service:
    """What the gateway answers, as the protocol layer wants it (``protocol.dispatch.Server``)."""

    def __init__(
        self,
        fleet: Fleet,
        defaults: Defaults,
        offer: Offer,
        *,
        info: PeerInfo,
        embeddings: Embeddings,
        keeping: Keeping,
        tokens: Tokens,
    ) -> None:
        self.info = info
        self.keeping = keeping
        self._fleet = fleet
        self._defaults = defaults
        self._profile = defaults.profile
        origins = Origins()
        self._retrieval = Retrieval(defaults, embeddings, keeping, tokens, origins)
        single = OneEngine(defaults, offer, embeddings)
        writes = Writes(defaults, offer, keeping.idempotency)
        advice = Advice(defaults, origins, keeping.idempotency)
        handlers: dict[str, Handler] = {
            "retrieve": self._retrieval.retrieve if self._profile is EVERYTHING else self._retrieve,
            "embed": single.embed,
            "embed/sparse": single.embed_sparse,
            "embed/multi": single.embed_multi,
            "rerank": single.rerank,
            "query/transform": single.transform,
            "graph": Graph(defaults, origins).graph,
            "index/add": writes.index_add,
            "index/delete": writes.index_delete,
            "feedback": advice.feedback,
            "memory/build": advice.memory_build,
            "memory/recall": advice.memory_recall,
            "catalog/list": self.catalog,
            "x-": single.vendor,
        }
        rate = keeping.rate
        self.handlers: Mapping[str, Handler] = (
            handlers if rate is None else {name: _counted(one, rate) for name, one in handlers.items()}
        )

    def snapshot(self, caller: Caller) -> Snapshot:
        """What this caller is told at ``initialize``, and what its calls are planned against."""
        return self._fleet.snapshot(narrowed(caller, self._profile))

    def conformance(self, snapshot: Snapshot) -> str:
        """The level that these capabilities can prove (section 14); L2 needs all that it is made of to be real."""
        return "L2" if full(snapshot.capabilities) else "L1"

    def explain(self, request: RetrieveRequest, caller: Caller) -> Explained:
        """What a retrieve would do, and what it would lose. No engine is asked."""
        return self._retrieval.explain(filled(request, self._profile), self.snapshot(caller))

    async def _retrieve(self, request: RetrieveRequest, call: ClientCall) -> Any:
        """``retrieve`` with what the profile adds to a request."""
        return await self._retrieval.retrieve(filled(request, self._profile), call)

    async def probe(self, id: str, caller: Caller) -> list[Found]:
        """How the engine really filters; writes scratch documents into it and removes them again."""
        snapshot = self.snapshot(caller)
        deadline = Deadline.after(_PROBE_SECONDS, client=False, reserve=self._defaults.reserve)
        route = Route(depth=self._defaults.depth, path=(self._defaults.identity,))
        single = Single(target(snapshot, "index", id).member, deadline, route, cycle=False)
        return await probe(single, snapshot)

    async def catalog(self, request: Any, call: ClientCall) -> CatalogResult:
        """The engines in the caller's scope. What leads to them (addresses, commands) is never told."""
        snapshot: Snapshot = call.snapshot
        entries = [
            CatalogEntry(
                id=view.id,
                server=PeerInfo(name=view.member.spec.kind.name),
                capabilities=capabilities_to_wire(published(view.capabilities)),
                meta={"x-gateway": {"state": view.member.state, "breaker": view.member.breaker.state}},
            )
            for view in snapshot.views
        ]
        return CatalogResult(engines=tuple(entries))


def _counted(handler: Handler, rate: Rate) -> Handler:
    """The handler for callers that have not asked too often."""

    async def counted(params: Any, call: ClientCall) -> Any:
        await rate.admit(call.caller.id)
        return await handler(params, call)

    return counted
