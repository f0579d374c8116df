"""Engines that swallow their cancellation: neither a call nor the end of the gateway waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.spi import VectorNeed
from tests.engines import Running, Script, gateway_of, hits, ids

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def stubborn() -> AsyncIterator[Running]:
    """An engine of which every method but ``retrieve`` ends only when the test does."""
    over = asyncio.Event()

    async def never(*_: Any) -> Any:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError

    offers = {
        "embed": {"dimension": 2},
        "rerank": {"methods": ["llm"]},
        "transform": {"methods": ["hyde"]},
        "graph": {"ops": ["local"]},
        "memory": {},
        "index": {"writable": True},
    }
    methods = ("embed", "rerank", "transform", "graph", "recall", "build", "add", "delete")
    script = Script(hits("x"), offers, **dict.fromkeys(methods, never))  # type: ignore[arg-type]
    needy = Script(hits("y"), need=VectorNeed("s", 2))
    before = asyncio.all_tasks()
    try:
        async with gateway_of({"s": script, "needy": needy}, engines={"s": {"timeout": 9}}, writes="s") as gateway:
            yield gateway
            began = time.perf_counter()
        assert time.perf_counter() - began < 5
    finally:
        over.set()
        await asyncio.gather(*(asyncio.all_tasks() - before))


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("rerank", {"query": "q", "passages": ["a"], "method": "llm"}),
    ("query/transform", {"query": "q", "method": "hyde"}),
    ("embed", {"inputs": ["a"]}),
    ("index/add", {"documents": [{"text": "t"}]}),
    ("index/delete", {"ids": ["x"]}),
    ("graph", {"op": "local", "query": "q"}),
    ("memory/recall", {"query": "q"}),
    ("memory/build", {"documents": [{"text": "t"}]}),
]


@pytest.mark.parametrize(("method", "params"), CALLS, ids=[name for name, _ in CALLS])
async def test_the_call_ends_at_its_deadline(method: str, params: dict[str, Any]) -> None:
    async with stubborn() as gateway:
        began = time.perf_counter()
        answer = await gateway.call(method, {**params, "_meta": {"deadlineMs": 200}})
        assert time.perf_counter() - began < 2
        assert answer["error"]["code"] == -32014


async def test_stages_of_a_retrieve_that_never_end_are_done_without() -> None:
    async with stubborn() as gateway:
        for stage in ({"rewrite": "hyde"}, {"rerank": {"method": "llm"}}):
            began = time.perf_counter()
            own = {"deadlineMs": 400, "x-gateway": {"engines": ["s"]}}
            assert ids(await gateway.retrieve(**stage, _meta=own)) in (["x"], [])
            assert time.perf_counter() - began < 2


async def test_a_client_that_leaves_is_let_go_at_once() -> None:
    async with stubborn() as gateway:
        for method, params in CALLS[:2]:
            call = asyncio.create_task(gateway.call(method, params))
            await asyncio.sleep(0)
            while not any(task.get_name() == "ask s" for task in asyncio.all_tasks()):
                await asyncio.sleep(0)
            began = time.perf_counter()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert time.perf_counter() - began < 1
