"""Gateways behind gateways, over real HTTP: chains, rings, and what of a request's way goes over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from anyio import fail_after

from gateway.transports.server import serve
from tests.end_to_end.running import HOSTILE, Whole, free_port, memory, opened, peer_over_http, upstream
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import Client, connect

pytestmark = pytest.mark.anyio

QUERY = {"query": "Paris", "k": 10}


def own(name: str, **host: Any) -> dict[str, Any]:
    """An engine with one document that is called after its gateway."""
    return memory(f"{name}-memory", documents=[{"id": name, "text": f"Paris, said {name}"}], **host)


@asynccontextmanager
async def served(*engines: Mapping[str, Any], name: str, port: int = 0) -> AsyncIterator[tuple[Whole, str]]:
    async with opened(*engines, name=name) as gateway, serve(gateway.app(), port=port) as address:
        yield gateway, f"{address.url}/rcp"


@asynccontextmanager
async def chain(*names: str, end: str | None = None) -> AsyncIterator[Client]:
    """A client of the first of these gateways, each of which has a document and the next one behind it."""
    async with AsyncExitStack() as stack:
        behind, url = None, end
        for name in reversed(names):
            engines = [own(name), *([upstream(f"{name}-next", own={"url": url})] if url else [])]
            behind, url = await stack.enter_async_context(served(*engines, name=name))
        assert behind is not None
        yield await stack.enter_async_context(connect("sse", behind))


def hits(frame: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {hit["id"]: hit["meta"] for hit in frame["result"]["hits"]}


@obligation(236, 237, 259)
async def test_a_chain_gives_each_engines_hits_once_under_the_nearest_name(reports: Reports) -> None:
    with fail_after(20):
        async with peer_over_http(reports, HOSTILE, "ok") as end, chain("one", "two", "three", end=end) as client:
            found = hits(await client.call("retrieve", QUERY))
            sent = (await reports.frame("retrieve"))["params"]
    assert set(found) == {"one", "two", "three", "a", "b", "c"}
    assert found["one"]["engine"] == "one-memory"
    assert {found[id]["engine"] for id in found if id != "one"} == {"one-next"}
    assert found["a"]["x-upstream"]["engine"] == "two-next"
    # The client sent no way: three hops are allowed, one of which brought the request to each gateway.
    assert sent["_meta"]["federation"] == {"depth": 0, "path": ["one", "two", "three"]}
    assert 0 < sent["_meta"]["deadlineMs"] < 30_000


@obligation(233)
async def test_an_engine_that_is_down_two_gateways_away_is_told_by_each_on_the_way() -> None:
    nobody = {"url": f"http://127.0.0.1:{free_port()}/rcp"}
    with fail_after(20):
        async with chain("one", "two", "three", end=nobody["url"]) as client:
            result = (await client.call("retrieve", QUERY))["result"]
    assert {hit["id"] for hit in result["hits"]} == {"one", "two", "three"}
    assert result["_meta"]["degraded"] == ["one-next"]
    (lost,) = [loss for loss in result["_meta"]["x-gateway"]["losses"] if loss["kind"] == "partial"]
    assert lost == {"kind": "partial", "engine": "one-next", "message": "its answer is partial, without two-next"}


@obligation(238)
async def test_where_the_depth_is_used_up_nobody_further_is_asked(reports: Reports) -> None:
    with fail_after(20):
        async with peer_over_http(reports, HOSTILE, "ok") as end, chain("one", "two", end=end) as client:
            frame = await client.call("retrieve", {**QUERY, "_meta": {"federation": {"depth": 1}}})
    assert set(hits(frame)) == {"one", "two"}
    assert reports.frames("retrieve") == []


@obligation(237, 241)
@pytest.mark.parametrize(
    ("given", "depth", "path"),
    [
        ({"depth": 2, "path": ["elsewhere"]}, 1, ["elsewhere", "one"]),
        ({"depth": 10**9, "path": "x"}, 2, ["one"]),
        ({"depth": "many", "path": [1, None, "far"]}, 2, ["far", "one"]),
        ({"depth": 2, "path": [f"p{n}" for n in range(10_000)]}, 1, [*(f"p{n}" for n in range(9968, 10_000)), "one"]),
        ("garbage", 2, ["one"]),
    ],
)
async def test_a_way_is_clamped_and_lengthened_never_trusted(
    given: Any, depth: int, path: list[str], reports: Reports
) -> None:
    with fail_after(20):
        async with peer_over_http(reports, HOSTILE, "ok") as end, chain("one", end=end) as client:
            await client.call("retrieve", {**QUERY, "_meta": {"federation": given}})
            sent = (await reports.frame("retrieve"))["params"]["_meta"]["federation"]
    assert sent == {"depth": depth, "path": path}


@obligation(239)
async def test_a_request_that_was_here_before_is_not_served_again(reports: Reports) -> None:
    with fail_after(20):
        async with peer_over_http(reports, HOSTILE, "ok") as end, chain("one", end=end) as client:
            frame = await client.call("retrieve", {**QUERY, "_meta": {"federation": {"path": ["one"]}}})
    assert frame["result"]["hits"] == []
    assert "cycle" in " ".join(frame["result"]["usage"]["notes"])
    assert reports.frames("retrieve") == []


@obligation(239, 240)
async def test_a_ring_of_two_ends_and_gives_each_engine_once() -> None:
    ports = {"one": free_port(), "two": free_port()}

    def url(name: str) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{ports[name]}/rcp"}

    with fail_after(30):
        async with (
            served(own("one"), upstream("next", own=url("two")), name="one", port=ports["one"]) as (one, _),
            served(own("two"), upstream("next", own=url("one")), name="two", port=ports["two"]) as (two, _),
            connect("http", one) as first,
            connect("sse", two) as second,
        ):
            # The first began without the second, and tries again until it is there.
            while (await first.call("retrieve", QUERY))["result"].get("_meta", {}).get("degraded"):
                pass
            for frame in await asyncio.gather(*(client.call("retrieve", QUERY) for client in (first, second))):
                assert set(hits(frame)) == {"one", "two"}
                assert "cycle" in " ".join(frame["result"]["usage"]["notes"])


@obligation(240)
async def test_a_gateway_without_a_name_still_has_one_of_its_own(reports: Reports) -> None:
    paths = []
    with fail_after(20):
        async with peer_over_http(reports, HOSTILE, "ok") as end:
            for number in (1, 2):
                async with opened(upstream(own={"url": end}), name="") as gateway, connect("http", gateway) as client:
                    await client.call("retrieve", QUERY)
                    paths.append((await reports.frame("retrieve", number))["params"]["_meta"]["federation"]["path"])
    assert paths[0] != paths[1]


@obligation(50, 51, 52)
async def test_a_gateway_behind_dies_and_what_was_advertised_stays() -> None:
    async with AsyncExitStack() as stack:
        with fail_after(20):
            behind = await stack.enter_async_context(AsyncExitStack())
            _, url = await behind.enter_async_context(served(own("two"), name="two"))
            engine = upstream("next", own={"url": url}, retry={"attempts": 1})
            gateway = await stack.enter_async_context(opened(engine, name="one"))
            client = await stack.enter_async_context(connect("stdio", gateway))
            before = await client.call("info")
            await behind.aclose()
            frame = await client.call("retrieve", QUERY)
            after = await client.call("info")
    assert frame["error"]["code"] == -32010
    assert before["result"]["capabilities"] == after["result"]["capabilities"]
