"""Asking the engines at once. One function owns the concurrency of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace

from msgspec.structs import replace

from gateway.errors import BackendUnavailable, Timeout, UpstreamError
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings, Vector
from gateway.federation.loss import Failure, Loss
from gateway.federation.plan import Leg, RetrievePlan
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.filters import judged
from gateway.model import Hit, meta_of
from gateway.spi.call import Call, ClientCall, Route
from gateway.spi.engine import Engine

__all__ = ["Outcome", "Reply", "recall"]

logger = logging.getLogger("gateway.recall")

_REFILLS = 4


@dataclass(slots=True)
class Reply:
    """One engine's hits, best first, after residual and verification. ``partial`` if time ran out while refilling."""

    leg: Leg
    hits: list[Hit] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    scanned: int = 0
    pages: int = 0


Outcome = Reply | Failure

_Embedding = asyncio.Task[Vector | Failure]


async def recall(
    plan: RetrievePlan,
    snapshot: Snapshot,
    call: ClientCall,
    deadline: Deadline,
    route: Route,
    *,
    embeddings: Embeddings,
    verify: bool = True,
    answered: Callable[[int, int, Outcome], None] | None = None,
) -> list[Outcome]:
    """Runs the plan's turns until one has an answer; outcomes come in plan order, whatever order they arrived in.

    ``answered`` is told of each outcome as it comes: how many are there, of how many, and the outcome. A required
    engine that fails ends the call: the others are cancelled and awaited for at most the reserve.
    """
    outcomes: list[Outcome] = []
    for turn in plan.turns:
        outcomes += await _Turn(turn, plan, snapshot, call, deadline, route, embeddings, verify, answered).run()
        if any(isinstance(outcome, Reply) for outcome in outcomes):
            break
    return outcomes


@dataclass(slots=True)
class _Turn:
    legs: Sequence[Leg]
    plan: RetrievePlan
    snapshot: Snapshot
    call: ClientCall
    deadline: Deadline
    route: Route
    shared: Embeddings
    verify: bool
    answered: Callable[[int, int, Outcome], None] | None
    fractions: dict[str, float] = field(default_factory=dict)

    async def run(self) -> list[Outcome]:
        embeddings = self._embeddings()
        tasks = {asyncio.create_task(self._leg(leg, embeddings), name=f"leg {leg.id}"): leg for leg in self.legs}
        outcomes: dict[str, Outcome] = {}
        pending: set[asyncio.Task[Outcome]] = set(tasks)
        try:
            while pending:
                # Legs end themselves in time; the wait is bounded for the one that swallows its cancellation.
                done, pending = await asyncio.wait(
                    pending,
                    timeout=self.deadline.remaining() + self.deadline.reserve / 2,
                    return_when="FIRST_COMPLETED",
                )
                for task in done:
                    outcome = task.result()
                    outcomes[tasks[task].id] = outcome
                    if self.answered is not None:
                        self.answered(len(outcomes), len(self.legs), outcome)
                    if isinstance(outcome, Failure) and tasks[task].view.member.settings.required:
                        return self._in_order(outcomes, "not awaited: a required engine failed")
                if not done:
                    break
        finally:
            await self._end({*pending, *embeddings.values()})
        return self._in_order(outcomes, "no answer before the deadline")

    def _in_order(self, outcomes: Mapping[str, Outcome], missing: str) -> list[Outcome]:
        return [
            outcomes.get(leg.id)
            or Failure(leg.id, Timeout(missing), timed_out=True, client_deadline=self.deadline.client)
            for leg in self.legs
        ]

    async def _end(self, tasks: set[asyncio.Task[Outcome] | _Embedding]) -> None:
        running = {task for task in tasks if not task.done()}
        for task in running:
            task.cancel()
        if running:
            _, stubborn = await asyncio.wait(running, timeout=max(self.deadline.reserve, 0.01))
            for task in stubborn:
                logger.warning("%s ignores its cancellation and is left to itself", task.get_name())

    def _embeddings(self) -> dict[str, _Embedding]:
        """One embedding for each distinct embedder; text legs never wait for it."""
        needs = dict.fromkeys(leg.need.embedder for leg in self.legs if leg.need is not None)
        return {id: asyncio.create_task(self._embed(id), name=f"embed {id}") for id in needs}

    async def _embed(self, id: str) -> Vector | Failure:
        view = self.snapshot.view(id)
        member = view.member if view is not None else None
        if member is None:
            return Failure(id, BackendUnavailable("it is not there"))
        if member.federates and self.route.depth < 0:
            return Failure(id, UpstreamError("the request may not be forwarded any further (depth 0)"))
        found = await self.shared.vectors(member, (self.plan.query,), "query", self.route, self.deadline)
        return found if isinstance(found, Failure) else found[0]

    async def _leg(self, leg: Leg, embeddings: Mapping[str, _Embedding]) -> Outcome:
        reply = Reply(leg)
        member = leg.view.member

        async def retrieve(engine: Engine, call: Call) -> Reply:
            await _pages(leg, await _with_vector(leg, embeddings), engine, call, reply, verify=self.verify)
            return reply

        call = EngineCall(
            self.route, progress=lambda fraction, stage: self._progress(leg, fraction, stage), log=self._log
        )
        outcome = await run(member, retrieve, call, self.deadline)
        if isinstance(outcome, Failure) and outcome.timed_out and reply.pages:
            reply.losses.append(Loss(kind="partial", message="time ran out before all of it was read", engine=leg.id))
            return reply
        return outcome

    def _progress(self, leg: Leg, fraction: float, stage: str) -> None:
        if not 0 <= fraction <= 1:
            return
        self.fractions[leg.id] = max(fraction, self.fractions.get(leg.id, 0.0))
        share = sum(self.fractions.values()) / len(self.legs)
        self.call.progress(0.8 * share, "recall", f"{leg.id}: {stage}" if stage else leg.id)

    def _log(self, level: str, message: str, data: Mapping[str, object] | None) -> None:
        self.call.log(level, message, data)


