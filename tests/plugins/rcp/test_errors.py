"""What an upstream's errors become."""

import pytest

from gateway.errors import BackendUnavailable, RateLimited, RcpError, Timeout
from gateway.spi.engine import EngineQuery
from tests.obligations import obligation
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio


async def failure_of(over, behaviour):
    async with over(behaviour) as engine:
        with pytest.raises(RcpError) as caught:
            await engine.retrieve(EngineQuery(text="paris", k=3), FakeCall())
    return caught.value


@obligation(217)
@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("refused", -32602),
        ("optionrefused", -32005),
        ("missing", -32003),
        ("unauthorized", -32012),
        ("unknownmethod", -32601),
        ("unknowncode", -31999),
    ],
)
async def test_a_refusal_of_us_is_an_unavailable_engine_and_not_worth_a_retry(over, behaviour, code):
    error = await failure_of(over, behaviour)
    assert (error.code, error.data["upstreamCode"]) == (-32010, code)
    assert not error.retryable
    assert error.to_wire()["data"]["retryable"] is False


@obligation(217)
@pytest.mark.parametrize(
    ("behaviour", "code", "retryable"),
    [
        ("ratelimited", -32011, True),
        ("timedout", -32014, True),
        ("internal", -32603, False),
        ("unavailable", -32010, False),
    ],
)
async def test_an_engines_own_trouble_keeps_its_code(over, behaviour, code, retryable):
    error = await failure_of(over, behaviour)
    assert (error.code, error.data["upstreamCode"], error.retryable) == (code, code, retryable)


@obligation(216)
async def test_the_wait_that_an_engine_asks_for_is_kept(over):
    error = await failure_of(over, "ratelimited")
    assert isinstance(error, RateLimited)
    assert error.data["retryAfterMs"] == 500


async def test_a_deadline_that_passed_upstream_is_a_timeout(over):
    assert isinstance(await failure_of(over, "timedout"), Timeout)


@pytest.mark.parametrize("behaviour", ["stringcode", "errortext"])
async def test_an_error_of_no_known_shape_is_a_failed_engine(over, behaviour):
    error = await failure_of(over, behaviour)
    assert isinstance(error, BackendUnavailable)
    assert "upstreamCode" not in error.data


async def test_the_text_of_an_engine_goes_to_the_log_and_not_on_the_wire(over):
    error = await failure_of(over, "refused")
    assert "secret" not in str(error.to_wire())
    assert "filter.year" in error.message
    assert error.detail == "bad query secret"
