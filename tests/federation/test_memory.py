"""``memory/build`` goes to one engine; ``memory/recall`` to the one whose memory it is, or to all."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, CallerError, Code
from gateway.model import hit
from gateway.spi import Call, Clue, MemoryBuilt, MemoryRecall, MemoryReply, MemoryWrite
from tests.engines import Running, Script, gateway_of
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def remembering(reply: MemoryReply | None = None, **offer: Any) -> Script:
    """An engine with memories ``m1`` and ``m2``, or whose every answer is the reply."""

    async def recall(query: MemoryRecall, call: Call) -> MemoryReply:
        if query.id not in (None, "m1", "m2", "a/b"):
            raise CallerError("no such memory", code=Code.NOT_FOUND)
        return reply or MemoryReply(clues=[Clue(query=f"of {query.id}")])

    return Script(capabilities={"retrieve": None, "memory": {"scopes": ["global"], **offer}}, recall=recall)


async def result(gateway: Running, method: str, **params: Any) -> dict[str, Any]:
    answer = await gateway.call(method, params)
    assert "result" in answer, answer
    found: dict[str, Any] = answer["result"]
    return found


async def error(gateway: Running, method: str, **params: Any) -> tuple[int, Any]:
    answer = await gateway.call(method, params)
    assert "error" in answer, answer
    data = answer["error"].get("data", {})
    return answer["error"]["code"], data.get("field", data.get("engine"))


@obligation(185)
async def test_a_memory_is_built_in_one_engine_and_its_id_says_which() -> None:
    scripts = {"a": remembering(), "b": remembering(scopes=["session"])}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["memory"] == {"scopes": ["global", "session"]}
        documents = [{"id": 7, "text": "t"}, {"text": "u"}]
        built = await result(gateway, "memory/build", documents=documents, scope="global")
        assert built == {"memoryId": "a/built"}
        assert (await result(gateway, "memory/build", scope="session"))["memoryId"] == "b/built"
        assert (await result(gateway, "memory/build", memoryId="b/m1"))["memoryId"] == "b/m1"
        # A name of the client's own.
        assert (await result(gateway, "memory/build", memoryId="c/m1"))["memoryId"] == "a/c/m1"
        assert (await result(gateway, "memory/recall", query="q", memoryId="b/m1"))["clues"] == [{"query": "of m1"}]
        named = await result(gateway, "memory/build", _meta={"x-gateway": {"engines": ["b"]}})
        assert named["memoryId"] == "b/built"
    writes = [one for one in scripts["a"].asked if isinstance(one, MemoryWrite)]
    assert [(one.id, one.scope) for one in writes] == [(None, "global"), ("c/m1", None)]
    assert [(one.id, one.text) for one in writes[0].documents or ()] == [(7, "t"), (None, "u")]
    assert writes[1].documents is None


async def test_what_cannot_be_built_is_refused_precisely() -> None:
    script = remembering()
    async with gateway_of({"a": script, "r": Script()}) as gateway:
        assert await error(gateway, "memory/build", scope="session") == (-32005, "scope")
        assert await error(gateway, "memory/build", scope="eternal") == (-32602, "scope")
        assert await error(gateway, "memory/build", documents=[{"text": ""}] * 1001) == (-32602, "documents")
        elsewhere = {"x-gateway": {"engines": ["r"]}}
        assert (await error(gateway, "memory/build", _meta=elsewhere))[0] == -32005
        reader = Running(gateway.gateway, gateway.scripts, Caller(id="reader", writable=False))
        assert (await error(reader, "memory/build"))[0] == -32012
    assert script.asked == []
    async with gateway_of({"r": Script()}) as gateway:
        assert (await error(gateway, "memory/build"))[0] == -32003
        assert (await error(gateway, "memory/recall", query="q"))[0] == -32003


@obligation(183)
async def test_a_memory_is_built_once_however_it_fails() -> None:
    async def fails(query: MemoryWrite, call: Call) -> MemoryBuilt:
        raise BackendUnavailable("broke off")

    async def nameless(query: MemoryWrite, call: Call) -> MemoryBuilt:
        return MemoryBuilt(id="", tokens=-5)

    script = remembering()
    for build in (fails, nameless):
        script.build = build
        async with gateway_of({"a": script}) as gateway:
            assert await error(gateway, "memory/build") == (-32010, "a")
    assert len(script.asked) == 2


@obligation(183)
async def test_a_memory_is_built_once_under_one_key() -> None:
    script = remembering()
    async with gateway_of({"a": script}) as gateway:
        first = await result(gateway, "memory/build", memoryId="m1", _meta={"idempotencyKey": "k"})
        assert await result(gateway, "memory/build", memoryId="m1", _meta={"idempotencyKey": "k"}) == first
        assert first == {"memoryId": "a/m1"}
        assert await error(gateway, "memory/build", _meta={"idempotencyKey": ""}) == (-32602, "_meta.idempotencyKey")
    assert len(script.asked) == 1


@obligation(185)
async def test_an_unknown_memory_is_not_found_whoever_does_not_know_it() -> None:
    scripts = {"a": remembering(), "b": remembering()}
    async with gateway_of(scripts) as gateway:
        for unknown in ("m1", "c/m1", "a/", "/m1"):
            assert await error(gateway, "memory/recall", query="q", memoryId=unknown) == (-32015, "memoryId")
        assert [script.asked for script in scripts.values()] == [[], []]
        assert await error(gateway, "memory/recall", query="q", memoryId="a/m3") == (-32015, "a")
        some = Running(gateway.gateway, gateway.scripts, Caller(id="some", engines=frozenset({"b"})))
        assert (await error(some, "memory/recall", query="q", memoryId="a/m1"))[0] == -32015
    assert (len(scripts["a"].asked), len(scripts["b"].asked)) == (1, 1)


async def test_a_plain_id_is_understood_where_one_engine_remembers() -> None:
    async with gateway_of({"a": remembering(), "r": Script()}) as gateway:
        for id, own in (("m1", "m1"), ("a/m2", "m2"), ("a/a/b", "a/b")):
            clues = (await result(gateway, "memory/recall", query="q", memoryId=id))["clues"]
            assert clues == [{"query": f"of {own}"}]


async def test_without_an_id_all_are_asked_and_clues_and_hits_are_merged() -> None:
    a = MemoryReply(
        clues=[Clue(query="one", seed_ids=("x",), weight=0.9), Clue(query="two"), Clue()],
        hits=[hit("x", 1.0), hit("both", 0.5)],
    )
    b = MemoryReply(
        clues=[Clue(seed_ids=("y",), weight=float("nan")), Clue(query="one", seed_ids=("y", "x"), weight=5.0)],
        hits=[hit("both", 3.0)],
        notes=("half of it",),
    )
    scripts = {"a": remembering(a), "b": remembering(b)}
    async with gateway_of(scripts) as gateway:
        found = await result(gateway, "memory/recall", query="q", sessionId="s", n=1000)
        assert found["clues"] == [
            {"query": "one", "seedIds": ["x", "y"], "weight": 0.9},
            {"seedIds": ["y"]},
            {"query": "two"},
        ]
        assert [one["id"] for one in found["hits"]] == ["both", "x"]
        assert found["usage"]["notes"] == ["engine b: half of it"]
        assert found["_meta"]["x-gateway"]["engines"] == ["a", "b"]
        few = await result(gateway, "memory/recall", query="q", n=1)
        assert [clue["query"] for clue in few["clues"]] == ["one"]
    (asked, _), (_, last) = (script.asked for script in scripts.values())
    assert (asked.text, asked.id, asked.n) == ("q", None, 100)
    assert asked.session not in (None, "s")
    assert (last.n, last.session) == (1, None)


async def test_seeds_and_hits_are_named_as_everywhere_else() -> None:
    reply = MemoryReply(clues=[Clue(query="q", seed_ids=("x",))], hits=[hit("x", 1.0)])
    async with gateway_of({"a": remembering(reply)}, engines={"a": {"corpus": "docs"}}) as gateway:
        found = await result(gateway, "memory/recall", query="q")
    assert found["clues"] == [{"query": "q", "seedIds": ["docs/x"]}]
    assert [one["id"] for one in found["hits"]] == ["docs/x"]


async def test_one_memory_that_fails_is_a_loss_and_all_of_them_an_error() -> None:
    async def fails(query: MemoryRecall, call: Call) -> MemoryReply:
        raise BackendUnavailable("gone", retryable=False)

    broken = remembering()
    broken.recall = fails
    async with gateway_of({"a": broken, "b": remembering()}) as gateway:
        found = await result(gateway, "memory/recall", query="q")
        assert found["clues"] == [{"query": "of None"}]
        assert found["_meta"]["degraded"] == ["a"]
        assert await error(gateway, "memory/recall", query="q", memoryId="a/m1") == (-32010, "a")
    async with gateway_of({"a": broken}) as gateway:
        assert (await error(gateway, "memory/recall", query="q"))[0] == -32010
        assert await error(gateway, "memory/recall") == (-32602, "query")
        assert await error(gateway, "memory/recall", query="q" * 70_000) == (-32602, "query")
