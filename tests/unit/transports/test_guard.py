from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.guard import Guard, hosts_for
from gateway.transports.sse import Outbox, accepts_events
from tests.obligations import obligation


@obligation(116)
@pytest.mark.parametrize(
    "host", [b"localhost", b"LOCALHOST:80", b"127.0.0.1:9", b"[::1]:8080", b"127.5.5.5", b"localhost."]
)
def test_loopback_names_are_our_own(host: bytes) -> None:
    assert Guard().refusal({b"host": host}) is None


@obligation(116)
@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:8080", b"localhost.evil.example", b"192.168.0.7"])
def test_a_rebound_name_is_refused(host: bytes) -> None:
    assert Guard().refusal({b"host": host}) is not None


def test_a_public_gateway_knows_its_names_only_from_the_configuration() -> None:
    assert hosts_for("0.0.0.0") is None
    assert hosts_for("0.0.0.0", ["rag.example."]) == {"rag.example"}
    named = hosts_for("127.0.0.1", ["RAG.example"])
    assert named is not None
    assert Guard(named).refusal({b"host": b"rag.example:443"}) is None
    assert hosts_for("::1", ["*"]) is None


@obligation(116)
def test_a_page_may_call_if_it_is_our_own_or_listed() -> None:
    guard = Guard(origins=frozenset({"https://app.example"}))
    assert guard.refusal({b"host": b"localhost:80", b"origin": b"http://localhost:80"}) is None
    assert guard.refusal({b"host": b"localhost:80", b"origin": b"https://app.example"}) is None
    assert guard.refusal({b"host": b"localhost:80", b"origin": b"http://localhost:81"}) is not None
    assert guard.refusal({b"host": b"localhost:80", b"origin": b"null"}) is not None
    assert Guard(origins=frozenset({"*"})).refusal({b"host": b"localhost", b"origin": b"null"}) is None


@obligation(99)
@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        (b"*/*", False),
        (b"application/json", False),
        (b"text/event-stream", True),
        (b"application/json, Text/Event-Stream;q=0.5", True),
        (b"text/event-stream; q=0, application/json", False),
        (b"text/event-streams", False),
    ],
)
def test_a_stream_is_sent_only_to_whoever_names_it(accept: bytes | None, wanted: bool) -> None:
    assert accepts_events(accept) is wanted


@pytest.mark.anyio
async def test_what_a_slow_reader_does_not_take_pushes_out_the_oldest_but_never_the_last() -> None:
    box = Outbox(frames=3, size=100)
    for number in range(10):
        box.put(b"%d" % number)
    box.finish(b"final")
    box.put(b"late")
    assert box.take() == ([b"7", b"8", b"9", b"final"], True)


@pytest.mark.anyio
async def test_frames_with_hits_are_pushed_out_last_and_keep_their_place() -> None:
    box = Outbox(frames=4, size=1000)
    first, second = (b'{"params":{"partial":{"hits":[%d]}}}' % number for number in (1, 2))
    for frame in (b"a", first, b"b", second, *(b"%d" % number for number in range(20))):
        box.put(frame)
    assert box.take() == ([first, second, b"18", b"19"], False)
    assert box.size == 0


@pytest.mark.anyio
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=60))
async def test_what_waits_is_within_its_bounds_or_one_frame(frames: list[tuple[bool, int]]) -> None:
    box = Outbox(frames=5, size=500)
    for number, (partial, size) in enumerate(frames):
        frame = b"%d" % number + (b'"partial":{' if partial else b"") + b"x" * size
        box.put(frame)
        assert box.size <= 500 or box.size == len(frame)
    kept, _ = box.take()
    assert len(kept) <= 5
    order = [int(frame.split(b'"')[0].rstrip(b"x")) for frame in kept]
    assert order == sorted(order)
    if frames and not any(partial for partial, _ in frames):
        assert order[-1] == len(frames) - 1  # the newest, which says all that the older ones did


@pytest.mark.anyio
async def test_a_large_frame_is_not_kept_beside_others() -> None:
    box = Outbox(frames=10, size=100)
    box.put(b"small")
    box.put(b"x" * 200)
    assert await box.filled(1)
    assert box.take() == ([b"x" * 200], False)
    assert not await box.filled(0)
