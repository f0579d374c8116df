"""Asking the engines at once. One function owns the concurrency of a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import Timeout
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings
from gateway.federation.loss import Failure, said
from gateway.federation.plan import Leg, RetrievePlan
from gateway.federation.reading import Reply, read
from gateway.federation.runner import Deadline, EngineCall, run
from gateway.federation.vectors import QueryVectors, Vectors
from gateway.spi.call import Call, ClientCall, Route
from gateway.spi.engine import Engine

__all__ = ["Outcome", "recall"]

logger = logging.getLogger("gateway.recall")

Outcome = Reply | Failure


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
        vectors = QueryVectors(self.legs, self.plan.query, self.snapshot, self.shared, self.route, self.deadline)
        tasks = {asyncio.create_task(self._leg(leg, vectors), name=f"leg {leg.id}"): leg for leg in self.legs}
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
            await self._end({*pending, *vectors.tasks})
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

    async def _end(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Cancels what still runs and waits for it: at most the reserve, and not beyond the deadline."""
        running = {task for task in tasks if not task.done()}
        for task in running:
            task.cancel()
        if running:
            left = (self.deadline.at - asyncio.get_running_loop().time()) / 2
            _, stubborn = await asyncio.wait(running, timeout=max(0.005, min(self.deadline.reserve, left)))
            for task in stubborn:
                logger.warning("%s ignores its cancellation and is left to itself", task.get_name())

    async def _leg(self, leg: Leg, vectors: QueryVectors) -> Outcome:
        reply = Reply(leg)
        ready = Vectors()

        async def prepare() -> None:
            nonlocal ready
            ready = await vectors.of(leg)

        async def retrieve(engine: Engine, call: Call) -> Reply:
            await read(leg, ready.dense, ready.sparse, engine, call, reply, verify=self.verify)
            return reply

        call = EngineCall(
            self.route,
            progress=lambda fraction, stage: self._progress(leg, fraction, stage),
            log=self._log,
            log_level=self.call.log_level,
        )
        outcome = await run(leg.view.member, retrieve, call, self.deadline, prepare=prepare)
        if isinstance(outcome, Failure) and outcome.timed_out and reply.pages:
            reply.tell("partial", "time ran out before all of it was read")
            return reply
        return outcome

    def _progress(self, leg: Leg, fraction: float, stage: str) -> None:
        if not 0 <= fraction <= 1:
            return
        self.fractions[leg.id] = max(fraction, self.fractions.get(leg.id, 0.0))
        share = sum(self.fractions.values()) / len(self.legs)
        self.call.progress(0.8 * share, "recall", f"{leg.id}: {said(stage)}" if stage else leg.id)

    def _log(self, level: str, message: str, data: Mapping[str, object] | None) -> None:
        self.call.log(level, said(message), data)
