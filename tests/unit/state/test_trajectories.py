"""What a session has been given already."""

from __future__ import annotations

import pytest

from gateway.refine.trajectory import Trajectories
from tests.obligations import obligation
from tests.servers.redis import Server
from tests.unit.state.stores import Kept, opened

pytestmark = pytest.mark.anyio


async def told(sessions: Trajectories, request: str, ids: str, *, session: str = "s", caller: str = "ann") -> str:
    """Which of the ids the session has seen, as a request of it is told."""
    seen = await sessions.seen(caller, session, request)
    return "".join([id for id in ids if id in seen])


async def test_what_another_request_brought_has_been_seen_but_not_what_this_one_brought(kept: Kept) -> None:
    sessions = Trajectories(kept.store)
    assert await told(sessions, "first", "abc") == ""
    assert await sessions.delivered("ann", "s", "first", ["a", "b"]) == ()
    assert await told(sessions, "second", "abc") == "ab"
    assert await told(sessions, "first", "abc") == ""
    await sessions.delivered("ann", "s", "second", ["c"])
    assert await told(sessions, "first", "abc") == "c"
    assert await told(sessions, "third", "abcd") == "abc"
    assert len(await sessions.seen("ann", "s", "third")) == 3


async def test_the_pages_of_a_request_count_together(kept: Kept) -> None:
    sessions = Trajectories(kept.store)
    await sessions.delivered("ann", "s", "first", ["a"])
    await sessions.delivered("ann", "s", "first", ["b"])
    await sessions.delivered("ann", "s", "first", [])
    assert (await told(sessions, "second", "abc"), await told(sessions, "first", "abc")) == ("ab", "")


@obligation(110)
async def test_a_session_is_its_callers_own(kept: Kept) -> None:
    sessions = Trajectories(kept.store)
    await sessions.delivered("ann", "s", "first", ["a"])
    assert await told(sessions, "second", "a", caller="bob") == ""
    assert await told(sessions, "second", "a", session="t") == ""


async def test_a_session_is_forgotten_some_time_after_its_last_answer(kept: Kept) -> None:
    sessions = Trajectories(kept.store, ttl=100)
    await sessions.delivered("ann", "s", "first", ["a"])
    kept.pass_time(60)
    await sessions.delivered("ann", "s", "second", ["b"])
    kept.pass_time(60)
    assert await told(sessions, "third", "ab") == "ab"
    kept.pass_time(60)
    assert await told(sessions, "third", "ab") == ""


async def test_of_a_long_session_the_last_hits_are_known(kept: Kept) -> None:
    sessions = Trajectories(kept.store, cap=3)
    await sessions.delivered("ann", "s", "first", "abcde")
    assert await told(sessions, "second", "abcde") == "cde"


async def test_ids_may_be_anything(kept: Kept) -> None:
    sessions = Trajectories(kept.store)
    ids = ["", "x" * 100_000, "a:b\n\x00é", "\ud800"]
    await sessions.delivered("ann", "s\n\x00", "first", ids)
    seen = await sessions.seen("ann", "s\n\x00", "second")
    assert [id in seen for id in [*ids, "x" * 99_999]] == [True, True, True, True, False]


async def test_without_state_nothing_counts_as_seen_and_a_note_says_so(own_server: Server) -> None:
    async with opened(own_server, timeout=1.0) as store:
        sessions = Trajectories(store)
        await sessions.delivered("ann", "s", "first", ["a"])
        own_server.kill()
        seen = await sessions.seen("ann", "s", "second")
        assert ("a" in seen, len(seen)) == (False, 0)
        assert seen.notes == ("what this session has been given already is not known at the moment",)
        assert await sessions.delivered("ann", "s", "second", ["b"]) == seen.notes


async def test_what_is_kept_names_neither_caller_nor_session_nor_hit(server: Server) -> None:
    server.empty()
    async with opened(server) as store:
        await Trajectories(store).delivered("ann@example", "my-session", "digest", ["my-document"])
    with server.connect() as client:
        (key,) = client.keys("*")
        kept = key + b"".join(client.zrange(key, 0, -1))
    for word in (b"ann", b"session", b"document"):
        assert word not in kept
