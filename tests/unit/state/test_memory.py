"""The bounds of what is kept in the process itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Code, StateUnavailable
from gateway.state import MemoryStore, Shelf
from gateway.state.store import weight
from tests.unit.state.stores import Clock

pytestmark = pytest.mark.anyio

EACH = weight("a", bytes(1000))


async def there(store: MemoryStore, keys: str) -> str:
    return "".join([key for key in keys if await store.get(key) is not None])


async def test_the_longest_unused_goes_when_the_bytes_are_used_up() -> None:
    store = MemoryStore(size=3 * EACH)
    for key in "abc":
        await store.put(key, bytes(1000), ttl=None)
    await store.get("a")
    await store.put("d", bytes(1000), ttl=10)
    assert await there(store, "abcd") == "acd"


async def test_the_longest_unused_goes_when_there_are_too_many() -> None:
    store = MemoryStore(entries=3)
    for key in "abcd":
        await store.put(key, b"", ttl=None)
    await store.extend("e", ["x"], ttl=10, cap=5)
    assert await there(store, "abcd") == "cd"
    assert len(store) == 3


async def test_sets_weigh_what_they_hold() -> None:
    store = MemoryStore(size=100_000)
    for n in range(50):
        await store.extend(str(n), [f"{n} {m}".ljust(1000) for m in range(10)], ttl=10, cap=100)
    assert store.used <= 100_000
    assert 0 < len(store) < 10


async def test_what_expired_goes_before_what_has_not() -> None:
    clock = Clock()
    store = MemoryStore(size=3 * EACH, clock=clock)
    await store.put("a", bytes(1000), ttl=100)
    await store.put("b", bytes(1000), ttl=10)
    await store.put("c", bytes(1000), ttl=10)
    clock.now += 11
    await store.put("d", bytes(1000), ttl=100)
    await store.put("e", bytes(1000), ttl=100)
    assert await there(store, "abcde") == "ade"


async def test_what_was_added_outlives_any_flood() -> None:
    store = MemoryStore(size=10 * EACH, entries=20)
    await store.add("a", bytes(1000), ttl=None)
    await store.put("a", bytes(900), ttl=None)
    for n in range(100):
        await store.put(f"flood {n}", bytes(1000), ttl=None)
        await store.shelve(Shelf("s", "o", 8 * EACH, 8 * EACH), str(n), bytes(1000), ttl=10)
    assert await store.get("a") == bytes(900)


@pytest.mark.parametrize("limits", [{"size": 10 * EACH}, {"entries": 10}], ids=["bytes", "number"])
async def test_adding_without_room_is_refused_and_succeeds_when_there_is_some(limits: dict[str, int]) -> None:
    clock = Clock()
    store = MemoryStore(**limits, clock=clock)
    for n in range(5):
        assert await store.add(str(n), bytes(1000), ttl=10)
    with pytest.raises(StateUnavailable, match="full") as refused:
        await store.add("5", bytes(1000), ttl=10)
    assert (refused.value.code, refused.value.retryable) == (Code.BACKEND_UNAVAILABLE, True)
    assert await there(store, "012345") == "01234"
    await store.put("p", bytes(1000), ttl=10)
    assert await there(store, "p") == "p"
    clock.now += 10
    assert await store.add("5", bytes(1000), ttl=10)


async def test_what_can_never_fit_is_refused() -> None:
    store = MemoryStore(size=2 * EACH)
    await store.put("a", b"", ttl=10)
    with pytest.raises(StateUnavailable, match="full"):
        await store.put("b", bytes(3 * EACH), ttl=10)
    assert await there(store, "ab") == "a"
    shelf = Shelf("s", "o", 100 * EACH, 100 * EACH)
    assert not await store.shelve(shelf, "c", bytes(3 * EACH), ttl=10)


@given(st.lists(st.tuples(st.sampled_from("paedsct"), st.sampled_from("wxyz"), st.integers(0, 1500)), max_size=60))
def test_whatever_is_done_it_stays_within_its_bounds_and_forgets_nothing_it_counts(
    steps: list[tuple[str, str, int]],
) -> None:
    import asyncio
    from contextlib import suppress

    clock = Clock()
    store = MemoryStore(size=6000, entries=8, clock=clock)
    shelf = Shelf("s", "o", 5000, 3000)

    async def step(what: str, key: str, size: int) -> None:
        match what:
            case "p":
                await store.put(key, bytes(size), ttl=10)
            case "a":
                await store.add(key, bytes(size), ttl=10)
            case "e":
                await store.extend("e" + key, [str(size)], ttl=10, cap=5)
            case "d":
                await store.delete(key)
            case "s":
                await store.shelve(shelf, key, bytes(size), ttl=10)
            case "c":
                await store.count("c" + key, size, ttl=10)
            case "t":
                clock.now += size / 100

    async def run() -> None:
        for what, key, size in steps:
            with suppress(StateUnavailable):
                await step(what, key, size)
            assert store.used <= 6000
            assert len(store) <= 8
        clock.now += 100
        await store.put("last", b"", ttl=10)
        assert (len(store), store.used) == (1, weight("last", b""))

    asyncio.run(run())


async def test_a_thing_on_a_shelf_is_held_as_it_is_and_weighs_what_it_says() -> None:
    store = MemoryStore()
    each = weight("shelf:ann:a", b"") + 1000
    room = Shelf("shelf", "ann", 3 * each, 2 * each)
    things = {key: [key] for key in "abc"}
    for key in "ab":
        assert await store.hold(room, key, things[key], size=1000, ttl=10)
    assert store.used == 2 * each
    assert await store.held(room, "a") is things["a"]
    assert await store.hold(room, "c", things["c"], size=1000, ttl=10)
    assert [await store.held(room, key) for key in "abc"] == [things["a"], None, things["c"]]
    assert not await store.hold(room, "d", [], size=2 * each, ttl=10)
    assert await store.take(room, "a") is None
    assert await store.shelve(room, "a", bytes(1000), ttl=10)
    assert await store.held(room, "a") is None
    assert store.used == 2 * each
