"""Opening: what is read, what is refused, what is tried again."""

from __future__ import annotations

import asyncio
import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.walk import Walker
from gateway.errors import BackendUnavailable, ConfigError, PluginError
from gateway.federation.context import HostContext
from gateway.secret import Secret
from gateway.spi.engine import EngineQuery
from gateway_weaviate.engine import WeaviateKind
from gateway_weaviate.sdk import load_sdk
from gateway_weaviate.settings import Endpoint, WeaviateConfig
from tests.plugins.weaviate.conftest import Opener, StubCall, settings_for
from tests.servers.weaviate import Collection, Prop, WeaviateServer, weaviate_server

BODY = Prop("text", "text")


@pytest.mark.anyio
async def test_the_fields_are_those_of_the_schema_by_their_tokenizers(server: WeaviateServer, opened: Opener) -> None:
    server.create(
        Collection(
            "Doc",
            [
                BODY,
                Prop("code", "text", "field"),
                Prop("words", "text", "lowercase"),
                Prop("tags", "text[]", "field"),
                Prop("n", "int"),
                Prop("x", "number[]"),
                Prop("flag", "boolean"),
                Prop("at", "date"),
                Prop("owner", "uuid"),
                Prop("spot", "geoCoordinates"),
                Prop("blob", "blob"),
                Prop("hidden", "int", filterable=False),
            ],
        )
    )
    async with opened(server) as engine:
        capabilities = engine.capabilities()
    assert capabilities.filter is not None
    assert capabilities.filter.fields == {
        "code": "keyword",
        "words": "text",
        "tags": "keyword",
        "n": "int",
        "x": "float",
        "flag": "bool",
        "at": "date",
        "owner": "keyword",
        "spot": "geo",
    }
    assert capabilities.retrieve is not None
    assert capabilities.retrieve.modes == ("sparse",)  # nobody makes vectors here
    assert (capabilities.retrieve.score_scale, capabilities.retrieve.score_floor) == ("bm25", 0.0)
    assert capabilities.index is None


