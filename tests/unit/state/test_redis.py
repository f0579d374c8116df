"""A shared store, over a real server: several workers, and a server that dies, hangs, is full or wants a password."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from gateway.config import StateSettings
from gateway.errors import Code, ConfigError, StateUnavailable
from gateway.secret import Secret
from gateway.state import Shelf, Store, open_state
from gateway.state.redis import RedisStore
from tests.servers.redis import Server, redis_server
from tests.unit.state.stores import Clock, opened

pytestmark = pytest.mark.anyio

SHELF = Shelf("shelf", "ann", 10_000, 10_000)


async def every_call(store: Store) -> list[BaseException | Any]:
    return await asyncio.gather(
        store.get("a"),
        store.put("a", b"1", ttl=10),
        store.add("a", b"1", ttl=10),
        store.delete("a"),
        store.shelve(SHELF, "a", b"1", ttl=10),
        store.take(SHELF, "a"),
        store.extend("s", ["a"], ttl=10, cap=5),
        store.members("s"),
        store.count("c", 1, ttl=10),
        return_exceptions=True,
    )


async def test_two_workers_see_the_same(server: Server) -> None:
    server.empty()
    async with opened(server) as one, opened(server) as other:
        assert one.shared
        assert await one.add("a", b"1", ttl=10)
        assert not await other.add("a", b"2", ttl=10)
        await one.shelve(SHELF, "k", b"v", ttl=10)
        assert await other.take(SHELF, "k") == b"v"
        await one.extend("s", ["x"], ttl=10, cap=5)
        await other.extend("s", ["y"], ttl=10, cap=5)
        assert await one.members("s") == ("x", "y")
        assert [await store.count("c", 1, ttl=10) for store in (one, other, one)] == [1, 2, 3]


async def test_gateways_with_another_prefix_see_nothing_of_each_other(server: Server) -> None:
    server.empty()
    async with opened(server, prefix="a") as one, opened(server, prefix="b") as other, opened(server) as third:
        await one.put("k", b"1", ttl=10)
        await one.shelve(SHELF, "k", b"1", ttl=10)
        for store in (other, third):
            assert (await store.get("k"), await store.take(SHELF, "k")) == (None, None)
    with server.connect() as client:
        assert {key.split(b":")[0] for key in client.keys("*")} == {b"rcp"}


async def test_a_dead_server_is_an_error_that_may_pass_and_it_does(own_server: Server) -> None:
    clock = Clock()
    async with opened(own_server, timeout=5.0) as configured:
        store = RedisStore(configured._client, timeout=5.0, pause=1.0, clock=clock)
        assert await store.add("a", b"1", ttl=10)
        own_server.kill()
        for error in await every_call(store):
            assert isinstance(error, StateUnavailable)
            assert (error.code, error.retryable) == (Code.BACKEND_UNAVAILABLE, True)
        own_server.start_again()
        clock.now += 1.0
        assert await store.add("a", b"2", ttl=10)
        assert await store.get("a") == b"2"


async def test_a_hanging_server_stalls_a_call_no_longer_than_its_time(own_server: Server) -> None:
    async with opened(own_server, timeout=0.2) as configured:
        store = RedisStore(configured._client, timeout=0.2, pause=0.0)
        await store.put("a", b"1", ttl=100)
        own_server.stop()
        began = time.monotonic()
        with fail_after(10):
            for _ in range(3):
                assert all(isinstance(error, StateUnavailable) for error in await every_call(store))
        assert time.monotonic() - began < 5


async def test_after_a_hanging_server_goes_on_every_answer_is_its_questions(own_server: Server) -> None:
    """A call that was given up must not leave its answer on the connection for the next one to read."""
    async with opened(own_server, timeout=0.2) as configured:
        store = RedisStore(configured._client, timeout=0.2, pause=0.0)
        for n in range(8):
            await store.put(f"k{n}", str(n).encode(), ttl=100)
        own_server.stop()
        for _ in range(5):  # more than there are connections
            given_up = await asyncio.gather(*(store.get(f"k{n}") for n in range(8)), return_exceptions=True)
            assert all(isinstance(error, StateUnavailable) for error in given_up)
        own_server.go_on()
        patient = RedisStore(configured._client, timeout=10.0, pause=0.0)
        for _ in range(10):
            found = await asyncio.gather(*(patient.get(f"k{n}") for n in range(8)))
            assert found == [str(n).encode() for n in range(8)]


async def test_a_cancelled_call_leaves_no_answer_behind(server: Server) -> None:
    server.empty()
    async with opened(server) as store:
        await store.put("a", b"a", ttl=100)
        await store.put("b", b"b", ttl=100)
        for turns in range(12):
            task = asyncio.create_task(store.get("a"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await store.get("b") == b"b"


async def test_after_a_failure_it_is_left_alone_for_a_while(own_server: Server) -> None:
    clock = Clock()
    async with opened(own_server, timeout=0.2) as configured:
        store = RedisStore(configured._client, timeout=0.2, pause=1.0, clock=clock)
        own_server.stop()
        with pytest.raises(StateUnavailable):
            await store.get("a")
        own_server.go_on()
        clock.now += 0.9
        with pytest.raises(StateUnavailable):
            await store.get("a")
        clock.now += 0.2
        assert await RedisStore(configured._client, timeout=10.0, clock=clock).get("a") is None


async def test_a_server_that_is_not_there_at_the_start_may_come_later(own_server: Server) -> None:
    own_server.kill()
    async with opened(own_server) as configured:
        own_server.start_again()
        store = RedisStore(configured._client, timeout=10.0)
        assert await store.add("a", b"1", ttl=10)


async def test_a_full_server_is_an_error_but_no_reason_to_leave_it_alone(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--maxmemory", "1", "--maxmemory-policy", "noeviction") as full:
        async with opened(full) as store:
            with pytest.raises(StateUnavailable) as refused:
                await store.add("a", b"1", ttl=10)
            assert "OOM" in refused.value.detail or "OutOfMemory" in refused.value.detail
            assert await store.get("a") is None


async def test_the_password_goes_by_reference_and_nothing_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    word = "the-secret-value"
    with redis_server(tmp_path, "--requirepass", word) as locked:
        whole = Secret(f"redis://:{word}@127.0.0.1:{locked.port}/0", source="env:STATE_URL")
        for settings in ({"url": whole}, {"password": Secret(word)}):
            async with opened(locked, **settings) as store:
                assert await store.add(str(len(settings)) + next(iter(settings)), b"1", ttl=10)
        with caplog.at_level(logging.DEBUG):
            async with opened(locked, url=Secret(f"redis://:wrong-word@127.0.0.1:{locked.port}/0")) as store:
                with pytest.raises(StateUnavailable) as refused:
                    await RedisStore(store._client, timeout=10.0).get("a")
    told = f"{caplog.text} {refused.value} {refused.value.detail} {refused.value.to_wire()} {whole!r}"
    assert "wrong-word" not in told
    assert word not in told
    assert str(locked.port) not in caplog.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls_trusts_the_configured_authority_and_no_other(tmp_path: Path) -> None:
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1 "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    certificate = tmp_path / "cert.pem"
    arguments = ["--tls-cert-file", str(certificate), "--tls-key-file", str(tmp_path / "key.pem")]
    arguments += ["--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no"]
    with redis_server(tmp_path, *arguments) as server:
        url = f"rediss://127.0.0.1:{server.port}/0"
        async with opened(server, url=url, ca=certificate) as store:
            assert await store.add("a", b"1", ttl=10)
        async with opened(server, url=url) as store:
            with pytest.raises(StateUnavailable):
                await RedisStore(store._client, timeout=10.0).get("a")


async def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gateway.state.redis", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ConfigError, match=r"rcp-gateway\[redis\]") as refused:
        async with open_state(StateSettings(kind="redis", url="redis://127.0.0.1:1/0")):
            pass
    assert refused.value.path == "state.kind"


def test_the_library_is_not_loaded_for_state_in_memory() -> None:
    script = "import sys, gateway.app; print(sorted(name for name in sys.modules if name.split('.')[0] == 'redis'))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
