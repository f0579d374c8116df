"""What each vendor's store may do wrong, through the gateway: one clear error, and the others answer, in time."""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import pytest
from starlette.responses import PlainTextResponse

from gateway.errors import ConfigErrors
from gateway.filters import FieldType
from tests.end_to_end.stores import KEYS, STORES, WORD, Stores, put, running, settled, stores, use_keys
from tests.engines import Running, ids
from tests.servers.pinecone import Fault

pytestmark = pytest.mark.anyio

FIELDS = {"kw": FieldType.KEYWORD}
VENDORS = ("qdrant", "pinecone", "weaviate")


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)


@pytest.fixture
async def world() -> AsyncIterator[Stores]:
    """Each store with one document of its own, ``<store>:1``."""
    async with stores(FIELDS) as found:
        async with running(*(found.engine(id) for id in VENDORS)) as gateway:
            for id in VENDORS:
                await put(gateway, id, [(f"{id}:1", {"kw": "a"})])
        yield found


def memory(found: Stores) -> dict[str, Any]:
    return found.engine("memory", own={"documents": [{"id": "memory:1", "text": WORD, "meta": {"kw": "a"}}]})


def engines(found: Stores, **changed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*(found.engine(id, own=changed.get(id)) for id in VENDORS), memory(found)]


async def only_the_others_answer(gateway: Running, down: str, **params: Any) -> str:
    """Asserts that all but one answered; what is told of that one."""
    filter = {"field": "kw", "op": "eq", "value": "a"}
    result = await gateway.retrieve(WORD, filter=filter, **params)
    assert set(ids(result)) == {f"{id}:1" for id in STORES if id != down}
    assert result["_meta"]["degraded"] == [down]
    (told,) = [one for one in result["usage"]["notes"] if down in one]
    return str(told)


# Start-up errors: nothing but another configuration or installation can help


@pytest.mark.parametrize(("id", "module"), [("pinecone", "pinecone"), ("weaviate", "weaviate")])
async def test_a_missing_sdk_is_a_start_up_error_that_says_what_to_install(
    id: str, module: str, world: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **given: Any) -> Any:
        if name.split(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, *args, **given)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", without)
        with pytest.raises(ConfigErrors) as caught:
            async with running(*engines(world)):
                pass
    (told,) = caught.value.errors
    assert f"engine {id}" in str(told)
    assert f"pip install 'rcp-gateway[{id}]'" in str(told)