async def _with_vector(leg: Leg, embeddings: Mapping[str, _Embedding]) -> Leg:
    if leg.need is None:
        return leg
    # Shielded: this leg running out of time must not take the vector from the others.
    vector = await asyncio.shield(embeddings[leg.need.embedder])
    if isinstance(vector, Failure):
        raise BackendUnavailable(
            f"its embedder {vector.engine} failed: {vector.error.message}", retryable=vector.error.retryable
        )
    return dataclass_replace(leg, query=replace(leg.query, vector=vector))


async def _pages(leg: Leg, ready: Leg, engine: Engine, call: Call, reply: Reply, *, verify: bool) -> None:
    """Asks for the window, and for more while a residual filter leaves it unfilled."""
    accept = _acceptance(leg, verify=verify, complete=engine.meta_complete, reply=reply)
    k = leg.depth
    for attempt in range(_REFILLS + 1):
        answer = await engine.retrieve(replace(ready.query, k=k), call)
        hits = list(answer.hits[:k])
        if len(answer.hits) > k and attempt == 0:
            reply.losses.append(
                Loss(kind="dropped", message=f"it gave more than the {k} hits asked for", engine=leg.id)
            )
        reply.losses += [Loss(kind="note", message=note, engine=leg.id) for note in answer.notes]
        reply.hits = [hit for hit in hits if accept(hit)] if accept is not None else hits
        reply.scanned = len(hits)
        reply.pages += 1
        exhausted = answer.exhausted or len(hits) < k
        if leg.pushdown.residual is None or len(reply.hits) >= leg.depth or exhausted or k >= leg.most:
            break
        k = min(k * 2, leg.most)
    short = leg.pushdown.residual is not None and len(reply.hits) < leg.depth and not exhausted
    if short:
        told = f"the filter was applied here: scanned {reply.scanned}, kept {len(reply.hits)}, may be incomplete"
        reply.losses.append(Loss(kind="scanned", message=told, engine=leg.id))
    _apply_min_score(leg, reply)


def _apply_min_score(leg: Leg, reply: Reply) -> None:
    floor = leg.view.member.settings.min_score
    if floor is not None:
        reply.hits = [hit for hit in reply.hits if hit.score is None or hit.score >= floor]


def _acceptance(leg: Leg, *, verify: bool, complete: bool, reply: Reply) -> Callable[[Hit], bool] | None:
    """The check of one hit: the residual must hold; of the rest only a definite contradiction counts."""
    if leg.filter is None:
        return None
    residual = judged(leg.pushdown.residual, complete) if leg.pushdown.residual is not None else None
    whole = judged(leg.filter, complete) if verify else None
    told = False

    def accept(hit: Hit) -> bool:
        nonlocal told
        meta = meta_of(hit)
        if residual is not None and residual(meta) is not True:
            return False
        if whole is not None and whole(meta) is False:
            if not told:
                told = True
                logger.error("engine %s returned a hit that the filter excludes; it was dropped", leg.id)
                reply.losses.append(
                    Loss(kind="dropped", message="hits that the filter excludes were dropped", engine=leg.id)
                )
            return False
        return True

    return accept