@pytest.mark.anyio
async def test_a_declared_type_that_the_schema_contradicts_is_checked_here(
    server: WeaviateServer, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    server.create(Collection("Doc", [BODY, Prop("made", "int")]))
    async with opened(server, fields={"made": "date"}) as engine:
        from gateway.filters import Condition, FieldType, Instant, Op

        halves = engine.push_down(Condition("made", Op.GT, Instant(0), FieldType.DATE))
    assert halves.native is None
    assert "'made' holds int, not date" in caplog.text


@pytest.mark.anyio
async def test_a_tenant_is_needed_where_there_are_tenants_and_nowhere_else(
    server: WeaviateServer, opened: Opener
) -> None:
    """R50: a mapping that is missing is a configuration error that names the class."""
    server.create(Collection("Doc", [BODY], tenants=["acme"]))
    server.create(Collection("Open", [BODY]))
    for given, told in (
        ({}, "'Doc' has tenants"),
        ({"tenant": "other"}, "'Doc' has no tenant 'other'"),
        ({"collection": "Open", "tenant": "acme"}, "'Open' has no tenants"),
    ):
        with pytest.raises(ConfigError, match=told) as raised:
            async with opened(server, **given):
                pass
        assert raised.value.path == "tenant"


@pytest.mark.anyio
async def test_a_named_vector_must_be_there_and_named_if_there_are_more(server: WeaviateServer, opened: Opener) -> None:
    """R46: the error lists the names there are."""
    vectors = {"text": ("none", "cosine"), "title": ("none", "dot")}
    server.create(Collection("Doc", [BODY], vectors=vectors))
    for given in ({"vector": "body", "embedder": "e"}, {"embedder": "e"}, {"vector": "body"}):
        with pytest.raises(ConfigError, match="text, title"):
            async with opened(server, **given):
                pass
    server.create(Collection("Old", [BODY]))
    with pytest.raises(ConfigError, match="one without a name"):
        async with opened(server, collection="Old", vector="text", embedder="e"):
            pass
    async with opened(server, vector="title", embedder="e", modes=("dense",)) as engine:
        retrieve = engine.capabilities().retrieve
        assert retrieve is not None
        assert retrieve.score_scale == "dot"


@pytest.mark.anyio
async def test_a_mode_that_cannot_be_served_is_a_configuration_error(server: WeaviateServer, opened: Opener) -> None:
    server.create(Collection("Doc", [BODY]))
    server.create(Collection("Mute", [Prop("n", "int")]))
    with pytest.raises(ConfigError, match="dense needs a vector the server makes itself"):
        async with opened(server, modes=("dense",)):
            pass
    with pytest.raises(ConfigError, match="sparse needs a searchable text property"):
        async with opened(server, collection="Mute", modes=("sparse",)):
            pass
    with pytest.raises(ConfigError, match="nothing in 'Mute' can be searched"):
        async with opened(server, collection="Mute"):
            pass
    with pytest.raises(ConfigError, match="needs a text property 'rcp_id'"):
        async with opened(server, writable=True):
            pass
    with pytest.raises(ConfigError, match="no searchable text property"):
        async with opened(server, search_fields=("text^2", "nope")):
            pass
    with pytest.raises(ConfigError, match="no property 'nope'"):
        async with opened(server, trimmed=("nope",)):
            pass


@pytest.mark.anyio
@pytest.mark.parametrize("trouble", ["refused", "no collection", "key", "server error", "too old", "hangs"])
async def test_whatever_may_pass_is_tried_again(
    trouble: str, server: WeaviateServer, host: HostContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create(Collection("Doc", [BODY]))
    config = settings_for(server)
    match trouble:
        case "refused":
            config = WeaviateConfig(
                http=Endpoint(host="127.0.0.1", port=1), grpc=Endpoint(host="127.0.0.1", port=2), collection="Doc"
            )
        case "no collection":
            del server.collections["Doc"]
        case "key":
            server.api_key = "right"
        case "server error":
            server.rest_failures["schema"] = 500
        case "too old":
            server.version = "1.26.4"
        case "hangs":
            server.hanging.add("schema")
            monkeypatch.setattr("gateway_weaviate.engine._OPEN_SECONDS", 0.3)
    with pytest.raises(BackendUnavailable) as raised:
        async with WeaviateKind().open(config, host):
            pass
    assert raised.value.retryable
    assert raised.value.detail
    if trouble == "too old":
        assert "1.26.4" in raised.value.message
    assert "127.0.0.1" not in raised.value.message


@pytest.mark.anyio
async def test_key_and_headers_go_through_both_doors_and_into_no_text(
    host: HostContext, call: StubCall, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with weaviate_server(WeaviateServer(api_key="s3cret")) as server:
        server.create(Collection("Doc", [BODY]))
        config = settings_for(server, api_key=Secret("s3cret"), headers={"X-OpenAI-Api-Key": Secret("0penai")})
        assert "s3cret" not in repr(config)
        async with WeaviateKind().open(config, host) as engine:
            await engine.retrieve(EngineQuery(text="fox", k=1), call)
        assert server.metadata[-1]["authorization"] == "Bearer s3cret"
        assert server.metadata[-1]["x-openai-api-key"] == "0penai"
    assert "s3cret" not in caplog.text
    assert "0penai" not in caplog.text


@pytest.mark.anyio
async def test_opening_asks_nobody_but_the_server(server: WeaviateServer, opened: Opener) -> None:
    """The client's own checks would ask a package index whether there is a newer client."""
    server.create(Collection("Doc", [BODY]))
    async with opened(server):
        pass
    assert [request for _, request in server.requests] == ["GET meta", "GET meta", "GET schema/Doc"]


@pytest.mark.anyio
async def test_closing_leaves_no_task_and_no_connection(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    server.create(Collection("Doc", [BODY]))
    before = asyncio.all_tasks()
    async with opened(server) as engine:
        await engine.retrieve(EngineQuery(text="fox", k=1), call)
        client = engine._client  # type: ignore[attr-defined]
    assert not client.is_connected()
    left = {task for task in asyncio.all_tasks() - before if "weaviate" in repr(task.get_coro()).split("tests")[0]}
    assert not left


@pytest.mark.anyio
async def test_what_is_raised_into_the_open_engine_comes_out_as_it_is(server: WeaviateServer, opened: Opener) -> None:
    server.create(Collection("Doc", [BODY]))
    with pytest.raises(ValueError, match="mine"):
        async with opened(server):
            raise ValueError("mine")


def test_without_the_client_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *given: Any, **more: Any) -> Any:
        if name.split(".")[0] == "weaviate":
            raise ImportError("No module named 'weaviate'")
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(PluginError, match=r"rcp-gateway\[weaviate\]"):
        load_sdk()


def read(tmp_path: Path, **given: Any) -> tuple[Any, list[str]]:
    walker = Walker(tmp_path)
    found = walker.read(WeaviateConfig, {"collection": "Doc", **given}, "with")
    return found, [str(error) for error in walker.errors]


def test_settings_are_read_in_either_spelling(tmp_path: Path) -> None:
    found, errors = read(tmp_path, url="https://w.example", grpc="grpc-w.example:443")
    assert not errors
    assert found.rest == Endpoint(host="w.example", port=443, secure=True)
    assert found.remote == Endpoint(host="grpc-w.example", port=443, secure=True)
    found, errors = read(tmp_path, http={"host": "h", "port": 8080}, fields={"a": "keyword", "b": None})
    assert not errors
    assert found.remote == Endpoint(host="h", port=50051, secure=False)
    assert found.fields == {"a": "keyword", "b": None}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "with"),
        ({"url": "w.example:8080"}, "with.url"),
        ({"url": "http://u:p@w.example"}, "with.url"),
        ({"url": "http://w.example/x"}, "with.url"),
        ({"url": "ftp://w.example"}, "with.url"),
        ({"url": "http://w.example", "grpc": "w.example"}, "with.grpc"),
        ({"url": "http://w.example:50051"}, "with.grpc"),
        ({"url": "http://w", "http": {"host": "h", "port": 1}}, "with"),
        ({"http": {"host": "h", "port": 0}}, "with.http.port"),
        ({"url": "http://w", "max_k": 10_001}, "with.max_k"),
        ({"url": "http://w", "alpha": 1.5}, "with.alpha"),
        ({"url": "http://w", "collection": "Doc/../x"}, "with.collection"),
        ({"url": "http://w", "tenant": "a/b"}, "with.tenant"),
        ({"url": "http://w", "tenant": ""}, "with.tenant"),
        ({"url": "http://w", "api_key": "plain"}, "with.api_key"),
        ({"url": "http://w", "tennant": "a"}, "with.tennant"),
        ({"url": "http://w", "id_field": "text"}, "with.id_field"),
        ({"url": "http://w", "modes": ["dense"], "default_mode": "sparse"}, "with.default_mode"),
        ({"url": "http://w", "fields": {"a": "string"}}, "with.fields.a"),
    ],
)
def test_a_wrong_setting_is_named_by_its_path(given: dict[str, Any], path: str, tmp_path: Path) -> None:
    _, errors = read(tmp_path, **given)
    assert any(error.startswith(path + ":") for error in errors), errors


