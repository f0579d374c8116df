"""Asking the engines at once. One function owns the concurrency of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.errors import BackendUnavailable, RcpError, Timeout, UpstreamError
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings, Vector
from gateway.federation.loss import Failure, said
from gateway.federation.plan import Leg, RetrievePlan
from gateway.federation.reading import Reply, read
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.spi.call import Call, ClientCall, Route
from gateway.spi.engine import Engine, VectorNeed

__all__ = ["Outcome", "recall"]

logger = logging.getLogger("gateway.recall")

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
    engine that fails ends the call: the others are cancelled and awaited for at most the reserve, and only the
    outcomes known by then are returned.
    """
    outcomes: list[Outcome] = []
    for legs in plan.turns:
        turn = _Turn(legs, plan, snapshot, call, deadline, route, embeddings, verify, answered)
        outcomes += await turn.run()
        if turn.over or any(isinstance(outcome, Reply) for outcome in outcomes):
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
    over: bool = False
    """True once a required engine has failed."""
    fractions: dict[str, float] = field(default_factory=dict)

    async def run(self) -> list[Outcome]:
        embeddings = self._embeddings()
        tasks = {asyncio.create_task(self._leg(leg, embeddings), name=f"leg {leg.id}"): leg for leg in self.legs}
        ends = {task: self._end_of(leg) for task, leg in tasks.items()}
        outcomes: dict[str, Outcome] = {}
        pending: Collection[asyncio.Task[Outcome]] = tasks
        try:
            while pending and not self.over:
                # Legs end themselves in time; the wait is bounded for the one that swallows its cancellation.
                left = max(ends[task] for task in pending) - asyncio.get_running_loop().time()
                done, pending = await asyncio.wait(pending, timeout=max(0.0, left), return_when="FIRST_COMPLETED")
                if not done:
                    break
                for task in (task for task in tasks if task in done):
                    outcomes[tasks[task].id] = self._known(tasks[task], task.result(), len(outcomes) + 1)
        finally:
            await self._end({*pending, *embeddings.values()})
        if not self.over:
            for task in pending:
                outcomes[tasks[task].id] = self._stuck(tasks[task])
        return [outcomes[leg.id] for leg in self.legs if leg.id in outcomes]

    def _known(self, leg: Leg, outcome: Outcome, count: int) -> Outcome:
        if isinstance(outcome, Failure) and leg.view.member.settings.required:
            self.over = True
        self.fractions[leg.id] = 1.0  # others' progress is told on top of it
        if self.answered is not None:
            self.answered(count, len(self.legs), outcome)
        return outcome

    def _stuck(self, leg: Leg) -> Failure:
        cut = self.deadline.cuts(leg.view.member.settings.timeout)
        return Failure(leg.id, Timeout("no answer in time"), True, cut and self.deadline.client)

    def _end_of(self, leg: Leg) -> float:
        """When a leg that does as it is told has ended, in the event loop's time."""
        budget = min(leg.view.member.settings.timeout, self.deadline.remaining())
        return asyncio.get_running_loop().time() + budget + self.deadline.reserve / 2

    async def _end(self, tasks: set[asyncio.Task[Outcome] | _Embedding]) -> None:
        """Cancels what still runs and waits for it: at most the reserve, and not beyond the deadline."""
        running = {task for task in tasks if not task.done()}
        for task in running:
            task.cancel()
        if running:
            left = (self.deadline.at - asyncio.get_running_loop().time()) / 2
            _, stubborn = await asyncio.wait(running, timeout=max(0.005, min(self.deadline.reserve, left)))
            for task in stubborn:
                logger.warning("%s ignores its cancellation and is left to itself", task.get_name())

    def _embeddings(self) -> dict[str, _Embedding]:
        """One embedding for each distinct embedder; text legs never wait for it."""
        needs = dict.fromkeys(leg.need.embedder for leg in self.legs if leg.need is not None)
        return {id: asyncio.create_task(self._embed(id), name=f"embed {id}") for id in needs}

    async def _embed(self, id: str) -> Vector | Failure:
        member = self.snapshot.embedder(id)
        if member is None:
            return Failure(id, BackendUnavailable("it is not there"))
        if member.federates and self.route.depth < 0:
            return Failure(id, UpstreamError("the request may not be forwarded any further (depth 0)"))
        found = await self.shared.vectors(member, (self.plan.query,), "query", self.route, self.deadline)
        return found if isinstance(found, Failure) else found[0]

    async def _leg(self, leg: Leg, embeddings: Mapping[str, _Embedding]) -> Outcome:
        reply = Reply(leg)
        vector: Vector | None = None

        async def prepare() -> None:
            nonlocal vector
            if leg.need is not None:
                # Shielded: this leg running out of time must not take the vector from the others.
                vector = self._fitting(leg.need, await asyncio.shield(embeddings[leg.need.embedder]))

        async def retrieve(engine: Engine, call: Call) -> Reply:
            await read(leg, vector, engine, call, reply, verify=self.verify)
            return reply

        call = EngineCall(
            self.route, progress=lambda fraction, stage: self._progress(leg, fraction, stage), log=self._log
        )
        outcome = await run(leg.view.member, retrieve, call, self.deadline, prepare=prepare)
        if isinstance(outcome, Failure) and outcome.timed_out and reply.pages:
            reply.tell("partial", "time ran out before all of it was read")
            return reply
        return outcome

    def _fitting(self, need: VectorNeed, vector: Vector | Failure) -> Vector:
        """The embedding if it can be used. An embedder that the caller may not see is not named, nor quoted."""
        seen = self.snapshot.view(need.embedder) is not None
        name = f"its embedder {need.embedder}" if seen else "its embedder"
        if isinstance(vector, Failure):
            error = vector.error
            told = f"{name} failed: {error.message}" if seen else f"{name} failed"
            raise Timeout(told) if vector.client_deadline else _unavailable(told, error)
        if need.dimension and len(vector) != need.dimension:
            raise UpstreamError(f"it needs vectors of {need.dimension} numbers; {name} gives {len(vector)}")
        return vector

    def _progress(self, leg: Leg, fraction: float, stage: str) -> None:
        if not 0 <= fraction <= 1:
            return
        self.fractions[leg.id] = max(fraction, self.fractions.get(leg.id, 0.0))
        share = sum(self.fractions.values()) / len(self.legs)
        self.call.progress(0.8 * share, "recall", f"{leg.id}: {said(stage)}" if stage else leg.id)

    def _log(self, level: str, message: str, data: Mapping[str, object] | None) -> None:
        self.call.log(level, said(message), data)


def _unavailable(message: str, error: RcpError) -> BackendUnavailable:
    wait = error.data.get("retryAfterMs")
    return BackendUnavailable(message, retryable=error.retryable, data=None if wait is None else {"retryAfterMs": wait})
