"""Frozen lists and the cursors that walk them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway._json import Raw
from gateway.caller import ANONYMOUS, Caller
from gateway.errors import CallerError, Code, StateUnavailable
from gateway.federation.cursor import Binding, Cursors, Frozen, Window
from gateway.model import MmrOptions, RetrieveRequest
from gateway.secret import Secret
from gateway.state import MemoryStore
from tests.obligations import obligation
from tests.servers.redis import Server
from tests.unit.state.stores import Clock, Kept, opened

pytestmark = pytest.mark.anyio

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def window(size: int, **more: Any) -> Window:
    hits = tuple(Raw(b'{"id":"d%d","score":%d}' % (n, size - n)) for n in range(size))
    return Window(hits=hits, ids=tuple(f"d{n}" for n in range(size)), **more)


def binding(query: str = "paris", caller: Caller = ANONYMOUS, forced: str = "", **options: Any) -> Binding:
    return Binding.of(RetrieveRequest(query=query, **options), caller, forced=forced)


async def frozen(cursors: Cursors, size: int = 10, bound: Binding | None = None) -> Frozen:
    kept = await cursors.freeze(window(size), bound or binding())
    assert kept is not None
    return kept


def cut(page: Frozen, k: int) -> tuple[list[bytes], str | None]:
    """A page of ``k`` hits, and the cursor of the one after it."""
    end = page.offset + k
    return [bytes(hit) for hit in page.window.hits[page.offset : end]], page.cursor(end)


async def first_cursor(cursors: Cursors, bound: Binding | None = None) -> str:
    cursor = (await frozen(cursors, bound=bound)).cursor(3)
    assert cursor is not None
    return cursor


async def refused(cursors: Cursors, cursor: str, bound: Binding | None = None) -> None:
    with pytest.raises(CallerError) as error:
        await cursors.resume(cursor, bound or binding())
    assert error.value.to_wire() == {
        "code": Code.NOT_FOUND,
        "message": "the cursor is unknown, has expired, or belongs to another request",
        "data": {"field": "cursor"},
    }


async def test_a_page_says_what_the_first_one_said(kept: Kept) -> None:
    said = {
        "candidates": 40,
        "reranked": 10,
        "notes": ("a note",),
        "degraded": ("wiki",),
        "index_version": "v1",
        "rewritten_query": "Paris, France",
        "sizes": (5, 4, 3, 2, 1),
        "vendor": {"losses": [{"kind": "timeout", "engine": "wiki"}]},
    }
    cursors = Cursors(kept.store)
    page = await cursors.freeze(window(5, **said), binding())
    assert page is not None
    cursor = page.cursor(2)
    assert cursor is not None
    again = await cursors.resume(cursor, binding())
    assert again.window == window(5, **said)
    assert again.offset == 2
    assert cut(again, 2)[0] == [b'{"id":"d2","score":3}', b'{"id":"d3","score":2}']
    assert [again.cursor(end) for end in (5, 6, 100)] == [None] * 3


@obligation(156, 260)
@given(size=st.integers(0, 40), ks=st.lists(st.integers(1, 15), min_size=40, max_size=40))
def test_a_walk_gives_the_whole_window_once_in_order_and_only_its_last_page_is_short(size: int, ks: list[int]) -> None:
    async def walk() -> None:
        cursors = Cursors(MemoryStore())
        page = await frozen(cursors, size)
        walked: list[bytes] = []
        ids: list[str] = []
        for k in ks:
            hits, cursor = cut(page, k)
            walked += hits
            ids += page.window.ids[page.offset : page.offset + k]
            assert cursor != ""
            if cursor is None:
                break
            assert len(hits) == k
            page = await cursors.resume(cursor, binding(k=k))
        assert walked == [bytes(hit) for hit in window(size).hits]
        assert ids == list(window(size).ids)

    asyncio.run(walk())


@obligation(155, 157)
@given(place=st.integers(0, 79), letter=st.sampled_from(ALPHABET + "=+/ \n"))
def test_a_cursor_with_any_letter_changed_is_refused(place: int, letter: str) -> None:
    async def run() -> None:
        cursors = Cursors(MemoryStore())
        cursor = await first_cursor(cursors)
        assert len(cursor) == 80
        changed = cursor[:place] + letter + cursor[place + 1 :]
        if changed == cursor:
            assert (await cursors.resume(changed, binding())).offset == 3
        else:
            await refused(cursors, changed)

    asyncio.run(run())


@obligation(155)
@given(st.text(max_size=200) | st.text(ALPHABET, min_size=80, max_size=80))
def test_what_never_was_a_cursor_is_refused(text: str) -> None:
    asyncio.run(refused(Cursors(MemoryStore()), text))


@pytest.mark.parametrize("text", ["", "!!", "=", "A" * 80, "A" * 79, "Ａ" * 80, "A" * 80 + "\n", "A" * 100_000])
async def test_garbage_is_refused(text: str) -> None:
    await refused(Cursors(MemoryStore()), text)


ANN = Caller(id="ann", engines=frozenset({"a", "b"}))
ASKED: dict[str, Any] = {"filter": {"field": "year", "op": "eq", "value": 2010}, "k": 3}
OTHERS = {
    "query": binding("berlin", ANN, **ASKED),
    "no query": Binding.of(RetrieveRequest(**ASKED), ANN),
    "filter": binding("paris", ANN, filter={"field": "year", "op": "eq", "value": 2011}),
    "no filter": binding("paris", ANN),
    "mode": binding("paris", ANN, **ASKED, mode="dense"),
    "depth": binding("paris", ANN, **ASKED, candidate_k=50),
    "diversity": binding("paris", ANN, **ASKED, mmr=MmrOptions(lambda_=0.5)),
    "text": binding("paris", ANN, **ASKED, include_text=False),
    "session": binding("paris", ANN, **ASKED, session_id="s"),
    "engines": binding("paris", ANN, **ASKED, meta={"x-gateway": {"engines": ["a"]}}),
    "caller": binding("paris", Caller(id="bob", engines=ANN.engines), **ASKED),
    "narrower rights": binding("paris", Caller(id="ann", engines=frozenset({"a"})), **ASKED),
    "wider rights": binding("paris", Caller(id="ann"), **ASKED),
    "forced filter": binding("paris", ANN, forced="tenant=x", **ASKED),
}


@obligation(157, 110)
@pytest.mark.parametrize("other", OTHERS)
async def test_a_cursor_holds_for_its_own_request_only(kept: Kept, other: str) -> None:
    cursors = Cursors(kept.store)
    own = binding("paris", ANN, **ASKED)
    cursor = await first_cursor(cursors, own)
    await refused(cursors, cursor, OTHERS[other])
    assert (await cursors.resume(cursor, own)).offset == 3


async def test_the_page_size_the_progress_token_and_the_order_of_members_may_change() -> None:
    cursors = Cursors(MemoryStore())
    cursor = await first_cursor(cursors, binding("paris", ANN, **ASKED, meta={"progressToken": 1}))
    ordered = {"value": 2010, "op": "eq", "field": "year"}
    again = binding("paris", ANN, filter=ordered, k=50, cursor=cursor, meta={"progressToken": 2, "deadlineMs": 9})
    assert (await cursors.resume(cursor, again)).offset == 3


async def test_a_cursor_ends_with_its_window_however_often_it_is_used(kept: Kept) -> None:
    clock = Clock()
    cursors = Cursors(kept.store, ttl=100, clock=clock)
    cursor = await first_cursor(cursors)

    def pass_time(seconds: float) -> None:
        kept.pass_time(seconds)
        clock.now += seconds

    for _ in range(3):
        pass_time(33)
        page = await cursors.resume(cursor, binding())
    later = page.cursor(page.offset + 1)
    assert later is not None
    pass_time(2)
    for one in (cursor, later):
        await refused(cursors, one)


async def test_an_expired_cursor_is_refused_though_its_window_is_still_there() -> None:
    clock = Clock()
    cursors = Cursors(MemoryStore(clock=lambda: 0.0), ttl=100, clock=clock)
    cursor = await first_cursor(cursors)
    clock.now += 101
    await refused(cursors, cursor)


async def test_a_caller_who_freezes_much_loses_the_oldest_and_takes_nothing_from_others(kept: Kept) -> None:
    cursors = Cursors(kept.store, size=20_000, caller_size=4_000)
    bob = binding(caller=Caller(id="bob"))
    of_bob = await first_cursor(cursors, bob)
    of_ann = [await first_cursor(cursors, binding(caller=ANN)) for _ in range(12)]
    await refused(cursors, of_ann[0], binding(caller=ANN))
    assert (await cursors.resume(of_ann[-1], binding(caller=ANN))).offset == 3
    assert (await cursors.resume(of_bob, bob)).offset == 3


async def test_a_window_larger_than_a_caller_may_have_is_not_kept(kept: Kept) -> None:
    cursors = Cursors(kept.store, size=20_000, caller_size=4_000)
    assert await cursors.freeze(window(1000), binding()) is None


async def test_workers_that_share_a_store_take_each_others_cursors(server: Server) -> None:
    server.empty()
    async with opened(server) as one, opened(server) as other:
        cursors = [Cursors(one), Cursors(other)]
        # Both begin at once, before there is a key.
        made = await asyncio.gather(*(first_cursor(each) for each in cursors))
        for cursor, each in zip(made, reversed(cursors), strict=True):
            assert (await each.resume(cursor, binding())).offset == 3


async def test_a_configured_key_signs_and_another_does_not(kept: Kept) -> None:
    one, same, other = (Cursors(kept.store, key=Secret(word * 32)) for word in "aab")
    cursor = await first_cursor(one)
    assert (await same.resume(cursor, binding())).offset == 3
    await refused(other, cursor)
    await refused(Cursors(kept.store), cursor)
    assert await kept.store.get("cursor-key") is not None  # made by the last one alone


async def test_without_state_cursors_can_be_neither_made_nor_followed(own_server: Server) -> None:
    async with opened(own_server, timeout=1.0) as store:
        cursors = Cursors(store)
        cursor = await first_cursor(cursors)
        own_server.kill()
        for call in (cursors.freeze(window(3), binding()), cursors.resume(cursor, binding())):
            with pytest.raises(StateUnavailable) as error:
                await call
            assert (error.value.code, error.value.retryable) == (Code.BACKEND_UNAVAILABLE, True)


async def test_what_another_version_kept_is_an_unknown_cursor() -> None:
    class Garbled(MemoryStore):
        async def take(self, shelf: Any, key: str) -> bytes | None:
            return b'{"hits":3}' if await super().take(shelf, key) else None

    cursors = Cursors(Garbled())
    await refused(cursors, await first_cursor(cursors))


async def test_pages_are_offered_where_every_process_can_find_the_next(server: Server) -> None:
    assert Cursors(MemoryStore()).offered
    assert not Cursors(MemoryStore(), processes=2).offered
    async with opened(server) as store:
        assert Cursors(store, processes=2).offered
