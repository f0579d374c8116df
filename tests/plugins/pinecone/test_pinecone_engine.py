"""The Pinecone engine: what it offers, asks, reads and writes, through the vendor's client over loopback."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.walk import Walker
from gateway.errors import ConfigError, PluginError, RcpError, UpstreamError
from gateway.model import Capabilities, Document, capabilities_to_wire, member, meta_of, text_of_hit
from gateway.secret import Secret
from gateway.spi import EngineQuery, SparseVector, VectorNeed
from gateway_pinecone.engine import PineconeKind
from gateway_pinecone.plugin import gateway_engine_kinds
from gateway_pinecone.records import batches
from gateway_pinecone.settings import FieldSettings, PineconeConfig, RerankSettings
from tests.plugins.pinecone.support import call, context, ids, opened, query, settings
from tests.servers.pinecone import ABSENT, Index, Row

pytestmark = pytest.mark.anyio

THREE = {"far": ((0.0, 1.0), {}), "near": ((1.0, 0.0), {}), "between": ((1.0, 1.0), {})}


def document(id: str | None, meta: dict[str, Any] | None = None, **given: Any) -> Document:
    return Document(**{"id": id, "text": "some text", "meta": meta, "vector": [1.0, 0.0], **given})


# Asking


async def test_the_nearest_comes_first_with_the_largest_score_whatever_the_metric() -> None:  # R18
    for metric in ("cosine", "dotproduct", "euclidean"):
        index = Index(metric=metric)
        index.fill({"d9": ((1.0, 3.0), {}), "d0": ((2.0, 0.0), {}), "d1": ((1.0, 0.0), {})})
        async with opened(index) as engine:
            reply = await query(engine, (2.0, 0.0))
        assert ids(reply) == ["d0", "d1", "d9"] or metric == "cosine"
        assert reply.hits[0].id == "d0" or metric == "cosine"
        scores = [hit.score or 0.0 for hit in reply.hits]
        assert scores == sorted(scores, reverse=True)
        if metric == "euclidean":
            assert scores == [0.0, -1.0, -10.0]
            assert str(scores[0]) == "0.0"


async def test_filtered_matches_that_come_unsorted_are_sorted() -> None:
    index = Index(unsorted=True)
    index.fill({f"d{n}": ((1.0, n / 10), {"kind": "a"}) for n in range(7)})
    async with opened(index, fields={"kind": "keyword"}) as engine:
        reply = await query(engine, filter={"kind": {"$eq": "a"}})
        assert index.query(index.requests[0].body)["matches"][0]["id"] == "d1"
    assert ids(reply) == [f"d{n}" for n in range(7)]


async def test_equal_scores_are_ordered_by_id() -> None:
    index = Index()
    index.fill({id: ((1.0, 0.0), {}) for id in ("c", "a", "b")})
    async with opened(index) as engine:
        assert ids(await query(engine)) == ["a", "b", "c"]


async def test_the_depth_asked_is_clamped_to_max_k() -> None:  # R22
    index = Index()
    index.fill({f"d{n}": ((1.0, n / 10), {}) for n in range(40)})
    async with opened(index, max_k=20) as engine:
        reply = await query(engine, k=50)
        assert engine.capabilities().retrieve.max_k == 20  # type: ignore[union-attr]
    assert index.requests[0].body["topK"] == 20
    assert len(reply.hits) == 20
    assert not reply.exhausted


async def test_a_reply_says_whether_there_is_more() -> None:
    index = Index()
    index.fill(THREE)
    async with opened(index) as engine:
        assert (await query(engine, k=10)).exhausted
        assert not (await query(engine, k=3)).exhausted


async def test_metadata_always_comes_and_values_on_demand() -> None:
    index = Index()
    index.fill({"a": ((1.0, 0.0), {"text": "A", "lang": "en"})})
    async with opened(index) as engine:
        assert engine.meta_complete
        plain = (await query(engine)).hits[0]
        full = (await query(engine, include_vectors=True, include_text=False)).hits[0]
    assert [request.body["includeMetadata"] for request in index.requests] == [True, True]
    assert [request.body["includeValues"] for request in index.requests] == [False, True]
    assert member(plain, "vector") is None
    assert member(full, "vector") == [1.0, 0.0]
    assert (text_of_hit(plain), text_of_hit(full)) == ("A", None)
    assert meta_of(plain) == meta_of(full) == {"lang": "en"}


async def test_a_namespace_is_passed_as_it_is_written() -> None:  # R47
    for namespace, sent in (("", ABSENT), (None, ABSENT), ("__default__", "__default__"), ("tenant a", "tenant a")):
        index = Index()
        async with opened(index, namespace=namespace, writable=True) as engine:
            await engine.index_add([document("a")], call())
            await query(engine)
            assert await engine.index_delete(["a"], call()) == 1
        deletion = index.asked("/vectors/delete")[0].namespace
        assert {request.namespace for request in index.requests if request.path != "/vectors/delete"} == {sent}
        # For a deletion the SDK spells the default out, as "".
        assert deletion == ("" if sent is ABSENT else sent)


async def test_namespaces_are_kept_apart() -> None:
    index = Index()
    index.fill({"mine": ((1.0, 0.0), {})}, "a")
    index.fill({"theirs": ((1.0, 0.0), {})}, "b")
    index.fill({"default": ((1.0, 0.0), {})})
    for namespace, found in (("a", "mine"), ("b", "theirs"), (None, "default"), ("__default__", "default")):
        async with opened(index, namespace=namespace) as engine:
            assert ids(await query(engine)) == [found]


async def test_whole_floats_of_int_fields_come_back_as_integers() -> None:  # R43
    fields = {"page": "int", "ratio": "float", "made": FieldSettings(type="date", dates="epoch_ms")}
    for floats in (True, False):
        index = Index(floats=floats)
        index.fill(
            {"a": ((1.0, 0.0), {"page": 3, "ratio": 3.0, "made": 1704067200000, "odd": 7, "path": "x", "passage": 4})}
        )
        async with opened(index, fields=fields) as engine:
            hit = (await query(engine)).hits[0]
        meta = meta_of(hit)
        assert repr(meta["page"]) == "3"
        assert repr(meta["made"]) == "1704067200000"
        assert repr(meta["ratio"]) == ("3.0" if floats else "3")
        assert repr(member(hit, "citation")) == "{'source': 'x', 'page': 3}"
        assert repr(member(hit, "chunk")) == "{'docId': 'x', 'index': 4}"


async def test_a_record_without_text_stays_a_hit_and_is_noted_once() -> None:  # R48
    index = Index()
    index.fill({"1": ((1.0, 0.0), {"text": "a"}), "2": ((1.0, 0.1), {}), "3": ((1.0, 0.2), {"body": "c"})})
    async with opened(index) as engine:
        reply = await query(engine)
    assert [text_of_hit(hit) for hit in reply.hits] == ["a", None, None]
    assert reply.notes == ("2 of 3 hits have no text under text",)
    async with opened(index, text_fields=("text", "body")) as engine:
        reply = await query(engine)
        quiet = await query(engine, include_text=False)
    assert [text_of_hit(hit) for hit in reply.hits] == ["a", None, "c"]
    assert reply.notes == ("1 of 3 hits have no text under text or body",)
    assert quiet.notes == ()


async def test_a_text_that_is_no_string_makes_no_text_and_no_error() -> None:
    index = Index()
    index.fill({"1": ((1.0, 0.0), {"text": ["a", "b"]}), "2": ((1.0, 0.1), {"text": 5})})
    async with opened(index) as engine:
        reply = await query(engine)
    assert [text_of_hit(hit) for hit in reply.hits] == [None, None]
    assert [meta_of(hit) for hit in reply.hits] == [{"text": ["a", "b"]}, {"text": 5.0}]


async def test_a_text_that_can_be_filtered_on_stays_in_the_metadata() -> None:
    index = Index()
    index.fill({"1": ((1.0, 0.0), {"text": "a"})})
    async with opened(index, fields={"text": "text"}) as engine:
        hit = (await query(engine)).hits[0]
    assert meta_of(hit) == {"text": "a"}
    assert text_of_hit(hit) == "a"


async def test_a_query_vector_of_another_dimension_is_refused_before_it_is_sent() -> None:
    index = Index()
    async with opened(index) as engine:
        with pytest.raises(UpstreamError, match="3 dimensions and the index 2"):
            await query(engine, (1.0, 0.0, 0.0))
        with pytest.raises(UpstreamError, match="0 dimensions"):
            await query(engine, None)
    assert index.requests == []


# Modes


async def test_hybrid_is_offered_only_where_the_metric_allows_it() -> None:  # R49
    for metric in ("cosine", "euclidean"):
        with pytest.raises(ConfigError, match="metric dotproduct only"):
            settings(metric=metric, sparse_embedder="s")
        index = Index(metric=metric)
        async with opened(index) as engine:
            assert engine.capabilities().retrieve.modes == ("dense",)  # type: ignore[union-attr]
            for mode in ("hybrid", "sparse"):
                with pytest.raises(RcpError) as raised:
                    await query(engine, mode=mode)
                assert (raised.value.code, raised.value.data["option"]) == (-32005, mode)
        assert index.requests == []


async def test_hybrid_sends_both_vectors_weighted() -> None:
    index = Index(metric="dotproduct")
    index.fill({"word": ((0.1, 0.0), {}), "sense": ((1.0, 0.0), {})})
    index.rows[""]["word"].sparse = {"indices": [7], "values": [1.0]}
    words = SparseVector(indices=(7,), values=(1.0,))
    async with opened(index, sparse_embedder="s", alpha=0.25) as engine:
        assert engine.capabilities().retrieve.modes == ("dense", "hybrid")  # type: ignore[union-attr]
        assert ids(await query(engine)) == ["sense", "word"]
        assert ids(await query(engine, mode="hybrid", sparse_vector=words)) == ["word", "sense"]
        with pytest.raises(RcpError) as raised:
            await query(engine, mode="hybrid")
        no_words = SparseVector(indices=(), values=())
        assert ids(await query(engine, mode="hybrid", sparse_vector=no_words)) == ["sense", "word"]
    assert raised.value.code == -32005
    body = index.requests[1].body
    assert body["vector"] == [0.25, 0.0]
    assert body["sparseVector"] == {"indices": [7], "values": [0.75]}
    assert "sparseVector" not in index.requests[0].body
    assert "sparseVector" not in index.requests[2].body


async def test_a_sparse_index_is_asked_with_a_sparse_vector() -> None:
    index = Index(metric="dotproduct", vector_type="sparse")
    index.rows[""] = {"a": Row([], {"indices": [1, 2], "values": [0.5, 0.5]}, {"text": "A"})}
    async with opened(index, sparse_embedder="s") as engine:
        assert engine.capabilities().retrieve.modes == ("sparse",)  # type: ignore[union-attr]
        assert engine.vector_need(None) is None
        assert engine.sparse_need(None) == VectorNeed(embedder="s")
        reply = await query(engine, None, sparse_vector=SparseVector(indices=(2,), values=(2.0,)))
        nothing = await query(engine, None, sparse_vector=SparseVector(indices=(), values=()))
    assert [(hit.id, hit.score) for hit in reply.hits] == [("a", 1.0)]
    assert nothing.hits == ()
    assert nothing.exhausted
    assert len(index.requests) == 1
    assert "vector" not in index.requests[0].body


def integrated(**given: Any) -> dict[str, Any]:
    return {"inference": True, "namespace": "docs", **given}


async def test_integrated_search_sends_the_text_and_reads_the_fields() -> None:
    index = Index(dimension=64)
    async with opened(index, **integrated(writable=True, fields={"page": "int"})) as engine:
        assert engine.vector_need(None) is None
        assert engine.document_need() is None
        texts = {"cats": "cats purr softly", "dogs": "dogs bark loudly"}
        made = [Document(id=id, text=text, meta={"page": 2}) for id, text in texts.items()]
        assert (await engine.index_add(made, call())).ids == ("cats", "dogs")
        reply = await query(engine, None, text="dogs bark", filter={"page": {"$eq": 2}}, include_vectors=True)
        assert await engine.index_delete(["cats", "dogs", "cows"], call()) == 2
    assert ids(reply) == ["dogs", "cats"]
    assert text_of_hit(reply.hits[0]) == "dogs bark loudly"
    assert repr(meta_of(reply.hits[0])) == "{'page': 2}"
    assert reply.notes == ("integrated search returns no vectors",)
    upsert, search = index.requests[:2]
    assert upsert.path == "/records/namespaces/docs/upsert"
    assert upsert.body[0] == {"_id": "cats", "page": 2, "text": "cats purr softly"}
    assert search.body == {
        "query": {"top_k": 10, "inputs": {"text": "dogs bark"}, "filter": {"page": {"$eq": 2}}},
    }


async def test_a_namespace_has_to_be_said_for_integrated_search_and_is_never_filled_in() -> None:
    for namespace in (None, "", "  "):
        with pytest.raises(ConfigError) as raised:
            settings(inference=True, namespace=namespace)
        assert raised.value.path == "namespace"
    index = Index(dimension=8)
    async with opened(index, **integrated(namespace="a/b c")) as engine:
        await query(engine, None)
    assert index.requests[0].namespace == "a/b c"


async def test_chosen_fields_are_asked_for_with_those_the_gateway_needs() -> None:
    index = Index(dimension=64)
    index.fill({"a": ([1.0] * 64, {"text": "t", "lang": "en", "year": 2020, "big": "x"})}, "docs")
    async with opened(index, **integrated(return_fields=("lang",))) as engine:
        assert not engine.meta_complete
        reply = await query(engine, None, fields=frozenset({"year"}))
    assert index.requests[0].body["fields"] == ["lang", "text", "year"]
    assert meta_of(reply.hits[0]) == {"lang": "en", "year": 2020.0}


async def test_reranking_by_pinecone_is_off_unless_configured_and_asked_for() -> None:
    index = Index(dimension=64, metric="euclidean")
    for n in range(8):
        index.fill({f"d{n}": ([0.0] * 64, {"text": "the right words" if n == 7 else "other"})}, "docs")
    async with opened(index, **integrated()) as engine:
        assert engine.capabilities().retrieve.rerank_builtin is None  # type: ignore[union-attr]
        await query(engine, None, text="right words", rerank=True)
        assert "rerank" not in index.requests[-1].body
    async with opened(index, **integrated(rerank=RerankSettings(model="bge-reranker-v2-m3"))) as engine:
        assert engine.capabilities().retrieve.rerank_builtin  # type: ignore[union-attr]
        await query(engine, None, text="right words")
        assert "rerank" not in index.requests[-1].body
        reply = await query(engine, None, text="right words", rerank=True)
    sent = index.requests[-1].body["rerank"]
    assert sent == {"model": "bge-reranker-v2-m3", "rank_fields": ["text"], "top_n": 10}
    # None is cut off, and a reranker's score is no distance to be turned round.
    assert len(reply.hits) == 8
    assert (reply.hits[0].id, reply.hits[0].score) == ("d7", 1.0)


# What is offered


def wire(capabilities: Capabilities) -> dict[str, Any]:
    return capabilities_to_wire(capabilities)


async def test_scale_and_floor_follow_metric_and_mode() -> None:
    kind = PineconeKind()
    for given, scale, floor in (
        ({}, "cosine", -1.0),
        ({"metric": "dotproduct"}, "dot", None),
        ({"metric": "euclidean"}, "unbounded", None),
        ({"metric": "dotproduct", "vector_type": "sparse", "sparse_embedder": "s"}, "unbounded", None),
        ({"metric": "dotproduct", "sparse_embedder": "s"}, None, None),
    ):
        told = wire(kind.offers(settings(**given)))["retrieve"]
        assert (told.get("scoreScale"), told.get("scoreFloor")) == (scale, floor), given
    both = kind.offers(settings(metric="dotproduct", sparse_embedder="s")).vendor["x-pinecone"]["scores"]
    assert both == {"dense": {"scoreScale": "dot"}, "hybrid": {"scoreScale": "unbounded"}}


async def test_what_is_offered_before_opening_is_what_is_observed_after() -> None:
    given: dict[str, Any] = {"fields": {"lang": "keyword", "tags": FieldSettings(type="keyword", multi=True)}}
    index = Index()
    async with opened(index, writable=True, **given) as engine:
        told = wire(engine.capabilities())
        assert told == wire(PineconeKind().offers(settings(writable=True, **given)))
        assert engine.document_need() == VectorNeed(embedder="embedder", dimension=2)
    assert told["filter"]["fields"] == {"lang": "keyword", "tags": "keyword"}
    assert len(told["filter"]["operators"]) == 10
    assert told["index"] == {"writable": True}


async def test_only_declared_fields_can_be_filtered_on() -> None:  # R44
    assert PineconeKind().offers(settings()).filter is None
    assert PineconeKind().offers(settings()).index is None


async def test_the_kind_is_registered_and_names_what_it_needs() -> None:
    (kind,) = gateway_engine_kinds()
    assert (kind.name, kind.extra) == ("pinecone", "pinecone")
    config = settings(metric="dotproduct", sparse_embedder="s")
    assert kind.requires(config) == ("pinecone",)
    assert kind.embedders(config) == ("embedder", "s")


# Opening


async def test_a_contradiction_between_index_and_configuration_is_an_error_at_opening() -> None:
    for given, path in (({"metric": "euclidean"}, "metric"), ({"dimension": 3}, "dimension")):
        with pytest.raises(ConfigError) as raised:
            async with opened(Index(), **given):
                raise AssertionError("opened")
        assert raised.value.path == path


async def test_a_namespace_that_is_not_there_yet_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gateway.engine.pine"):
        async with opened(Index(), namespace="nowhere") as engine:
            assert (await query(engine)).hits == []
    assert "nowhere" in caplog.text


async def test_a_missing_sdk_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pinecone", None)
    with pytest.raises(PluginError, match=r"rcp-gateway\[pinecone\]"):
        async with PineconeKind().open(settings(), context()):
            raise AssertionError("opened")


async def test_the_sdk_is_not_loaded_before_an_engine_opens() -> None:
    code = "import sys, gateway_pinecone.plugin as p; p.gateway_engine_kinds(); assert 'pinecone' not in sys.modules"
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": f"{root}:{root}/plugins"}, cwd="/")


async def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINECONE_API_KEY", "other")
    monkeypatch.setenv("PINECONE_ADDITIONAL_HEADERS", '{"X-Leak": "1"}')
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    index = Index()
    async with opened(index) as engine:
        await query(engine)
    assert index.requests[0].key == "secret"
    assert "X-Leak" not in index.requests[0].headers


async def test_the_settings_are_checked_when_they_are_read() -> None:
    for given, path in (
        ({"host": "http://docs-1.svc.pinecone.io"}, "host"),
        ({"host": "https://u:p@docs.svc.pinecone.io"}, "host"),
        ({"host": "ftp://docs.pinecone.io"}, "host"),
        ({"host": "docs"}, "host"),
        ({"host": ""}, "host"),
        ({"api_key": Secret("")}, "api_key"),
        ({"embedder": None}, "embedder"),
        ({"namespace": "é"}, "namespace"),
        ({"namespace": "n" * 513}, "namespace"),
        ({"max_k": 10_001}, "max_k"),
        ({"max_k": 0}, "max_k"),
        ({"batch": 1_001}, "batch"),
        ({"inference": True, "namespace": "n", "batch": 97}, "batch"),
        ({"alpha": 1.5}, "alpha"),
        ({"text_fields": ()}, "text_fields"),
        ({"dimension": -1}, "dimension"),
        ({"vector_type": "sparse", "sparse_embedder": "s"}, "metric"),
        ({"vector_type": "sparse", "metric": "dotproduct"}, "sparse_embedder"),
        ({"inference": True, "namespace": "n", "embedder": "e"}, "inference"),
        ({"rerank": RerankSettings(model="m")}, "rerank"),
        ({"default_mode": "hybrid"}, "default_mode"),
        ({"metric": "dotproduct", "sparse_embedder": "s", "writable": True}, "writable"),
    ):
        with pytest.raises(ConfigError) as raised:
            settings(**given)
        assert raised.value.path == path, given
    with pytest.raises(ConfigError):
        FieldSettings(type="int", multi=True)
    for host in (
        "docs-1.svc.pinecone.io",
        "https://docs-1.svc.pinecone.io",
        "http://localhost:5080",
        "http://127.0.0.1",
    ):
        settings(host=host)


async def test_an_error_of_the_settings_never_shows_a_password() -> None:
    with pytest.raises(ConfigError) as raised:
        settings(host="ftp://user:hunter2@docs.pinecone.io")
    assert "hunter2" not in str(raised.value)
    assert "secret" not in repr(settings())


async def test_the_configuration_file_gives_short_and_long_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINE", "k")
    given = {
        "host": "docs-1.svc.pinecone.io",
        "api_key": {"env": "PINE"},
        "embedder": "e",
        "fields": {"lang": "keyword", "made": {"type": "date", "dates": "epoch_ms"}},
    }
    walker = Walker(Path())
    config = walker.read(PineconeConfig, given, "with")
    assert walker.errors == []
    assert config.field("lang") == FieldSettings(type="keyword")
    assert config.field("made") == FieldSettings(type="date", dates="epoch_ms")
    assert config.field("other") is None


# Writing


async def test_documents_are_stored_and_found_again() -> None:
    index = Index()
    meta = {"lang": "en", "page": 3, "ratio": 0.5, "ok": True, "tags": ["a", "b"], "none": None, "empty": []}
    fields = {"page": "int", "tags": FieldSettings(type="keyword", multi=True)}
    async with opened(index, writable=True, fields=fields) as engine:
        result = await engine.index_add([document("doc/1#a b", meta), document("2")], call())
        hit = next(one for one in (await query(engine)).hits if one.id == "doc/1#a b")
    assert result.ids == ("doc/1#a b", "2")
    assert result.chunks == 2
    assert text_of_hit(hit) == "some text"
    assert meta_of(hit) == {"lang": "en", "page": 3, "ratio": 0.5, "ok": True, "tags": ["a", "b"]}


async def test_of_documents_with_one_id_the_last_stays_and_ids_stay_positional() -> None:
    index = Index()
    async with opened(index, writable=True) as engine:
        same = [document("a", text="old"), document("b"), document("a", text="new"), document(7.0)]  # type: ignore[arg-type]
        result = await engine.index_add(same, call())
    assert result.ids == ("a", "b", "a", "7")
    assert result.chunks == 3
    assert index.rows[""]["a"].metadata["text"] == "new"


async def test_a_document_without_id_gets_the_same_one_from_every_call() -> None:
    index = Index()
    async with opened(index, writable=True) as engine:
        first = await engine.index_add([document(None)], call())
        second = await engine.index_add([document("x"), document(None)], call())
    assert first.ids[0] == second.ids[1]
    assert len(index.rows[""]) == 2


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"k": {"nested": 1}}, "nested values"),
        ({"k": [1, 2]}, "lists of strings"),
        ({"k": ["a", None]}, "lists of strings"),
        ({"k": 2**53}, "doubles"),
        ({"k": float("nan")}, "strings, numbers"),
        ({"$k": 1}, r"start with \$"),
        ({"text": "x"}, "taken"),
        ({"one": ["a"]}, "multi: true"),
        ({"made": "2024-01-01T00:00:00.0001Z"}, "to the millisecond"),
        ({"made": "soon"}, "to the millisecond"),
        ({"year": "2024"}, "clean: true"),
        ({"year": True}, "clean: true"),
    ],
)
async def test_metadata_that_pinecone_cannot_keep_is_refused_with_its_place(meta: dict[str, Any], reason: str) -> None:
    index = Index()
    fields = {
        "one": "keyword",
        "made": FieldSettings(type="date", dates="epoch_ms"),
        "year": FieldSettings(type="int", clean=True),
    }
    async with opened(index, writable=True, fields=fields) as engine:
        with pytest.raises(RcpError, match=reason) as raised:
            await engine.index_add([document("ok"), document("bad", meta)], call())
    assert raised.value.code == -32602
    assert raised.value.data["field"] == f"documents[1].meta.{next(iter(meta))}"
    assert index.requests == []


async def test_dates_of_a_field_in_milliseconds_are_written_as_such() -> None:
    index = Index()
    fields = {"made": FieldSettings(type="date", dates="epoch_ms", clean=True)}
    async with opened(index, writable=True, fields=fields) as engine:
        await engine.index_add(
            [document("a", {"made": "2024-01-01T01:00:00+01:00"}), document("b", {"made": 5})], call()
        )
    made = {id: row.metadata["made"] for id, row in index.rows[""].items()}
    assert made == {"a": 1704067200000.0, "b": 5.0}


async def test_ids_that_pinecone_cannot_keep_are_refused() -> None:
    index = Index()
    async with opened(index, writable=True) as engine:
        for id in ("", "ä", "x" * 513, "a\0b"):
            with pytest.raises(RcpError) as raised:
                await engine.index_add([document(id)], call())
            assert (raised.value.code, raised.value.data["field"]) == (-32602, "documents[0].id")
        with pytest.raises(RcpError, match="40960"):
            await engine.index_add([document("a", text="x" * 41_000)], call())
        with pytest.raises(UpstreamError, match="1 dimensions"):
            await engine.index_add([document("a", vector=[1.0])], call())
        with pytest.raises(UpstreamError, match="0 dimensions"):
            await engine.index_add([document("a", vector=None)], call())
    assert index.requests[-1:] == []


async def test_integrated_records_refuse_keys_that_the_client_would_drop() -> None:
    async with opened(Index(dimension=8), **integrated(writable=True)) as engine:
        for name in ("id", "_id", "text"):
            with pytest.raises(RcpError, match="taken"):
                await engine.index_add([document("a", {name: "x"})], call())


async def test_writes_are_cut_into_requests_by_number_and_by_size() -> None:
    index = Index()
    progress: list[float] = []
    async with opened(index, writable=True, batch=10) as engine:
        one = call()
        one._progress = lambda fraction, _: progress.append(fraction)
        await engine.index_add([document(f"d{n}") for n in range(25)], one)
    assert [len(request.body["vectors"]) for request in index.requests] == [10, 10, 5]
    assert progress == [0.4, 0.8, 1.0]
    large = [{"id": str(n), "text": "x" * 900_000} for n in range(5)]
    assert [len(batch) for batch in batches(large, 100)] == [2, 2, 1]
    assert [len(batch) for batch in batches([{"text": "x" * 3_000_000}], 100)] == [1]
    assert list(batches([], 100)) == []


async def test_integrated_records_are_sent_96_at_a_time_at_most() -> None:
    index = Index(dimension=8)
    async with opened(index, **integrated(writable=True)) as engine:
        await engine.index_add([Document(id=f"d{n}", text="t") for n in range(100)], call())
    assert [len(request.body) for request in index.requests] == [96, 4]


async def test_a_deletion_counts_what_was_there() -> None:
    index = Index()
    index.fill({f"d{n}": ((1.0, 0.0), {}) for n in range(150)}, "a")
    async with opened(index, writable=True, namespace="a") as engine:
        wanted = [f"d{n}" for n in range(0, 300, 2)]
        assert await engine.index_delete(["d0", "d0", "ä", "", *wanted], call()) == 75
        assert await engine.index_delete(wanted, call()) == 0
        assert await engine.index_delete([], call()) == 0
    assert len(index.rows["a"]) == 75
    fetched = [request for request in index.asked("/vectors/fetch") if request.namespace == "a"]
    assert len(fetched) == 4


async def test_deleting_from_a_namespace_that_is_not_there_deletes_nothing() -> None:
    async with opened(Index(), writable=True, namespace="nowhere") as engine:
        assert await engine.index_delete(["a"], call()) == 0


async def test_long_ids_are_looked_up_in_addresses_of_bounded_length() -> None:
    index = Index()
    long = [f"{n:03d}" + "x" * 509 for n in range(20)]
    index.fill({id: ((1.0, 0.0), {}) for id in long})
    async with opened(index, writable=True) as engine:
        assert await engine.index_delete(long, call()) == 20
    assert len(index.asked("/vectors/fetch")) > 5


async def test_a_query_is_an_engine_query_like_any_other() -> None:
    index = Index()
    index.fill(THREE)
    async with opened(index) as engine:
        reply = await engine.retrieve(EngineQuery(text="q", k=2, vector=(1.0, 0.0)), call())
        await engine.ping(call())
    assert ids(reply) == ["near", "between"]


async def test_whose_vectors_the_index_holds_is_told_with_what_it_needs() -> None:
    async with opened(Index(), embedder_identity="openai/m/2", dimension=2) as engine:
        need = engine.vector_need("dense")
    assert need == VectorNeed("embedder", 2, "openai/m/2")
