"""Opening: versions, sessions, single-session servers, and one handshake for everybody."""

import asyncio

import pytest

from gateway.errors import BackendUnavailable
from gateway.spi.engine import EngineQuery
from tests.obligations import obligation
from tests.peers.reports import DEADLINE
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio

QUERY = EngineQuery(text="paris", k=3)


@obligation(207)
@pytest.mark.parametrize("behaviour", ["version0", "versiontext", "tooold", "handshakearray"])
async def test_an_upstream_without_a_common_version_does_not_open(over, behaviour):
    with pytest.raises(BackendUnavailable):
        async with over(behaviour):
            pass


@obligation(214)
async def test_a_missing_version_is_the_first(over):
    async with over("noversion") as engine:
        assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3


@obligation(208)
async def test_an_upstream_whose_one_session_is_taken_is_asked_for_its_info(over, reports):
    async with over("already") as engine:
        assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3
    methods = [report["frame"]["method"] for report in reports.all("frame")]
    assert methods[:3] == ["initialize", "info", "retrieve"]


async def test_an_upstream_that_never_answers_the_handshake_does_not_open(over):
    with pytest.raises(BackendUnavailable, match="handshake"):
        async with over("handshakehangs", handshake_timeout=0.1):
            pass


@obligation(209)
async def test_a_session_token_is_sent_along(upstreams, reports):
    async with upstreams.http("token") as engine:
        assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3
    first, second = reports.all("frame")
    assert "rcp-session" not in first["headers"]
    assert second["headers"]["rcp-session"] == "session-1"


@obligation(209)
async def test_a_forgotten_session_is_opened_again_once_and_the_call_repeated(over, reports):
    async with over("forgets") as engine:
        assert len((await engine.retrieve(QUERY, FakeCall())).hits) == 3
    methods = [report["frame"]["method"] for report in reports.all("frame")]
    assert methods[:4] == ["initialize", "retrieve", "initialize", "retrieve"]
    assert len(set(map(str, (frame["id"] for frame in reports.frames("retrieve"))))) == 2


@obligation(209)
async def test_calls_that_learn_together_that_the_session_is_gone_share_one_new_handshake(upstreams, reports):
    async with upstreams.http("token") as engine:
        async with upstreams.engine(url=f"http://127.0.0.1:{reports.all('listening')[0]['port']}/rcp"):
            # The other engine's handshake has replaced the session of the first.
            replies = await asyncio.gather(*(engine.retrieve(QUERY, FakeCall()) for _ in range(20)))
    assert all(len(reply.hits) == 3 for reply in replies)
    assert len(reports.frames("initialize")) == 3


@obligation(205)
async def test_fifty_calls_at_once_need_one_handshake(over, reports):
    async with over("echo") as engine:
        async with asyncio.timeout(DEADLINE):
            queries = [EngineQuery(text=f"q{number}", k=3) for number in range(50)]
            replies = await asyncio.gather(*(engine.retrieve(query, FakeCall()) for query in queries))
    assert [reply.hits[0].id for reply in replies] == [query.text for query in queries]
    assert len(reports.frames("initialize")) == 1


async def test_first_calls_after_a_lapse_wait_for_the_same_handshake_even_if_one_of_them_leaves(upstreams, reports):
    async with upstreams.http("forgets") as engine:
        engine._session.handshake.reset()
        leaving = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        staying = asyncio.create_task(engine.retrieve(QUERY, FakeCall()))
        await asyncio.sleep(0)
        leaving.cancel()
        assert len((await staying).hits) == 3
    assert leaving.cancelled()


@obligation(213, 214)
async def test_capabilities_of_the_wrong_shape_are_read_as_far_as_they_go(over):
    async with over("oddcapabilities") as engine:
        offered = engine.capabilities()
    assert offered.retrieve is not None
    assert offered.retrieve.max_k is None
    assert offered.embed is None
    assert offered.filter is None
    assert offered.rerank is not None
    assert offered.rerank.max_candidates is None


@obligation(214, 221)
async def test_only_what_this_engine_serves_is_offered(over):
    async with over("ok") as engine:
        offered = engine.capabilities()
    assert offered.filter is not None
    assert offered.filter.fields == {"lang": "keyword", "year": "int", "spot": "geo"}
    assert offered.transform.methods == ("rewrite",)
    assert offered.session is None
    assert offered.streaming is None
    assert offered.index is not None


async def test_configured_fields_take_the_place_of_the_advertised_ones(over):
    async with over("ok", fields={"lang": "text", "topic": "keyword"}) as engine:
        assert engine.capabilities().filter.fields == {"lang": "text", "topic": "keyword"}


async def test_an_upstream_that_is_down_does_not_open(upstreams, unused_port):
    with pytest.raises(BackendUnavailable):
        async with upstreams.engine(url=f"http://127.0.0.1:{unused_port}/rcp"):
            pass


async def test_a_program_that_is_not_there_does_not_open(upstreams):
    with pytest.raises(BackendUnavailable, match="cannot start"):
        async with upstreams.engine(command=["/nowhere/at/all"]):
            pass


async def test_a_child_that_dies_at_once_does_not_open(upstreams):
    with pytest.raises(BackendUnavailable):
        async with upstreams.stdio("diesatonce"):
            pass
