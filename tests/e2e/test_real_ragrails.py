"""The real RAGRails server behind the gateway, over our Qdrant server, its vectors from our Voyage (``make e2e``)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from qdrant_client import QdrantClient

from gateway.app import open_gateway
from gateway.config import load_text
from gateway.plugins import load_plugins
from tests.e2e.real_server import missing, ragrails_api
from tests.engines import Running, ids, notes
from tests.facades import served
from tests.servers.providers import KEY, Providers, providers, vector_of
from tests.servers.qdrant import qdrant_server

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

TEXTS = {
    "Keys": "To authenticate, create an API key in the settings and send it with every request.",
    "Colours": "Short wavelengths scatter more strongly in the atmosphere, so the sky looks blue by day.",
    "Onboarding": "The second step of the onboarding flow asks for the name of your organisation.",
    "Limits": "A key may send ten requests a second; beyond that the answer is a refusal with a waiting time.",
    "Errors": "An error says what was wrong with the request and whether it is worth trying it again.",
}
QUESTION = "How do I authenticate?"


@dataclass(frozen=True)
class Stack:
    rails: str
    qdrant: str
    voyage: Providers


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    """The servers, and a collection that the real server chunked, embedded and stored itself."""
    with providers() as voyage, qdrant_server() as qdrant, tempfile.TemporaryDirectory() as home:
        with ragrails_api(voyage=f"{voyage.url}/voyage/v1", key=KEY, home=Path(home)) as rails:
            with httpx.Client(base_url=rails, timeout=60) as http:
                markdown = "\n\n".join(f"# {title}\n\n{text}" for title, text in TEXTS.items())
                given = {"markdown": markdown, "title": "Guide", "source": "guide.md", "min_chunk_length": 10}
                chunks = http.post("/v1/chunk", json=given).raise_for_status().json()["items"]
                embedded = http.post("/v1/embed", json={"chunks": chunks}).raise_for_status().json()["items"]
                place = {"collection": "docs", "url": qdrant.url}
                stored = http.post("/v1/store", json={"embedded_chunks": embedded, **place}).raise_for_status().json()
            assert stored["stored"] == len(TEXTS)
            yield Stack(rails, qdrant.url, voyage)


@pytest.fixture
def stack(running: Stack) -> Iterator[Stack]:
    running.voyage.seen.clear()
    yield running
    assert not running.voyage.faults, "a fault that nobody met"


def rails(stack: Stack, **given: Any) -> dict[str, Any]:
    settings = {"url": stack.rails, "collection": "docs", "vector_db_url": stack.qdrant, **given}
    return {"id": "rails", "kind": "ragrails", "with": settings, "retry": {"attempts": 1}}


@asynccontextmanager
async def gateway_over(*engines: dict[str, Any]) -> AsyncIterator[Running]:
    text = json.dumps({"name": "e2e", "engines": list(engines)})
    async with open_gateway(load_text(text, base_dir=Path.cwd()), load_plugins()) as gateway:
        yield Running(gateway, {})


def direct(stack: Stack, query: str, limit: int = 10) -> list[Any]:
    client = QdrantClient(url=stack.qdrant)
    try:
        return client.query_points("docs", query=vector_of(query), limit=limit, with_payload=True).points
    finally:
        client.close()


async def test_hits_are_those_of_the_store_itself_in_its_order(stack: Stack) -> None:
    async with gateway_over(rails(stack)) as gateway:
        result = await gateway.retrieve(QUESTION, k=4)
    points = direct(stack, QUESTION, 4)
    assert ids(result) == [str(point.id) for point in points]
    for hit, point in zip(result["hits"], points, strict=True):
        payload = dict(point.payload)
        assert hit["text"] == payload.pop("text")
        assert hit["meta"]["engineScore"] == pytest.approx(point.score, abs=1e-6)
        assert hit["citation"] == {"source": "guide.md", "title": "Guide"}
        assert {name: hit["meta"][name] for name in payload} == payload
    assert [one.body["input_type"] for one in stack.voyage.of("voyage")] == ["query"]


async def test_a_filter_is_checked_here_and_the_page_is_filled(stack: Stack) -> None:
    wanted = direct(stack, QUESTION)[-1].payload["chunk_index"]
    engine = rails(stack, fields={"chunk_index": "keyword"}, meta_complete=True)
    async with gateway_over(engine) as gateway:
        result = await gateway.retrieve(QUESTION, k=1, filter={"field": "chunk_index", "op": "eq", "value": wanted})
    assert [hit["meta"]["chunk_index"] for hit in result["hits"]] == [wanted]


async def test_our_own_engine_on_the_same_store_fuses_with_it(stack: Stack) -> None:
    key = {"env": "E2E_VOYAGE_KEY"}
    own = {
        "id": "own",
        "kind": "qdrant",
        "with": {"url": stack.qdrant, "collection": "docs", "embedder": "voyage", "vectors": {"dense": {}},
                 "payload": {"meta": ""}},
    }  # fmt: skip
    voyage = {
        "id": "voyage",
        "kind": "embeddings",
        "with": {"dialect": "voyage", "url": f"{stack.voyage.url}/voyage/v1", "model": "voyage-3", "api_key": key},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("E2E_VOYAGE_KEY", KEY)
        async with gateway_over(rails(stack), own, voyage) as gateway:
            result = await gateway.retrieve(QUESTION, k=5)
    assert len(result["hits"]) == 5
    assert {tuple(sorted(hit["meta"]["engines"])) for hit in result["hits"]} == {("own", "rails")}


@pytest.mark.parametrize("fault", [401, 429, 503, "short", "nan", "wide"])
async def test_a_failing_provider_is_http_200_there_and_an_error_here(stack: Stack, fault: Any) -> None:
    stack.voyage.faults.append(fault)
    async with httpx.AsyncClient(base_url=stack.rails) as http:
        body = {"query": "the patient asked", "collection": "docs", "url": stack.qdrant}
        answer = await http.post("/v1/retrieve", json=body)
    assert answer.status_code == 200
    (error,) = answer.json()["errors"]
    assert (answer.json()["items"], answer.json()["failed"]) == ([], 1)
    assert {**error, "error": ""} == {
        "source": "the patient asked",
        "source_kind": "query",
        "stage": "retrieve",
        "error": "",
        "isRetryable": True,
        "attempts": 1,
    }
    stack.voyage.faults.append(fault)
    async with gateway_over(rails(stack)) as gateway:
        refused = await gateway.refused("the patient asked")
    assert (refused["code"], refused["data"]["retryable"]) == (-32010, True)
    assert "stage retrieve" in json.dumps(refused)
    assert "patient" not in json.dumps(refused)
    assert KEY not in json.dumps(refused)


async def test_a_failing_server_costs_itself_and_not_the_others(stack: Stack) -> None:
    memory = {"id": "memory", "kind": "memory", "with": {"documents": [{"id": "m", "text": QUESTION}]}}
    stack.voyage.faults.append(503)
    async with gateway_over(rails(stack), memory) as gateway:
        result = await gateway.retrieve(QUESTION)
    assert ids(result) == ["m"]
    assert result["_meta"]["degraded"] == ["rails"]
    assert "the RAGRails server failed (stage retrieve)" in notes(result)


async def test_a_collection_that_is_not_there_is_an_error_here(stack: Stack) -> None:
    async with gateway_over(rails(stack, collection="other")) as gateway:
        assert (await gateway.refused(QUESTION))["code"] == -32010


async def test_a_provider_that_hangs_ends_with_the_callers_deadline(stack: Stack) -> None:
    stack.voyage.faults.append("hang")
    stack.voyage.arrived.clear()
    async with gateway_over(rails(stack)) as gateway:
        refused = await gateway.refused(QUESTION, _meta={"deadlineMs": 1500})
    assert refused["code"] == -32014
    assert stack.voyage.arrived.is_set()


@pytest.mark.parametrize(
    "more",
    [
        {"query": " "},
        {"top_k": 0},
        {"rerank_top_k": -1},
        {"vector_db": "faiss"},
        {"top_k": None},
        {"top_k": "3"},
        {"top_k": "three"},
        {"use_rerank": "yes", "reranker": "bm25"},
        {"use_rerank": "perhaps"},
        {"options": []},
        {"collection": "other"},
        {"unknown": 1},
    ],
)
async def test_our_facade_answers_a_request_as_the_real_server_does(stack: Stack, more: Any) -> None:
    """The same status and members, and for what is refused the same places and words."""
    body = {"query": "q", "collection": "docs", "url": stack.qdrant, **more}
    docs = {"docs": {"engines": ["m"], "url": stack.qdrant}}
    memory = {"id": "m", "kind": "memory", "with": {"documents": [{"id": "q", "text": "q"}]}}
    async with httpx.AsyncClient(base_url=stack.rails) as http:
        theirs = await http.post("/v1/retrieve", json=body)
    async with served("ragrails", {"collections": docs}, engines=[memory]) as gateway:
        ours = await gateway.post("/v1/retrieve", body)
    assert ours.status_code == theirs.status_code, (ours.text, theirs.text)
    if theirs.status_code == 400:
        assert ours.json() == theirs.json()
    elif theirs.status_code == 422:
        assert places(ours) == places(theirs)
    else:
        assert ours.json().keys() == theirs.json().keys()
        assert bool(ours.json()["failed"]) == bool(theirs.json()["failed"])


def places(response: httpx.Response) -> list[Any]:
    return [(row["type"], row["loc"]) for row in response.json()["detail"]]
