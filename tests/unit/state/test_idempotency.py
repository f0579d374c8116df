"""One write for one key, whatever happens around it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    BackendUnavailable,
    CallerError,
    Code,
    InternalError,
    RateLimited,
    RcpError,
    StateUnavailable,
    Timeout,
    UpstreamError,
    invalid_params,
)
from gateway.state import Idempotency, MemoryStore, Store, digest
from tests.servers.redis import Server
from tests.unit.state.stores import Kept, opened

pytestmark = pytest.mark.anyio


class Engine:
    """Counts writes. Each first waits for ``go`` and then ends as ``error`` says."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.writes = 0
        self.error = error
        self.go = asyncio.Event()
        self.go.set()
        self.started = asyncio.Event()

    async def __call__(self) -> bytes:
        self.writes += 1
        self.started.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return b'{"ids":["%d"]}' % self.writes


@pytest.fixture
def engine(anyio_backend: object) -> Engine:
    return Engine()


async def write(store: Store, engine: Engine, key: str = "k", request: str = "r", **named: object) -> bytes:
    caller, method = str(named.pop("caller", "ann")), str(named.pop("method", "index/add"))
    memory = Idempotency(store, ttl=100, lease=10, **named)  # type: ignore[arg-type]
    return await memory.once(caller, method, key, request, engine, untouched=before_it_began)


def before_it_began(error: RcpError) -> bool:
    return isinstance(error, CallerError | RateLimited)


async def refusal(store: Store, engine: Engine, request: str = "r") -> RcpError:
    with pytest.raises(RcpError) as refused:
        await write(store, engine, request=request)
    return refused.value


async def test_the_same_call_again_gets_the_first_answer_and_writes_nothing(kept: Kept, engine: Engine) -> None:
    assert await write(kept.store, engine) == b'{"ids":["1"]}'
    kept.pass_time(99)
    assert await write(kept.store, engine) == b'{"ids":["1"]}'
    assert engine.writes == 1
    kept.pass_time(100)
    assert await write(kept.store, engine) == b'{"ids":["2"]}'


@pytest.mark.parametrize("other", [{"key": "l"}, {"caller": "bob"}, {"method": "index/delete"}])
async def test_another_key_caller_or_method_is_another_write(engine: Engine, other: dict[str, str]) -> None:
    store = MemoryStore()
    await write(store, engine)
    await write(store, engine, **other)
    assert engine.writes == 2


async def test_the_same_key_with_another_request_is_refused(kept: Kept, engine: Engine) -> None:
    await write(kept.store, engine)
    error = await refusal(kept.store, engine, request="another")
    assert (error.code, error.data["field"]) == (Code.INVALID_PARAMS, "_meta.idempotencyKey")
    assert engine.writes == 1


async def test_while_the_first_call_is_under_way_the_next_is_told_to_come_back(kept: Kept, engine: Engine) -> None:
    engine.go.clear()
    first = asyncio.create_task(write(kept.store, engine))
    await engine.started.wait()
    error = await refusal(kept.store, engine)
    assert (error.code, error.retryable, error.data) == (Code.RATE_LIMITED, True, {"retryAfterMs": 500})
    assert (await refusal(kept.store, engine, request="another")).code == Code.INVALID_PARAMS
    engine.go.set()
    assert await first == await write(kept.store, engine) == b'{"ids":["1"]}'


async def test_of_many_at_once_one_writes(kept: Kept, engine: Engine) -> None:
    ends = await asyncio.gather(*(write(kept.store, engine) for _ in range(20)), return_exceptions=True)
    assert engine.writes == 1
    for end in ends:
        assert end == b'{"ids":["1"]}' or isinstance(end, RateLimited)
    assert b'{"ids":["1"]}' in ends


async def test_two_workers_write_once(server: Server, engine: Engine) -> None:
    server.empty()
    engine.go.clear()
    async with opened(server) as one, opened(server) as other:
        first = asyncio.create_task(write(one, engine))
        await engine.started.wait()
        assert (await refusal(other, engine)).code == Code.RATE_LIMITED
        engine.go.set()
        assert await first == await write(other, engine)
    assert engine.writes == 1


