"""Model services behind a gateway: a fault costs what needs the service, and the key is nowhere to be seen."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.app import open_gateway
from gateway.cli.main import cli
from gateway.config import load_text
from gateway.model import Capabilities, hit
from gateway.plugins import load_plugins
from gateway.spi import VectorNeed
from tests.engines import Running, Script, _Plugin, hits, ids, notes
from tests.servers.providers import KEY, Providers, vector_of

pytestmark = pytest.mark.anyio


def configuration(server: Providers, **embeddings: Any) -> dict[str, Any]:
    key = {"env": "MODELS_TEST_KEY"}
    openai = {"url": f"{server.url}/openai/v1", "api_key": key, "model": "m"}
    return {
        "name": "under-test",
        "engines": [
            {"id": "dense", "kind": "scripted", "with": {"name": "dense"}},
            {"id": "words", "kind": "scripted", "with": {"name": "words"}},
            {"id": "embedder", "kind": "embeddings", "retry": {"attempts": 1},
             "with": {**openai, "dialect": "openai", "dimensions": 4, **embeddings}},
            {"id": "reranker", "kind": "reranker",
             "with": {"url": f"{server.url}/cohere/v2", "dialect": "cohere", "api_key": key, "model": "r"}},
            {"id": "writer", "kind": "llm", "with": openai},
        ],
    }  # fmt: skip


@asynccontextmanager
async def running(server: Providers, **embeddings: Any) -> AsyncIterator[Running]:
    config = configuration(server, **embeddings)
    config["engines"][0]["id"] = "vectors"  # "dense" is reserved
    scripts = {
        "dense": Script(hits("d"), need=VectorNeed(embedder="embedder", dimension=4)),
        "words": Script(hits("w")),
    }
    loaded = load_text(json.dumps(config), base_dir=Path.cwd())
    async with open_gateway(loaded, load_plugins([_Plugin(scripts)])) as gateway:
        yield Running(gateway, scripts)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELS_TEST_KEY", KEY)


async def test_every_kind_serves_its_method(server: Providers) -> None:
    async with running(server) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["embed"]["identity"] == "openai/m/4"
        assert told["rerank"]["methods"] == ["cross-encoder"]
        assert len(told["transform"]["methods"]) == 5
        assert sorted(ids(await gateway.retrieve("fox"))) == ["d", "w"]
        assert gateway.scripts["dense"].queries[0].vector == tuple(vector_of("fox"))
        embedded = (await gateway.call("embed", {"inputs": ["fox"], "kind": "query"}))["result"]
        assert embedded["vectors"] == [vector_of("fox")]
        ranked = (await gateway.call("rerank", {"query": "fox", "passages": ["", "dog", "fox"]}))["result"]
        assert ranked["order"][0] == 2
        assert ranked["scores"][0] < ranked["scores"][1]
        queries = (await gateway.call("query/transform", {"query": "q", "method": "multi-query", "n": 2}))["result"]
        assert queries == {"queries": ["one", "two"]}
    assert len(server.of("openai")) == 1


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (503, r"failed \(HTTP 503\)"),
        (429, "limits our rate"),
        ("nan", "NaN or Infinity"),
        ("short", "0 vectors for 1 texts"),
        ("wide", "5 numbers where 4"),
        (401, "does not accept the gateway's credentials"),
    ],
)
async def test_a_service_that_fails_takes_down_only_the_engines_that_need_it(
    fault: str | int, told: str, server: Providers
) -> None:
    import re

    async with running(server) as gateway:
        server.faults.append(fault)
        result = await gateway.retrieve("fox")
        assert ids(result) == ["w"]
        assert re.search(f"its embedder embedder failed: .*{told}", notes(result))
        assert result["_meta"]["degraded"] == ["vectors"]


@pytest.mark.parametrize(
    ("fault", "scored"), [(None, 2), ("short", 1), ("null", 1), ("negative", 2), ("twice", 0), ("nan", 0), (503, 0)]
)
async def test_whatever_a_reranker_answers_no_hit_is_lost_or_comes_twice(
    fault: Any, scored: int, server: Providers
) -> None:
    found = [hit("w1", 0.9, text="dog"), hit("blank", 0.8, text=" "), hit("w2", 0.7, text="fox"), hit("none", 0.6)]
    async with running(server) as gateway:
        gateway.scripts["words"].hits = found
        gateway.scripts["dense"].hits = ()
        # What is retried fails again.
        server.faults += [] if fault is None else [fault] * (1 if scored else 2)
        result = await gateway.retrieve("fox", rerank={}, _meta={"x-gateway": {"engines": ["words"]}})
    assert sorted(ids(result)) == ["blank", "none", "w1", "w2"]
    assert sum("rerank" in (one.get("scores") or {}) for one in result["hits"]) == scored
    unscored = [one["id"] for one in result["hits"] if "rerank" not in (one.get("scores") or {})]
    order = [one.id for one in found]
    # What has no score stays in the order it had, behind what has one.
    assert unscored == sorted(unscored, key=order.index)
    assert ids(result)[len(ids(result)) - len(unscored) :] == unscored
    scores = [one["score"] for one in result["hits"]]
    assert scores == sorted(scores, reverse=True)
    if scored == 2:
        assert ids(result)[:2] == ["w2", "w1"]


async def test_a_service_that_hangs_costs_its_engines_and_no_more(server: Providers) -> None:
    async with running(server) as gateway:
        server.faults.append("hang")
        result = await gateway.retrieve("fox", _meta={"deadlineMs": 700})
        assert ids(result) == ["w"]
        assert "vectors" in notes(result)


async def test_the_key_is_in_the_header_and_nowhere_else(server: Providers, caplog: pytest.LogCaptureFixture) -> None:
    said: list[Any] = []
    with caplog.at_level(logging.DEBUG):
        async with running(server) as gateway:
            server.faults += ["echo", "echo", "echo"]
            said.append(await gateway.call("embed", {"inputs": ["what the patient asked"], "kind": "query"}))
            said.append(await gateway.call("rerank", {"query": "what the patient asked", "passages": ["p"]}))
            said.append(await gateway.call("query/transform", {"query": "what the patient asked", "method": "hyde"}))
            assert all(one["error"]["code"] == -32010 for one in said)
            said += [await gateway.call("catalog/list"), await gateway.call("info"), await gateway.retrieve("fox")]
            said.append(repr(gateway.gateway.config))
            said.append([repr(member.spec.config) for member in gateway.gateway.fleet.members.values()])
    shown = json.dumps(said) + caplog.text
    assert KEY not in shown
    assert "patient" not in shown
    assert server.url not in json.dumps(said[:6])
    assert all(KEY in one.headers["authorization"] and KEY not in json.dumps(one.body) for one in server.seen)


@pytest.mark.parametrize("command", [["check", "--open"], ["explain"], ["catalog"]])
def test_the_commands_do_not_show_the_key(command: Sequence[str], server: Providers, tmp_path: Path) -> None:
    config = configuration(server)
    key, here = {"env": "MODELS_TEST_KEY"}, "http://127.0.0.1:1"
    rails = {"url": here, "token": key, "options": {"api_key": key}, "rerank": {"options": {"api_key": key}}}
    config["engines"] = [
        {"id": "docs", "kind": "memory"},
        *config["engines"][2:],
        {"id": "cloud", "kind": "llamacloud", "with": {"index_id": "i", "base_url": here, "api_key": key}},
        {"id": "rails", "kind": "ragrails", "with": rails},
    ]
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps(config))
    done = CliRunner().invoke(cli, [*command, "--config", str(path)])
    assert done.exit_code == 0, done.output
    assert KEY not in done.output


def test_a_key_that_is_written_down_is_refused_and_not_repeated(server: Providers) -> None:
    from gateway.app import engine_specs
    from gateway.errors import ConfigErrors

    config = configuration(server, api_key=KEY)
    config["engines"] = config["engines"][2:]
    with pytest.raises(ConfigErrors, match="by reference") as refused:
        engine_specs(load_text(json.dumps(config), base_dir=Path.cwd()), load_plugins())
    assert KEY not in str(refused.value)


async def test_the_static_claims_need_no_service(server: Providers) -> None:
    from gateway_models.embeddings import EmbeddingsConfig, EmbeddingsKind

    offered: Capabilities = EmbeddingsKind().offers(EmbeddingsConfig(dialect="jina", model="j"))
    assert offered.embed is not None
    assert offered.embed.dimension is None
    assert server.seen == []
