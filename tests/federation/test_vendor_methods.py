"""A vendor's ``x-…`` methods go to the engine that advertised them, with the client's own parameters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.caller import ANONYMOUS, Caller
from gateway.errors import BackendUnavailable, CallerError, Code, PluginError
from gateway.federation.fleet import check_overridden
from gateway.model import read_capabilities
from gateway.protocol.session import Session
from gateway.spi import Call, Engine
from tests.engines import Running, Script, gateway_of, hits
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def vendors(*members: str, vendor: Any = None, **offer: Any) -> Script:
    capabilities = {"retrieve": None, **{member: {"by": members[0]} for member in members}, **offer}
    return Script(capabilities=capabilities, vendor=vendor)


async def offered(gateway: Running) -> dict[str, Any]:
    told: dict[str, Any] = (await gateway.call("info"))["result"]["capabilities"]
    return told


async def code(gateway: Running, method: str, **params: Any) -> int:
    found: int = (await gateway.call(method, params))["error"]["code"]
    return found


@obligation(186)
async def test_a_method_goes_to_the_engine_that_advertised_its_capability() -> None:
    scripts = {"a": vendors("x-acme"), "b": vendors("x-beta", "x-acme"), "c": Script(hits("x"))}
    async with gateway_of(scripts) as gateway:
        told = await offered(gateway)
        assert (told["x-acme"], told["x-beta"]) == ({"by": "x-acme"}, {"by": "x-beta"})
        params = {"deep": [{"a": 1.5, "b": "\u2028"}], "k": -1}
        answer = await gateway.call("x-beta/dance", {**params, "_meta": {"idempotencyKey": "secret"}})
        assert answer["result"] == {"method": "x-beta/dance", **params}
        assert (await gateway.call("x-acme/sing/twice"))["result"] == {"method": "x-acme/sing/twice"}
        named = {"_meta": {"x-gateway": {"engines": ["b"]}}}
        await gateway.call("x-acme/sing", named)
    assert scripts["a"].asked == [("x-acme/sing/twice", {})]
    assert scripts["b"].asked == [("x-beta/dance", params), ("x-acme/sing", {})]


@obligation(186)
async def test_what_nobody_advertised_and_what_is_no_name_are_unknown() -> None:
    script = vendors("x-acme", "x-gateway", "x-UPPER", "x-not an object")
    script.capabilities = {**script.capabilities, "x-not an object": True, "x-list": [1]}
    async with gateway_of({"a": script}) as gateway:
        told = await offered(gateway)
        assert {name for name in told if name.startswith("x-")} == {"x-acme", "x-gateway"}
        assert "by" not in told["x-gateway"]
        names = ["x-", "x-acme", "x-acme/", "x-acme/../a", "x-acme/a b", "x-acme/a?b=1", "x-acme/.a", "x-acme//a"]
        names += ["x-acme/a%2Fb", "x-acme/" + "a" * 200, "x-other/a", "x-gateway/a", "x-UPPER/a", "x-list/a"]
        for method in names:
            assert await code(gateway, method) == -32004, method
    assert script.asked == []


async def test_claims_that_are_too_large_or_no_json_are_not_told() -> None:
    claims = {"x-large": {"text": "x" * 20_000}, "x-deep": json.loads('{"a":' * 40 + "1" + "}" * 40),
              "x-nan": {"a": float("nan")}, "x-fine": {"a": 1}}  # fmt: skip
    async with gateway_of({"a": Script(capabilities=claims)}) as gateway:
        told = await offered(gateway)
        assert {name for name in told if name.startswith("x-")} == {"x-fine", "x-gateway"}
        assert await code(gateway, "x-large/a") == -32004
        (entry,) = (await gateway.call("catalog/list"))["result"]["engines"]
    assert {name for name in entry["capabilities"] if name.startswith("x-")} == {"x-fine"}


async def test_an_engine_that_the_caller_may_not_see_has_no_methods() -> None:
    scripts = {"a": vendors("x-acme"), "b": Script(hits("x"))}
    async with gateway_of(scripts) as gateway:
        some = Running(gateway.gateway, gateway.scripts, Caller(id="some", engines=frozenset({"b"})))
        assert "x-acme" not in await offered(some)
        assert await code(some, "x-acme/dance") == -32004
        reader = Running(gateway.gateway, gateway.scripts, Caller(id="reader", writable=False))
        assert await code(reader, "x-acme/dance") == -32012
        assert await code(gateway, "x-acme/dance", _meta={"x-gateway": {"engines": ["b"]}}) == -32005
    assert scripts["a"].asked == []


async def test_an_answer_that_is_no_sound_object_is_the_engines_failure() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    given: list[Any] = []

    async def answers(method: str, params: Any, call: Call) -> Any:
        return given.pop()

    script = vendors("x-acme", vendor=answers)
    async with gateway_of({"a": script}) as gateway:
        for answer in ([1], None, "text", {"a": float("nan")}, {"a": deep}, {"a": "x" * 5_000_000}):
            given.append(answer)
            error = (await gateway.call("x-acme/dance"))["error"]
            assert (error["code"], error["data"]["engine"], error["data"]["retryable"]) == (-32010, "a", False)
        given.append({"a": "\ud800", 7: (1, 2)})
        assert (await gateway.call("x-acme/dance"))["result"] == {"a": "\ufffd", "7": [1, 2]}


@pytest.mark.parametrize(
    ("thrown", "wanted"),
    [
        (CallerError("bad", data={"field": "tempo"}), -32602),
        (CallerError("no", code=Code.METHOD_NOT_FOUND), -32004),
        (CallerError("no", code=Code.NOT_FOUND), -32015),
        (CallerError("who?", code=Code.UNAUTHORIZED), -32010),
        (BackendUnavailable("gone"), -32010),
        (KeyError("bug"), -32603),
    ],
)
async def test_what_an_engine_says_of_the_clients_parameters_is_told_and_nothing_is_tried_twice(
    thrown: Exception, wanted: int
) -> None:
    async def fails(method: str, params: Any, call: Call) -> Any:
        raise thrown

    script = vendors("x-acme", vendor=fails)
    async with gateway_of({"a": script}) as gateway:
        error = (await gateway.call("x-acme/dance"))["error"]
    assert (error["code"], error["data"]["engine"]) == (wanted, "a")
    assert error["data"].get("field") == (thrown.data.get("field") if isinstance(thrown, CallerError) else None)
    assert len(script.asked) == 1


@obligation(70, 71)
async def test_what_an_engine_logs_meanwhile_reaches_the_client_that_wants_it() -> None:
    async def talks(method: str, params: Any, call: Call) -> Any:
        call.progress(0.5, "dancing")
        call.log("error", "stumbled")
        return {}

    frames: list[bytes] = []
    async with gateway_of({"a": vendors("x-acme", vendor=talks)}) as gateway:
        for meta in ({"progressToken": 1}, {"logLevel": "warning"}):
            sent = {"jsonrpc": "2.0", "id": 1, "method": "x-acme/dance", "params": {"_meta": meta}}
            session = Session("implicit", ANONYMOUS)
            await gateway.gateway.dispatcher.answer(json.dumps(sent).encode(), session, emit=frames.append)
    (log,) = map(json.loads, frames)
    assert log["params"] == {"level": "error", "message": "stumbled"}


@obligation(238)
async def test_a_vendors_method_is_not_forwarded_beyond_its_depth() -> None:
    script = vendors("x-acme")
    script.federates = True
    async with gateway_of({"a": script}) as gateway:
        assert await code(gateway, "x-acme/dance", _meta={"federation": {"depth": 0}}) == -32010
    assert script.asked == []


@pytest.mark.parametrize(
    ("capabilities", "missing"),
    [
        ({"graph": {"ops": ["local"]}}, "graph"),
        ({"feedback": {}}, "feedback"),
        ({"memory": {}}, "memory_build, memory_recall"),
        ({"multiVector": {}}, "embed_multi"),
        ({"index": {"writable": True, "chunking": True}}, "index_add, index_delete, index_cut"),
        ({"index": {"writable": True, "contextual": True}}, "index_cut"),
    ],
)
def test_what_is_declared_must_be_there(capabilities: Any, missing: str) -> None:
    class Idle(Engine):
        def capabilities(self) -> Any:
            return None

    with pytest.raises(PluginError, match=missing):
        check_overridden(Idle(), read_capabilities(capabilities))


async def test_what_an_engine_only_tells_of_itself_is_in_the_catalog_and_calls_nothing() -> None:
    """Stores say there how they score; it is no offer of methods."""
    from gateway_memory.engine import MemoryEngine
    from tests.engines import ScriptedEngine

    assert ScriptedEngine.vendor is not Engine.vendor
    assert MemoryEngine.vendor is Engine.vendor
    async with gateway_of({"a": vendors("x-acme")}) as gateway:
        gateway.gateway.fleet.members["a"].own_methods = False
        told = (await gateway.call("info"))["result"]["capabilities"]
        listed = (await gateway.call("catalog/list"))["result"]["engines"]
        assert await code(gateway, "x-acme/dance") == -32004
    assert "x-acme" not in told
    assert "x-acme" in listed[0]["capabilities"]
