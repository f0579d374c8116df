"""Engines that are down, come late, go and come back."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.caller import ANONYMOUS
from gateway.errors import BackendUnavailable, ConfigError, ConfigErrors
from gateway.protocol.session import Session
from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Running, Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def opening(*outcomes: Exception | None) -> tuple[Script, asyncio.Event]:
    """A script whose openings end like this, one after the other; the event is set by the first that succeeds."""
    left = list(outcomes)
    opened = asyncio.Event()

    async def open_() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error
        opened.set()

    return Script(hits("x"), opening=open_), opened


async def test_a_gateway_starts_while_an_engine_is_down_says_so_and_heals() -> None:
    late, opened = opening(BackendUnavailable("refused"), None)
    async with gateway_of({"late": late, "b": Script(hits("y"))}) as gateway:
        first = await gateway.retrieve()
        assert ids(first) == ["y"]
        assert "engine late failed: refused" in notes(first)
        async with asyncio.timeout(5):
            await opened.wait()
        while gateway.gateway.fleet.members["late"].engine is None:
            await asyncio.sleep(0)
        assert sorted(ids(await gateway.retrieve())) == ["x", "y"]


async def test_the_log_says_once_that_an_engine_did_not_open(caplog: pytest.LogCaptureFixture) -> None:
    late, _ = opening(*[BackendUnavailable("it did not open: refused")] * 99)
    async with gateway_of({"late": late, "b": Script(hits("y"))}) as gateway:
        assert "engine late failed: it did not open: refused" in notes(await gateway.retrieve())
    assert "engine late did not open: refused" in [record.getMessage() for record in caplog.records]


@obligation(55)
async def test_with_every_engine_down_retrieve_is_still_advertised_and_fails_as_unavailable() -> None:
    down, _ = opening(*[BackendUnavailable("refused")] * 99)
    async with gateway_of({"a": down}) as gateway:
        info = (await gateway.call("info"))["result"]
        assert "retrieve" in info["capabilities"]
        assert (await gateway.refused())["code"] == -32010


async def test_an_engine_that_must_be_there_stops_the_start_when_it_is_not() -> None:
    down, _ = opening(BackendUnavailable("refused"))
    with pytest.raises(ConfigErrors, match="engine a: is required: refused"):
        async with gateway_of({"a": down}, engines={"a": {"required": True}}):
            raise AssertionError("it must not start")


async def test_a_configuration_fault_found_at_opening_stops_the_start_and_closes_the_others() -> None:
    faulty, _ = opening(ConfigError("the collection has no vector 'title' (there is 'text')"))
    with pytest.raises(ConfigErrors, match="engine a: the collection has no vector"):
        async with gateway_of({"a": faulty, "b": Script(hits("y"))}):
            raise AssertionError("it must not start")
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("engine ")]


async def test_an_unexpected_exception_at_opening_costs_only_that_engine() -> None:
    broken, _ = opening(*[ZeroDivisionError("secret detail")] * 99)
    async with gateway_of({"a": broken, "b": Script(hits("y"))}) as gateway:
        result = await gateway.retrieve()
    assert ids(result) == ["y"]
    assert "secret detail" not in notes(result)


async def test_an_engine_that_neither_opens_nor_fails_holds_the_start_up_no_longer_than_is_configured() -> None:
    never = asyncio.Event()

    async def open_() -> None:
        await never.wait()

    late, there = Script(hits("x"), opening=open_), Script(hits("y"))
    async with gateway_of({"late": late, "b": there}, federation={"start_timeout": 0.05}) as gateway:
        answer = await gateway.retrieve()
        assert ids(answer) == ["y"]
        assert "engine late failed: it did not open within 0.05 s" in notes(answer)
        never.set()
        async with asyncio.timeout(5):
            while gateway.gateway.fleet.members["late"].engine is None:
                await asyncio.sleep(0)
        assert sorted(ids(await gateway.retrieve())) == ["x", "y"]


async def test_a_required_engine_that_does_not_open_in_time_stops_the_start() -> None:
    async def open_() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ConfigErrors, match=r"engine a: is required: it did not open within 0\.05 s"):
        async with gateway_of(
            {"a": Script(opening=open_)}, engines={"a": {"required": True}}, federation={"start_timeout": 0.05}
        ):
            raise AssertionError("it must not start")


async def test_while_an_engine_has_never_been_seen_an_unknown_field_is_not_the_callers_fault() -> None:
    late, _ = opening(*[BackendUnavailable("refused")] * 99)
    async with gateway_of({"late": late, "b": Script(hits("y"))}) as gateway:
        error = await gateway.refused(filter={"field": "lang", "op": "eq", "value": "en"})
        assert error["code"] == -32010
        assert error["data"]["retryable"] is True
        assert (await gateway.refused(mode="dense"))["code"] == -32010


async def test_what_may_be_misspelt_is_told_with_what_is_nearest_and_what_has_been_seen() -> None:
    late, _ = opening(*[BackendUnavailable("refused")] * 99)
    declares = {
        "retrieve": {"maxK": 100, "modes": ["dense", "sparse"]},
        "filter": {"fields": {"lang": "keyword", "year": "int"}, "operators": ["eq"]},
    }
    async with gateway_of({"late": late, "b": Script(hits("y"), declares)}) as gateway:
        field = await gateway.refused(filter={"field": "lnag", "op": "eq", "value": "en"})
        mode = await gateway.refused(mode="dens")
        level = await gateway.refused(level=3)
    assert (field["code"], mode["code"], level["code"]) == (-32010, -32010, -32010)
    assert field["message"] == (
        "not a declared filter field (did you mean lang?); there are lang, year so far: "
        "some engines have not been seen yet, so the field may be theirs, or misspelt"
    )
    assert mode["message"] == (
        "mode 'dens' (did you mean dense?) is not offered by the engines seen so far "
        "(offered: dense, sparse, hybrid): others may offer it, or it is misspelt"
    )
    assert level["message"] == "level '3' is not offered by the engines seen so far: others may offer it"


@obligation(50, 51, 52)
async def test_a_session_keeps_the_capabilities_it_was_told() -> None:
    scripts = {"a": Script(hits("x"), {"retrieve": {"maxK": 100, "modes": ["dense"]}})}
    async with gateway_of(scripts) as gateway:
        dispatcher, session = gateway.gateway.dispatcher, Session("strict", ANONYMOUS)

        async def ask(method: str, **params: object) -> dict[str, object]:
            frame = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
            answer = await dispatcher.answer(frame, session)
            assert answer is not None
            decoded: dict[str, object] = json.loads(answer)
            return decoded

        told = await ask("initialize", protocolVersion=1)
        member = gateway.gateway.fleet.members["a"]
        member.closed(BackendUnavailable("killed"))
        again = await ask("info")
        assert again["result"]["capabilities"] == told["result"]["capabilities"]  # type: ignore[index]
        answer = await ask("retrieve", query="q")
        assert answer["error"]["code"] == -32010  # type: ignore[index]


async def test_leaving_closes_every_engine_and_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with gateway_of({id: Script(hits(id)) for id in "abc"}) as gateway:
        await gateway.retrieve()
    assert asyncio.all_tasks() == before


async def test_a_declared_capability_that_is_not_implemented_is_a_plugin_fault() -> None:
    from gateway.errors import PluginError
    from gateway.federation.fleet import check_overridden
    from gateway.model import Capabilities, read_capabilities
    from gateway.spi import Engine

    class Half(Engine):
        def capabilities(self) -> Capabilities:
            return read_capabilities({"retrieve": {}, "index": {"writable": True}})

    with pytest.raises(PluginError, match="retrieve, index_add, index_delete"):
        check_overridden(Half(), Half().capabilities())


@obligation(65)
async def test_a_slow_retrieve_does_not_hold_up_a_ping() -> None:
    release = asyncio.Event()

    async def slow(query: EngineQuery, call: Call) -> EngineReply:
        await release.wait()
        return EngineReply(hits=hits("x"))

    script = Script(retrieve=slow)
    async with gateway_of({"a": script}) as gateway:
        pending = asyncio.create_task(gateway.retrieve())
        await script.started.wait()
        async with asyncio.timeout(5):
            assert (await gateway.call("ping", {"nonce": 1}))["result"] == {"nonce": 1}
        release.set()
        assert ids(await pending) == ["x"]


@obligation(129)
async def test_an_engine_is_never_asked_more_at_once_than_it_may_be() -> None:
    running = most = 0

    async def counted(query: EngineQuery, call: Call) -> EngineReply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return EngineReply(hits=hits("x"))

    async with gateway_of({"a": Script(retrieve=counted)}, engines={"a": {"concurrency": 3}}) as gateway:
        await asyncio.gather(*(gateway.retrieve() for _ in range(50)))
    assert most == 3


async def test_a_full_queue_is_refused_openly() -> None:
    release = asyncio.Event()

    async def held(query: EngineQuery, call: Call) -> EngineReply:
        await release.wait()
        return EngineReply(hits=hits("x"))

    settings = {"a": {"concurrency": 1, "queue": 1, "retry": {"attempts": 1}, "required": True}}
    script = Script(retrieve=held)
    async with gateway_of({"a": script}, engines=settings) as gateway:
        first = asyncio.create_task(gateway.retrieve())
        await script.started.wait()
        second = asyncio.create_task(gateway.retrieve())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await gateway.refused())["code"] == -32011
        release.set()
        assert ids(await first) == ids(await second) == ["x"]


async def test_clients_of_different_scopes_learn_nothing_of_each_other() -> None:
    from gateway.caller import Caller

    scripts = {
        "a": Script(hits("x"), {"filter": {"fields": {"year": "int"}}}),
        "b": Script(hits("y"), {"filter": {"fields": {"year": "keyword", "hidden": "int"}}}),
    }
    async with gateway_of(scripts) as gateway:
        narrow = Running(gateway.gateway, scripts, Caller(id="n", engines=frozenset({"a"})))
        told = (await narrow.call("info"))["result"]["capabilities"]
        assert told["filter"]["fields"] == {"year": "int"}
        assert told["catalog"] == {"engines": 1}
        assert "b" not in json.dumps((await narrow.retrieve())["_meta"])
