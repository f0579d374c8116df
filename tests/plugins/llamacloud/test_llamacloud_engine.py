"""The engine against the service's rules: what is asked, what is made of the answer, what is told of a failure."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import fail_after

from gateway.config.walk import Walker
from gateway.errors import BackendUnavailable, ConfigError, RcpError, UpstreamError
from gateway.filters import Condition, FieldType, Op
from gateway.model import FusionOptions, RerankOptions, capabilities_to_wire, member, meta_of
from gateway.secret import Secret
from gateway.spi import Engine, EngineQuery, EngineReply
from gateway_llamacloud.engine import LlamaCloudEngine, LlamaCloudKind
from gateway_llamacloud.settings import LlamaCloudConfig
from tests.facades import call, context
from tests.servers.llamacloud import Chunk, Fault, Index, serve

pytestmark = pytest.mark.anyio

SEED_RESULT = {
    "content": "content",
    "metadata": {"foo": "string"},
    "rerank_score": 0,
    "score": 0,
    "static_fields": {
        "attachments": [{"attachment_name": "attachment_name", "source_id": "source_id", "type": "type"}],
        "chunk_end_char": 0,
        "chunk_index": 0,
        "chunk_start_char": 0,
        "chunk_token_count": 0,
        "page_range_end": 0,
        "page_range_start": 0,
        "parsed_directory_file_id": "parsed_directory_file_id",
    },
}


def settings(**given: Any) -> LlamaCloudConfig:
    base: dict[str, Any] = {"index_id": "idx-abc123", "api_key": Secret("llx-secret"), "base_url": "http://127.0.0.1:1"}
    return LlamaCloudConfig(**{**base, **given})


@asynccontextmanager
async def opened(index: Index, **given: Any) -> AsyncIterator[Engine]:
    async with serve(index), LlamaCloudKind().open(settings(**{"base_url": index.url, **given}), context()) as engine:
        yield engine


async def ask(engine: Engine, k: int = 10, **given: Any) -> EngineReply:
    with fail_after(10):
        return await engine.retrieve(EngineQuery(**{"text": "What are the key findings?", "k": k, **given}), call())


async def sent(query: dict[str, Any], **given: Any) -> dict[str, Any]:
    index = Index()
    async with opened(index, **given) as engine:
        await ask(engine, **query)
    body: dict[str, Any] = index.requests[0].body
    return body


# What is asked.


async def test_the_plainest_request_names_index_and_query_and_turns_reranking_off() -> None:
    assert await sent({}) == {
        "index_id": "idx-abc123",
        "query": "What are the key findings?",
        "rerank": {"enabled": False},
        "top_k": 10,
    }


async def test_every_field_of_the_request_is_reached() -> None:
    native = {
        "custom_filters": {"lang": {"operator": "in", "value": ["en", "de"]}},
        "static_filters": {"parsed_directory_file_id": {"operator": "eq", "value": "f"}},
    }
    body = await sent(
        {"filter": native, "rerank": RerankOptions(top_n=2), "candidate_k": 100, "k": 20},
        vector_weight=0.7,
        text_weight=0.3,
        score_threshold=0.1,
    )
    assert body == {
        "index_id": "idx-abc123",
        "query": "What are the key findings?",
        **native,
        "vector_pipeline_weight": 0.7,
        "full_text_pipeline_weight": 0.3,
        "num_candidates": 100,
        "rerank": {"enabled": True, "top_n": 20},
        "score_threshold": 0.1,
        "top_k": 20,
    }


@pytest.mark.parametrize(
    ("query", "weights"),
    [
        ({"mode": "dense"}, (1.0, 0.0)),
        ({"mode": "sparse"}, (0.0, 1.0)),
        ({"mode": "hybrid"}, (None, None)),
        ({"mode": "hybrid", "fusion": FusionOptions(weights={"dense": 0.7, "sparse": 0.3})}, (0.7, 0.3)),
        ({"fusion": FusionOptions(weights={"dense": 3.0, "sparse": 1.0})}, (0.75, 0.25)),
        ({"fusion": FusionOptions(weights={"dense": 0.0, "sparse": 0.0})}, (None, None)),
        ({"mode": "dense", "fusion": FusionOptions(weights={"dense": 0.2, "sparse": 0.9})}, (1.0, 0.0)),
    ],
)
async def test_modes_and_weights_are_the_weights_of_the_two_pipelines(query: Any, weights: Any) -> None:
    body = await sent(query)
    assert (body.get("vector_pipeline_weight"), body.get("full_text_pipeline_weight")) == weights


async def test_no_more_than_five_hundred_are_asked_for_and_candidates_are_never_fewer() -> None:
    body = await sent({"k": 900}, num_candidates=100)
    assert (body["top_k"], body["num_candidates"]) == (500, 500)


async def test_reranking_that_is_switched_off_in_the_settings_is_neither_offered_nor_asked_for() -> None:
    body = await sent({"rerank": RerankOptions()}, rerank=False)
    assert body["rerank"] == {"enabled": False}
    offered = capabilities_to_wire(LlamaCloudKind().offers(settings(rerank=False)))
    assert "rerankBuiltin" not in offered["retrieve"]


async def test_organisation_and_project_go_into_the_query_and_the_key_into_its_header() -> None:
    index = Index()
    async with opened(index, organization_id="o&1", project_id="p") as engine:
        await ask(engine)
        await engine.ping(call())
    for seen in index.requests:
        assert seen.query == {"organization_id": "o&1", "project_id": "p"}
        assert seen.authorization == "Bearer llx-secret"


# What is made of the answer.


async def test_the_references_response_keeps_every_field() -> None:
    index = Index()
    index.faults.append(Fault(200, json.dumps({"results": [SEED_RESULT]}).encode()))
    async with opened(index) as engine:
        (hit,) = (await ask(engine)).hits
    assert (hit.id, hit.score) == ("parsed_directory_file_id:0", 0)
    assert member(hit, "text") == "content"
    assert member(hit, "scores") == {"hybrid": 0, "rerank": 0}
    assert member(hit, "citation") == {"source": "parsed_directory_file_id", "start": 0, "end": 0, "page": 0}
    assert member(hit, "chunk") == {"docId": "parsed_directory_file_id", "index": 0}
    assert meta_of(hit) == {
        "foo": "string",
        "parsed_directory_file_id": "parsed_directory_file_id",
        "x-llamacloud": {
            "attachments": SEED_RESULT["static_fields"]["attachments"],  # type: ignore[index]
            "chunk_token_count": 0,
            "page_range_end": 0,
        },
    }


async def test_a_result_without_file_and_chunk_gets_an_id_from_its_content_and_says_so() -> None:
    chunks = [Chunk("the key findings", {"a": 1}), Chunk("the key findings", {"a": 2}), Chunk("other")]
    async with opened(Index(*chunks)) as engine:
        first, again = await ask(engine), await ask(engine)
    ids = [hit.id for hit in first.hits]
    assert len(set(ids)) == 3
    assert all(id.startswith("sha256:") for id in ids)
    assert [hit.id for hit in again.hits] == ids
    assert "3 of 3 hits" in first.notes[0]


async def test_an_id_can_stand_in_the_metadata() -> None:
    chunks = [Chunk("a", {"doc": "x#1"}), Chunk("b", {"doc": 7})]
    async with opened(Index(*chunks), id_field="doc") as engine:
        reply = await ask(engine)
    assert ([hit.id for hit in reply.hits], reply.notes) == (["x#1", "7"], ())


async def test_ids_that_are_made_from_the_text_are_told_also_where_a_field_should_have_held_them() -> None:
    index = Index()
    results = [
        {"content": "a", "metadata": {"doc": "x#1"}},
        {"content": "b", "metadata": {"doc": ""}},
        {"content": "c"},
    ]
    index.faults.append(Fault(200, json.dumps({"results": results}).encode()))
    async with opened(index, id_field="doc") as engine:
        reply = await ask(engine)
    assert [hit.id.partition(":")[0] for hit in reply.hits] == ["x#1", "sha256", "sha256"]
    assert reply.notes == ("2 of 3 hits come without an id, or file and chunk: their ids are made from their text",)


async def test_attachments_are_content_where_the_address_may_be_told() -> None:
    index = Index()
    static = {"attachments": [{"attachment_name": "screenshots/page 7.jpg", "source_id": "f&1", "type": "screenshot"}]}
    index.faults.append(Fault(200, json.dumps({"results": [{"content": "c", "static_fields": static}]}).encode()))
    async with opened(index, attachment_uris=True) as engine:
        (hit,) = (await ask(engine)).hits
    uri = f"{index.url}/api/v1/beta/attachments/screenshots/page%207.jpg?source_id=f%261"
    image = {"type": "image", "mimeType": "image/jpeg", "uri": uri}
    assert member(hit, "content") == [{"type": "text", "text": "c"}, image]


async def test_after_reranking_the_rerankers_score_is_the_hits() -> None:
    async with opened(Index(Chunk("a long text about findings"), Chunk("findings"))) as engine:
        reply = await ask(engine, rerank=RerankOptions())
    assert [member(hit, "text") for hit in reply.hits] == ["findings", "a long text about findings"]
    assert all(hit.score == member(hit, "scores")["rerank"] for hit in reply.hits)


async def test_a_full_page_is_not_the_end_and_a_short_one_is() -> None:
    async with opened(Index(*(Chunk(f"c {n}") for n in range(5)))) as engine:
        assert not (await ask(engine, k=5)).exhausted
        assert (await ask(engine, k=6)).exhausted


async def test_texts_stay_behind_where_they_are_not_wanted() -> None:
    async with opened(Index(Chunk("a"))) as engine:
        (hit,) = (await ask(engine, include_text=False)).hits
    assert "text" not in hit.members


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"content": 1, "metadata": [], "score": "1", "rerank_score": True, "static_fields": 3},
        {
            "content": "x",
            "static_fields": {"attachments": [1, {"type": 1}], "chunk_index": -1, "page_range_start": "1"},
        },
        {"content": "x", "static_fields": {"parsed_directory_file_id": "", "chunk_index": 1.5}, "score": None},
    ],
)
async def test_members_of_the_wrong_type_are_left_out(result: Any) -> None:
    index = Index()
    index.faults.append(Fault(200, json.dumps({"results": [result]}).encode()))
    async with opened(index) as engine:
        (hit,) = (await ask(engine)).hits
    assert hit.id.startswith("sha256:")
    assert hit.score is None


# What is told of a failure.


@pytest.mark.parametrize(
    ("fault", "error", "retryable", "code"),
    [
        (Fault(401, b'{"detail":"Invalid llx-secret"}'), UpstreamError, False, -32010),
        (Fault(403, b'{"detail":"no"}'), UpstreamError, False, -32010),
        (Fault(404, b'{"detail":"no"}'), UpstreamError, False, -32010),
        (Fault(413, b""), UpstreamError, False, -32013),
        (Fault(429, b"", {"Retry-After": "2"}), RcpError, True, -32011),
        (Fault(500, b"<html>"), BackendUnavailable, True, -32010),
        (Fault(200, b"<html>"), BackendUnavailable, True, -32010),
        (Fault(200, b"[]"), BackendUnavailable, True, -32010),
        (Fault(200, b'{"results":[1]}'), BackendUnavailable, True, -32010),
        (Fault(302, b"", {"Location": "http://elsewhere"}), UpstreamError, False, -32010),
    ],
)
async def test_failures_are_the_engines_and_say_whether_to_try_again(
    fault: Fault, error: type[RcpError], retryable: bool, code: int
) -> None:
    index = Index()
    index.faults.append(fault)
    async with opened(index) as engine:
        with pytest.raises(error) as caught:
            await ask(engine)
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert "llx-secret" not in f"{caught.value} {caught.value.detail} {caught.value.to_wire()}"


async def test_a_refused_request_is_logged_by_its_place_and_without_key_or_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = Index()
    row = {
        "type": "int_type",
        "loc": ["body", "top_k"],
        "msg": "bad",
        "input": {"query": "What are the", "k": "llx-secret"},
    }
    index.faults.append(Fault(422, json.dumps({"detail": [row]}).encode()))
    with caplog.at_level(logging.DEBUG):
        async with opened(index) as engine:
            with pytest.raises(UpstreamError):
                await ask(engine)
    assert "body.top_k int_type" in caplog.text
    assert "llx-secret" not in caplog.text
    assert "What are" not in caplog.text


async def test_an_index_that_is_not_there_is_named_with_its_remedy() -> None:
    async with opened(Index(), index_id="other") as engine:
        with pytest.raises(UpstreamError, match="'other'"):
            await ask(engine)


async def test_a_cancelled_call_reaches_the_service() -> None:
    index = Index()
    index.faults.append(Fault(hang=True))
    async with opened(index) as engine:
        with fail_after(10):
            task = asyncio.create_task(ask(engine))
            await index.arrived.wait()
            task.cancel()
            await index.gone.wait()
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"index_id": ""}, "index_id"),
        ({"api_key": Secret(" ")}, "api_key"),
        ({"api_key": Secret("a\nb")}, "api_key"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "http://api.example"}, "base_url"),
        ({"base_url": "https://u:p@api.example"}, "base_url"),
        ({"fields": {"parsed_directory_file_id": "keyword"}}, "fields.parsed_directory_file_id"),
        ({"vector_weight": 1.5}, "vector_weight"),
        ({"num_candidates": 0}, "num_candidates"),
        ({"max_k": 501}, "max_k"),
    ],
)
def test_settings_that_cannot_work_are_named(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**given)
    assert caught.value.path == path


def test_a_key_that_is_written_out_is_refused_and_not_repeated(tmp_path: Any) -> None:
    walker = Walker(tmp_path)
    walker.struct(LlamaCloudConfig, {"index_id": "i", "api_key": "llx-written"}, "with")
    assert [error.path for error in walker.errors] == ["with.api_key"]
    assert "llx-written" not in str(walker.errors[0])


def test_a_native_filter_is_shown_as_it_is_sent_and_settings_are_printed_without_the_key() -> None:
    config = settings(fields={"lang": "keyword"})
    engine = LlamaCloudEngine(config, None, logging.getLogger("x"))  # type: ignore[arg-type]
    pushdown = engine.push_down(Condition("lang", Op.EQ, "en", FieldType.KEYWORD))
    shown = engine.describe(pushdown.native)
    assert shown == {"custom_filters": {"lang": {"operator": "eq", "value": "en"}}}
    assert "llx-secret" not in f"{shown}{config}{config!r}"
