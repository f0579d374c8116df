"""The engine against the server's behaviour: what is asked, what is made of the answer, what is told of a failure."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import fail_after
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.walk import Walker
from gateway.errors import BackendUnavailable, ConfigError, RcpError, UpstreamError
from gateway.filters import Filter
from gateway.model import RerankOptions, member, meta_of
from gateway.secret import Secret
from gateway.spi import Engine, EngineQuery, EngineReply
from gateway.testing.filters import Document, assert_push_down_law, documents, filters
from gateway_ragrails.engine import RagrailsEngine, RagrailsKind
from gateway_ragrails.settings import RagrailsConfig, RerankSettings, RewriteSettings
from tests.facades import call, context
from tests.servers.ragrails import Chunk, Fault, Server, failure, serve, validate

pytestmark = pytest.mark.anyio

QUESTION = "How do I authenticate?"
SEED: dict[str, Any] = {
    "query": QUESTION,
    "provider": "voyage",
    "model": "voyage-3",
    "vector_db": "qdrant",
    "collection": "docs",
    "url": "http://localhost:6333",
    "top_k": 10,
}
SEED_ITEM = {
    "id": "guide-3",
    "score": 0.81,
    "text": "To authenticate, create an API key...",
    "metadata": {"title": "Authentication", "source": "files/guide.pdf"},
    "rerank_score": 0.93,
}


@asynccontextmanager
async def opened(server: Server, **given: Any) -> AsyncIterator[Engine]:
    async with serve(server):
        config = RagrailsConfig(**{"url": server.url, "collection": "docs", **given})
        async with RagrailsKind().open(config, context()) as engine:
            yield engine


async def ask(engine: Engine, k: int = 10, **given: Any) -> EngineReply:
    with fail_after(10):
        return await engine.retrieve(EngineQuery(**{"text": QUESTION, "k": k, **given}), call())


async def sent(query: dict[str, Any], **given: Any) -> Any:
    server = Server(llm="rewritten")
    async with opened(server, vector_db_url="http://localhost:6333", **given) as engine:
        await ask(engine, **query)
    validate(server.requests[0].body)
    return server.requests[0].body


# What is asked: the reference's three examples.


async def test_the_references_plain_request() -> None:
    assert await sent({}) == SEED


async def test_the_references_request_with_reranking_keeps_all_that_were_fetched() -> None:
    body = await sent({"k": 20, "rerank": RerankOptions(top_n=5)}, rerank=RerankSettings())
    assert body == {
        **SEED,
        "top_k": 20,
        "use_rerank": True,
        "reranker": "voyage",
        "reranker_model": "rerank-2-lite",
        # Not 5: the gateway has not filtered them yet.
        "rerank_top_k": 20,
    }


async def test_the_references_request_with_rewriting() -> None:
    context = "User is asking about the onboarding flow."
    settings = RewriteSettings(context="Acme API", session_context=context)
    body = await sent({"rewrite": "rewrite"}, rewrite=settings)
    assert body == {
        **SEED,
        "use_query_rewrite": True,
        "rewrite_context": "Acme API",
        "session_context": context,
    }


@pytest.mark.parametrize(
    ("query", "settings", "rewritten"),
    [
        ({}, RewriteSettings(), False),
        ({"rewrite": "rewrite"}, None, False),
        ({"rewrite": "rewrite"}, RewriteSettings(), True),
        ({}, RewriteSettings(always=True), True),
    ],
)
async def test_rewriting_is_off_unless_it_is_asked_for_and_configured(
    query: Any, settings: Any, rewritten: bool
) -> None:
    assert (await sent(query, rewrite=settings)).get("use_query_rewrite", False) is rewritten


async def test_rewriting_is_offered_where_it_is_configured() -> None:
    for configured, offered in ((None, None), (RewriteSettings(), ("rewrite",))):
        retrieve = RagrailsKind().offers(RagrailsConfig(rewrite=configured)).retrieve
        assert retrieve is not None
        assert retrieve.rewrite == offered


async def test_a_caller_may_choose_the_reranker_that_costs_nothing_and_no_other() -> None:
    paid = RerankSettings(reranker="voyage", model="rerank-2-lite")
    body = await sent({"rerank": RerankOptions(method="bm25", model="very-expensive")}, rerank=paid)
    assert (body["reranker"], body["reranker_model"]) == ("bm25", "rerank-2-lite")
    free = RerankSettings(reranker="bm25", model="bm25")
    body = await sent({"rerank": RerankOptions(method="voyage", model="very-expensive")}, rerank=free)
    assert (body["reranker"], body["reranker_model"]) == ("bm25", "bm25")


async def test_reranking_is_off_unless_it_is_asked_for() -> None:
    for rerank in (None, False):
        assert "use_rerank" not in await sent({"rerank": rerank}, rerank=RerankSettings())


async def test_options_are_sent_with_their_secrets_revealed() -> None:
    body = await sent(
        {"rerank": RerankOptions(), "candidate_k": 50},
        options={"api_key": Secret("qd-secret"), "timeout": 3},
        embedder_options={"api_key": Secret("vo-secret")},
        rerank=RerankSettings(options={"api_key": Secret("re-secret")}),
    )
    assert body["options"] == {"api_key": "qd-secret", "timeout": 3}
    assert body["embedder_options"] == {"api_key": "vo-secret"}
    assert body["reranker_options"] == {"api_key": "re-secret"}
    assert (body["reranker"], body["top_k"], body["rerank_top_k"]) == ("voyage", 50, 50)


async def test_a_token_for_the_proxy_in_front_goes_into_its_header() -> None:
    server = Server()
    async with opened(server, token=Secret("t")) as engine:
        await engine.ping(call())
    assert [(one.path, one.authorization) for one in server.requests] == [("/v1/health", "Bearer t")]


async def test_reranking_that_is_not_configured_is_not_offered() -> None:
    assert "use_rerank" not in await sent({"rerank": RerankOptions()})
    retrieve = RagrailsKind().offers(RagrailsConfig()).retrieve
    assert retrieve is not None
    assert (retrieve.rerank_builtin, retrieve.modes) == (None, ("dense",))


# What is made of the answer.


async def test_the_references_response_keeps_every_field() -> None:
    server = Server()
    answer = {"query": QUESTION, "search_query": QUESTION, "retrieved": 5, "failed": 0, "errors": []}
    server.faults.append(Fault(200, json.dumps({**answer, "items": [SEED_ITEM]}).encode()))
    async with opened(server) as engine:
        reply = await ask(engine)
    (hit,) = reply.hits
    assert (hit.id, hit.score, member(hit, "text")) == ("guide-3", 0.93, SEED_ITEM["text"])
    assert member(hit, "scores") == {"dense": 0.81, "rerank": 0.93}
    assert meta_of(hit) == SEED_ITEM["metadata"]
    assert member(hit, "citation") == {"source": "files/guide.pdf", "title": "Authentication"}
    assert (reply.notes, reply.exhausted) == ((), True)


async def test_an_item_without_an_id_takes_one_from_source_and_chunk_or_its_content() -> None:
    chunks = [
        Chunk("authenticate one", {"source": "guide.md", "chunk_index": 3}),
        Chunk("authenticate two", {"source": "guide.md"}),
        Chunk("three", id=7),
        Chunk("four", {"source": "guide.md", "chunk_index": "2_0"}),
    ]
    async with opened(Server(*chunks)) as engine:
        reply = await ask(engine)
    first, second, third, fourth = (hit.id for hit in reply.hits)
    assert (first, second[:7], third, fourth) == ("guide.md#3", "sha256:", "7", "guide.md#2_0")
    assert member(reply.hits[0], "chunk") == {"docId": "guide.md", "index": 3}
    assert "1 of 4 hits" in reply.notes[0]


async def test_the_query_that_was_searched_for_is_told_and_where_nobody_asked_it_is_noted() -> None:
    rewrite = RewriteSettings(always=True)
    async with opened(Server(Chunk("x"), llm="what is the second step"), rewrite=rewrite) as engine:
        asked, unasked = await ask(engine, rewrite="rewrite"), await ask(engine)
    assert asked.rewritten_query == unasked.rewritten_query == "what is the second step"
    assert "it searched for a rewritten query" in unasked.notes
    assert "second step" not in f"{asked.notes}{unasked.notes}"
    async with opened(Server(Chunk("x"), llm=QUESTION), rewrite=rewrite) as engine:
        same = await ask(engine, rewrite="rewrite")
    assert (same.rewritten_query, "rewritten" in str(same.notes)) == (None, False)


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"id": None, "score": "1", "text": 5, "metadata": [], "rerank_score": True},
        {"id": True, "metadata": {"source": 3, "chunk_index": "2_0"}},
    ],
)
async def test_members_of_the_wrong_type_are_left_out(item: Any) -> None:
    server = Server()
    server.faults.append(Fault(200, json.dumps({"items": [item]}).encode()))
    async with opened(server) as engine:
        (hit,) = (await ask(engine)).hits
    assert hit.id.startswith("sha256:")
    assert hit.score is None


async def test_a_filter_is_checked_by_the_gateway_alone() -> None:
    engine = RagrailsEngine(RagrailsConfig(), None, logging.getLogger("x"))  # type: ignore[arg-type]

    @settings(max_examples=50)
    @given(tree=filters(), found=st.lists(documents(), max_size=6))
    def law(tree: Filter, found: list[Document]) -> None:
        pushdown = engine.push_down(tree)
        assert pushdown.native is None
        assert_push_down_law(tree, pushdown, found, range(len(found)))

    law()


# HTTP 200 and a failure.


@pytest.mark.parametrize("retryable", [True, False])
async def test_failures_without_items_are_an_error_that_says_whether_to_try_again(retryable: bool) -> None:
    server = Server()
    errors = [failure("retrieve", "refused for qd-secret", QUESTION, retryable=retryable)]
    server.faults.append(Fault(200, json.dumps({"items": [], "failed": 1, "errors": errors}).encode()))
    async with opened(server, options={"api_key": Secret("qd-secret")}) as engine:
        with pytest.raises(BackendUnavailable, match="stage retrieve") as caught:
            await ask(engine)
    assert (caught.value.code, caught.value.retryable) == (-32010, retryable)
    assert "qd-secret" not in f"{caught.value} {caught.value.to_wire()} {caught.value.detail}"
    assert caught.value.detail == "retrieve: refused for ***"


async def test_a_collection_that_is_not_there_and_a_reranker_that_fails_are_errors() -> None:
    server = Server(Chunk("x"))
    async with opened(server, collection="other") as engine:
        with pytest.raises(BackendUnavailable):
            await ask(engine)
    server.reranker_fails = True
    async with opened(server, rerank=RerankSettings()) as engine:
        with pytest.raises(BackendUnavailable, match="stage rerank"):
            await ask(engine, rerank=RerankOptions())


async def test_failures_beside_items_are_notes() -> None:
    async with opened(Server(Chunk("x", id="x"), llm="broken"), rewrite=RewriteSettings()) as engine:
        reply = await ask(engine, rewrite="rewrite")
    assert [hit.id for hit in reply.hits] == ["x"]
    assert reply.notes == ("the RAGRails server reports 1 failures (stage rewrite)",)


@pytest.mark.parametrize(
    ("fault", "error", "retryable"),
    [
        (Fault(400, b'{"error":{"type":"ValueError","message":"bad"}}'), UpstreamError, False),
        (Fault(404, b'{"error":{"type":"FileNotFoundError","message":"bad"}}'), UpstreamError, False),
        (Fault(422, b'{"detail":[]}'), UpstreamError, False),
        (Fault(500, b"Internal Server Error"), BackendUnavailable, True),
        (Fault(200, b"nothing"), BackendUnavailable, True),
        (Fault(200, b'{"items":null}'), BackendUnavailable, True),
        (Fault(200, b'{"items":[1]}'), BackendUnavailable, True),
    ],
)
async def test_failures_by_status(fault: Fault, error: type[RcpError], retryable: bool) -> None:
    server = Server()
    server.faults.append(fault)
    async with opened(server) as engine:
        with pytest.raises(error) as caught:
            await ask(engine)
    assert caught.value.retryable is retryable


async def test_a_cancelled_call_reaches_the_server() -> None:
    server = Server()
    server.faults.append(Fault(hang=True))
    async with opened(server) as engine:
        with fail_after(10):
            task = asyncio.create_task(ask(engine))
            await server.arrived.wait()
            task.cancel()
            await server.gone.wait()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_keys_reach_no_log(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(Chunk("x"))
    server.faults.append(Fault(400, b'{"error":{"message":"unknown key qd-secret"}}'))
    with caplog.at_level(logging.DEBUG):
        async with opened(server, options={"api_key": Secret("qd-secret")}) as engine:
            with pytest.raises(UpstreamError):
                await ask(engine)
            await ask(engine)
    assert "unknown key ***" in caplog.text
    assert "qd-secret" not in caplog.text


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://u:p@x"}, "url"),
        ({"vector_db_url": "x"}, "vector_db_url"),
        ({"token": Secret("a\nb")}, "token"),
        ({"max_k": 0}, "max_k"),
    ],
)
def test_settings_that_cannot_work_are_named(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RagrailsConfig(**given)
    assert caught.value.path == path


def test_settings_are_read_with_secrets_among_the_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("QDRANT_KEY", "qd-secret")
    walker = Walker(tmp_path)
    options = {"api_key": {"env": "QDRANT_KEY"}, "timeout": 2.5, "grpc": True, "port": 6334, "name": "n"}
    config = walker.struct(RagrailsConfig, {"options": options}, "with")
    assert walker.errors == []
    assert config.options == {"api_key": Secret("qd-secret"), "timeout": 2.5, "grpc": True, "port": 6334, "name": "n"}
    assert "qd-secret" not in repr(config)
