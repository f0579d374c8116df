"""Calls are counted for each caller and minute, by all who share the state, and without it by each for itself."""

from __future__ import annotations

import pytest

from gateway.errors import RateLimited, StateUnavailable
from gateway.state import MemoryStore, Rate
from tests.obligations import obligation
from tests.unit.state.stores import Clock

pytestmark = pytest.mark.anyio


async def admitted(rate: Rate, caller: str, times: int) -> int:
    count = 0
    for _ in range(times):
        try:
            await rate.admit(caller)
        except RateLimited:
            continue
        count += 1
    return count


@obligation(118)
async def test_a_caller_is_refused_beyond_its_calls_and_told_when_to_come_again() -> None:
    clock = Clock(600.0)
    rate = Rate(MemoryStore(), 3, clock=clock)
    clock.now = 630.5
    assert await admitted(rate, "a", 5) == 3
    with pytest.raises(RateLimited) as refused:
        await rate.admit("a")
    assert (refused.value.code, refused.value.data) == (-32011, {"retryAfterMs": 29_500})
    assert await admitted(rate, "b", 5) == 3, "one caller's calls are not another's"
    clock.now = 660.0
    assert await admitted(rate, "a", 5) == 3


async def test_processes_that_share_the_state_count_together() -> None:
    store, clock = MemoryStore(), Clock()
    one, other = Rate(store, 4, clock=clock), Rate(store, 4, clock=clock)
    assert await admitted(one, "a", 3) + await admitted(other, "a", 3) == 4


async def test_without_the_state_each_process_counts_for_itself() -> None:
    class Gone(MemoryStore):
        async def count(self, key: str, amount: int, *, ttl: float) -> int:
            raise StateUnavailable

    clock = Clock(600.0)
    one, other = Rate(Gone(), 2, clock=clock), Rate(Gone(), 2, clock=clock)
    assert [await admitted(one, "a", 5), await admitted(other, "a", 5)] == [2, 2]
