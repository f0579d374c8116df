"""Queries of images and audio, over real HTTP: who is asked them, and what of them arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.model import Content
from gateway.protocol.session import Sessions
from gateway.transports.http import HttpApp
from gateway.transports.server import serve
from tests.end_to_end.running import memory, opened, upstream
from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation
from tests.transports import Client, connect

pytestmark = pytest.mark.anyio

IMAGE = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
AUDIO = {"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="}
TEXT = {"type": "text", "text": "Paris \u2028 at night"}


def reading(*modalities: str) -> dict[str, Any]:
    return {"retrieve": {"maxK": 100, "modalities": list(modalities)}}


@dataclass
class Front:
    """A client of a gateway with a text engine and, behind HTTP, another gateway with a scripted engine."""

    client: Client
    script: Script

    async def result(self, query: Any, **params: Any) -> dict[str, Any]:
        result: dict[str, Any] = (await self.client.call("retrieve", {"query": query, "k": 10, **params}))["result"]
        return result

    async def refused(self, query: Any, **params: Any) -> dict[str, Any]:
        error: dict[str, Any] = (await self.client.call("retrieve", {"query": query, "k": 10, **params}))["error"]
        return error


@asynccontextmanager
async def front(*modalities: str) -> AsyncIterator[Front]:
    script = Script(hits("picture"), reading(*modalities))
    async with AsyncExitStack() as stack:
        behind = await stack.enter_async_context(gateway_of({"pictures": script}))
        app = HttpApp(behind.gateway.dispatcher, Sessions())
        address = await stack.enter_async_context(serve(app))
        far = upstream("far", own={"url": f"{address.url}/rcp"})
        gateway = await stack.enter_async_context(opened(memory(), far, name="front"))
        yield Front(await stack.enter_async_context(connect("http", gateway)), script)


@obligation(132)
@pytest.mark.parametrize("strict", [True, False])
async def test_blocks_reach_an_upstream_as_they_came_and_an_engine_that_reads_text_is_not_asked(strict: bool) -> None:
    async with front("text", "image") as asked:
        result = await asked.result([TEXT, IMAGE], strict=strict)
    assert ids(result) == ["picture"]
    (query,) = asked.script.queries
    assert query.content == (
        Content(type="text", text="Paris \u2028 at night"),
        Content(type="image", mime_type="image/png", data="iVBORw0KGgo="),
    )
    assert query.text == "Paris \u2028 at night"
    assert "engine memory was not asked: it does not offer content 'image'" in notes(result)


async def test_one_block_without_any_text_is_a_query() -> None:
    async with front("image") as asked:
        assert ids(await asked.result(IMAGE)) == ["picture"]
    (query,) = asked.script.queries
    assert (query.text, query.content) == ("", (Content(type="image", mime_type="image/png", data="iVBORw0KGgo="),))


@obligation(132)
@pytest.mark.parametrize("strict", [True, False])
async def test_content_that_nobody_reads_is_refused_and_nobody_is_asked(strict: bool) -> None:
    async with front("text", "image") as asked:
        for query in (AUDIO, [TEXT, IMAGE, AUDIO], {**IMAGE, "type": "blob"}):
            error = await asked.refused(query, strict=strict)
            assert (error["code"], error["data"]["field"]) == (-32005, "query")
    assert asked.script.queries == []


async def test_a_modality_goes_to_the_engines_that_have_it() -> None:
    async with front("text", "image") as asked:
        assert ids(await asked.result("Paris", modality="image")) == ["picture"]
        assert {"picture", "m1"} <= set(ids(await asked.result("Paris", modality="text")))
        error = await asked.refused("Paris", modality="audio", strict=False)
    assert [query.modality for query in asked.script.queries] == ["image", "text"]
    assert (error["code"], error["data"]["option"]) == (-32005, "audio")


@obligation(132, 255)
async def test_an_engine_is_asked_only_if_it_reads_every_block() -> None:
    scripts = {
        "i": Script(hits("x"), reading("text", "image")),
        "a": Script(hits("y"), reading("text", "audio")),
        "m": Script(hits("z"), reading("multimodal")),
    }
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve([IMAGE, AUDIO])
        assert ids(result) == ["z"]
        assert "engine i was not asked: it does not offer content 'audio'" in notes(result)
        assert "engine a was not asked: it does not offer content 'image'" in notes(result)
    del scripts["m"]
    async with gateway_of(scripts) as gateway:
        error = await gateway.refused([IMAGE, AUDIO], strict=False)
        assert (error["code"], set(error["data"]["reasons"])) == (-32005, {"i", "a"})
    assert scripts["i"].queries == scripts["a"].queries == []


@obligation(134)
@pytest.mark.parametrize("strict", [True, False])
async def test_a_uri_is_refused_wherever_it_stands_and_neither_fetched_nor_handed_on(
    strict: bool, tmp_path: Path
) -> None:
    dialled = asyncio.Event()
    file = tmp_path / "image.png"
    file.write_bytes(b"x")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, front("text", "image") as asked:
        for uri in (f"http://127.0.0.1:{port}/i.png", file.as_uri(), "file:///etc/passwd"):
            image = {"type": "image", "mimeType": "image/png", "uri": uri}
            queries: Mapping[str, Any] = {
                "query.uri": image,
                "query[1].uri": [TEXT, image],
                "query[0].uri": [{**TEXT, "uri": uri}],
            }
            for field, query in queries.items():
                error = await asked.refused(query, strict=strict)
                assert (error["code"], error["data"]["field"]) == (-32602, field)
        # One whole exchange later nothing has come in: the gateway had every occasion.
        assert ids(await asked.result(IMAGE)) == ["picture"]
    assert not dialled.is_set()
    assert len(asked.script.queries) == 1
