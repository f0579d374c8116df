"""Embedding services: what they are asked, how their answers are read, and what becomes of their refusals."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest

from gateway.errors import BackendUnavailable, ConfigError, RateLimited, RcpError, UpstreamError
from gateway.secret import Secret
from gateway.spi.engine import EmbedQuery, Engine
from gateway_models.embedding_dialects import DIALECTS
from gateway_models.embeddings import EmbeddingsConfig, Sides
from tests.plugins.models.conftest import Opener
from tests.plugins.qdrant.conftest import StubCall
from tests.servers.providers import KEY, Providers, vector_of

pytestmark = pytest.mark.anyio

ALL = list(DIALECTS)
INDEXED = ("openai", "voyage", "jina")
"""Those whose answers number the vectors; the others rely on the order."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def embed(engine: Engine, *texts: str, kind: Any = "query") -> list[list[float]]:
    reply = await engine.embed(EmbedQuery(inputs=texts, kind=kind), StubCall())
    return [list(vector) for vector in reply.vectors]


@pytest.mark.parametrize("dialect", ALL)
async def test_every_dialect_gives_one_vector_per_text_in_order(dialect: str, opened: Opener) -> None:
    async with opened.embeddings(dialect) as engine:
        offered = engine.capabilities().embed
        assert offered is not None
        assert (offered.dimension, offered.identity) == (4, f"{dialect}/m-1/4")
        assert offered.batch_limit == DIALECTS[dialect].batch
        assert await embed(engine, "a", "b", "c") == [vector_of(text) for text in "abc"]


@pytest.mark.parametrize("dialect", ALL)
async def test_many_texts_go_in_batches_that_the_service_takes(dialect: str, opened: Opener, server: Providers) -> None:
    texts = [f"text {number}" for number in range(DIALECTS[dialect].batch + 5)]
    async with opened.embeddings(dialect, dimensions=4 if dialect != "tei" else 0) as engine:
        before = len(server.seen)
        assert await embed(engine, *texts) == [vector_of(text) for text in texts]
    assert len(server.seen) - before == 2


@pytest.mark.parametrize(
    ("dialect", "member", "query", "document"),
    [
        ("voyage", "input_type", "query", "document"),
        ("cohere", "input_type", "search_query", "search_document"),
        ("jina", "task", "retrieval.query", "retrieval.passage"),
        ("openai", "input_type", None, None),
        ("tei", "prompt_name", None, None),
    ],
)
async def test_queries_and_documents_are_told_apart_in_the_services_own_words(
    dialect: str, member: str, query: str | None, document: str | None, opened: Opener, server: Providers
) -> None:
    async with opened.embeddings(dialect) as engine:
        await embed(engine, "x", kind="query")
        await embed(engine, "x", kind="document")
    assert [one.body.get(member) for one in server.seen[-2:]] == [query, document]


async def test_prefixes_and_types_of_the_settings_are_sent(opened: Opener, server: Providers) -> None:
    prefixes = Sides(query="query: ", document="passage: ")
    async with opened.embeddings("ollama", prefixes=prefixes) as engine:
        await embed(engine, "x")
        await embed(engine, "x", kind="document")
    assert [one.body["input"] for one in server.seen[-2:]] == [["query: x"], ["passage: x"]]
    async with opened.embeddings("tei", types=Sides(query="q-prompt")) as engine:
        await embed(engine, "x")
    assert server.seen[-1].body["prompt_name"] == "q-prompt"


async def test_blank_and_broken_texts_get_vectors_like_any_other(opened: Opener) -> None:
    async with opened.embeddings("openai") as engine:
        assert await embed(engine, "", " \n", "\ud800") == [vector_of("."), vector_of("."), vector_of("\ufffd")]


async def test_texts_are_cut_only_if_the_settings_say_so(opened: Opener, server: Providers) -> None:
    async with opened.embeddings("openai", max_characters=3) as engine:
        await embed(engine, "abcdef")
    assert server.seen[-1].body["input"] == ["abc"]


@pytest.mark.parametrize("dialect", INDEXED)
@pytest.mark.parametrize("fault", ["shuffled", "no index"])
async def test_an_index_decides_the_order_and_without_one_the_place(
    fault: str, dialect: str, opened: Opener, server: Providers
) -> None:
    async with opened.embeddings(dialect, dimensions=4) as engine:
        server.faults.append(fault)
        assert await embed(engine, "a", "b", "c") == [vector_of(text) for text in "abc"]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("short", "2 vectors for 3 texts"),
        ("twice", "two vectors for text 0"),
        ("beyond", "a vector for text 3, and there are 3"),
        ("wide", "a vector of 5 numbers where 4 are expected"),
        ("nan", "holds NaN or Infinity"),
        ("null", "wrong shape.*null"),
        ("huge", "not finite|not JSON|out of range"),
        ("html", "is not JSON"),
    ],
)
async def test_an_answer_that_cannot_be_right_is_refused_and_says_why(
    fault: str, told: str, dialect: str, opened: Opener, server: Providers
) -> None:
    if fault in ("twice", "beyond") and dialect not in INDEXED:
        pytest.skip("its answers have no indexes that could be wrong")
    async with opened.embeddings(dialect) as engine:
        server.faults.append(fault)
        with pytest.raises(BackendUnavailable, match=told):
            await embed(engine, "a", "b", "c")
        assert await embed(engine, "a") == [vector_of("a")]


