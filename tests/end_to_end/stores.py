"""The three vendors' stores side by side: a test server each, and one gateway over all of them and a memory engine."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import gateway_memory.plugin
import gateway_models.plugin
import gateway_pinecone.plugin
import gateway_qdrant.plugin
import gateway_rcp.plugin
import gateway_weaviate.plugin
from gateway.app import open_gateway
from gateway.config import load_text
from gateway.errors import RcpError
from gateway.federation.runner import EngineCall
from gateway.filters import FieldType
from gateway.model import Document
from gateway.plugins import Plugins, load_plugins
from gateway.spi.call import Route
from tests.engines import Running
from tests.servers.pinecone import Index, serve
from tests.servers.qdrant import QdrantServer, qdrant_server
from tests.servers.weaviate import Collection, Prop, WeaviateServer, weaviate_server

__all__ = ["KEYS", "STORES", "WORD", "Stores", "plugins", "running", "stores"]

STORES = ("qdrant", "pinecone", "weaviate", "memory")
WORD = "fox"
"""What every document is about, so that every engine finds all it has."""
KEYS = {"qdrant": "qdrant-key-8fe1", "pinecone": "pinecone-key-31c7", "weaviate": "weaviate-key-d20b"}

_COLLECTION = "docs"
_CLASS = "Docs"
_BASES = {
    "keyword": ("text", "field"),
    "text": ("text", "word"),
    "int": ("int", None),
    "float": ("number", None),
    "bool": ("boolean", None),
    "date": ("date", None),
    "geo": ("geoCoordinates", None),
}

_serial = itertools.count()


@functools.cache
def plugins() -> Plugins:
    kinds = [gateway_memory, gateway_models, gateway_pinecone, gateway_qdrant, gateway_rcp, gateway_weaviate]
    return load_plugins([kind.plugin for kind in kinds], found=[])


@dataclass
class Stores:
    """The servers, and the settings under which a gateway reaches them. ``multi`` are the fields that hold lists."""

    qdrant: QdrantServer
    pinecone: Index
    weaviate: WeaviateServer
    fields: Mapping[str, FieldType]
    multi: frozenset[str]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def engine(self, id: str, *, own: Mapping[str, Any] | None = None, **host: Any) -> dict[str, Any]:
        """One engine's part of a configuration; ``own`` is laid over its ``with:``."""
        return {"id": id, "kind": id, "with": {**self.settings[id], **(own or {})}, **host}

    def asked(self) -> int:
        """How often any of the servers was asked for documents."""
        return (
            len(self.qdrant.queries())
            + sum("search" in one.path or one.path == "/query" for one in self.pinecone.requests)
            + sum(name == "Search" for name, _ in self.weaviate.requests)
        )

    def held(self) -> dict[str, int]:
        """How many documents each server has."""
        return {
            "qdrant": sum(one.info()["points_count"] for one in self.qdrant._collections.values()),
            "pinecone": sum(map(len, self.pinecone.rows.values())),
            "weaviate": sum(len(shelf) for one in self.weaviate.collections.values() for shelf in one.objects.values()),
        }


@asynccontextmanager
async def stores(
    fields: Mapping[str, FieldType],
    *,
    multi: frozenset[str] = frozenset(),
    pinecone: Mapping[str, Any] | None = None,
    weaviate: Mapping[str, Any] | None = None,
    null_index: bool = True,
) -> AsyncIterator[Stores]:
    """All three servers, with an empty collection of these fields each; ``pinecone`` and ``weaviate`` are switches."""
    async with AsyncExitStack() as stack:
        qdrant = stack.enter_context(qdrant_server(api_key=KEYS["qdrant"]))
        index = await stack.enter_async_context(
            serve(Index(dimension=8, key=KEYS["pinecone"], **{"unsorted": True, **(pinecone or {})}))
        )
        server = await stack.enter_async_context(
            weaviate_server(WeaviateServer(api_key=KEYS["weaviate"], **(weaviate or {})))
        )
        await _create(qdrant)
        server.create(Collection(_CLASS, _props(fields, multi), null_index=null_index))
        found = Stores(qdrant, index, server, fields, multi)
        found.settings = _settings(found)
        yield found


async def _create(server: QdrantServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, headers={"api-key": KEYS["qdrant"]}) as client:
        body = {"sparse_vectors": {"words": {"modifier": "idf"}}}
        (await client.put(f"/collections/{_COLLECTION}", json=body)).raise_for_status()


def _props(fields: Mapping[str, FieldType], multi: frozenset[str]) -> list[Prop]:
    own = [Prop("text", "text"), Prop("rcp_id", "text", "field")]
    for name, kind in fields.items():
        base, tokenization = _BASES[kind]
        own.append(Prop(name, f"{base}[]" if name in multi else base, tokenization))
    return own


def _settings(found: Stores) -> dict[str, dict[str, Any]]:
    plain = {name: str(kind) for name, kind in found.fields.items()}
    dates = {name: {"type": "date", "dates": "epoch_ms"} for name, kind in plain.items() if kind == "date"}
    lists = {name: {"type": kind, "multi": True} for name, kind in plain.items() if name in found.multi}
    return {
        "qdrant": {
            "url": found.qdrant.url,
            "collection": _COLLECTION,
            "api_key": {"env": "STORES_QDRANT"},
            "vectors": {"sparse": {}},
            "fields": plain,
            "writable": True,
        },
        "pinecone": {
            "host": found.pinecone.url,
            "api_key": {"env": "STORES_PINECONE"},
            "inference": True,
            "namespace": "docs",
            "fields": {**plain, **dates, **lists},
            "writable": True,
        },
        "weaviate": {
            "url": f"http://127.0.0.1:{found.weaviate.rest_port}",
            "grpc": f"127.0.0.1:{found.weaviate.grpc_port}",
            "collection": _CLASS,
            "api_key": {"env": "STORES_WEAVIATE"},
            "writable": True,
        },
        "memory": {"fields": plain},
    }


@asynccontextmanager
async def running(*engines: Mapping[str, Any], **sections: Any) -> AsyncIterator[Running]:
    """A gateway over these engines, whose keys stand in the environment (``use_keys``)."""
    text = json.dumps({"name": f"stores-{next(_serial)}", "engines": list(engines), **sections})
    async with open_gateway(load_text(text, base_dir=Path.cwd()), plugins()) as gateway:
        yield Running(gateway, {})


async def put(gateway: Running, id: str, documents: Sequence[tuple[str, Mapping[str, Any]]]) -> set[str]:
    """Writes the documents into one engine, as ``index/add`` would, but for those it cannot hold; who they are."""
    engine = gateway.gateway.fleet.members[id].engine
    assert engine is not None, gateway.gateway.fleet.members[id].fault
    held: set[str] = set()
    for name, meta in documents:
        call = EngineCall(Route())
        call.limit(10.0)
        try:
            await engine.index_add([Document(id=name, text=f"{WORD} {name}", meta=dict(meta))], call)
        except RcpError:
            continue
        held.add(name)
    return held


def use_keys(monkeypatch: Any) -> None:
    """Puts the keys where the configurations look for them."""
    for kind, key in KEYS.items():
        monkeypatch.setenv(f"STORES_{kind.upper()}", key)


async def settled(tasks: frozenset[asyncio.Task[Any]] | set[asyncio.Task[Any]], seconds: float = 3.0) -> set[str]:
    """The names of tasks that are there and were not, after those that are ending have had their time."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while (more := asyncio.all_tasks() - tasks) and loop.time() < ends:
        await asyncio.sleep(0.01)
    return {task.get_name() + repr(task.get_coro()) for task in more}
