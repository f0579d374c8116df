"""A gateway that streams behind a gateway that streams: what comes through, when, and what must not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import fail_after

from gateway.federation.recall import SHARE
from gateway.model import hit
from gateway.transports.server import Address, serve
from tests.end_to_end.nodes import Stages, chain, node
from tests.end_to_end.running import HOSTILE, SDK, opened, peer_over_http, upstream
from tests.engines import Script, hits
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import Wire, events, request

pytestmark = pytest.mark.anyio

TOKEN = "the-clients-own"
EVENTS = {"accept": "text/event-stream"}
ROUNDED = 2e-4
"""Fractions are told with four digits, and every gateway rounds what the one behind it told."""
ODD = "one\u2028two\u2029three\u0085four\r\nfive\rü漢😀 data: six\n\nseven"


def recalled(share: float) -> float:
    """How far a call is of whose recall this much is done."""
    begin, end = SHARE
    return begin + (end - begin) * share


@asynccontextmanager
async def streaming(address: Address, query: str = "q") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The frames of one retrieve, as they come."""
    params = {"query": query, "k": 10, "_meta": {"progressToken": TOKEN}}
    async with Wire.to(address) as wire:
        await wire.post("/rcp/retrieve", request("retrieve", params, id="mine"), **EVENTS)
        await wire.head()
        yield _frames(wire)


async def _frames(wire: Wire) -> AsyncIterator[dict[str, Any]]:
    async for chunk in wire.chunks():
        for frame in events(chunk):
            yield frame


@obligation(104, 199, 200)
@pytest.mark.parametrize("gateways", [1, 2, 3])
async def test_each_stage_of_an_engine_is_told_before_the_next_begins(gateways: int) -> None:
    stages = Stages(4)
    scripts = {f"g{number}": Script(hits=hits(f"h{number}")) for number in range(gateways)}
    scripts[f"g{gateways - 1}"] = Script(retrieve=stages)
    told: list[float] = []

    def share(stage: int) -> float:
        """What the client hears, once every gateway's own engine is done."""
        found = recalled(stage / 5)
        for _ in range(gateways - 1):
            found = recalled((1 + found) / 2)
        return found

    with fail_after(30):
        async with chain(scripts) as (_, address), streaming(address) as frames:
            for number, gate in enumerate(stages.gates, 1):
                while not told or told[-1] < share(number) - ROUNDED:
                    told.append((await anext(frames))["params"]["progress"])
                assert stages.reached == number  # it waits for us to have heard of it
                assert told[-1] == pytest.approx(share(number), abs=ROUNDED)
                gate.set()
            rest = [frame async for frame in frames]
    assert told == sorted(told)
    assert [frame.get("id") for frame in rest] == [None] * (len(rest) - 1) + ["mine"]
    assert {one["id"] for one in rest[-1]["result"]["hits"]} == {"s1", *(f"h{n}" for n in range(gateways - 1))}


@obligation(200)
async def test_what_an_upstream_found_so_far_counts_as_progress_and_its_hits_are_not_shown() -> None:
    stages = Stages(2, found=("late",))
    behind = {"early": Script(hits=hits("unchecked")), "slow": Script(retrieve=stages)}
    with fail_after(30):
        async with (
            node("behind", behind) as (_, far),
            node("front", {"near": Script(hits=hits("mine"))}, next=f"{far.url}/rcp") as (_, address),
            streaming(address) as frames,
        ):
            seen = [await anext(frames)]
            # All of the near engine and half of the far gateway: its first engine, whose hits it has told too.
            while seen[-1]["params"]["progress"] < recalled((1 + recalled(1 / 2)) / 2) - ROUNDED:
                seen.append(await anext(frames))
            stages.gates[0].set()
            # The same, and two thirds of its second engine.
            while seen[-1]["params"]["progress"] < recalled((1 + recalled(5 / 6)) / 2) - ROUNDED:
                seen.append(await anext(frames))
            assert stages.reached == 2
            unfinished = len(seen)
            stages.gates[1].set()
            seen += [frame async for frame in frames]
    *told, final = seen
    assert {frame["params"]["progressToken"] for frame in told} == {TOKEN}
    shown = [[one["id"] for one in frame["params"].get("partial", {}).get("hits", [])] for frame in told]
    # The far one's are shown once it has answered as a whole.
    assert {id for ids in shown[:unfinished] for id in ids} == {"mine"}
    assert {id for ids in shown for id in ids} == {"mine", "unchecked", "late"}
    fractions = [frame["params"]["progress"] for frame in told]
    assert fractions == sorted(fractions)
    assert {one["id"] for one in final["result"]["hits"]} == {"mine", "unchecked", "late"}


@asynccontextmanager
async def chopped(target: Address, size: int) -> AsyncIterator[Address]:
    """A proxy that hands on what the server says in pieces of ``size`` bytes."""

    async def up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)

    async def down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(size):
            writer.write(data)
            await writer.drain()
            for _ in range(3):  # turns in which the piece is read alone
                await asyncio.sleep(0)

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*target)
        tasks = [asyncio.create_task(up(reader, far_writer)), asyncio.create_task(down(far_reader, writer))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            far_writer.transport.abort()
            writer.transport.abort()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        yield Address(*server.sockets[0].getsockname()[:2])


@obligation(101, 224)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_text_survives_two_streams_that_are_cut_anywhere(size: int) -> None:
    script = Script(hits=[hit("odd", 1.0, text=ODD, meta={"note": ODD})])
    with fail_after(60):
        async with (
            node("behind", {"own": script}) as (_, far),
            chopped(far, size) as cut,
            node("front", {}, next=f"{cut.url}/rcp") as (_, near),
            chopped(near, size) as address,
            streaming(address) as frames,
        ):
            seen = [frame async for frame in frames]
    (found,) = seen[-1]["result"]["hits"]
    assert found["text"] == ODD
    assert found["meta"]["note"] == ODD
    partial = [one["params"]["partial"]["hits"] for one in seen[:-1] if "partial" in one["params"]]
    assert partial
    assert all([one["text"] for one in hits] == [ODD] for hits in partial)


@obligation(101, 224)
@pytest.mark.parametrize("behaviour", ["ssechopped", "ssecrlf", "ssechopped,ssecrlf", "ssemultiline"])
async def test_text_of_a_strange_server_survives_whatever_its_line_ends(behaviour: str, reports: Reports) -> None:
    with fail_after(30):
        async with (
            peer_over_http(reports, HOSTILE, f"seps,{behaviour}") as url,
            opened(upstream(own={"url": url})) as front,
        ):
            async with serve(front.app()) as address, streaming(address) as frames:
                seen = [frame async for frame in frames]
    assert [one["text"] for one in seen[-1]["result"]["hits"]] == ["one\u2028two\u2029three\u0085four"]


@obligation(104, 199, 200)
async def test_each_stage_of_an_sdk_server_is_told_before_the_next_begins(reports: Reports) -> None:
    with fail_after(30):
        async with (
            peer_over_http(reports, SDK, "--stream", "--gated") as url,
            opened(upstream(own={"url": url})) as front,
            serve(front.app()) as address,
            streaming(address, "paris") as frames,
        ):
            for fraction in (0.5, 0.75):
                frame = await anext(frames)
                assert frame["params"]["progress"] == pytest.approx(recalled(fraction), abs=ROUNDED)
                assert frame["params"]["progressToken"] == TOKEN
                reports.release()
            rest = [frame async for frame in frames]
    assert "unchecked" not in str(rest)
    assert [hit["id"] for hit in rest[-1]["result"]["hits"]] == ["d1", "d2", "d3"]
