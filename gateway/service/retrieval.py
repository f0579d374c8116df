"""``retrieve``: the straight line of plan, recall, fuse, refine, pack."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gateway._json import Raw, canonical
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings
from gateway.federation.explain import Explained, explained
from gateway.federation.loss import Failure, Loss, notes_of
from gateway.federation.origins import Origins
from gateway.federation.plan import Defaults, RetrievePlan, plan
from gateway.federation.profile import EVERYTHING, Profile
from gateway.federation.reading import Reply
from gateway.federation.recall import Outcome, recall
from gateway.federation.route import route_of, visited
from gateway.federation.runner import Deadline
from gateway.federation.transform import Forms, transformed
from gateway.federation.verdict import admit, judge
from gateway.federation.version import composite
from gateway.fusion import Fused, Ranking, fuse, read_identity
from gateway.model import RetrieveRequest, RetrieveResult
from gateway.refine.candidate import Candidate
from gateway.refine.line import Refined, refine
from gateway.refine.tokens import Tokens
from gateway.service.keeping import Keeping
from gateway.service.later import Fuse, Later
from gateway.service.limits import deadline_for, route_for
from gateway.service.pages import Answer, Pages
from gateway.service.progress import Teller
from gateway.service.refining import (
    across,
    keeper,
    plain,
    recall_deadline,
    refinements,
    scorer,
    sealer,
    transform_deadline,
    undated,
    unranked,
)
from gateway.spi.call import ClientCall, Route
from gateway.state import digest

__all__ = ["Retrieval"]


class Retrieval:
    """Holds no request; everything a call needs comes with it."""

    def __init__(
        self, defaults: Defaults, embeddings: Embeddings, keeping: Keeping, tokens: Tokens, origins: Origins
    ) -> None:
        self._defaults = defaults
        self._origins = origins
        self._embeddings = embeddings
        self._identity = read_identity(defaults.document_identity)
        self._pages = Pages(keeping, tokens, max_k=defaults.max_k, bound=_bound(defaults.profile))

    async def retrieve(self, request: RetrieveRequest, call: ClientCall) -> RetrieveResult:
        started = time.perf_counter()
        deadline = deadline_for(call, self._defaults)
        if request.cursor is not None:
            return await self._pages.next(request, call, started, deadline)
        route, cycle = route_for(call, self._defaults)
        seen = await self._pages.seen(request, call, deadline)
        planned = plan(
            request, call.snapshot, call.meta, route=route, cycle=cycle, defaults=self._defaults, seen=len(seen)
        )
        admit(call.snapshot, planned)
        fusing = self._fusing(planned)
        teller = Teller(call, planned, lambda replies: fusing(_rankings(planned, replies))[0], seen)
        forms = await transformed(planned, transform_deadline(planned, deadline), route)
        teller.transformed(forms)
        outcomes = await self._recall(planned, forms, call, deadline, route, teller)
        losses = [*planned.losses, *forms.losses, *judge(call.snapshot, planned, outcomes)]
        rankings = _rankings(planned, outcomes)
        # What only orders what is beyond the first page can wait until somebody asks for it; one more tells that it is.
        waits = plain(planned) and not seen and not call.wants_progress and self._pages.may_wait(call)
        fused, notes = fusing(rankings, planned.k + 1 if waits else None)
        fused, unscored = await across(planned, fused, deadline, route, cycle=cycle)
        teller.fused(fused)
        refined = await refine(
            fused,
            refinements(planned, undated=self._defaults.undated),
            query=planned.query,
            scale=planned.scored_by,
            score=scorer(planned, deadline, route, cycle=cycle),
            now=time.time(),
            seen=seen,
            told=teller.stage,
            keep=keeper(planned),
            vectors_comparable=planned.stages.comparable,
            remaining=deadline.remaining,
        )
        losses += [*unscored, *unranked(planned, refined.failed)]
        losses += [undated(planned, call.snapshot)] if refined.undated else []
        losses += [Loss(kind="note", message=note) for note in (*notes, *seen.notes, *refined.notes)]
        seal = self._sealer(planned, call)
        later = Later(rankings, fusing, seal, _weight(request)) if waits else None
        answer = _answer(planned, forms, outcomes, refined, losses, seal, later)
        return await self._pages.first(request, call, answer, started, deadline)

    def explain(self, request: RetrieveRequest, snapshot: Snapshot) -> Explained:
        """What a retrieve would do, and what it would lose. No engine is asked."""
        meta = request.meta or {}
        route = route_of(meta, identity=self._defaults.identity, limit=self._defaults.depth)
        cycle = visited(meta, self._defaults.identity)
        planned = plan(request, snapshot, meta, route=route, cycle=cycle, defaults=self._defaults)
        return explained(planned)

    async def _recall(
        self,
        planned: RetrievePlan,
        forms: Forms,
        call: ClientCall,
        deadline: Deadline,
        route: Route,
        teller: Teller,
    ) -> list[Outcome]:
        return await recall(
            planned,
            forms.forms,
            call.snapshot,
            call,
            recall_deadline(planned, deadline),
            route,
            embeddings=self._embeddings,
            verify=self._defaults.verify,
            answered=teller.answered,
        )

    def _fusing(self, planned: RetrievePlan) -> Fuse:
        """The plan's fusion, and nothing else of the plan."""
        strategy, scale, identity = planned.strategy, planned.scale, self._identity

        def fused(rankings: Sequence[Ranking], limit: int | None = None) -> tuple[list[Fused], list[str]]:
            found, notes = fuse(
                rankings,
                strategy,
                identity,
                planned_max_weight=scale.max_weight,
                planned_total_weight=scale.total_weight,
                limit=limit,
            )
            return found, [note.text for note in notes]

        return fused

    def _sealer(self, planned: RetrievePlan, call: ClientCall) -> Callable[[Sequence[Candidate]], tuple[Raw, ...]]:
        """How hits are sealed. If feedback on them can be told on, it is remembered whose they are."""
        seal, origins, caller = sealer(planned), self._origins, call.caller.id
        if call.snapshot.capabilities.feedback is None:
            return seal

        def remembered(found: Sequence[Candidate]) -> tuple[Raw, ...]:
            origins.remember(caller, [one.fused for one in found])
            return seal(found)

        return remembered


