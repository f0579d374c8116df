"""The two guards in front of an engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from anyio import fail_after
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable, Code, RateLimited
from gateway.federation.breaker import Breaker, Limiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def broken(clock: Clock, threshold: int = 3) -> Breaker:
    breaker = Breaker(clock, threshold=threshold, pause=1.0, longest=5.0)
    for _ in range(threshold):
        breaker.failed(probe=breaker.enter())
    return breaker


def test_it_opens_after_failures_in_a_row_and_says_how_long_to_wait() -> None:
    clock = Clock()
    breaker = Breaker(clock, threshold=3, pause=1.0)
    for _ in range(2):
        assert breaker.enter() is False
        breaker.failed(probe=False)
    assert breaker.state == "closed"
    breaker.failed(probe=breaker.enter())
    assert breaker.state == "open"
    clock.now += 0.25
    with pytest.raises(BackendUnavailable) as refused:
        breaker.enter()
    assert (refused.value.code, refused.value.data) == (Code.BACKEND_UNAVAILABLE, {"retryAfterMs": 750})
    assert refused.value.retryable


def test_a_success_in_between_starts_the_count_anew() -> None:
    breaker = Breaker(Clock(), threshold=2)
    for _ in range(5):
        breaker.failed(probe=breaker.enter())
        breaker.succeeded(probe=breaker.enter())
    assert breaker.state == "closed"


def test_neutral_outcomes_neither_open_nor_close_it() -> None:
    breaker = Breaker(Clock(), threshold=2)
    breaker.failed(probe=breaker.enter())
    for _ in range(5):
        breaker.neutral(probe=breaker.enter())
    assert breaker.state == "closed"
    breaker.failed(probe=breaker.enter())
    assert breaker.state == "open", "the failure before them still counts"


def test_half_open_admits_one_probe_at_a_time() -> None:
    clock = Clock()
    breaker = broken(clock)
    clock.now += 1.0
    assert breaker.state == "half-open"
    assert breaker.enter() is True
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            breaker.enter()
    breaker.succeeded(probe=True)
    assert breaker.state == "closed"
    assert breaker.enter() is False


def test_a_failed_probe_doubles_the_pause_up_to_a_limit_and_a_success_resets_it() -> None:
    clock = Clock()
    breaker = broken(clock)
    clock.now += 1.0
    for pause in (2.0, 4.0, 5.0, 5.0):
        breaker.failed(probe=breaker.enter())
        clock.now += pause - 0.001
        assert breaker.state == "open"
        clock.now += 0.001
        assert breaker.state == "half-open"
    breaker.succeeded(probe=breaker.enter())
    for _ in range(3):
        breaker.failed(probe=breaker.enter())
    clock.now += 1.0
    assert breaker.state == "half-open", "the first pause again"


def test_a_probe_that_is_cancelled_makes_room_for_the_next_one() -> None:
    clock = Clock()
    breaker = broken(clock)
    clock.now += 1.0
    breaker.neutral(probe=breaker.enter())
    assert breaker.state == "half-open"
    assert breaker.enter() is True


def test_calls_from_before_it_opened_do_not_prolong_the_pause() -> None:
    clock = Clock()
    breaker = Breaker(clock, threshold=1, pause=1.0)
    late = [breaker.enter() for _ in range(5)]
    for probe in late:
        breaker.failed(probe=probe)
        clock.now += 0.2
    assert breaker.state == "half-open"


def test_a_late_failure_does_not_end_the_probe_of_another() -> None:
    clock = Clock()
    breaker = Breaker(clock, threshold=1, pause=1.0)
    late = breaker.enter()
    breaker.failed(probe=breaker.enter())
    clock.now += 1.0
    probe = breaker.enter()
    breaker.failed(probe=late)
    with pytest.raises(BackendUnavailable):
        breaker.enter()
    breaker.succeeded(probe=probe)
    assert breaker.state == "closed"


@given(st.lists(st.tuples(st.sampled_from(["enter", "succeeded", "failed", "neutral"]), st.floats(0, 3))))
def test_there_is_never_more_than_one_probe(steps: list[tuple[str, float]]) -> None:
    clock = Clock()
    breaker = Breaker(clock, threshold=2, pause=1.0, longest=4.0)
    flying: list[bool] = []
    for what, wait in steps:
        clock.now += wait
        if what == "enter":
            with suppress(BackendUnavailable):
                flying.append(breaker.enter())
        elif flying:
            getattr(breaker, what)(probe=flying.pop(0))
        assert sum(flying) <= 1
    for probe in flying:
        breaker.neutral(probe=probe)
    clock.now += 10
    breaker.enter()


@pytest.mark.anyio
async def test_calls_over_the_limit_wait_and_calls_over_the_queue_are_refused() -> None:
    limiter = Limiter(2, 1)
    release = asyncio.Event()
    inside = 0

    async def call() -> None:
        nonlocal inside
        async with limiter.slot():
            inside += 1
            await release.wait()

    tasks = [asyncio.create_task(call()) for _ in range(3)]
    await asyncio.sleep(0)
    assert inside == 2
    with pytest.raises(RateLimited) as refused:
        await call()
    assert refused.value.code == Code.RATE_LIMITED
    assert refused.value.retryable
    release.set()
    with fail_after(5):
        await asyncio.gather(*tasks)
    assert inside == 3


@pytest.mark.anyio
async def test_a_call_cancelled_while_it_waits_frees_its_place_in_the_queue() -> None:
    limiter = Limiter(1, 1)
    release = asyncio.Event()

    async def call() -> str:
        async with limiter.slot():
            await release.wait()
            return "done"

    first, second = asyncio.create_task(call()), asyncio.create_task(call())
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    third = asyncio.create_task(call())
    await asyncio.sleep(0)
    assert not third.done(), "it waits where the second one did, instead of being refused"
    release.set()
    with fail_after(5):
        assert await asyncio.gather(first, third) == ["done", "done"]


@pytest.mark.anyio
async def test_a_call_cancelled_just_as_its_turn_comes_passes_the_turn_on() -> None:
    limiter = Limiter(1, 5)
    order: list[str] = []

    async def call(name: str, hold: asyncio.Event | None = None) -> None:
        async with limiter.slot():
            order.append(name)
            if hold is not None:
                await hold.wait()

    hold = asyncio.Event()
    first = asyncio.create_task(call("first", hold))
    await asyncio.sleep(0)
    second, third = asyncio.create_task(call("second")), asyncio.create_task(call("third"))
    await asyncio.sleep(0)
    hold.set()
    await asyncio.sleep(0)  # the first gives its slot to the second …
    second.cancel()  # … which is taken away before it runs
    with fail_after(5):
        await asyncio.wait({first, second, third})
    assert order[0] == "first"
    assert "third" in order
    with fail_after(5):
        await call("fourth")


@pytest.mark.anyio
async def test_an_error_inside_gives_the_slot_back() -> None:
    limiter = Limiter(1, 0)
    for _ in range(3):
        with pytest.raises(LookupError):
            async with limiter.slot():
                raise LookupError
