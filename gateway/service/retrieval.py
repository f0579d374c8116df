"""``retrieve``: the straight line of plan, recall, fuse, refine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway._json import Raw
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings
from gateway.federation.explain import explained
from gateway.federation.loss import Failure, Loss, notes_of
from gateway.federation.origins import Origins
from gateway.federation.plan import Defaults, RetrievePlan, plan
from gateway.federation.reading import Reply
from gateway.federation.recall import Outcome, recall
from gateway.federation.route import route_of, visited
from gateway.federation.verdict import admit, judge
from gateway.filters import compiled
from gateway.fusion import Fused, Ranking, fuse, read_identity
from gateway.model import RetrieveRequest, RetrieveResult
from gateway.refine.cut import cut
from gateway.refine.pack import pack, sealed
from gateway.service.limits import deadline_for, route_for
from gateway.spi.call import ClientCall

__all__ = ["Retrieval"]


class Retrieval:
    """Holds no request; everything a call needs comes with it."""

    def __init__(self, defaults: Defaults, embeddings: Embeddings, origins: Origins) -> None:
        self._defaults = defaults
        self._origins = origins
        self._embeddings = embeddings
        self._identity = read_identity(defaults.document_identity)

    async def retrieve(self, request: RetrieveRequest, call: ClientCall) -> RetrieveResult:
        started = time.perf_counter()
        deadline = deadline_for(call, self._defaults)
        route, cycle = route_for(call, self._defaults)
        planned = plan(request, call.snapshot, call.meta, route=route, cycle=cycle, defaults=self._defaults)
        admit(call.snapshot, planned)
        told = self._teller(planned, call)
        outcomes = await recall(
            planned,
            call.snapshot,
            call,
            deadline,
            route,
            embeddings=self._embeddings,
            verify=self._defaults.verify,
            answered=told,
        )
        losses = [*planned.losses, *judge(call.snapshot, planned, outcomes)]
        fused, notes = self._fuse(planned, outcomes)
        kept, cuts = cut(fused, planned.min_score, planned.strategy.name)
        losses += [Loss(kind="note", message=note) for note in (*notes, *cuts)]
        if call.snapshot.capabilities.feedback is not None:
            self._origins.remember(call.caller.id, kept[: planned.k])
        return self._packed(planned, kept, outcomes, losses, started)

    def explain(self, request: RetrieveRequest, snapshot: Snapshot) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """What a retrieve would do, per engine, and what it would lose. No engine is asked."""
        meta = request.meta or {}
        route = route_of(meta, identity=self._defaults.identity, limit=self._defaults.depth)
        planned = plan(
            request,
            snapshot,
            meta,
            route=route,
            cycle=visited(meta, self._defaults.identity),
            defaults=self._defaults,
        )
        return explained(planned), notes_of(planned.losses)

    def _fuse(self, planned: RetrievePlan, outcomes: Sequence[Outcome]) -> tuple[list[Fused], list[str]]:
        rankings = [_ranking(order, one) for order, one in enumerate(outcomes) if isinstance(one, Reply)]
        fused, notes = fuse(
            rankings,
            planned.strategy,
            self._identity,
            planned_max_weight=planned.scale.max_weight,
            planned_total_weight=planned.scale.total_weight,
            limit=planned.k,
        )
        return fused, [note.text for note in notes]

    def _sealed(self, planned: RetrievePlan, fused: Sequence[Fused]) -> tuple[Raw, ...]:
        keep = compiled(planned.filter) if planned.filter is not None else None
        return sealed(
            fused, planned.k, include_text=planned.include_text, include_vectors=planned.include_vectors, keep=keep
        )

    def _packed(
        self,
        planned: RetrievePlan,
        fused: Sequence[Fused],
        outcomes: Sequence[Outcome],
        losses: Sequence[Loss],
        started: float,
    ) -> RetrieveResult:
        replies = [one for one in outcomes if isinstance(one, Reply)]
        degraded = dict.fromkeys(loss.engine for loss in losses if loss.kind in ("failed", "timeout") and loss.engine)
        return pack(
            self._sealed(planned, fused),
            candidates=sum(reply.scanned for reply in replies),
            started=started,
            notes=notes_of(losses),
            degraded=tuple(degraded),
            vendor={
                "scale": planned.strategy.name,
                "engines": [reply.leg.id for reply in replies],
                "losses": list(losses),
            },
        )

    def _teller(self, planned: RetrievePlan, call: ClientCall) -> Callable[[int, int, Outcome], None] | None:
        """Tells the client of each engine as it answers, with its hits as they would stand alone (section 9)."""
        if not call.wants_progress:
            return None

        def tell(done: int, of: int, outcome: Outcome) -> None:
            if isinstance(outcome, Failure):
                call.progress(0.8 * done / of, "recall", f"{outcome.engine}: failed")
                return
            fused, _ = self._fuse(planned, [outcome])
            kept, _ = cut(fused, planned.min_score, planned.strategy.name)
            message = f"{outcome.leg.id}: {len(outcome.hits)} hits"
            call.progress(0.8 * done / of, "recall", message, self._sealed(planned, kept))

        return tell


def _ranking(order: int, reply: Reply) -> Ranking:
    leg = reply.leg
    settings = leg.view.member.settings
    return Ranking(
        engine=leg.id,
        hits=reply.hits,
        order=order,
        weight=leg.weight,
        corpus=settings.corpus,
        trust=settings.trust,
        mode=leg.offer.mode,
        floor=leg.offer.floor,
    )
