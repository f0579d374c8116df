"""Asking several engines at once, for methods other than ``retrieve``: who is asked, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gateway.errors import Timeout
from gateway.federation.capability import View
from gateway.federation.fleet import Member
from gateway.federation.loss import Failure, Loss, Reason, said
from gateway.federation.runner import Deadline, EngineCall, end_all, run
from gateway.federation.verdict import raise_if_nobody_answered, surfaced
from gateway.spi.call import Call, ClientCall, Route
from gateway.spi.engine import Engine

__all__ = ["Answers", "Errand", "Journey", "ask_several", "barred", "engine_call"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Errand(Generic[T]):
    """What one engine is asked."""

    view: View
    ask: Callable[[Engine, Call], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Journey:
    """The client's call, with its time and how far it may go."""

    call: ClientCall
    deadline: Deadline
    route: Route
    cycle: bool


def barred(member: Member, route: Route, *, cycle: bool, fanned: bool = False) -> Reason | None:
    """Why an engine that would hand the request on may not be asked.

    One of several asked at once (``fanned``) has been asked already where the request comes here a second time.
    """
    if not (cycle and fanned) and (not member.federates or (not cycle and route.depth >= 0)):
        return None
    why = "has passed this gateway before: a cycle" if cycle else "may not be forwarded any further (depth 0)"
    return Reason(member.settings.id, "left-out", f"the request {why}")


@dataclass(slots=True)
class Answers(Generic[T]):
    """The engines' replies in the order of the errands, whatever order they came in, and what was lost."""

    replies: list[tuple[View, T]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)


def engine_call(
    client: ClientCall | None,
    route: Route,
    engine: str,
    *,
    stage: str | None = "recall",
    share: Callable[[float], float] = lambda fraction: 0.8 * fraction,
) -> EngineCall:
    """What an engine says of how far it is, and logs, goes to the client, if that asked for it.

    ``share`` makes of the engine's fraction that of the whole call; without a ``stage`` there is none to tell of.
    """
    if client is None:
        return EngineCall(route)

    def progress(fraction: float, told: str) -> None:
        if stage is not None and 0 <= fraction <= 1:
            client.progress(share(fraction), stage, f"{engine}: {said(told)}" if told else engine)

    def log(level: str, message: str, data: Mapping[str, Any] | None) -> None:
        client.log(level, said(message), data)

    return EngineCall(route, progress=progress, log=log, log_level=client.log_level)


async def ask_several(
    turns: Sequence[Sequence[Errand[T]]], journey: Journey, *, reasons: Sequence[Reason] = (), once: bool = False
) -> Answers[T]:
    """Runs the turns until one has an answer.

    Raises :class:`~gateway.errors.RcpError` if nobody answered, or if a required engine failed. ``once`` is for advice
    that must not count twice: nothing is retried then, and no engine is required.
    """
    left_out = list(reasons)
    outcomes: list[tuple[View, Any]] = []
    for number, errands in enumerate(turns):
        route, cycle = journey.route, journey.cycle
        bars = [(errand, barred(errand.view.member, route, cycle=cycle, fanned=True)) for errand in errands]
        left_out += [reason for _, reason in bars if reason is not None]
        outcomes += await _turn([errand for errand, reason in bars if reason is None], journey, once=once)
        if any(not isinstance(outcome, Failure) for _, outcome in outcomes):
            told = "engines of a higher priority answered"
            left_out += [Reason(one.view.id, "left-out", told) for later in turns[number + 1 :] for one in later]
            break
    return _judged(outcomes, left_out, strict=not once)


def _judged(outcomes: Sequence[tuple[View, Any]], reasons: Sequence[Reason], *, strict: bool) -> Answers[Any]:
    failures = [outcome for _, outcome in outcomes if isinstance(outcome, Failure)]
    for view, outcome in outcomes:
        if strict and isinstance(outcome, Failure) and view.member.settings.required:
            raise surfaced(outcome.engine, outcome.error)
    replies = [(view, outcome) for view, outcome in outcomes if not isinstance(outcome, Failure)]
    if not replies:
        raise_if_nobody_answered(reasons, failures)
    losses = [reason.loss() for reason in reasons] + [failure.loss() for failure in failures]
    if not outcomes and not losses:
        losses.append(Loss(kind="note", message="there was no engine to ask"))
    return Answers(replies, losses, [failure.engine for failure in failures])


async def _turn(errands: Sequence[Errand[T]], journey: Journey, *, once: bool) -> list[tuple[View, T | Failure]]:
    """The outcomes known when all have answered, or one that is required has failed."""
    done: dict[str, T | Failure] = {}
    required = [errand.view.id for errand in errands if errand.view.member.settings.required and not once]
    over = False
    shares = dict.fromkeys((errand.view.id for errand in errands), 0.0)

    async def one(errand: Errand[T]) -> T | Failure:
        id = errand.view.id

        def share(fraction: float) -> float:
            shares[id] = max(shares[id], fraction)
            return 0.8 * sum(shares.values()) / len(shares)

        call = engine_call(journey.call, journey.route, id, share=share)
        return await run(errand.view.member, errand.ask, call, journey.deadline, retry=not once)

    now = asyncio.get_running_loop().time
    tasks = {asyncio.create_task(one(errand), name=f"ask {errand.view.id}"): errand.view for errand in errands}
    left = journey.deadline.remaining()
    ends = {task: now() + min(view.member.settings.timeout, left) for task, view in tasks.items()}
    pending: Collection[asyncio.Task[T | Failure]] = tasks
    try:
        while pending:
            # Each ends itself in time; the wait is bounded for the one that swallows its cancellation.
            wait = max(ends[task] for task in pending) + journey.deadline.reserve / 2 - now()
            arrived, pending = await asyncio.wait(pending, timeout=max(0.0, wait), return_when="FIRST_COMPLETED")
            for task in arrived:
                view, outcome = tasks[task], task.result()
                done[view.id] = outcome
                shares[view.id] = 1.0
                state = "failed" if isinstance(outcome, Failure) else "answered"
                journey.call.progress(0.8 * sum(shares.values()) / len(shares), "recall", f"{view.id}: {state}")
            over = any(isinstance(done.get(id), Failure) for id in required)
            if not arrived or over:
                break
    finally:
        await end_all(pending, journey.deadline)
    if not over:
        for task in pending:
            view = tasks[task]
            cut = journey.deadline.client and journey.deadline.cuts(view.member.settings.timeout)
            done[view.id] = Failure(view.id, Timeout("no answer in time"), True, cut)
    return [(errand.view, done[errand.view.id]) for errand in errands if errand.view.id in done]