def test_what_is_offered_before_opening_needs_no_client_and_no_network() -> None:
    kind = WeaviateKind()
    plain = WeaviateConfig(url="http://w", collection="Doc")
    assert kind.offers(plain).retrieve.modes == ("sparse",)  # type: ignore[union-attr]
    full = WeaviateConfig(url="http://w", collection="Doc", embedder="e", writable=True)
    both = WeaviateConfig(url="http://w", collection="Doc", embedder="e", modes=("dense", "sparse"))
    assert kind.offers(full).retrieve.default_mode == "hybrid"  # type: ignore[union-attr]
    assert kind.offers(both).retrieve.default_mode == "dense"  # type: ignore[union-attr]
    assert kind.offers(full).retrieve.modes == ("dense", "sparse", "hybrid")  # type: ignore[union-attr]
    assert kind.offers(full).index is not None
    assert kind.embedders(full) == ("e",)
    assert kind.requires(full) == ("weaviate",)


def test_the_plugin_is_found_and_does_not_import_the_client() -> None:
    """Importing the client takes more than a second; a gateway that has no such engine must not pay for it."""
    code = (
        "import sys; from gateway_weaviate.plugin import gateway_engine_kinds; "
        "print([kind.name for kind in gateway_engine_kinds()], 'weaviate' in sys.modules, 'grpc' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{root}:{root / 'plugins'}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == "['weaviate'] False False"
