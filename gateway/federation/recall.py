"""Asking the engines at once. One function owns the concurrency of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gateway.errors import Timeout
from gateway.federation.capability import Snapshot
from gateway.federation.embeddings import Embeddings
from gateway.federation.leg import Ask, Leg
from gateway.federation.loss import LEFT_BEHIND, Failure, said
from gateway.federation.plan import RetrievePlan
from gateway.federation.questions import one_of
from gateway.federation.reading import Reply, read
from gateway.federation.runner import Deadline, EngineCall, end_all, run
from gateway.federation.transform import Form
from gateway.federation.vectors import QueryVectors, Vectors
from gateway.spi.call import Call, ClientCall, Route
from gateway.spi.engine import Engine

__all__ = ["Outcome", "recall"]

Outcome = Reply | Failure

SHARE = (0.1, 0.75)
"""Where recall begins and ends in the progress of a call: transforming comes before, fusing and refining after."""


async def recall(
    plan: RetrievePlan,
    forms: Sequence[Form],
    snapshot: Snapshot,
    call: ClientCall,
    deadline: Deadline,
    route: Route,
    *,
    embeddings: Embeddings,
    verify: bool = True,
    answered: Callable[[float, Outcome], None] | None = None,
) -> list[Outcome]:
    """Runs the plan's turns until one has an answer; outcomes come in plan order, whatever order they arrived in.

    ``forms`` are the queries to search with, at least one. ``answered`` is told of each outcome as it comes, with the
    progress of the whole call. A required engine that fails ends the call: the others are cancelled and awaited for at
    most the reserve, and only the outcomes known by then are returned.
    """
    outcomes: list[Outcome] = []
    for legs in plan.turns:
        turn = _Turn(legs, forms, plan, snapshot, call, deadline, route, embeddings, verify, answered)
        outcomes += await turn.run()
        if turn.over or any(isinstance(outcome, Reply) for outcome in outcomes):
            break
    return outcomes


@dataclass(slots=True)
class _Turn:
    legs: Sequence[Leg]
    forms: Sequence[Form]
    plan: RetrievePlan
    snapshot: Snapshot
    call: ClientCall
    deadline: Deadline
    route: Route
    shared: Embeddings
    verify: bool
    answered: Callable[[float, Outcome], None] | None
    over: bool = False
    """True once a required engine has failed."""
    fractions: dict[str, float] = field(default_factory=dict)

    async def run(self) -> list[Outcome]:
        vectors = QueryVectors(
            self.legs, self.forms, self.snapshot, self.shared, self.route, self.deadline, self._embedded
        )
        tasks = {asyncio.create_task(self._leg(leg, vectors), name=f"leg {leg.id}"): leg for leg in self.legs}
        ends = {task: self._end_of(leg) for task, leg in tasks.items()}
        outcomes: dict[str, Outcome] = {}
        pending: Collection[asyncio.Task[Outcome]] = tasks
        enough: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while pending and not self.over:
                # Legs end themselves in time; the wait is bounded for the one that swallows its cancellation.
                end = max(ends[task] for task in pending)
                end = end if enough is None else min(end, enough)
                done, pending = await asyncio.wait(
                    pending, timeout=max(0.0, end - clock()), return_when="FIRST_COMPLETED"
                )
                if not done:
                    break
                for task in (task for task in tasks if task in done):
                    outcomes[tasks[task].id] = self._known(tasks[task], task.result())
                if enough is None and self._enough(outcomes.values(), [tasks[task] for task in pending]):
                    enough = clock() + (self.plan.quorum.grace if self.plan.quorum is not None else 0.0)
        finally:
            await end_all({*pending, *vectors.tasks}, self.deadline)
        if not self.over:
            for task in pending:
                leg = tasks[task]
                outcomes[leg.id] = self._stuck(leg) if enough is None else self._late(leg)
        return [outcomes[leg.id] for leg in self.legs if leg.id in outcomes]

    def _enough(self, outcomes: Collection[Outcome], pending: Sequence[Leg]) -> bool:
        """Whether those still out may be left behind: enough have answered, and nobody required is among them."""
        quorum = self.plan.quorum
        if quorum is None or any(leg.view.member.settings.required for leg in pending):
            return False
        return sum(isinstance(outcome, Reply) for outcome in outcomes) >= quorum.answers

    def _known(self, leg: Leg, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Failure) and leg.view.member.settings.required:
            self.over = True
        self.fractions[leg.id] = 1.0  # others' progress is told on top of it
        if self.answered is not None:
            self.answered(self._done(), outcome)
        return outcome

    def _stuck(self, leg: Leg) -> Failure:
        cut = self.deadline.cuts(leg.view.member.settings.timeout)
        return Failure(leg.id, Timeout("no answer in time"), True, cut and self.deadline.client)

    def _late(self, leg: Leg) -> Failure:
        return Failure(leg.id, Timeout(LEFT_BEHIND), True, late=True)

    def _end_of(self, leg: Leg) -> float:
        """When a leg that does as it is told has ended, in the event loop's time."""
        budget = min(leg.view.member.settings.timeout, self.deadline.remaining())
        return asyncio.get_running_loop().time() + budget + self.deadline.reserve / 2

    def _leg(self, leg: Leg, vectors: QueryVectors) -> Coroutine[Any, Any, Outcome]:
        """All questions to one engine; each has its place in the engine's queue, its retries and its time."""
        questions = [(ask, form) for form in self.forms for ask in leg.asks]
        if len(questions) == 1:
            return self._question(leg, *questions[0], vectors)
        return self._questions(leg, questions, vectors)

    async def _questions(self, leg: Leg, questions: Sequence[tuple[Ask, Form]], vectors: QueryVectors) -> Outcome:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._question(leg, ask, form, vectors)) for ask, form in questions]
        return one_of(leg, [task.result() for task in tasks])

    async def _question(self, leg: Leg, ask: Ask, form: Form, vectors: QueryVectors) -> Outcome:
        reply = Reply(leg)
        ready = Vectors()

        async def prepare() -> None:
            nonlocal ready
            ready = await vectors.of(ask, form)

        async def retrieve(engine: Engine, call: Call) -> Reply:
            query = form.asked(ask.query)
            if ready.dense is not None or ready.sparse is not None:
                query = replace(query, vector=ready.dense, sparse_vector=ready.sparse)
            await read(leg, query, engine, call, reply, verify=self.verify)
            return reply

        call = EngineCall(
            self.route,
            progress=lambda fraction, stage: self._progress(leg, fraction, stage),
            log=self._log,
            log_level=self.call.log_level,
        )
        waits = ask.need is not None or ask.sparse is not None
        outcome = await run(leg.view.member, retrieve, call, self.deadline, prepare=prepare if waits else None)
        if isinstance(outcome, Failure) and outcome.timed_out and reply.pages:
            reply.tell("partial", "time ran out before all of it was read")
            return reply
        return outcome

    def _embedded(self, embedder: str) -> None:
        self.call.progress(SHARE[0], "embed", embedder or None)

    def _progress(self, leg: Leg, fraction: float, stage: str) -> None:
        if not 0 <= fraction <= 1:
            return
        self.fractions[leg.id] = max(fraction, self.fractions.get(leg.id, 0.0))
        self.call.progress(self._done(), "recall", f"{leg.id}: {said(stage)}" if stage else leg.id)

    def _done(self) -> float:
        begin, end = SHARE
        return begin + (end - begin) * sum(self.fractions.values()) / len(self.legs)

    def _log(self, level: str, message: str, data: Mapping[str, object] | None) -> None:
        self.call.log(level, said(message), data)
