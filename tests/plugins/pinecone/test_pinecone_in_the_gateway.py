"""The engine in a real gateway: from the client's frame to Pinecone's wire and back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import gateway_pinecone.plugin
from gateway.app import open_gateway
from gateway.caller import ANONYMOUS
from gateway.config import load_text
from gateway.plugins import load_plugins
from tests.engines import Running, Script, ids, notes, scripted_plugin
from tests.servers.pinecone import Fault, Index, Rules, serve

pytestmark = pytest.mark.anyio

FIELDS = {
    "lang": "keyword",
    "tags": {"type": "keyword", "multi": True},
    "year": "int",
    "made": {"type": "date", "dates": "epoch_ms"},
    "title": "text",
}


@asynccontextmanager
async def running(index: Index, monkeypatch: pytest.MonkeyPatch, **host: Any) -> AsyncIterator[Running]:
    monkeypatch.setenv("PINE", "secret")
    async with serve(index):
        settings = {
            "host": index.url,
            "api_key": {"env": "PINE"},
            "inference": True,
            "namespace": "docs",
            "fields": FIELDS,
            "writable": True,
            "max_k": 200,
        }
        engine = {"id": "pine", "kind": "pinecone", "with": settings, **host}
        text = json.dumps({"name": "under-test", "engines": [engine], "writes": "pine"})
        config = load_text(text, base_dir=Path.cwd())
        async with open_gateway(config, load_plugins([gateway_pinecone.plugin], found=[])) as gateway:
            yield Running(gateway, {})


def index(**given: Any) -> Index:
    return Index(dimension=64, unsorted=True, **given)


async def fill(gateway: Running) -> None:
    documents = [
        {
            "id": f"d{n}",
            "text": f"words about number {n}",
            "meta": {
                "title": f"Title {n}",
                "year": 2000 + n % 30,
                **({"lang": "en" if n % 3 else "de"} if n % 4 else {}),
                "made": f"2024-01-{n % 28 + 1:02d}T00:00:00Z",
                "tags": ["even"] if n % 2 == 0 else [],
            },
        }
        for n in range(120)
    ]
    for at in range(0, len(documents), 40):
        answer = await gateway.call("index/add", {"documents": documents[at : at + 40]})
        assert "result" in answer, answer


@pytest.mark.parametrize("ne_selects_missing", [True, False])
async def test_filters_find_all_that_match_and_nothing_else(
    ne_selects_missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(index(rules=Rules(ne_selects_missing)), monkeypatch) as gateway:
        await fill(gateway)
        for filter, wanted in (
            ({"field": "lang", "op": "ne", "value": "en"}, lambda n: n % 4 == 0 or n % 3 == 0),
            ({"field": "tags", "op": "exists", "value": False}, lambda n: n % 2),
            ({"not": {"field": "year", "op": "gte", "value": 2003}}, lambda n: n % 30 < 3),
            ({"field": "title", "op": "contains", "value": "tle 11"}, lambda n: str(n).startswith("11")),
            ({"field": "made", "op": "lt", "value": "2024-01-03T01:00:00+01:00"}, lambda n: n % 28 < 2),
        ):
            result = await gateway.retrieve("words about number", k=100, filter=filter)
            assert set(ids(result)) == {f"d{n}" for n in range(120) if wanted(n)}, filter
            assert not any(hit["meta"].get("year", 0) != int(hit["meta"].get("year", 0)) for hit in result["hits"])


async def test_what_is_advertised_can_be_used_and_the_rest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(index(), monkeypatch) as gateway:
        await fill(gateway)
        assert (await gateway.refused(filter={"field": "secret", "op": "eq", "value": 1}))["code"] == -32602
        error = await gateway.refused(mode="hybrid", strict=True)
        assert (error["code"], error["data"]["option"]) == (-32005, "hybrid")
        deleted = await gateway.call("index/delete", {"ids": ["d1", "d2", "nothing"]})
        assert deleted["result"] == {"deleted": 2}


async def test_an_engine_that_fails_is_an_error_and_never_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    one = index()
    async with running(one, monkeypatch, timeout=0.5) as gateway:
        for fault, code in (
            (Fault(503), -32010),
            (Fault(401, b"no", content_type="text/plain"), -32010),
            (Fault(hang=True), -32010),
        ):
            one.broken = fault
            error = await gateway.refused()
            assert error["code"] == code
        one.broken = None


async def test_a_missing_text_is_told_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    one = index()
    one.fill({"a": ([1.0] * 64, {"lang": "en"})}, "docs")
    async with running(one, monkeypatch) as gateway:
        result = await gateway.retrieve("words")
    assert ids(result) == ["a"]
    assert "have no text under text" in notes(result)


@pytest.mark.parametrize("rules", [Rules(True, "none_of"), Rules(False, "none_of"), Rules(True, "any_of")])
async def test_the_probe_finds_out_what_the_vendor_leaves_open(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    one = index(rules=rules)
    monkeypatch.setitem(FIELDS, "lang", {"type": "keyword", "multi": True})
    async with running(one, monkeypatch) as gateway:
        found = {one.question: one for one in await gateway.gateway.service.probe("pine", ANONYMOUS)}
    assert all(one.ok for one in found.values()), found
    missing = "yes" if rules.ne_selects_missing else "no"
    assert found["does $ne select records without the field?"].answer.startswith(missing)
    assert ("as documented" in found["what does $ne say of a list?"].answer) is (rules.lists == "none_of")
    assert not any(one.rows.values())


async def test_hybrid_search_gets_both_vectors_from_the_engines_that_make_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted engines stand for the models: ``e`` embeds a text's length, ``s`` its letters."""
    monkeypatch.setenv("PINE", "secret")
    store = Index(metric="dotproduct", dimension=2)
    scripts = {
        "e": Script(capabilities={"retrieve": None, "embed": {"dimension": 2, "identity": "length"}}),
        "s": Script(capabilities={"retrieve": None, "sparseEmbed": {"identity": "letters"}}),
    }
    async with serve(store):
        settings = {
            "host": store.url,
            "api_key": {"env": "PINE"},
            "metric": "dotproduct",
            "dimension": 2,
            "embedder": "e",
            "sparse_embedder": "s",
            "alpha": 0.5,
        }
        engines = [{"id": "pine", "kind": "pinecone", "with": settings}] + [
            {"id": id, "kind": "scripted", "with": {"name": id}} for id in scripts
        ]
        config = load_text(json.dumps({"name": "under-test", "engines": engines}), base_dir=Path.cwd())
        loaded = load_plugins([gateway_pinecone.plugin, scripted_plugin(scripts)], found=[])
        async with open_gateway(config, loaded) as gateway:
            running = Running(gateway, scripts)
            await running.retrieve("aab", mode="hybrid")
            await running.retrieve("aab", mode="dense")
    hybrid, dense = (one.body for one in store.requests if one.path == "/query")
    assert hybrid["vector"] == [1.5, 0.5]
    assert hybrid["sparseVector"] == {"indices": [97, 98], "values": [1.0, 0.5]}
    assert dense["vector"] == [3.0, 1.0]
    assert "sparseVector" not in dense
