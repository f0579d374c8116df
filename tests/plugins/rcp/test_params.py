"""What reaches an upstream: what it advertised, within its bounds, and nothing of the client's own."""

import pytest

from gateway.errors import CallerError, Timeout
from gateway.model import Content, FusionOptions, MmrOptions, RecencyOptions, RerankOptions
from gateway.spi.call import Route
from gateway.spi.engine import EngineQuery
from tests.obligations import obligation
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio


@pytest.fixture
def sent(upstreams, reports):
    async def ask(query=None, call=None, **settings):
        async with upstreams.stdio("ok", **settings) as engine:
            await engine.retrieve(query or EngineQuery(text="paris", k=3), call or FakeCall())
        return reports.frames("retrieve")[-1]["params"]

    return ask


@obligation(206, 205)
async def test_frames_are_full_json_rpc_and_initialize_comes_first(upstreams, reports):
    async with upstreams.stdio("ok") as engine:
        await engine.retrieve(EngineQuery(text="paris", k=3), FakeCall())
    frames = [report["frame"] for report in reports.all("frame")]
    assert [frame["method"] for frame in frames] == ["initialize", "retrieve", "shutdown"]
    assert [frame["id"] for frame in frames] == [1, 2, 3]
    assert all(frame["jsonrpc"] == "2.0" and isinstance(frame["params"], dict) for frame in frames)


@obligation(223)
async def test_a_plain_question_holds_known_keys_only(sent):
    params = await sent()
    assert params.keys() == {"query", "k", "_meta"}
    assert params["query"] == "paris"
    assert params["_meta"].keys() == {"federation", "deadlineMs", "progressToken"}


@obligation(219)
async def test_k_is_clamped_to_the_bound_of_the_upstream(sent):
    assert (await sent(EngineQuery(text="paris", k=100)))["k"] == 50


@obligation(219)
async def test_k_is_clamped_to_the_configured_bound(sent):
    assert (await sent(EngineQuery(text="paris", k=100), max_k=20))["k"] == 20


@obligation(219)
async def test_the_funnel_holds_after_clamping(sent):
    query = EngineQuery(text="paris", k=30, candidate_k=500, rerank=RerankOptions(method="cross-encoder", top_n=10))
    params = await sent(query)
    assert params["candidateK"] == 50
    assert params["rerank"] == {"method": "cross-encoder", "topN": 30}


@obligation(210)
async def test_options_that_are_not_advertised_are_not_sent(sent):
    query = EngineQuery(
        text="paris",
        k=3,
        mode="dense",
        unit="page",
        level=1,
        seed=7,
        index_version="v1",
        mmr=MmrOptions(lambda_=0.5),
        fusion=FusionOptions(method="rrf"),
        recency=RecencyOptions(field="when", half_life_days=3),
        rerank=RerankOptions(method="llm"),
    )
    params = await sent(query)
    assert params.keys() == {"query", "k", "_meta", "rerank"}
    assert params["rerank"] == {}


async def test_options_that_are_advertised_are_sent(sent):
    query = EngineQuery(text="paris", k=3, mode="sparse", rerank=False, include_text=False, include_vectors=True)
    params = await sent(query)
    assert (params["mode"], params["rerank"], params["includeText"], params["includeVectors"]) == (
        "sparse",
        False,
        False,
        True,
    )


@obligation(236, 237)
async def test_the_route_is_handed_on_as_the_gateway_gave_it(sent):
    params = await sent(call=FakeCall(route=Route(1, ("x", "self"))))
    assert params["_meta"]["federation"] == {"depth": 1, "path": ["x", "self"]}


@obligation(242)
@pytest.mark.parametrize("seconds", [0.002, 1.5, 3600])
async def test_the_deadline_handed_on_is_smaller_than_what_remains(sent, seconds):
    params = await sent(call=FakeCall(seconds=seconds))
    assert 1 <= params["_meta"]["deadlineMs"] < seconds * 1000


async def test_no_deadline_is_handed_on_where_there_is_none(sent):
    assert "deadlineMs" not in (await sent(call=FakeCall(seconds=float("inf"))))["_meta"]


async def test_without_time_left_the_upstream_is_not_asked(upstreams, reports):
    async with upstreams.stdio("ok") as engine:
        with pytest.raises(Timeout):
            await engine.retrieve(EngineQuery(text="paris", k=3), FakeCall(seconds=0.0))
    assert reports.frames("retrieve") == []


@obligation(30)
async def test_a_lone_surrogate_reaches_no_upstream(sent):
    assert (await sent(EngineQuery(text="a\ud800b", k=3)))["query"] == "a\N{REPLACEMENT CHARACTER}b"


async def test_text_blocks_go_as_their_text(sent):
    blocks = (Content(type="text", text="paris"),)
    assert (await sent(EngineQuery(text="paris", content=blocks, k=3)))["query"] == "paris"


@obligation(210)
async def test_an_image_does_not_go_to_an_upstream_that_reads_text(upstreams, reports):
    blocks = (Content(type="image", mime_type="image/png", data="AA=="),)
    async with upstreams.stdio("ok") as engine:
        with pytest.raises(CallerError) as caught:
            await engine.retrieve(EngineQuery(text="", content=blocks, k=3), FakeCall())
    assert caught.value.code == -32005
    assert reports.frames("retrieve") == []