def _bound(profile: Profile) -> str:
    """What of the profile a cursor holds under, beside the options that it fills into the request."""
    return "" if profile is EVERYTHING else digest(profile.name, profile.filter)


def _weight(request: RetrieveRequest) -> int:
    """What sealing keeps of the request, in bytes: a filter takes about so much more memory than its JSON."""
    return 0 if request.filter is None else 16 * len(canonical(request.filter))


def _rankings(planned: RetrievePlan, outcomes: Sequence[Outcome]) -> list[Ranking]:
    """Those of the replies, each with its place in the plan, whatever order they came in."""
    order = {leg.id: place for place, leg in enumerate(planned.legs)}
    return [_ranking(order[one.leg.id], one) for one in outcomes if isinstance(one, Reply)]


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


def _answer(
    planned: RetrievePlan,
    forms: Forms,
    outcomes: Sequence[Outcome],
    refined: Refined,
    losses: Sequence[Loss],
    seal: Callable[[Sequence[Candidate]], tuple[Raw, ...]],
    later: Later | None,
) -> Answer:
    replies = [one for one in outcomes if isinstance(one, Reply)]
    versions = {reply.leg.id: reply.version for reply in replies}
    known = {id: version for id, version in versions.items() if version is not None}
    rewritten = forms.told or next((reply.rewritten for reply in replies if reply.rewritten is not None), None)
    missing = dict.fromkeys(loss.engine for loss in losses if loss.kind in ("failed", "timeout") and loss.engine)
    missing |= dict.fromkeys(reply.leg.id for reply in replies if reply.degraded)
    return Answer(
        candidates=refined.candidates,
        k=planned.k,
        budget=planned.budget,
        seal=seal,
        scanned=sum(reply.scanned for reply in replies),
        reranked=refined.reranked,
        notes=notes_of(losses),
        degraded=tuple(missing),
        # Only what this same call may pin.
        index_version=composite(known) if planned.versioned and len(known) == len(versions) else None,
        rewritten=rewritten,
        vendor={
            "scale": refined.scale,
            "engines": [reply.leg.id for reply in replies],
            "seen": refined.seen,
            "losses": list(losses),
        },
        whole=not any(isinstance(one, Failure) and one.late for one in outcomes),
        later=later,
    )
