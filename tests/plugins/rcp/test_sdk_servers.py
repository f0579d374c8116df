"""Servers made with the public SDK, over stdio, HTTP and SSE."""

from functools import partial

import pytest

from gateway.filters import holds, parse
from gateway.model import meta_of
from gateway.spi.engine import EmbedQuery, EngineQuery, RerankQuery
from tests.obligations import obligation
from tests.plugins.rcp.conftest import SDK, FakeCall

pytestmark = pytest.mark.anyio

QUERY = EngineQuery(text="paris france", k=10)


@pytest.fixture(params=["stdio", "http", "sse"])
def sdk(request, upstreams):
    if request.param == "stdio":
        return partial(upstreams.stdio, script=SDK)
    return partial(upstreams.http, *(["--stream"] if request.param == "sse" else []), script=SDK)


@obligation(206, 214, 219)
async def test_retrieving_from_an_sdk_server(sdk):
    async with sdk() as engine:
        reply = await engine.retrieve(QUERY, FakeCall())
        assert engine.capabilities().retrieve.max_k == 3
    assert [hit.id for hit in reply.hits] == ["d1", "d2", "d3"]
    assert not reply.exhausted


async def test_many_calls_on_one_connection(sdk):
    async with sdk() as engine:
        for _ in range(20):
            assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3


async def test_progress_of_an_sdk_stream_arrives_without_its_hits(upstreams):
    call = FakeCall()
    async with upstreams.http("--stream", script=SDK) as engine:
        await engine.retrieve(QUERY, call)
    assert call.told == [(0.5, "recall"), (0.75, "rank")]


@obligation(208)
async def test_a_second_gateway_on_the_same_sdk_server_works(upstreams):
    async with upstreams.served(SDK) as url:
        async with upstreams.engine(url=url) as first, upstreams.engine(url=url) as second:
            for engine in (first, second):
                assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3
            assert first.capabilities() == second.capabilities()


@obligation(209)
async def test_an_sdk_server_that_was_restarted_is_initialised_again(upstreams, reports, monkeypatch):
    async with upstreams.served(SDK) as old:
        async with upstreams.engine(url=old) as engine:
            await engine.retrieve(QUERY, FakeCall())
            async with upstreams.served(SDK) as new:
                # A fresh server at the address that the engine knows.
                address = type(engine._session._link._client.address)(new)
                monkeypatch.setattr(engine._session._link._client, "address", address)
                assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3
    assert engine._session.handshake.generation == 2


@pytest.mark.parametrize(
    "wire",
    [
        {"field": "lang", "op": "eq", "value": "en"},
        {"field": "lang", "op": "ne", "value": "en"},
        {"field": "lang", "op": "nin", "value": ["en", "de"]},
        {"field": "year", "op": "gte", "value": 2020},
        {"not": {"field": "year", "op": "gt", "value": 2000}},
        {"or": [{"field": "lang", "op": "exists", "value": False}, {"field": "year", "op": "lt", "value": 2021}]},
    ],
)
async def test_filters_reach_an_sdk_server_in_a_form_it_accepts_and_mean_what_we_mean(sdk, reports, wire):
    tree = parse(wire, {"lang": "keyword", "year": "int"})
    async with sdk() as engine:
        split = engine.push_down(tree)
        everything = await engine.retrieve(QUERY, FakeCall())
        reply = await engine.retrieve(EngineQuery(text="paris france", k=10, filter=split.native), FakeCall())
    found = {hit.id for hit in reply.hits if split.residual is None or holds(split.residual, meta_of(hit))}
    assert found == {hit.id for hit in everything.hits if holds(tree, meta_of(hit))}


async def test_embedding_and_reranking_with_an_sdk_server(sdk):
    async with sdk() as engine:
        assert (await engine.embed(EmbedQuery(inputs=("ab", "c")), FakeCall())).vectors == ((2.0, 1.0), (1.0, 1.0))
        assert await engine.rerank(RerankQuery(query="q", passages=("ab", "c")), FakeCall()) == [2.0, 1.0]
        await engine.ping(FakeCall())
