"""``limits.rate``: how often a caller may ask, whatever the method and the profile."""

from __future__ import annotations

import pytest

from gateway.caller import Caller
from tests.engines import Running, Script, gateway_of, hits, ids
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


@obligation(118, 94)
async def test_more_calls_than_a_caller_may_make_are_refused_before_any_engine_hears_of_them() -> None:
    script = Script(hits("x"))
    async with gateway_of({"a": script}, limits={"rate": 3}) as gateway:
        rate = gateway.gateway.service.keeping.rate
        assert rate is not None
        rate._clock = lambda: 630.0
        assert ids(await gateway.retrieve()) == ["x"]
        assert "result" in await gateway.call("catalog/list")
        assert ids(await gateway.retrieve()) == ["x"]
        error = await gateway.refused()
        assert (error["code"], error["data"]["retryAfterMs"]) == (-32011, 30_000)
        assert (await gateway.call("catalog/list"))["error"]["code"] == -32011
        assert "result" in await gateway.call("ping"), "that the gateway is there may be asked at any time"
        other = Running(gateway.gateway, gateway.scripts, Caller("other"))
        assert ids(await other.retrieve()) == ["x"]
    assert len(script.queries) == 3
