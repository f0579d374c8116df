"""The other methods: embed, rerank, the index, ping."""

import pytest

from gateway.errors import BackendUnavailable, RcpError
from gateway.model import Document
from gateway.spi.engine import EmbedQuery, RerankQuery
from tests.obligations import obligation
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio

TEXTS = ("a", "bb", "ccc")


@obligation(219)
async def test_texts_are_embedded_in_batches_the_upstream_allows(over, reports):
    async with over("ok") as engine:
        reply = await engine.embed(EmbedQuery(inputs=TEXTS), FakeCall())
    assert reply.vectors == ((1.0, 1.0), (2.0, 1.0), (3.0, 1.0))
    assert [frame["params"]["inputs"] for frame in reports.frames("embed")] == [["a", "bb"], ["ccc"]]


@pytest.mark.parametrize("key", ["texts", "input"])
async def test_the_spelling_an_upstream_wants_is_learned_once(over, reports, key):
    async with over(f"embed{key}") as engine:
        await engine.embed(EmbedQuery(inputs=("a",), kind="document"), FakeCall())
        await engine.embed(EmbedQuery(inputs=("b",)), FakeCall())
    sent = [frame["params"] for frame in reports.frames("embed")]
    assert [sorted(params) for params in sent] == [sorted(["_meta", name, "kind"]) for name in ("inputs", key, key)]
    assert sent[1]["kind"] == "document"


async def test_vectors_in_base64_are_read_unasked(over):
    async with over("embedbase64") as engine:
        assert (await engine.embed(EmbedQuery(inputs=("a",)), FakeCall())).vectors == ((1.0, 2.0),)


@obligation(221)
@pytest.mark.parametrize("behaviour", ["embednan", "embedshort"])
async def test_vectors_that_are_none_are_refused(over, behaviour):
    async with over(behaviour) as engine:
        with pytest.raises(BackendUnavailable):
            await engine.embed(EmbedQuery(inputs=("a", "b")), FakeCall())


async def test_passages_are_sent_under_both_names_and_scored_in_place(over, reports):
    async with over("ok") as engine:
        query = RerankQuery(query="q", passages=TEXTS, method="cross-encoder", top_n=2)
        assert await engine.rerank(query, FakeCall()) == [1.0, 2.0, 3.0]
    params = reports.frames("rerank")[0]["params"]
    assert params["passages"] == params["documents"] == list(TEXTS)
    assert (params["method"], params["topN"]) == ("cross-encoder", 2)


async def test_results_in_place_of_scores_are_read_and_gaps_stay_open(over, reports):
    async with over("rerankresults") as engine:
        for _ in range(2):
            assert await engine.rerank(RerankQuery(query="q", passages=TEXTS), FakeCall()) == [None, 0.1, 0.2]
    assert ["passages" in frame["params"] for frame in reports.frames("rerank")] == [True, False, False]


@obligation(221)
async def test_scores_that_are_no_numbers_are_gaps(over):
    async with over("reranknan") as engine:
        assert await engine.rerank(RerankQuery(query="q", passages=TEXTS), FakeCall()) == [None, 0.5, None]


async def test_no_passages_need_no_call(over, reports):
    async with over("ok") as engine:
        assert await engine.rerank(RerankQuery(query="q", passages=()), FakeCall()) == []
    assert reports.frames("rerank") == []


@obligation(210)
async def test_a_rerank_method_that_is_not_advertised_is_not_sent(over, reports):
    async with over("ok") as engine:
        await engine.rerank(RerankQuery(query="q", passages=TEXTS, method="llm"), FakeCall())
    assert "method" not in reports.frames("rerank")[0]["params"]


async def test_documents_are_added_under_their_ids_and_without_our_vectors(over, reports):
    documents = [Document(text="a", id=7, meta={"x": "\ud800"}, vector=[1.0]), Document(text="b", id="two")]
    async with over("ok") as engine:
        result = await engine.index_add(documents, FakeCall())
    assert result.ids == ("7", "two")
    assert result.chunks == 2
    assert reports.frames("index/add")[0]["params"]["documents"] == [
        {"text": "a", "id": "7", "meta": {"x": "\N{REPLACEMENT CHARACTER}"}},
        {"text": "b", "id": "two"},
    ]


async def test_an_upstream_that_names_no_ids_took_ours(over):
    async with over("addsilent") as engine:
        assert (await engine.index_add([Document(text="a", id="one")], FakeCall())).ids == ("one",)
        with pytest.raises(BackendUnavailable):
            await engine.index_add([Document(text="a")], FakeCall())


@obligation(217)
async def test_a_write_that_cannot_be_repeated_is_not_to_be_retried(over):
    async with over("addfails") as engine:
        with pytest.raises(RcpError) as with_id:
            await engine.index_add([Document(text="a", id="one")], FakeCall())
        with pytest.raises(RcpError) as without:
            await engine.index_add([Document(text="a")], FakeCall())
    assert with_id.value.retryable
    assert not without.value.retryable


async def test_deleting_counts_what_was_there(over, reports):
    async with over("ok") as engine:
        assert await engine.index_delete(["a", "b"], FakeCall()) == 1
    assert reports.frames("index/delete")[0]["params"]["ids"] == ["a", "b"]


async def test_a_ping_comes_back(over, reports):
    async with over("ok") as engine:
        await engine.ping(FakeCall())
    assert len(reports.frames("ping")) == 1