@pytest.mark.parametrize("dialect", [one for one in ALL if one != "ollama"])  # which knows no such limit
async def test_a_batch_that_is_too_large_is_halved_until_it_fits(
    dialect: str, opened: Opener, server: Providers, caplog: pytest.LogCaptureFixture
) -> None:
    server.limit = 5
    texts = [f"t{number}" for number in range(16)]
    async with opened.embeddings(dialect) as engine:
        with caplog.at_level(logging.WARNING):
            assert await embed(engine, *texts) == [vector_of(text) for text in texts]
    assert "set batch lower" in caplog.text


@pytest.mark.parametrize("dialect", ALL)
async def test_a_413_halves_a_batch_and_a_single_text_is_an_error(
    dialect: str, opened: Opener, server: Providers
) -> None:
    async with opened.embeddings(dialect) as engine:
        server.faults.append(413)
        assert await embed(engine, "a", "b", "c") == [vector_of(text) for text in "abc"]
        server.faults.append(413)
        with pytest.raises(UpstreamError, match="too large") as refused:
            await embed(engine, "x")
    assert (refused.value.code, refused.value.retryable) == (-32013, False)


@pytest.mark.parametrize("dialect", ALL)
async def test_a_rate_limit_says_when_to_come_back_and_a_quota_does_not(
    dialect: str, opened: Opener, server: Providers
) -> None:
    async with opened.embeddings(dialect) as engine:
        server.faults += [429, "quota", 503]
        with pytest.raises(RateLimited) as limited:
            await embed(engine, "x")
        assert limited.value.data["retryAfterMs"] == 7000
        with pytest.raises(UpstreamError, match="quota") as used_up:
            await embed(engine, "x")
        assert not used_up.value.retryable
        with pytest.raises(BackendUnavailable) as down:
            await embed(engine, "x")
        assert down.value.data["retryAfterMs"] == 7000


@pytest.mark.parametrize("dialect", ALL)
async def test_a_refused_key_is_the_gateways_fault_and_is_never_shown(
    dialect: str, opened: Opener, server: Providers
) -> None:
    wrong = "sk-wrong-key-that-nobody-may-see"
    with pytest.raises(UpstreamError, match="credentials") as refused:
        async with opened.embeddings(dialect, api_key=Secret(wrong)):
            pass
    assert not refused.value.retryable
    assert wrong not in f"{refused.value.message} {refused.value.detail} {refused.value.data}"
    assert wrong not in repr(refused.value.__context__)


async def test_what_a_service_quotes_of_the_request_is_not_repeated(opened: Opener, server: Providers) -> None:
    async with opened.embeddings("openai", dimensions=4, headers={"x-org": Secret("org-secret")}) as engine:
        server.faults.append("echo")
        with pytest.raises(RcpError) as refused:
            await embed(engine, "what the patient asked")
    shown = f"{refused.value} {refused.value.detail} {refused.value.data}"
    assert KEY not in shown
    assert "patient" not in shown
    assert server.seen[-1].headers["x-org"] == "org-secret"


async def test_a_caller_that_leaves_ends_the_request(opened: Opener, server: Providers) -> None:
    async with opened.embeddings("openai", dimensions=4) as engine:
        server.faults.append("hang")
        server.arrived.clear()
        asked = asyncio.create_task(embed(engine, "x"))
        assert await anyio.to_thread.run_sync(server.arrived.wait, 5)
        asked.cancel()
        assert await anyio.to_thread.run_sync(server.seen[-1].gone.wait, 5)
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_dimensions_that_are_given_are_asked_for_and_cost_no_call_at_the_start(
    opened: Opener, server: Providers
) -> None:
    async with opened.embeddings("openai", dimensions=2) as engine:
        assert server.seen == []
        assert len((await embed(engine, "x"))[0]) == 2
    assert server.seen[-1].body["dimensions"] == 2


async def test_options_of_the_settings_go_into_the_body(opened: Opener, server: Providers) -> None:
    async with opened.embeddings("ollama", options={"keep_alive": "5m"}) as engine:
        await embed(engine, "x")
    assert server.seen[-1].body["keep_alive"] == "5m"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"dialect": "tei"}, "url"),
        ({"dialect": "openai", "url": "ftp://x"}, "url"),
        ({"dialect": "openai", "model": " "}, "model"),
        ({"dialect": "openai", "dimensions": -1}, "dimensions"),
        ({"dialect": "ollama", "types": Sides(query="q")}, "types"),
        ({"dialect": "openai", "api_key": Secret("a\nb")}, "api_key"),
        ({"dialect": "openai", "headers": {"a b": "c"}}, "headers.a b"),
        ({"dialect": "openai", "api_key": Secret("k"), "headers": {"authorization": "x"}}, "api_key"),
    ],
)
def test_settings_that_cannot_work_are_configuration_errors(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        EmbeddingsConfig(**{"model": "m", **given})
    assert refused.value.path == path
