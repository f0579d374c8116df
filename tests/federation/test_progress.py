"""What a client hears while it waits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.protocol.session import Session
from gateway.spi import Call, EngineQuery, EngineReply, VectorNeed
from tests.engines import Running, Script, gateway_of, hits
from tests.federation.scripts import failing
from tests.obligations import obligation
from tests.schema import check_notification

pytestmark = pytest.mark.anyio


async def asked(gateway: Running, **params: Any) -> list[dict[str, Any]]:
    """The notification frames of one retrieve."""
    frames: list[bytes] = []
    request = {"jsonrpc": "2.0", "id": 9, "method": "retrieve", "params": {"query": "q", **params}}
    session = Session("implicit", gateway.caller)
    await gateway.gateway.dispatcher.answer(json.dumps(request).encode(), session, emit=frames.append)
    for frame in frames:
        check_notification("log" if b"notifications/log" in frame else "progress", frame)
    return [json.loads(frame) for frame in frames]


def partial(frames: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The hits of each frame that carries some, by the frame's words."""
    told = [frame["params"] for frame in frames]
    return {
        one["message"]: [hit["id"] for hit in one["partial"]["hits"]]
        for one in told
        if "partial" in one and one["stage"] == "recall"
    }


@obligation(198, 200)
async def test_every_engine_that_answers_has_a_frame_also_if_all_answer_at_once() -> None:
    now = asyncio.Barrier(6)

    def script(id: str) -> Script:
        async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
            await now.wait()
            call.progress(0.9, "nearly")
            return EngineReply(hits=hits(f"{id}1", f"{id}2"))

        return Script(retrieve=retrieve)

    async with gateway_of({id: script(id) for id in "abcdef"}) as gateway:
        frames = await asked(gateway, _meta={"progressToken": 7})
    told = partial(frames)
    assert sorted(told) == [f"{id}: 2 hits" for id in "abcdef"]
    # As they fuse: each brings its own to what is there, up to the ten that the client wants.
    assert [len(found) for found in told.values()] == [2, 4, 6, 8, 10, 10]
    fractions = [frame["params"]["progress"] for frame in frames]
    assert fractions == sorted(fractions)
    assert {frame["params"]["progressToken"] for frame in frames} == {7}


async def test_partial_hits_are_cut_filtered_and_bare_like_the_answer() -> None:
    fields = {"filter": {"fields": {"lang": "keyword"}}}
    script = Script(hits(("fr", 0.9, {"lang": "fr"}), *((id, 0.5, {"lang": "en"}) for id in "xyz")), fields)
    filter = {"field": "lang", "op": "eq", "value": "en"}
    async with gateway_of({"a": script}) as gateway:
        given = {"filter": filter, "includeText": False, "k": 2, "_meta": {"progressToken": "t"}}
        frames = await asked(gateway, **given)
        assert partial(frames) == {"a: 3 hits": ["x", "y"]}
        assert b"text of" not in json.dumps(frames).encode()
        frames = await asked(gateway, minScore=1 / 61, **given)
        assert partial(frames) == {"a: 3 hits": ["x"]}


async def test_an_engine_that_fails_is_told_of_without_hits() -> None:
    async with gateway_of({"a": Script(hits("x")), "b": failing(RuntimeError("bug"))}) as gateway:
        frames = await asked(gateway, _meta={"progressToken": "t"})
    assert partial(frames) == {"a: 1 hit": ["x"]}
    assert "bug" not in json.dumps(frames)


async def test_chatter_costs_nobody_its_hits() -> None:
    quiet = asyncio.Event()

    async def chatters(query: EngineQuery, call: Call) -> EngineReply:
        for n in range(3000):
            call.progress(n / 3000, "so far")
            await asyncio.sleep(0)
        quiet.set()
        return EngineReply(hits=hits("x"))

    async def late(query: EngineQuery, call: Call) -> EngineReply:
        await quiet.wait()
        return EngineReply(hits=hits("y"))

    async with gateway_of({"a": Script(retrieve=chatters), "b": Script(retrieve=late)}) as gateway:
        frames = await asked(gateway, _meta={"progressToken": "t"})
    assert partial(frames) == {"a: 1 hit": ["x"], "b: 1 hit": ["x", "y"]}
    assert len(frames) < 2000


async def test_without_a_token_nothing_is_made_ready() -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        assert await asked(gateway) == []


def offering() -> dict[str, Script]:
    rerank = {"retrieve": None, "rerank": {"methods": ["cross-encoder"]}}
    model = {"retrieve": None, "transform": {"methods": ["rewrite"]}}
    embeds = {"retrieve": None, "embed": {"dimension": 2, "identity": "length"}}
    return {
        "a": Script(hits("x", "y"), need=VectorNeed("e", 2)),
        "e": Script(capabilities=embeds),
        "r": Script(capabilities=rerank),
        "m": Script(capabilities=model),
    }


async def test_every_stage_is_told_of_in_its_order_and_progress_only_rises() -> None:
    async with gateway_of(offering()) as gateway:
        options = {"rewrite": "rewrite", "rerank": {}, "mmr": {"lambda": 0.5}}
        frames = await asked(gateway, **options, _meta={"progressToken": "t"})
    told = [frame["params"] for frame in frames]
    assert [one["stage"] for one in told] == ["transform", "embed", "recall", "fuse", "rerank", "diversify", "pack"]
    fractions = [one["progress"] for one in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert [one["stage"] for one in told if "partial" in one] == ["recall", "fuse", "rerank", "diversify"]
    reranked = next(one for one in told if one["stage"] == "rerank")
    assert [hit["score"] for hit in reranked["partial"]["hits"]] == [9.0, 9.0]


async def test_partial_hits_are_new_to_the_session_too() -> None:
    async with gateway_of({"a": Script(hits("x", "y", "z"))}) as gateway:
        await gateway.retrieve("first", k=2, sessionId="s")
        frames = await asked(gateway, k=2, sessionId="s", _meta={"progressToken": "t"})
    assert partial(frames) == {"a: 3 hits": ["z"]}
