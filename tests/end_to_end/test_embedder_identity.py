"""A store filled by one embedder and given another: a start-up error that names both, over real restarts."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import AsyncQdrantClient, models

from gateway.app import open_gateway
from gateway.config import load_text
from gateway.errors import ConfigError, ConfigErrors
from gateway.secret import Secret
from gateway_pinecone.settings import PineconeConfig
from gateway_qdrant.settings import DenseSettings, QdrantConfig, VectorSettings
from gateway_weaviate.settings import WeaviateConfig
from tests.end_to_end.stores import plugins
from tests.engines import Running, ids
from tests.servers.providers import KEY, Providers, providers
from tests.servers.qdrant import memory_folder, qdrant_server

pytestmark = pytest.mark.anyio

OLD, NEW = "openai/old-model/4", "openai/new-model/4"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def service() -> Iterator[Providers]:
    with providers() as server:
        yield server


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="identity-", dir=memory_folder()) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELS_TEST_KEY", KEY)


@asynccontextmanager
async def started(
    service: Providers, store: Mapping[str, Any], model: str = "old-model", **embedder: Any
) -> AsyncIterator[Running]:
    """A gateway over one Qdrant store and one embedder, as a process would be started."""
    embeds = {"url": f"{service.url}/openai/v1", "dialect": "openai", "api_key": {"env": "MODELS_TEST_KEY"}}
    config = {
        "name": "restarted",
        "engines": [
            {"id": "store", "kind": "qdrant", "with": {"embedder": "maker", **store}},
            {"id": "maker", "kind": "embeddings", "with": {**embeds, "model": model, "dimensions": 4, **embedder}},
        ],
        "writes": "store",
    }
    async with open_gateway(load_text(json.dumps(config), base_dir=Path.cwd()), plugins()) as gateway:
        yield Running(gateway, {})


def embedded(folder: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(folder / "store"), "vectors": {"dense": {"dimension": 4}}, **more}


async def add(gateway: Running, *names: str) -> None:
    answer = await gateway.call("index/add", {"documents": [{"id": name, "text": name} for name in names]})
    assert answer["result"]["ids"] == list(names)


async def test_a_restart_with_another_embedder_stops_and_names_both(service: Providers, folder: Path) -> None:
    async with started(service, embedded(folder)) as gateway:
        await add(gateway, "fox", "dog")
    with pytest.raises(ConfigErrors) as refused:
        async with started(service, embedded(folder), "new-model"):
            pass
    told = str(refused.value)
    assert all(word in told for word in ("engine store", "engine maker", repr(OLD), repr(NEW), "fill it anew"))
    async with started(service, embedded(folder)) as gateway:
        assert ids(await gateway.retrieve("fox"))[0] == "fox"


async def test_a_vendor_capability_that_only_describes_has_no_methods(service: Providers, folder: Path) -> None:
    async with started(service, embedded(folder)) as gateway:
        assert "x-qdrant" not in (await gateway.call("info"))["result"]["capabilities"]
        listed = (await gateway.call("catalog/list"))["result"]["engines"]
        assert any("x-qdrant" in one["capabilities"] for one in listed)
        assert (await gateway.call("x-qdrant/scores"))["error"]["code"] == -32004


async def test_the_same_model_under_another_name_is_told_so_in_the_embedders_settings(
    service: Providers, folder: Path
) -> None:
    async with started(service, embedded(folder)) as gateway:
        await add(gateway, "fox")
    async with started(service, embedded(folder), "old-model-2026", identity=OLD) as gateway:
        assert ids(await gateway.retrieve("fox")) == ["fox"]


async def test_an_empty_collection_is_nobodys_and_an_emptied_one_too(service: Providers, folder: Path) -> None:
    async with started(service, embedded(folder)):
        pass
    async with started(service, embedded(folder), "new-model") as gateway:
        await add(gateway, "fox")
        assert (await gateway.call("index/delete", {"ids": ["fox"]}))["result"] == {"deleted": 1}
    async with started(service, embedded(folder)) as gateway:
        await add(gateway, "dog")
    with pytest.raises(ConfigErrors, match=OLD):
        async with started(service, embedded(folder), "new-model"):
            pass


async def test_a_collection_from_before_is_taken_to_be_the_first_writers_and_said_so(
    service: Providers, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(service, embedded(folder)) as gateway:
        await add(gateway, "fox")
    (folder / "store" / "embedder.json").unlink()
    with caplog.at_level(logging.WARNING):
        async with started(service, embedded(folder), "new-model") as gateway:
            await add(gateway, "dog")
    assert f"they are taken to be of {NEW}" in caplog.text
    with pytest.raises(ConfigErrors, match=NEW):
        async with started(service, embedded(folder)):
            pass


@pytest.mark.parametrize("content", [b"", b"[]", b'{"identity":7}', b"\xff"])
async def test_a_damaged_note_of_the_embedder_stops_the_start_and_says_what_to_do(
    content: bytes, service: Providers, folder: Path
) -> None:
    async with started(service, embedded(folder)) as gateway:
        await add(gateway, "fox")
    (folder / "store" / "embedder.json").write_bytes(content)
    with pytest.raises(ConfigErrors, match=r"embedder\.json does not say which embedder.*remove the file"):
        async with started(service, embedded(folder)):
            pass


async def test_settings_that_contradict_what_is_remembered_are_refused(service: Providers, folder: Path) -> None:
    async with started(service, embedded(folder)) as gateway:
        await add(gateway, "fox")
    with pytest.raises(ConfigErrors) as refused:
        async with started(service, embedded(folder, embedder_identity=NEW), "new-model"):
            pass
    assert repr(OLD) in str(refused.value)
    assert repr(NEW) in str(refused.value)


async def test_writers_at_once_leave_one_whole_note(service: Providers, folder: Path) -> None:
    async with started(service, embedded(folder)) as gateway:
        await asyncio.gather(*(add(gateway, f"fox {number}") for number in range(8)))
    assert json.loads((folder / "store" / "embedder.json").read_bytes()) == {"identity": OLD}
    assert not list((folder / "store").glob("embedder.json.*"))


async def test_a_servers_collection_is_whose_the_settings_say(service: Providers) -> None:
    with qdrant_server() as server:
        client = AsyncQdrantClient(url=server.url, check_compatibility=False)
        vectors = {"dense": models.VectorParams(size=4, distance=models.Distance.COSINE)}
        await client.create_collection("docs", vectors_config=vectors)
        await client.close()
        store = {"url": server.url, "collection": "docs", "vectors": {"dense": {}}, "writable": True}
        async with started(service, {**store, "embedder_identity": OLD}) as gateway:
            await add(gateway, "fox")
            assert ids(await gateway.retrieve("fox")) == ["fox"]
        with pytest.raises(ConfigErrors) as refused:
            async with started(service, {**store, "embedder_identity": OLD}, "new-model"):
                pass
    assert all(word in str(refused.value) for word in ("engine store", "engine maker", repr(OLD), repr(NEW)))


def test_an_identity_without_an_embedder_is_a_configuration_error() -> None:
    dense = VectorSettings(dense=DenseSettings(dimension=4))
    for make in (
        lambda: QdrantConfig(path=Path("x"), embedder="e", embedder_identity="", vectors=dense),
        lambda: WeaviateConfig(url="http://h", collection="Docs", embedder_identity="m"),
        lambda: PineconeConfig(host="http://127.0.0.1", api_key=Secret("k"), embedder_identity="m"),
    ):
        with pytest.raises(ConfigError) as refused:
            make()
        assert refused.value.path == "embedder_identity"
