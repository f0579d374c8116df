"""A server (``url:``), set up by the official client: search, writing, discovery of fields, strict mode.

The test server validates every body with the official client's strict models.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Literal

import pytest
from qdrant_client import models
from starlette.responses import Response

from gateway.errors import CallerError, ConfigError
from gateway.filters import FieldType, Pushdown, holds, parse
from gateway.model import Document, FusionOptions, MmrOptions, RecencyOptions, meta_of, text_of_hit
from gateway.secret import Secret
from gateway.spi.codec import encode
from gateway.spi.engine import Engine, EngineReply
from gateway_qdrant.settings import (
    DenseSettings,
    FieldSettings,
    HybridSettings,
    PayloadSettings,
    QdrantConfig,
    SearchSettings,
    SparseSettings,
    VectorSettings,
)
from tests.plugins.qdrant.conftest import LIVE, Opened, StubCall, asked, collection, documents
from tests.servers.qdrant import QdrantServer, qdrant_server

pytestmark = pytest.mark.anyio

DENSE_PARAMS = {"dense": models.VectorParams(size=2, distance=models.Distance.COSINE)}
SPARSE_PARAMS = {"sparse": models.SparseVectorParams(modifier=models.Modifier.IDF)}
DENSE = VectorSettings(dense=DenseSettings())
BOTH = VectorSettings(dense=DenseSettings(), sparse=SparseSettings())

ANIMALS = [
    Document(id="fox", text="The quick brown fox jumps", meta={"n": 1, "lang": "en"}, vector=[1.0, 0.0]),
    Document(id="dog", text="A lazy dog sleeps", meta={"n": 2, "lang": "en"}, vector=[0.8, 0.6]),
    Document(id="Katze", text="Die Katze schläft, kein fox weit und breit", meta={"n": 3}, vector=[0.0, 1.0]),
]


def config(url: str, name: str, vectors: VectorSettings = DENSE, **given: Any) -> QdrantConfig:
    embedder = "e" if vectors.dense is not None else None
    return QdrantConfig(
        **{"url": url, "collection": name, "embedder": embedder, "vectors": vectors, "writable": True, **given}
    )


def ids(reply: EngineReply) -> list[str]:
    return [hit.id for hit in reply.hits]


def pushed(engine: Engine, wire: Any, **fields: FieldType) -> Pushdown[Any]:
    tree = parse(wire, fields)
    assert tree is not None
    return engine.push_down(tree)


@pytest.fixture(
    params=["test server", pytest.param("live", marks=pytest.mark.skipif(LIVE is None, reason="no live server"))]
)
def url(request: pytest.FixtureRequest, server: QdrantServer) -> str:
    return server.url if request.param == "test server" else LIVE or ""


async def test_both_wires_give_the_same_hits(url: str, opened: Opened, tmp_path: Path, call: StubCall) -> None:
    sparse = SparseSettings(encoder="local")
    vectors = VectorSettings(dense=DenseSettings(dimension=2), sparse=sparse)
    queries = [
        asked(mode="dense", vector=(1.0, 0.2)),
        asked(mode="sparse"),
        asked(vector=(0.0, 1.0), k=2, candidate_k=3),
        asked(vector=(0.6, 0.5), fusion=FusionOptions(weights={"dense": 2.0, "sparse": 1.0}, rrf_k=7)),
        asked(vector=(0.6, 0.5), include_text=False, include_vectors=True),
        asked(text="of the", vector=(0.6, 0.5)),
    ]

    async def answers(settings: QdrantConfig) -> list[EngineReply]:
        async with opened(settings) as engine:
            await engine.index_add(ANIMALS, call)
            return [await engine.retrieve(query, call) for query in queries]

    async with collection(url, vectors=DENSE_PARAMS, sparse=SPARSE_PARAMS) as (name, _):
        remote = await answers(config(url, name, vectors))
    local = await answers(QdrantConfig(path=tmp_path / "store", embedder="e", vectors=vectors))
    for one, other in zip(remote, local, strict=True):
        assert ids(one) == ids(other)
        assert [hit.score for hit in one.hits] == pytest.approx([hit.score for hit in other.hits], abs=1e-6)
        assert [set(hit.members) for hit in one.hits] == [set(hit.members) for hit in other.hits]
        assert one.exhausted == other.exhausted


LEVEL = [
    Document(
        id=f"d{n:02}",
        text=f"fox number{n}" if n % 2 else f"nothing number{n}",
        meta={"made": "2024-05-01T00:00:00Z"},
        vector=[1.0, n % 4 / 10],
    )
    for n in range(60)
]
"""Few scores for many documents: half of them have the word, and there are four directions."""


@pytest.mark.parametrize(
    ("fusion", "recency"), [("rrf", None), ("dbsf", None), ("rrf", RecencyOptions(field="made", half_life_days=30))]
)
async def test_the_same_hybrid_search_gives_the_same_bytes_and_the_first_of_a_longer_answer(
    url: str,
    opened: Opened,
    tmp_path: Path,
    call: StubCall,
    fusion: Literal["rrf", "dbsf"],
    recency: RecencyOptions | None,
) -> None:
    """Qdrant itself returns equal scores in another order each time, and cuts anywhere among them."""
    given: dict[str, Any] = {
        "embedder": "e",
        "vectors": VectorSettings(dense=DenseSettings(dimension=2), sparse=SparseSettings(encoder="local")),
        "hybrid": HybridSettings(fusion=fusion),
        "fields": {"made": "date"},
        "native": ("recency",),
    }
    async with collection(url, vectors=DENSE_PARAMS, sparse=SPARSE_PARAMS) as (name, _):
        server = QdrantConfig(url=url, collection=name, writable=True, **given)
        for settings in (QdrantConfig(path=tmp_path / "store", **given), server):
            async with opened(settings) as engine:
                await engine.index_add(LEVEL, call)

                async def found(k: int, engine: Engine = engine) -> list[Any]:
                    query = asked(vector=(1.0, 0.05), k=k, candidate_k=30, recency=recency)
                    hits = (await engine.retrieve(query, call)).hits
                    return [hit.id if recency else encode(hit) for hit in hits]  # under recency scores tell the time

                first = {k: await found(k) for k in (4, 5, 6, 7, 30)}
                for k, answer in first.items():
                    assert len(answer) == k
                    assert answer == first[30][:k]
                    assert [await found(k) for _ in range(20)] == [answer] * 20


async def test_no_more_is_asked_for_than_strict_mode_gives(url: str, opened: Opened, call: StubCall) -> None:
    strict = models.StrictModeConfig(enabled=True, max_query_limit=20)
    async with collection(url, vectors=DENSE_PARAMS, sparse=SPARSE_PARAMS, strict=strict) as (name, _):
        local = VectorSettings(dense=DenseSettings(), sparse=SparseSettings(encoder="local"))
        async with opened(config(url, name, local, hybrid=HybridSettings(fusion="dbsf"))) as engine:
            await engine.index_add(LEVEL, call)
            assert len((await engine.retrieve(asked(vector=(1.0, 0.05), k=15), call)).hits) == 15
            assert len((await engine.retrieve(asked(vector=(1.0, 0.05), k=20), call)).hits) == 20


async def test_the_server_can_make_the_sparse_vectors(
    url: str, opened: Opened, call: StubCall, server: QdrantServer
) -> None:
    async with collection(url, sparse=SPARSE_PARAMS) as (name, _):
        settings = config(url, name, VectorSettings(sparse=SparseSettings()))
        async with opened(settings) as engine:
            await engine.index_add(ANIMALS, call)
            assert ids(await engine.retrieve(asked(text="foxes", mode="sparse"), call)) == ["fox", "Katze"]
    if url == server.url:
        assert server.queries()[-1]["query"]["model"] == "qdrant/bm25"


async def test_points_of_other_writers_are_read(url: str, opened: Opened, call: StubCall) -> None:
    """R48: no crash and no loss where the text or the metadata are not where they were expected; one note."""
    key = str(uuid.uuid4())
    async with collection(url, vectors=DENSE_PARAMS) as (name, client):
        await client.upsert(
            name,
            [
                models.PointStruct(id=1, vector={"dense": [1.0, 0.0]}, payload={"text": "a", "lang": "en"}),
                models.PointStruct(id=2, vector={"dense": [1.0, 0.1]}, payload=None),
                models.PointStruct(id=key, vector={"dense": [1.0, 0.2]}, payload={"body": "c", "text": 5}),
                models.PointStruct(id=4, vector={"dense": [1.0, 0.3]}, payload={"id": {"odd": 1}, "text": None}),
            ],
            wait=True,
        )
        flat = PayloadSettings(text=("text", "body"), meta="")
        async with opened(config(url, name, payload=flat)) as engine:
            reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)
            assert await engine.index_delete(["1", key, "5"], call) == 2
    assert ids(reply) == ["1", "2", key, "4"]
    assert [text_of_hit(hit) for hit in reply.hits] == ["a", None, "c", None]
    assert meta_of(reply.hits[0]) == {"lang": "en"}
    assert reply.notes == ("2 of 4 hits have no text under text or body",)


async def test_any_id_goes_to_the_server_and_comes_back(url: str, opened: Opened, call: StubCall) -> None:
    """R45: the server takes UUIDs and unsigned integers only."""
    async with collection(url, vectors=DENSE_PARAMS) as (name, client):
        async with opened(config(url, name)) as engine:
            for _ in range(2):
                await engine.index_add([Document(id="doc/1#äö", text="t", vector=[1.0, 0.0])], call)
            assert ids(await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)) == ["doc/1#äö"]
            assert (await client.count(name)).count == 1
            assert await engine.index_delete(["doc/1#äö", "doc/2"], call) == 1
            assert await engine.index_delete(["doc/1#äö"], call) == 0
            assert (await client.count(name)).count == 0


async def test_a_wrong_vector_name_lists_those_there_are(url: str, opened: Opened) -> None:
    """R46."""
    two = {name: models.VectorParams(size=2, distance=models.Distance.COSINE) for name in ("text", "title")}
    async with collection(url, vectors=two) as (name, _):
        for given, told in (
            ({"name": "body"}, "no dense vector 'body'"),
            ({}, "several dense vectors, and the settings"),
        ):
            with pytest.raises(ConfigError, match=f"{told}.*; it has 'text', 'title'") as caught:
                async with opened(config(url, name, VectorSettings(dense=DenseSettings(**given)))):
                    pass
            assert caught.value.path == "vectors.dense.name"
        with pytest.raises(ConfigError, match="no sparse vector 'bm25'; it has none"):
            async with opened(config(url, name, VectorSettings(sparse=SparseSettings(name="bm25")))):
                pass
        async with opened(config(url, name, VectorSettings(dense=DenseSettings(name="title")))):
            pass


async def test_the_unnamed_vector_is_written_and_searched(url: str, opened: Opened, call: StubCall) -> None:
    async with collection(url, vectors=DENSE_PARAMS["dense"]) as (name, _):
        async with opened(config(url, name)) as engine:  # the only one there is
            await engine.index_add(ANIMALS, call)
            reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), include_vectors=True), call)
        with pytest.raises(ConfigError, match=r'it has "" \(unnamed\)'):
            async with opened(config(url, name, VectorSettings(dense=DenseSettings(name="dense")))):
                pass
    assert ids(reply)[0] == "fox"
    assert reply.hits[0].members["vector"] == [1.0, 0.0]


async def test_an_embedder_of_another_dimension_is_a_clear_error(url: str, opened: Opened) -> None:
    async with collection(url, vectors=DENSE_PARAMS) as (name, _):
        with pytest.raises(ConfigError, match="has 2 dimensions, not 384: use the embedder it was filled with"):
            async with opened(config(url, name, VectorSettings(dense=DenseSettings(dimension=384)))):
                pass


@pytest.mark.parametrize("distance", ["EUCLID", "MANHATTAN"])
async def test_distances_are_turned_into_scores(url: str, opened: Opened, call: StubCall, distance: str) -> None:
    """R18: points at distance 0, 1 and 9."""
    params = {"dense": models.VectorParams(size=2, distance=models.Distance[distance])}
    async with collection(url, vectors=params) as (name, _):
        async with opened(config(url, name)) as engine:
            added = [Document(id=f"at{x}", text="t", vector=[float(x), 0.0]) for x in (9, 0, 1)]
            await engine.index_add(added, call)
            reply = await engine.retrieve(asked(mode="dense", vector=(0.0, 0.0)), call)
    assert [(hit.id, hit.score) for hit in reply.hits] == [("at0", 0.0), ("at1", -1.0), ("at9", -9.0)]


async def test_refinements_that_are_left_to_the_server_are_sent(url: str, opened: Opened, call: StubCall) -> None:
    fields = {"made": FieldSettings(type="date")}
    async with collection(url, vectors=DENSE_PARAMS) as (name, _):
        settings = config(url, name, native=("mmr", "recency"), fields=fields)
        async with opened(settings) as engine:
            added = [
                Document(id=n, text="t", vector=v, meta={"made": d} if d else {})
                for n, v, d in (
                    ("old", [1.0, 0.0], "2001-01-01T00:00:00Z"),
                    ("new", [1.0, 0.01], "2090-01-01T00:00:00Z"),
                    ("undated", [0.7, -0.7], None),
                )
            ]
            await engine.index_add(added, call)
            query = {"mode": "dense", "vector": (1.0, 0.0)}
            diverse = await engine.retrieve(asked(**query, mmr=MmrOptions(lambda_=0.3)), call)
            long_half_life = RecencyOptions(field="made", half_life_days=20_000)
            recent = await engine.retrieve(asked(**query, recency=long_half_life), call)
    assert ids(diverse)[1] == "undated"
    assert ids(recent)[-1] == "undated"
    assert len(recent.hits) == 3


async def test_search_parameters_and_dbsf_are_sent(server: QdrantServer, opened: Opened, call: StubCall) -> None:
    async with collection(server.url, vectors=DENSE_PARAMS, sparse=SPARSE_PARAMS) as (name, _):
        settings = config(
            server.url,
            name,
            BOTH,
            search=SearchSettings(exact=True, hnsw_ef=64),
            hybrid=HybridSettings(fusion="dbsf"),
        )
        async with opened(settings) as engine:
            await engine.index_add(ANIMALS, call)
            await engine.retrieve(asked(vector=(1.0, 0.0), k=5, candidate_k=40), call)
    body = server.queries()[-1]
    assert body["query"] == {"fusion": "dbsf"}
    assert [leg["limit"] for leg in body["prefetch"]] == [40, 40]
    assert body["limit"] == 13  # a few more than 5, to be cut here
    assert body["prefetch"][0]["params"] == {"exact": True, "hnsw_ef": 64}


async def test_the_filter_goes_into_every_branch_of_a_hybrid_search(
    server: QdrantServer, opened: Opened, call: StubCall
) -> None:
    """R42: nested conditions arrive, wherever the engine applies them."""
    async with collection(server.url, vectors=DENSE_PARAMS, sparse=SPARSE_PARAMS) as (name, _):
        async with opened(config(server.url, name, BOTH, fields={"lang": "keyword", "n": "int"})) as engine:
            await engine.index_add(ANIMALS, call)
            nested = {
                "not": {"or": [{"field": "lang", "op": "eq", "value": "en"}, {"field": "n", "op": "in", "value": [7]}]}
            }
            half = pushed(engine, nested, lang=FieldType.KEYWORD, n=FieldType.INT)
            reply = await engine.retrieve(asked(vector=(1.0, 0.0), filter=half.native), call)
    assert half.exact
    assert ids(reply) == ["Katze"]
    legs = server.queries()[-1]["prefetch"]
    assert legs[0]["filter"] == legs[1]["filter"] == half.native


async def test_writes_wait_and_queries_carry_the_time_that_is_left(
    server: QdrantServer, opened: Opened, call: StubCall
) -> None:
    async with collection(server.url, vectors=DENSE_PARAMS) as (name, _):
        async with opened(config(server.url, name, batch=2)) as engine:
            server.requests.clear()
            await engine.index_add(ANIMALS, call)
            await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), StubCall(budget=2.4))
            await engine.index_delete(["fox"], call)
        paths = [
            f"{method} {path.partition('/points')[2]}" for method, path, *_ in server.requests if "/points" in path
        ]
    assert paths == [
        "PUT ?wait=true",
        "PUT ?wait=true",
        "POST /query?timeout=3",
        "POST /count?timeout=10",
        "POST /delete?wait=true",
    ]


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
async def test_the_key_goes_as_a_header_and_is_never_shown(opened: Opened, call: StubCall) -> None:
    with qdrant_server(api_key="s3cret") as server:
        async with collection(server.url, vectors=DENSE_PARAMS, api_key="s3cret") as (name, _):
            settings = config(server.url, name, api_key=Secret("s3cret", source="env:KEY"))
            async with opened(settings) as engine:
                await engine.ping(call)
            assert server.requests[-1][2]["api-key"] == "s3cret"
            assert "s3cret" not in repr(settings)


async def test_fields_are_found_in_the_payload_indexes(url: str, opened: Opened) -> None:
    indexes = {
        "meta.lang": "keyword",
        "meta.n": "integer",
        "meta.x": "float",
        "meta.made": "datetime",
        "meta.body": "text",
        "meta.ok": "bool",
        "meta.spot": "geo",
        "meta.deep.er": "integer",
        "other": "keyword",
        "id": "keyword",
        "text": "text",
        'meta."odd name"': "keyword",
    }
    async with collection(url, vectors=DENSE_PARAMS, indexes=indexes) as (name, _):
        async with opened(config(url, name)) as engine:
            found = engine.capabilities().filter
            assert found is not None
            assert found.fields == {
                "lang": "keyword",
                "n": "int",
                "x": "float",
                "made": "date",
                "body": "text",
                "ok": "bool",
                "spot": "geo",
                "deep.er": "int",
                "other": "keyword",
                "odd name": "keyword",
            }
            deep = pushed(engine, {"field": "deep.er", "op": "eq", "value": 1}, **{"deep.er": FieldType.INT})
            assert deep.native == {"key": "meta.deep.er", "range": {"gte": 1, "lte": 1}}
            odd = pushed(engine, {"field": "odd name", "op": "eq", "value": "v"}, **{"odd name": FieldType.KEYWORD})
            assert odd.native == {"key": 'meta."odd name"', "match": {"value": "v"}}


async def test_a_field_whose_index_contradicts_is_checked_by_the_gateway_with_a_warning(
    url: str, opened: Opened, call: StubCall, caplog: pytest.LogCaptureFixture
) -> None:
    async with collection(url, vectors=DENSE_PARAMS, indexes={"meta.n": "keyword"}) as (name, _):
        async with opened(config(url, name, fields={"n": "int"})) as engine:
            await engine.index_add(documents([{"n": 1}, {"n": 2}]), call)
            half = pushed(engine, {"field": "n", "op": "eq", "value": 1}, n=FieldType.INT)
            found = engine.capabilities().filter
    assert (half.native, half.exact) == (None, False)
    assert found is not None
    assert found.fields == {"n": "int"}
    assert "'n' is declared int but has a payload index of type keyword" in caplog.text


async def test_under_strict_mode_only_indexed_fields_are_offered(
    url: str, opened: Opened, call: StubCall, caplog: pytest.LogCaptureFixture
) -> None:
    """R44: a field that the store does not filter on is not advertised."""
    strict = models.StrictModeConfig(enabled=True, unindexed_filtering_retrieve=False, max_query_limit=20)
    async with collection(url, vectors=DENSE_PARAMS, indexes={"meta.lang": "keyword"}, strict=strict) as (name, _):
        async with opened(config(url, name, fields={"lang": "keyword", "n": "int"})) as engine:
            offered = engine.capabilities()
            await engine.index_add(documents([{"lang": "en"}, {"lang": "de"}, {}]), call)
            half = pushed(engine, {"field": "lang", "op": "ne", "value": "en"}, lang=FieldType.KEYWORD)
            reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), filter=half.native), call)
            with pytest.raises(CallerError) as caught:
                parse(
                    {"field": "n", "op": "eq", "value": 1},
                    {name: FieldType(kind) for name, kind in offered.filter.fields.items()},
                )  # type: ignore[union-attr]
    assert offered.filter is not None
    assert offered.filter.fields == {"lang": "keyword"}
    assert offered.retrieve is not None
    assert offered.retrieve.max_k == 20
    assert sorted(ids(reply)) == ["d1", "d2"]
    assert (caught.value.code, caught.value.data["field"]) == (-32602, "n")
    assert "'n' has no payload index" in caplog.text


async def test_a_filter_over_the_limits_of_strict_mode_is_checked_by_the_gateway(
    url: str, opened: Opened, call: StubCall
) -> None:
    strict = models.StrictModeConfig(
        enabled=True, filter_max_conditions=2, condition_max_size=3, upsert_max_batchsize=2
    )
    async with collection(url, vectors=DENSE_PARAMS, strict=strict) as (name, _):
        async with opened(config(url, name, fields={"lang": "keyword"})) as engine:
            await engine.index_add(documents([{"lang": "en"}, {"lang": "de"}, {}]), call)
            leaf = {"field": "lang", "op": "eq", "value": "en"}
            for wire, fits in (
                ({"and": [leaf, {"field": "lang", "op": "ne", "value": "de"}]}, True),
                (
                    {"or": [leaf, {"field": "lang", "op": "eq", "value": "de"}, {"field": "lang", "op": "exists"}]},
                    False,
                ),
                ({"field": "lang", "op": "in", "value": ["a", "b", "en"]}, True),
                ({"field": "lang", "op": "nin", "value": ["a", "b", "c", "d"]}, False),
            ):
                half = pushed(engine, wire, lang=FieldType.KEYWORD)
                assert (half.native is not None) is fits
                assert half.exact is fits
                await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), filter=half.native), call)


@pytest.mark.parametrize(("version", "native"), [("1.19.3", False), ("1.20.0", True), ("2.0.1", True), ("dev", False)])
async def test_substrings_are_pushed_to_servers_that_know_them(
    opened: Opened, call: StubCall, version: str, native: bool
) -> None:
    with qdrant_server(version="1.19.0" if version == "dev" else version) as server:
        async with collection(server.url, vectors=DENSE_PARAMS) as (name, _):
            server.version = version
            async with opened(config(server.url, name, fields={"body": "text"})) as engine:
                half = pushed(engine, {"field": "body", "op": "contains", "value": "50% off*"}, body=FieldType.TEXT)
    assert half.exact is native
    assert half.native == ({"key": "meta.body", "match": {"substring": "50% off*"}} if native else None)


async def test_a_server_whose_version_is_kept_back_is_used_without_what_is_new(
    server: QdrantServer, opened: Opened
) -> None:
    server.root = Response(status_code=404)
    async with collection(server.url, vectors=DENSE_PARAMS) as (name, _):
        async with opened(config(server.url, name, fields={"body": "text"})) as engine:
            half = pushed(engine, {"field": "body", "op": "contains", "value": "a"}, body=FieldType.TEXT)
    assert half.native is None


async def test_a_filter_as_deep_as_the_protocol_allows_arrives(
    url: str, opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    leaf = {"field": "n", "op": "eq", "value": 1}
    wire: dict[str, Any] = leaf
    for level in range(32):
        wire = {"or" if level % 2 else "and": [wire, {"field": "n", "op": "ne", "value": level}]}
    vectors = VectorSettings(dense=DenseSettings(dimension=2))
    metas = [{"n": n} for n in range(40)]
    async with collection(url, vectors=DENSE_PARAMS) as (name, _):
        remote = config(url, name, vectors, fields={"n": "int"})
        local = QdrantConfig(path=tmp_path / "s", embedder="e", vectors=vectors, fields={"n": "int"})
        for settings in (remote, local):
            async with opened(settings) as engine:
                await engine.index_add(documents(metas), call)
                tree = parse(wire, {"n": FieldType.INT})
                assert tree is not None
                half = engine.push_down(tree)
                reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), k=50, filter=half.native), call)
                assert half.exact
                assert sorted(ids(reply)) == sorted(f"d{n}" for n, meta in enumerate(metas) if holds(tree, meta))


async def test_ne_and_not_eq_select_documents_without_the_field(url: str, opened: Opened, call: StubCall) -> None:
    """R38, with R39 (an empty list never gets here) and R41 (numbers in lists stay numbers)."""
    async with collection(url, vectors=DENSE_PARAMS) as (name, _):
        async with opened(config(url, name, fields={"lang": "keyword", "year": "int"})) as engine:
            metas: list[dict[str, Any]] = [{"lang": "en", "year": 2023}, {"lang": "de", "year": 2024}, {}]
            await engine.index_add(documents(metas), call)
            types = {"lang": FieldType.KEYWORD, "year": FieldType.INT}
            for wire, wanted in (
                ({"field": "lang", "op": "ne", "value": "en"}, ["d1", "d2"]),
                ({"not": {"field": "lang", "op": "eq", "value": "en"}}, ["d1", "d2"]),
                ({"field": "lang", "op": "nin", "value": ["en", "fr"]}, ["d1", "d2"]),
                ({"field": "year", "op": "in", "value": [2023, 2024]}, ["d0", "d1"]),
                ({"field": "year", "op": "nin", "value": [2023, 2025]}, ["d1", "d2"]),
            ):
                half = pushed(engine, wire, **types)
                assert half.exact
                reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), filter=half.native), call)
                assert sorted(ids(reply)) == wanted
    for op in ("in", "nin"):
        with pytest.raises(CallerError):
            parse({"field": "lang", "op": op, "value": []}, types)


@pytest.mark.parametrize("dates", ["rfc3339", "epoch_ms"])
async def test_date_bounds_are_instants_in_either_encoding(
    url: str, opened: Opened, call: StubCall, dates: Any
) -> None:
    """R40."""
    stored: list[Any] = ["2024-01-15T00:00:00Z", "2024-02-01T00:30:00+01:00", "2024-02-01T00:00:00Z"]
    if dates == "epoch_ms":
        stored = [1_705_276_800_000, 1_706_743_800_000, 1_706_745_600_000]
    async with collection(url, vectors=DENSE_PARAMS) as (name, _):
        async with opened(config(url, name, fields={"at": FieldSettings(type="date", dates=dates)})) as engine:
            await engine.index_add(documents([{"at": one} for one in stored]), call)
            for low, high in (("2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z"), (1_704_067_200_000, 1_706_745_600_000)):
                wire = {"and": [{"field": "at", "op": "gte", "value": low}, {"field": "at", "op": "lt", "value": high}]}
                half = pushed(engine, wire, at=FieldType.DATE)
                reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), filter=half.native), call)
                assert sorted(ids(reply)) == ["d0", "d1"]