@pytest.mark.parametrize(
    ("id", "own", "told"),
    [
        ("qdrant", {"vectors": {"sparse": {"name": "wordz"}}}, "no sparse vector 'wordz'; it has 'words'"),
        ("pinecone", {"dimension": 99}, "the index has dimension 8 and the configuration says 99"),
        ("pinecone", {"metric": "euclidean"}, "the index has metric cosine and the configuration says euclidean"),
        ("weaviate", {"vector": "titel", "modes": ["sparse"]}, "has no vector 'titel'; it has: one without a name"),
        ("weaviate", {"tenant": "acme"}, "has no tenants"),
    ],
)
async def test_what_contradicts_the_collection_is_a_start_up_error(
    id: str, own: Mapping[str, Any], told: str, world: Stores
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        async with running(*engines(world, **{id: own})):
            pass
    assert f"engine {id}" in str(caught.value)
    assert told in str(caught.value)


# Failed legs: somebody else may put it right while the gateway runs


@pytest.mark.parametrize("id", ["qdrant", "weaviate"])
async def test_a_missing_collection_is_named_with_the_remedy_and_the_others_answer(id: str, world: Stores) -> None:
    async with running(*engines(world, **{id: {"collection": "Nowhere"}})) as gateway:
        told = await only_the_others_answer(gateway, id)
    assert told.startswith(f"engine {id} failed")
    assert "no collection 'Nowhere'" in told
    assert "create it" in told


async def test_a_namespace_that_is_not_there_is_empty_as_the_vendor_has_it(world: Stores) -> None:
    async with running(*engines(world, pinecone={"namespace": "nowhere"})) as gateway:
        result = await gateway.retrieve(WORD)
    assert set(ids(result)) == {f"{id}:1" for id in STORES if id != "pinecone"}


@pytest.mark.parametrize("id", VENDORS)
@pytest.mark.parametrize("when", ["from the start", "while it runs"])
async def test_an_expired_key_is_the_gateways_trouble_and_never_the_callers(
    id: str, when: str, world: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "from the start":
        monkeypatch.setenv(f"STORES_{id.upper()}", "stale-key-77")
    async with running(*engines(world)) as gateway:
        if when == "while it runs":
            world.qdrant.api_key = "new" if id == "qdrant" else world.qdrant.api_key
            world.pinecone.key = "new" if id == "pinecone" else world.pinecone.key
            world.weaviate.api_key = "new" if id == "weaviate" else world.weaviate.api_key
        told = await only_the_others_answer(gateway, id)
        assert "key" in told
        assert "api_key" in told, told
        assert not any(secret in told for secret in (*KEYS.values(), "stale-key-77"))
    async with running(world.engine(id)) as gateway:
        error = await gateway.refused(WORD)
    assert error["code"] == -32010
    assert "stale-key-77" not in json.dumps(error)
    assert "-32012" not in json.dumps(error)


async def test_a_strict_mode_refusal_names_the_field_and_the_remedy(world: Stores) -> None:
    async with running(*engines(world)) as gateway:
        # Turned on behind the gateway's back: at opening the field would not have been offered.
        (collection,) = world.qdrant._collections.values()
        collection.strict.update({"enabled": True, "unindexed_filtering_retrieve": False})
        told = await only_the_others_answer(gateway, "qdrant")
    assert "strict mode" in told
    assert "meta.kw" in told
    assert "create the index" in told


@pytest.mark.parametrize("id", VENDORS)
async def test_a_store_that_refuses_connections_is_a_failed_leg(id: str, world: Stores) -> None:
    own: dict[str, Any] = {
        "qdrant": {"url": "http://127.0.0.1:9"},
        "pinecone": {"host": "http://127.0.0.1:9"},
        "weaviate": {"url": "http://127.0.0.1:9"},
    }[id]
    async with asyncio.timeout(8), running(*engines(world, **{id: own})) as gateway:
        assert "cannot be reached" in await only_the_others_answer(gateway, id)


# Deadlines


def hang(found: Stores, id: str) -> None:
    match id:
        case "qdrant":
            found.qdrant.hang = True
        case "pinecone":
            found.pinecone.broken = Fault(hang=True)
        case "weaviate":
            found.weaviate.hang("Search")


async def reached(found: Stores, id: str) -> None:
    """Waits until the server keeps a call waiting."""

    def waiting() -> bool:
        match id:
            case "qdrant":
                return found.qdrant.hung.is_set()
            case "pinecone":
                return found.pinecone.hanging > 0
            case _:
                return any(name == "Search" for name, _ in found.weaviate.requests)

    async with asyncio.timeout(10):
        while not waiting():
            await asyncio.sleep(0.01)


async def left(found: Stores, id: str) -> None:
    """Waits until the server has seen that nobody waits for its answer any more."""
    match id:
        case "qdrant":
            assert await asyncio.to_thread(found.qdrant.left.wait, 3.0)
        case "pinecone":
            await asyncio.wait_for(found.pinecone.gone.wait(), 3.0)
        case "weaviate":
            await asyncio.wait_for(found.weaviate.cancelled.wait(), 3.0)


@pytest.mark.parametrize("id", VENDORS)
async def test_a_store_that_hangs_costs_the_call_no_more_than_its_deadline(id: str, world: Stores) -> None:
    before = asyncio.all_tasks()
    async with running(*engines(world)) as gateway:
        await gateway.retrieve(WORD)
        hang(world, id)
        started = asyncio.get_running_loop().time()
        told = await only_the_others_answer(gateway, id, _meta={"deadlineMs": 300})
        assert asyncio.get_running_loop().time() - started < 1.5  # far below the engine's timeout of 10 s
        assert "timed out" in told
        await left(world, id)
    assert not ours(await settled(before))
    if id == "pinecone":
        assert world.pinecone.hanging == 0


@pytest.mark.parametrize("id", VENDORS)
async def test_a_caller_who_goes_away_is_seen_by_the_store(id: str, world: Stores) -> None:
    async with running(*engines(world)) as gateway:
        hang(world, id)
        call = asyncio.create_task(gateway.retrieve(WORD))
        await reached(world, id)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await left(world, id)


@pytest.mark.parametrize("id", VENDORS)
async def test_a_store_that_goes_away_leaves_the_others_in_time(id: str, world: Stores) -> None:
    async with running(*engines(world)) as gateway:
        match id:
            case "qdrant":
                world.qdrant.fault = PlainTextResponse("no", 502)
            case "pinecone":
                world.pinecone.broken = Fault(status=502)
            case "weaviate":
                world.weaviate.fail("Search", grpc.StatusCode.UNAVAILABLE, "gone")
        started = asyncio.get_running_loop().time()
        told = await only_the_others_answer(gateway, id, _meta={"deadlineMs": 300})
        assert asyncio.get_running_loop().time() - started < 1.5
        assert "failed" in told or "timed out" in told


def ours(names: set[str]) -> set[str]:
    """Without the servers' own handlers."""
    return {name for name in names if not any(own in name for own in ("RequestHandler", "_handle_", "handle_rpc"))}
