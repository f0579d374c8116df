"""The engine inside a real gateway: from the client's frame to Weaviate's sockets and back."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import gateway_weaviate.plugin
from gateway.app import open_gateway
from gateway.config import load_text
from gateway.plugins import load_plugins
from tests.engines import Running, ids, notes
from tests.servers.weaviate import Collection, Prop, WeaviateServer, weaviate_server

PROPS = [
    Prop("text", "text"),
    Prop("rcp_id", "text", "field"),
    Prop("lang", "text", "field"),
    Prop("topic", "text"),
    Prop("year", "int"),
]
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "text": "a red fox", "meta": {"lang": "en", "topic": "foxes and C++", "year": 2020}},
    {"id": "b", "text": "a blue fox", "meta": {"lang": " en", "topic": "foxes", "year": 2021}},
    {"id": "c", "text": "a grey fox", "meta": {"lang": "fr", "topic": "C++ and foxes"}},
    {"id": "d", "text": "a fox without a language", "meta": {"year": 2022}},
]


@asynccontextmanager
async def gateway_over(server: WeaviateServer, **settings: Any) -> AsyncIterator[Running]:
    listed: Mapping[str, Any] = {
        "id": "w",
        "kind": "weaviate",
        "with": {
            "url": f"http://127.0.0.1:{server.rest_port}",
            "grpc": f"127.0.0.1:{server.grpc_port}",
            "collection": "Doc",
            **settings,
        },
    }
    writes = {"writes": "w"} if settings.get("writable") else {}
    loaded = load_text(json.dumps({"name": "under-test", "engines": [listed], **writes}), base_dir=Path.cwd())
    async with open_gateway(loaded, load_plugins([gateway_weaviate.plugin], found=[])) as gateway:
        yield Running(gateway, {})


@pytest.mark.anyio
async def test_documents_go_in_are_found_filtered_and_go(server: WeaviateServer) -> None:
    server.create(Collection("Doc", PROPS, vectorizer="text2vec-transformers"))
    async with gateway_over(server, writable=True) as running:
        answer = await running.call("index/add", {"documents": DOCUMENTS})
        assert "result" in answer, answer
        assert answer["result"]["ids"] == ["a", "b", "c", "d"]

        async def found(wire: Any, mode: str = "hybrid") -> set[str]:
            return set(ids(await running.retrieve("fox", filter=wire, mode=mode)))

        for mode in ("dense", "sparse", "hybrid"):
            assert await found(None, mode) == {"a", "b", "c", "d"}
            # Weaviate finds " en" too, for it trims; it goes on the gateway's check.
            assert await found({"field": "lang", "op": "eq", "value": "en"}, mode) == {"a"}
            assert await found({"field": "lang", "op": "ne", "value": "en"}, mode) == {"b", "c", "d"}
            assert await found({"field": "topic", "op": "contains", "value": "C++"}, mode) == {"a", "c"}
            assert await found({"not": {"field": "year", "op": "gte", "value": 2021}}, mode) == {"a", "c"}
        answer = await running.call("index/delete", {"ids": ["a", "nobody"]})
        assert answer["result"]["deleted"] == 1
        assert await found(None) == {"b", "c", "d"}


@pytest.mark.anyio
async def test_a_weaviate_that_refuses_at_the_start_is_opened_later() -> None:
    server = WeaviateServer()
    server.create(Collection("Doc", PROPS))
    server.put("Doc", {"text": "fox", "rcp_id": "a"})
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        server.rest_port, server.grpc_port = one.getsockname()[1], other.getsockname()[1]
    async with gateway_over(server) as running:
        error = await running.refused("fox")
        assert error["code"] == -32010
        assert str(server.rest_port) not in json.dumps(error)
        async with weaviate_server(server), asyncio.timeout(15):
            while "result" not in (answer := await running.call("retrieve", {"query": "fox"})):
                await asyncio.sleep(0.05)
            assert ids(answer["result"]) == ["a"]


@pytest.mark.anyio
async def test_hits_without_a_text_are_told_of_to_the_client(server: WeaviateServer) -> None:
    server.create(Collection("Doc", PROPS))
    server.put("Doc", {"topic": "fox"})
    async with gateway_over(server) as running:
        assert "1 of 1 hits have no text under text" in notes(await running.retrieve("fox"))
