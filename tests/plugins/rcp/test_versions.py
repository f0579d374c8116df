"""An upstream's index versions: pinned where it keeps them, and never silently another."""

import json
from typing import Any

import pytest

from gateway.errors import BackendUnavailable
from gateway.protocol.peer import Answer
from gateway.spi.codec import Raw
from gateway.spi.engine import EngineQuery
from gateway_rcp import replies
from tests.obligations import obligation
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio


def pinned(version: str) -> EngineQuery:
    return EngineQuery(text="paris", k=3, index_version=version, seed=7)


@obligation(152, 153)
async def test_seed_and_version_go_to_an_upstream_that_honours_them(upstreams, reports):
    async with upstreams.stdio("uncited,snapshots") as engine:
        reply = await engine.retrieve(pinned("v7"), FakeCall())
    params = reports.frames("retrieve")[-1]["params"]
    assert (params["indexVersion"], params["seed"]) == ("v7", 7)
    assert reply.index_version == "v7"


@obligation(153)
async def test_an_answer_from_another_version_than_the_pinned_one_is_no_answer(upstreams):
    async with upstreams.stdio("uncited,snapshots") as engine:
        with pytest.raises(BackendUnavailable) as raised:
            await engine.retrieve(pinned("v6"), FakeCall())
    assert (raised.value.code, raised.value.retryable, raised.value.data["retryable"]) == (-32010, False, False)


async def test_an_upstream_that_does_not_say_its_version_is_believed(upstreams):
    async with upstreams.stdio("ok,snapshots") as engine:
        reply = await engine.retrieve(pinned("v6"), FakeCall())
    assert reply.index_version is None
    assert len(reply.hits) == 3


@obligation(153)
@pytest.mark.parametrize("behaviour", ["conflict", "unavailable"])
async def test_both_codes_for_a_version_that_is_gone_mean_the_same(upstreams, behaviour):
    async with upstreams.stdio(f"{behaviour},snapshots") as engine:
        with pytest.raises(BackendUnavailable) as raised:
            await engine.retrieve(pinned("v6"), FakeCall())
    assert (raised.value.code, raised.value.retryable) == (-32010, False)


@pytest.mark.parametrize(("given", "kept"), [("v" * 1024, "v" * 1024), ("v" * 1025, None), (7, None)])
def test_a_version_too_long_to_be_handed_back_is_none(given: Any, kept: str | None):

    answer = Answer(1, Raw(json.dumps({"hits": [], "indexVersion": given}).encode()))
    assert replies.hits(answer, k=1).index_version == kept
