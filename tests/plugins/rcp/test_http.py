"""HTTP and its streams of events."""

import asyncio

import pytest

from gateway.errors import BackendUnavailable, RcpError
from gateway.secret import Secret
from gateway.spi.engine import EngineQuery
from tests.obligations import obligation
from tests.peers.reports import DEADLINE
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio

QUERY = EngineQuery(text="paris", k=3)


async def test_each_method_has_its_path_below_the_base(upstreams, reports):
    async with upstreams.http("ok", headers={"X-Team": "search"}, token=Secret("hush")) as engine:
        await engine.retrieve(QUERY, FakeCall())
        await engine.index_delete(["a"], FakeCall())
    frames = reports.all("frame")
    assert [frame["path"] for frame in frames] == ["/rcp/initialize", "/rcp/retrieve", "/rcp/index/delete"]
    assert all(frame["headers"]["x-team"] == "search" for frame in frames)
    assert all(frame["headers"]["authorization"] == "Bearer hush" for frame in frames)
    assert all(frame["headers"]["content-type"] == "application/json" for frame in frames)


@obligation(218)
@pytest.mark.parametrize(
    ("behaviour", "code", "upstream", "retryable"),
    [
        ("http429", -32011, -32011, True),
        ("http503", -32010, None, True),
        ("http500", -32010, None, True),
        ("http401", -32010, -32012, False),
        ("http404", -32010, None, False),
    ],
)
async def test_a_status_without_an_answer_means_what_the_spec_says(upstreams, behaviour, code, upstream, retryable):
    async with upstreams.http(behaviour) as engine:
        with pytest.raises(RcpError) as caught:
            await engine.retrieve(QUERY, FakeCall())
    error = caught.value
    assert (error.code, error.data.get("upstreamCode"), error.retryable) == (code, upstream, retryable)
    assert error.data.get("retryAfterMs") == (2000 if behaviour in ("http429", "http503") else None)


@obligation(226)
async def test_a_redirect_is_not_followed(upstreams, reports):
    async with upstreams.http("http302") as engine:
        with pytest.raises(BackendUnavailable, match="redirect"):
            await engine.retrieve(QUERY, FakeCall())
    assert len(reports.all("frame")) == 2


@obligation(215)
async def test_a_connection_that_breaks_off_fails_the_call(upstreams):
    async with upstreams.http("die") as engine:
        with pytest.raises(BackendUnavailable):
            await engine.retrieve(QUERY, FakeCall())


@obligation(212, 213)
@pytest.mark.parametrize("behaviour", ["wrongid", "nullid", "nullresponse", "batch"])
async def test_an_answer_to_something_else_is_no_answer(upstreams, behaviour):
    async with upstreams.http(behaviour, streaming=False) as engine:
        with pytest.raises(RcpError):
            await engine.retrieve(QUERY, FakeCall())


@obligation(213)
async def test_an_error_without_an_id_answers_the_one_request_of_its_connection(upstreams):
    async with upstreams.http("nullid", streaming=False) as engine:
        with pytest.raises(BackendUnavailable) as caught:
            await engine.retrieve(QUERY, FakeCall())
    assert caught.value.data["upstreamCode"] == -32700


@obligation(220)
@pytest.mark.parametrize(
    "behaviour", ["progress", "progress,ssechopped", "progress,ssecrlf,ssechopped", "ssemultiline"]
)
async def test_events_may_be_cut_anywhere(upstreams, behaviour):
    call = FakeCall()
    async with upstreams.http(behaviour) as engine:
        reply = await engine.retrieve(QUERY, call)
    assert [hit.id for hit in reply.hits] == ["a", "b", "c"]


@obligation(220)
async def test_a_separator_of_unicode_in_a_chopped_stream_is_text(upstreams):
    async with upstreams.http("seps,ssechopped") as engine:
        reply = await engine.retrieve(QUERY, FakeCall())
    assert b"\xe2\x80\xa8" in bytes(reply.hits[0].members["text"])


async def test_a_stream_that_ends_without_an_answer_is_a_failed_engine(upstreams):
    async with upstreams.http("progress,ssetruncated") as engine:
        with pytest.raises(BackendUnavailable, match="without an answer"):
            await engine.retrieve(QUERY, FakeCall())


async def test_the_answer_ends_the_stream_whatever_the_server_thinks(upstreams, reports):
    async with upstreams.http("ssehangs") as engine:
        async with asyncio.timeout(DEADLINE):
            assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3
            await reports.until("gone")


async def test_a_stream_is_asked_for_only_if_wanted(upstreams, reports):
    async with upstreams.http("ok", streaming=False) as engine:
        await engine.retrieve(QUERY, FakeCall())
    frame = reports.all("frame")[-1]
    assert frame["headers"]["accept"] == "application/json"
    assert "progressToken" not in frame["frame"]["params"]["_meta"]


async def test_a_call_that_leaves_closes_its_connection(upstreams, reports):
    async with upstreams.http("hang") as engine:
        call = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        await reports.until("hanging")
        call.cancel()
        await reports.until("gone")
    assert reports.frames("notifications/cancel") == []


async def test_a_call_of_a_session_is_cancelled_by_its_id_too(upstreams, reports):
    async with upstreams.http("hang,token") as engine:
        call = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        await reports.until("hanging")
        call.cancel()
        cancelled = await reports.frame("notifications/cancel")
    assert cancelled["params"] == {"id": reports.frames("retrieve")[0]["id"]}


async def test_a_shared_server_is_never_told_to_shut_down(upstreams, reports):
    async with upstreams.http("ok") as engine:
        await engine.retrieve(QUERY, FakeCall())
    assert reports.frames("shutdown") == []
