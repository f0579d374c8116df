"""What all stores have in common, over each of them; Redis is a real server."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.state import MemoryStore, Shelf, digest
from gateway.state.store import weight
from tests.servers.redis import Server
from tests.unit.state.stores import Kept, kept_in_memory, kept_in_redis

pytestmark = pytest.mark.anyio


async def test_what_is_put_is_there_until_it_expires(kept: Kept) -> None:
    store = kept.store
    assert await store.get("a") is None
    await store.put("a", b"\x00\xff", ttl=10)
    await store.put("b", b"for ever", ttl=None)
    kept.pass_time(9)
    assert await store.get("a") == b"\x00\xff"
    kept.pass_time(2)
    assert await store.get("a") is None
    kept.pass_time(1_000_000)
    assert await store.get("b") == b"for ever"


async def test_putting_again_replaces_the_value_and_its_time(kept: Kept) -> None:
    await kept.store.put("a", b"1", ttl=10)
    kept.pass_time(6)
    await kept.store.put("a", b"2", ttl=10)
    kept.pass_time(6)
    assert await kept.store.get("a") == b"2"


async def test_adding_succeeds_only_where_nothing_is(kept: Kept) -> None:
    store = kept.store
    assert await store.add("a", b"1", ttl=10)
    assert not await store.add("a", b"2", ttl=100)
    assert await store.get("a") == b"1"
    kept.pass_time(11)
    assert await store.add("a", b"3", ttl=10)
    await store.delete("a")
    assert await store.get("a") is None
    assert await store.add("a", b"4", ttl=None)
    await store.delete("absent")


async def test_of_many_that_add_at_once_one_succeeds(kept: Kept) -> None:
    added = await asyncio.gather(*(kept.store.add("a", bytes([n]), ttl=10) for n in range(20)))
    assert added.count(True) == 1
    assert await kept.store.get("a") == bytes([added.index(True)])


async def test_a_set_keeps_its_order_and_its_newest(kept: Kept) -> None:
    store = kept.store
    assert await store.members("s") == ()
    await store.extend("s", ["a", "b", "c"], ttl=10, cap=4)
    await store.extend("s", ["a", "d", "é\n"], ttl=10, cap=4)
    assert await store.members("s") == ("c", "a", "d", "é\n")
    await store.extend("s", ["x", "y", "x"], ttl=10, cap=1)
    assert await store.members("s") == ("x",)


async def test_a_set_lives_on_from_its_last_extension(kept: Kept) -> None:
    await kept.store.extend("s", ["a"], ttl=10, cap=9)
    kept.pass_time(6)
    await kept.store.extend("s", ["b"], ttl=10, cap=9)
    kept.pass_time(6)
    assert await kept.store.members("s") == ("a", "b")
    kept.pass_time(6)
    assert await kept.store.members("s") == ()


async def test_a_counter_ends_after_its_first_use_not_its_last(kept: Kept) -> None:
    store = kept.store
    assert await store.count("c", 3, ttl=10) == 3
    kept.pass_time(6)
    assert await store.count("c", -1, ttl=10) == 2
    kept.pass_time(6)
    assert await store.count("c", 1, ttl=10) == 1


async def test_counting_at_once_loses_nothing(kept: Kept) -> None:
    sums = await asyncio.gather(*(kept.store.count("c", 2, ttl=10) for _ in range(25)))
    assert sorted(sums) == list(range(2, 52, 2))


def shelf(owner: str = "ann", *, values: int = 3, all_values: int = 5) -> Shelf:
    """Room for that many values of :data:`VALUE` under a key of one letter."""
    each = weight(f"shelf:{owner}:k", VALUE)
    return Shelf("shelf", owner, all_values * each, values * each)


VALUE = b"v" * 1000


async def on_shelf(kept: Kept, owner: str, keys: str) -> str:
    """Which of the keys are still there; they count as used, in this order."""
    return "".join([key for key in keys if await kept.store.take(shelf(owner), key) == VALUE])


async def test_the_longest_unused_of_an_owner_makes_room_for_the_owners_next(kept: Kept) -> None:
    for key in "abc":
        assert await kept.store.shelve(shelf(), key, VALUE, ttl=100)
    assert await on_shelf(kept, "ann", "a") == "a"
    assert await kept.store.shelve(shelf(), "d", VALUE, ttl=100)
    assert await on_shelf(kept, "ann", "abcd") == "acd"


async def test_owners_share_the_whole_and_the_longest_unused_of_all_goes(kept: Kept) -> None:
    for owner, key in [("ann", "a"), ("bob", "a"), ("ann", "b"), ("cid", "a"), ("bob", "b")]:
        await kept.store.shelve(shelf(owner), key, VALUE, ttl=100)
    assert await on_shelf(kept, "ann", "a") == "a"
    await kept.store.shelve(shelf("cid"), "b", VALUE, ttl=100)
    assert [await on_shelf(kept, owner, "ab") for owner in ("ann", "bob", "cid")] == ["ab", "b", "ab"]


async def test_an_owner_never_gets_at_anothers_values(kept: Kept) -> None:
    await kept.store.shelve(shelf("ann"), "a", VALUE, ttl=100)
    assert await kept.store.take(shelf("bob"), "a") is None
    assert await kept.store.get("shelf:a") is None


async def test_a_value_larger_than_its_owners_part_is_not_kept(kept: Kept) -> None:
    await kept.store.shelve(shelf(), "a", VALUE, ttl=100)
    assert not await kept.store.shelve(shelf(values=1), "b", VALUE + b"v", ttl=100)
    assert await on_shelf(kept, "ann", "ab") == "a"


async def test_what_expired_on_a_shelf_takes_no_room(kept: Kept) -> None:
    await kept.store.shelve(shelf(), "a", VALUE, ttl=100)
    await kept.store.shelve(shelf(), "b", VALUE, ttl=10)
    await kept.store.shelve(shelf(), "c", VALUE, ttl=10)
    await on_shelf(kept, "ann", "bc")
    kept.pass_time(11)
    assert await on_shelf(kept, "ann", "bc") == ""
    await kept.store.shelve(shelf(), "d", VALUE, ttl=100)
    await kept.store.shelve(shelf(), "e", VALUE, ttl=100)
    assert await on_shelf(kept, "ann", "ade") == "ade"


async def test_shelving_under_the_same_key_replaces(kept: Kept) -> None:
    for _ in range(10):
        assert await kept.store.shelve(shelf(), "a", VALUE, ttl=100)
    for key in "bc":
        await kept.store.shelve(shelf(), key, VALUE, ttl=100)
    assert await on_shelf(kept, "ann", "abc") == "abc"


class Model:
    """What a shelf is, said as simply as possible."""

    def __init__(self, limit: int, owner_limit: int) -> None:
        self.limit, self.owner_limit = limit, owner_limit
        self.there: OrderedDict[tuple[str, str], int] = OrderedDict()

    def take(self, owner: str, key: str) -> int | None:
        if (owner, key) in self.there:
            self.there.move_to_end((owner, key))
        return self.there.get((owner, key))

    def shelve(self, owner: str, key: str, size: int) -> bool:
        taken = weight(f"shelf:{owner}:{key}", bytes(size))
        if taken > min(self.limit, self.owner_limit):
            return False
        self.there.pop((owner, key), None)
        while self.used(owner) + taken > self.owner_limit:
            del self.there[next(one for one in self.there if one[0] == owner)]
        while self.used() + taken > self.limit:
            self.there.popitem(last=False)
        self.there[owner, key] = size
        return True

    def used(self, owner: str | None = None) -> int:
        return sum(
            weight(f"shelf:{who}:{key}", bytes(size)) for (who, key), size in self.there.items() if owner in (None, who)
        )


STEPS = st.lists(
    st.tuples(st.sampled_from(["ann", "bob", "cid"]), st.sampled_from("abcde"), st.none() | st.integers(0, 1500)),
    max_size=30,
)


async def as_the_model_says(kept: Kept, steps: list[tuple[str, str, int | None]]) -> None:
    model = Model(4000, 2000)
    for owner, key, size in steps:
        one = Shelf("shelf", owner, model.limit, model.owner_limit)
        if size is None:
            found = await kept.store.take(one, key)
            assert (None if found is None else len(found)) == model.take(owner, key)
        else:
            assert await kept.store.shelve(one, key, bytes(size), ttl=1000) == model.shelve(owner, key, size)
    left = {step[:2]: await kept.store.take(Shelf("shelf", step[0], 4000, 2000), step[1]) for step in steps}
    assert {name: len(value) for name, value in left.items() if value is not None} == dict(model.there)


@given(STEPS)
def test_a_shelf_in_memory_is_what_the_model_says(steps: list[Any]) -> None:
    async def run() -> None:
        async with kept_in_memory() as kept:
            await as_the_model_says(kept, steps)
            assert isinstance(kept.store, MemoryStore)
            kept.pass_time(2000)
            await kept.store.put("x", b"", ttl=1)
            assert (len(kept.store), kept.store.used) == (1, weight("x", b""))

    asyncio.run(run())


@settings(max_examples=40)
@given(STEPS)
def test_a_shelf_in_redis_is_what_the_model_says(server: Server, steps: list[Any]) -> None:
    async def run() -> None:
        async with kept_in_redis(server) as kept:
            await as_the_model_says(kept, steps)

    asyncio.run(run())


def test_a_digest_tells_values_apart_but_not_the_order_of_members() -> None:
    assert digest({"a": 1, "b": [None]}) == digest({"b": [None], "a": 1})
    assert len({digest("a", "b"), digest("ab"), digest("b", "a"), digest(["a", "b"]), digest("a", None)}) == 5
    assert len(digest("x")) == 32
    assert digest({"a": 2**70, "b": "\ud800"}) != digest({"a": 2**70, "b": "\ud801"})
