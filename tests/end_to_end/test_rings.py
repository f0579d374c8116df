"""Gateways that have each other behind them: every request ends, and every engine's hits are there once."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from gateway.errors import BackendUnavailable
from gateway.federation import process
from gateway.spi import Call, EngineQuery, EngineReply
from gateway.transports.server import serve
from tests.end_to_end.nodes import chain
from tests.end_to_end.running import (
    COMMAND,
    Whole,
    alive,
    config,
    free_port,
    memory,
    on_stdio,
    opened,
    serving,
    upstream,
    written,
)
from tests.engines import Script, hits
from tests.obligations import obligation
from tests.transports import connect, exchange, request

pytestmark = pytest.mark.anyio

QUERY = {"query": "Paris", "k": 10}


def own(name: str) -> dict[str, Any]:
    """An engine with one document that is called after its gateway."""
    return memory(f"{name}-memory", documents=[{"id": name, "text": f"Paris, said {name}"}])


def ids(frame: Mapping[str, Any]) -> list[str]:
    return sorted(hit["id"] for hit in frame["result"]["hits"])


def child(path: Path) -> dict[str, Any]:
    """A gateway as a child; it gets nothing of our environment, and is to run the same code."""
    env = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {"command": [str(COMMAND), "stdio", "-c", str(path)], "handshake_timeout": 60, "env": env}


@obligation(236, 237, 243)
@pytest.mark.parametrize("way", ["http", "sse", "stdio"])
async def test_in_a_chain_of_three_time_and_depth_shrink_and_hits_come_once(way: str) -> None:
    left: dict[str, float] = {}
    routes: dict[str, tuple[int, tuple[str, ...]]] = {}

    def script(name: str) -> Script:
        async def answer(query: EngineQuery, call: Call) -> EngineReply:
            left[name] = call.remaining()
            routes[name] = (call.route.depth, call.route.path)
            return EngineReply(hits=hits(name, "shared"), exhausted=True)

        return Script(retrieve=answer)

    names = ("one", "two", "three")
    with fail_after(30):
        async with chain({name: script(name) for name in names}) as (gateway, _), connect(way, gateway) as client:
            frame = await client.call("retrieve", {**QUERY, "_meta": {"deadlineMs": 5000}})
    assert ids(frame) == ["one", "shared", "three", "two"]
    assert 5 > left["one"] > left["two"] > left["three"] > 0
    assert [routes[name][1] for name in names] == [names[: place + 1] for place in range(3)]
    depths = [routes[name][0] for name in names]
    assert [one - other for one, other in itertools.pairwise(depths)] == [1, 1]


@obligation(239, 240)
async def test_a_ring_of_three_over_http_ends_wherever_it_is_entered() -> None:
    names = ("one", "two", "three")
    ports = {name: free_port() for name in names}
    async with AsyncExitStack() as stack:
        with fail_after(60):
            gateways: list[Whole] = []
            for name, next in zip(names, (*names[1:], names[0]), strict=True):
                engines = [own(name), upstream("next", own={"url": f"http://127.0.0.1:{ports[next]}/rcp"})]
                gateway = await stack.enter_async_context(opened(*engines, name=name))
                await stack.enter_async_context(serve(gateway.app(), port=ports[name]))
                gateways.append(gateway)
            clients = [await stack.enter_async_context(connect("sse", gateway)) for gateway in gateways]
            for client in clients:  # the first ones began without the next, and try again until it is there
                while ids(await client.call("retrieve", QUERY)) != sorted(names):
                    pass
            frames = await asyncio.gather(*(client.call("retrieve", QUERY) for client in clients * 3))
    assert [ids(frame) for frame in frames] == [sorted(names)] * 9
    assert all("cycle" in " ".join(frame["result"]["usage"]["notes"]) for frame in frames)


@obligation(239, 240)
async def test_a_ring_of_a_server_and_its_own_child_ends(tmp_path: Path) -> None:
    """``one`` serves HTTP and has ``two`` as a child; ``two`` calls ``one`` over HTTP."""
    port = free_port()
    two = written(
        tmp_path,
        config(own("two"), upstream("back", own={"url": f"http://127.0.0.1:{port}/rcp"}), name="two"),
        "two.yaml",
    )
    one = written(tmp_path, config(own("one"), upstream("next", own=child(two)), name="one"), "one.yaml")
    with fail_after(90):
        async with serving(one, port=port) as gateway:
            while True:
                body = (await exchange(gateway.address, "/rcp/retrieve", request("retrieve", QUERY))).json
                # The child came up before its parent listened; it reaches it sooner or later.
                if "cycle" in " ".join(body["result"]["usage"].get("notes", [])):
                    break
            assert ids(body) == ["one", "two"]


@obligation(239, 240)
async def test_two_gateways_that_are_each_others_child_start_a_few_processes_and_answer(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.yaml" for name in ("one", "two")}
    for name, other in (("one", "two"), ("two", "one")):
        engines = [own(name), upstream("next", own=child(paths[other]), timeout=30)]
        written(tmp_path, config(*engines, name=name), f"{name}.yaml")
    with fail_after(120):
        async with on_stdio(paths["one"]) as gateway:
            frame = await gateway.call("retrieve", QUERY)
            started = gateway.children()
            gateway.close_stdin()
            assert await gateway.ended(30) == 0
    assert ids(frame) == ["one", "two"]
    assert 1 <= len(started) <= 4
    assert alive(started) == set()


async def test_a_child_that_stands_too_deep_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCP_GATEWAY_NESTED", "4")
    with pytest.raises(BackendUnavailable) as caught:
        async with process.spawn(["true"], logger=logging.getLogger("test")):
            pass
    assert not caught.value.retryable


@pytest.mark.parametrize(("said", "told"), [("", b"1"), ("2", b"3"), ("-1", b"1"), ("many", b"1"), ("9999", b"1")])
async def test_a_child_is_told_how_deep_it_stands(said: str, told: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RCP_GATEWAY_NESTED", said)
    argv = ["python", "-c", "import os; print(os.environ['RCP_GATEWAY_NESTED'])"]
    with fail_after(20):
        async with process.spawn(argv, logger=logging.getLogger("test")) as child:
            assert await child.read_line(100) == told