REFUSALS = [
    invalid_params("no such field", field="documents[0].id"),
    CallerError("conflict", code=Code.CONFLICT),
    RateLimited("queue full"),
]
FAILURES = [
    BackendUnavailable("connection lost"),
    Timeout("no answer"),
    InternalError(),
    UpstreamError("it broke", upstream_code=-32603),
    RuntimeError("a bug"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=repr)
async def test_a_write_that_was_refused_before_it_began_may_be_tried_again(kept: Kept, error: RcpError) -> None:
    engine = Engine(error)
    assert await refusal(kept.store, engine) is error
    engine.error = None
    assert await write(kept.store, engine) == b'{"ids":["2"]}'


@pytest.mark.parametrize("error", FAILURES, ids=repr)
async def test_a_write_of_unknown_outcome_is_never_repeated(kept: Kept, error: Exception) -> None:
    engine = Engine(error)
    with pytest.raises(type(error)):
        await write(kept.store, engine)
    engine.error = None
    for _ in range(2):
        told = await refusal(kept.store, engine)
        assert (told.code, told.retryable) == (Code.BACKEND_UNAVAILABLE, False)
        assert "outcome is not known" in told.message
    assert engine.writes == 1


async def test_the_caller_of_once_may_know_better_what_was_written() -> None:
    engine, store = Engine(BackendUnavailable("not open")), MemoryStore()
    memory = Idempotency(store)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="not open"):
            await memory.once("ann", "index/add", "k", "r", engine, untouched=lambda error: True)
    assert engine.writes == 2


async def test_a_cancelled_write_is_of_unknown_outcome(kept: Kept, engine: Engine) -> None:
    engine.go.clear()
    task = asyncio.create_task(write(kept.store, engine))
    await engine.started.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert "outcome is not known" in (await refusal(kept.store, engine)).message
    assert engine.writes == 1


async def test_a_worker_that_died_while_writing_leaves_an_unknown_outcome(kept: Kept, engine: Engine) -> None:
    class Dies(Idempotency):
        async def _tidy(self, key: str) -> None:
            """Nobody cleans up after a process that is gone."""

    engine.error = RuntimeError("gone")
    with pytest.raises(RuntimeError):
        await Dies(kept.store, ttl=100, lease=10).once("ann", "index/add", "k", "r", engine, untouched=before_it_began)
    assert (await refusal(kept.store, engine)).code == Code.RATE_LIMITED
    kept.pass_time(11)
    assert "outcome is not known" in (await refusal(kept.store, engine)).message
    assert engine.writes == 1


async def test_a_record_that_cannot_be_read_is_a_write_of_unknown_outcome() -> None:
    class Newer(MemoryStore):
        """Keeps records as another version of this program may write them."""

        async def get(self, key: str) -> bytes | None:
            return b"[2]" if key.startswith("once:") else await super().get(key)

    engine = Engine()
    with pytest.raises(BackendUnavailable, match="its outcome is not known"):
        await Idempotency(Newer()).once("c", "index/add", "k", digest("r"), engine, untouched=before_it_began)
    assert engine.writes == 0


class Failing(MemoryStore):
    """One whose calls fail from the ``n``-th on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StateUnavailable

    async def get(self, key: str) -> bytes | None:
        self._spend()
        return await super().get(key)

    async def put(self, key: str, value: bytes, *, ttl: float | None) -> None:
        self._spend()
        await super().put(key, value, ttl=ttl)

    async def add(self, key: str, value: bytes, *, ttl: float | None) -> bool:
        self._spend()
        return await super().add(key, value, ttl=ttl)

    async def delete(self, key: str) -> None:
        self._spend()
        await super().delete(key)


@given(after=st.integers(0, 6), error=st.none() | st.sampled_from([*REFUSALS, *FAILURES[:4]]))
def test_wherever_the_state_fails_nothing_is_written_twice(after: int, error: RcpError | None) -> None:
    async def run() -> None:
        engine, store = Engine(error), Failing(after)
        with suppress(RcpError):
            await write(store, engine)
        if after < 3:
            assert engine.writes == 0
        first, engine.error = engine.writes, None
        store.left = 1_000
        answers = []
        for _ in range(3):
            with suppress(RcpError):
                answers.append(await write(store, engine))
        if error not in REFUSALS:
            assert engine.writes <= 1
        assert engine.writes <= first + 1
        assert len(set(answers)) <= 1

    asyncio.run(run())


async def test_without_state_a_write_is_refused_before_it_begins(engine: Engine) -> None:
    error = await refusal(Failing(0), engine)
    assert isinstance(error, StateUnavailable)
    assert (error.code, error.retryable, engine.writes) == (Code.BACKEND_UNAVAILABLE, True, 0)


async def test_an_answer_that_cannot_be_kept_is_still_given(engine: Engine) -> None:
    store = Failing(3)
    assert await write(store, engine) == b'{"ids":["1"]}'
    store.left = 1_000
    # The lease could not be given back either; once it is over, nobody knows what became of the write.
    await store.delete(f"lease:{digest('ann', 'index/add', 'k')}")
    assert "outcome is not known" in (await refusal(store, engine)).message
    assert engine.writes == 1


async def test_keys_hold_nothing_that_a_client_sent(server: Server, engine: Engine) -> None:
    server.empty()
    async with opened(server) as store:
        await write(store, engine, key="client-key", caller="ann@example", request="digest")
    with server.connect() as client:
        keys = b" ".join(client.keys("*"))
    assert b"client-key" not in keys
    assert b"ann" not in keys
