"""The handlers of the RCP methods. :meth:`Service.retrieve` is the straight line: plan, recall, fuse, refine."""

from __future__ import annotations

import base64
import math
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.caller import Caller
from gateway.errors import CallerError, Code, InternalError, invalid_params, option_unsupported
from gateway.federation.capability import Snapshot
from gateway.federation.fleet import Fleet
from gateway.federation.loss import Failure, Loss
from gateway.federation.plan import Defaults, RetrievePlan, plan
from gateway.federation.recall import Outcome, Reply, recall
from gateway.federation.route import deadline_of, route_of, visited
from gateway.federation.runner import Deadline
from gateway.federation.single import Single, embed, id_text, index_add, index_delete, rerank, target
from gateway.federation.verdict import judge
from gateway.fusion import Fused, fuse
from gateway.model import (
    CatalogEntry,
    CatalogResult,
    Content,
    EmbedRequest,
    EmbedResult,
    IndexAddRequest,
    IndexAddResult,
    IndexDeleteRequest,
    IndexDeleteResult,
    PeerInfo,
    RerankRequest,
    RerankResult,
    RetrieveRequest,
    RetrieveResult,
    capabilities_to_wire,
    text_of,
)
from gateway.refine.pack import Answer, pack, sealed
from gateway.spi.call import ClientCall
from gateway.spi.engine import RerankQuery

__all__ = ["Service"]

Handler = Callable[[Any, ClientCall], Awaitable[Any]]


class Service:
    """What the gateway answers. Holds no request; everything a call needs comes with it."""

    conformance: str

    def __init__(self, fleet: Fleet, defaults: Defaults, fusion: Fusion, info: PeerInfo, *, conformance: str) -> None:
        self.info = info
        self.conformance = conformance
        self._fleet = fleet
        self._defaults = defaults
        self._fusion = fusion
        self.handlers: Mapping[str, Handler] = {
            "retrieve": self.retrieve,
            "embed": self.embed,
            "rerank": self.rerank,
            "index/add": self.index_add,
            "index/delete": self.index_delete,
            "catalog/list": self.catalog,
        }

    def snapshot(self, caller: Caller) -> Snapshot:
        return self._fleet.snapshot(caller)

    async def retrieve(self, request: RetrieveRequest, call: ClientCall) -> RetrieveResult:
        started = time.perf_counter()
        deadline, route = self._limits(call)
        planned = plan(request, call.snapshot, call.meta, route=route, cycle=self._cycle(call), defaults=self._defaults)
        told = self._teller(planned, call)
        outcomes = await recall(planned, call.snapshot, call, deadline, route, verify=self._defaults.verify, answered=told)
        losses = [*planned.losses, *judge(call.snapshot, planned.reasons, outcomes)]
        fused, notes = self._fusion.fuse(planned, outcomes)
        kept, cuts = cut(fused, planned.min_score, planned.method)
        losses += [Loss(kind="note", message=note) for note in (*notes, *cuts)]
        return pack(kept, planned, outcomes, losses, started)
