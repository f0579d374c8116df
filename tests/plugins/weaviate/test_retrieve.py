"""What the engine asks of Weaviate, and what it makes of the answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.filters import FieldType, parse
from gateway.model import FusionOptions, member, meta_of, text_of_hit
from gateway.spi.engine import Engine, EngineQuery, VectorNeed
from tests.plugins.weaviate.conftest import Opener, StubCall
from tests.servers.weaviate import Collection, Prop, WeaviateServer

PROPS = [
    Prop("text", "text"),
    Prop("title", "text"),
    Prop("rcp_id", "text", "field"),
    Prop("lang", "text", "field"),
    Prop("year", "int"),
    Prop("rating", "number"),
    Prop("made", "date"),
    Prop("seen", "date[]"),
    Prop("owner", "uuid"),
    Prop("spot", "geoCoordinates"),
]
POINTS = {"near": [1.0, 0.0], "far": [3.0, 4.0], "opposite": [-1.0, 0.0]}


def fill(server: WeaviateServer, *, distance: str = "cosine", vectors: Any = None, vectorizer: str = "none") -> None:
    server.create(Collection("Doc", PROPS, distance=distance, vectors=vectors, vectorizer=vectorizer))
    for number, (name, vector) in enumerate(POINTS.items()):
        server.put(
            "Doc",
            {"text": f"the {name} fox", "title": name.title(), "rcp_id": f"docs/{name}#0", "year": 2020 + number},
            vector=vector if vectors is None else dict.fromkeys(vectors, vector),
        )


def ask(**given: Any) -> EngineQuery:
    return EngineQuery(text="fox", k=given.pop("k", 10), **given)


async def hits_of(engine: Engine, call: StubCall, **given: Any) -> Any:
    return (await engine.retrieve(ask(**given), call)).hits


@pytest.mark.anyio
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2-squared", "manhattan"])
async def test_the_nearest_vector_comes_first_and_scores_highest(
    metric: str, server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    """R18: a distance is turned round, so that a higher score is a better hit under every metric."""
    fill(server, distance=metric)
    async with opened(server, embedder="e") as engine:
        hits = await hits_of(engine, call, mode="dense", vector=(1.0, 0.0))
    assert hits[0].id == ("docs/far#0" if metric == "dot" else "docs/near#0")
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    expected = {"cosine": [1.0, 0.6, -1.0], "dot": [3.0, 1.0, -1.0], "l2-squared": [0.0, -4.0, -20.0]}
    if metric in expected:
        assert scores == pytest.approx(expected[metric], abs=1e-6)


@pytest.mark.anyio
async def test_certainty_is_asked_for_only_where_it_exists(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    """R17: the right metadata for each mode, and nothing that is an error for the metric."""
    for metric, certain in (("cosine", True), ("l2-squared", False)):
        fill(server, distance=metric)
        async with opened(server, embedder="e") as engine:
            await hits_of(engine, call, mode="dense", vector=(1.0, 0.0))
            wanted = server.last("Search").metadata
            assert (wanted.distance, wanted.certainty, wanted.score) == (True, certain, False)
            await hits_of(engine, call, mode="sparse")
            wanted = server.last("Search").metadata
            assert (wanted.distance, wanted.certainty, wanted.score) == (False, False, True)
            await hits_of(engine, call, mode="hybrid", vector=(1.0, 0.0))
            assert server.last("Search").metadata.score


@pytest.mark.anyio
async def test_a_score_that_is_not_there_stays_away(
    server: WeaviateServer, opened: Opener, call: StubCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17: a hit without a score keeps its place and is never given 0."""
    fill(server)
    rank = server._rank
    monkeypatch.setattr(server, "_rank", lambda *given: [(one, {}) for one, _ in rank(*given)])
    async with opened(server, embedder="e") as engine:
        hits = await hits_of(engine, call, mode="dense", vector=(1.0, 0.0))
    assert [(hit.id, hit.score) for hit in hits] == [(f"docs/{n}#0", None) for n in ("near", "far", "opposite")]
    assert member(hits[0], "scores") is None


@pytest.mark.anyio
async def test_a_negative_and_a_zero_score_are_scores(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    fill(server, distance="l2-squared")
    async with opened(server, embedder="e") as engine:
        hits = await hits_of(engine, call, mode="dense", vector=(1.0, 0.0))
    assert hits[0].score == 0.0
    assert math.copysign(1.0, hits[0].score) == 1.0
    assert hits[-1].score < 0


@pytest.mark.anyio
async def test_hybrid_always_says_what_alpha_and_which_fusion(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    fill(server)

    async def asked(**given: Any) -> tuple[float, int]:
        await hits_of(engine, call, mode="hybrid", vector=(1.0, 0.0), **given)
        sent = server.last("Search").hybrid_search
        return round(sent.alpha_param if sent.use_alpha_param else sent.alpha, 4), sent.fusion_type

    async with opened(server, embedder="e", alpha=0.25) as engine:
        ranked, relative = 1, 2
        assert await asked() == (0.25, relative)
        assert await asked(fusion=FusionOptions(method="rrf")) == (0.25, ranked)
        assert await asked(fusion=FusionOptions(method="convex", alpha=0.9)) == (0.9, relative)
        assert await asked(fusion=FusionOptions(method="weighted", weights={"dense": 3, "sparse": 1})) == (
            0.75,
            relative,
        )
        assert await asked(fusion=FusionOptions(method="convex", alpha=0.0)) == (0.0, relative)
    async with opened(server, embedder="e", fusion="ranked") as engine:
        assert await asked() == (0.7, ranked)


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["1.27.0", "1.33.0", "1.37.1"])
async def test_every_mode_answers_on_old_and_new_servers(
    version: str, server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    server.version = version
    fill(server, vectors={"body": ("none", "cosine"), "head": ("none", "dot")})
    async with opened(server, embedder="e", vector="body") as engine:
        for mode in ("dense", "sparse", "hybrid"):
            vector = None if mode == "sparse" else (1.0, 0.0)
            hits = await hits_of(engine, call, mode=mode, vector=vector)
            assert hits[0].id == "docs/near#0" or mode == "sparse"
            assert {hit.id for hit in hits} == {f"docs/{name}#0" for name in POINTS}


@pytest.mark.anyio
async def test_a_server_that_makes_vectors_is_asked_by_text(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    fill(server, vectorizer="text2vec-transformers")
    async with opened(server) as engine:
        assert engine.vector_need("dense") is None
        assert (await hits_of(engine, call, mode="dense"))[0].score is not None
        assert list(server.last("Search").near_text.query) == ["fox"]
        await hits_of(engine, call, mode="hybrid")
        assert server.last("Search").hybrid_search.query == "fox"


@pytest.mark.anyio
async def test_the_window_is_what_was_asked_and_nothing_cuts_it(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    """R22: Weaviate's own limit is 10, ours is the depth asked for; autocut would make windows that cannot be fused."""
    server.create(Collection("Doc", PROPS))
    for number in range(60):
        server.put("Doc", {"text": f"fox {number}", "rcp_id": str(number)}, vector=[1.0, float(number)])
    async with opened(server, embedder="e", max_k=50) as engine:
        reply = await engine.retrieve(ask(k=50, mode="dense", vector=(1.0, 0.0)), call)
        assert (len(reply.hits), reply.exhausted) == (50, False)
        assert (server.last("Search").limit, server.last("Search").autocut) == (50, 0)
        reply = await engine.retrieve(ask(k=80, mode="sparse"), call)
        assert server.last("Search").limit == 50
        assert engine.capabilities().retrieve.max_k == 50  # type: ignore[union-attr]


@pytest.mark.anyio
async def test_values_come_back_as_json_has_them(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    server.create(Collection("Doc", PROPS))
    id = server.put(
        "Doc",
        {
            "text": "fox",
            "title": "Fox",
            "made": "2024-01-01T01:00:00.1234567+01:00",
            "seen": ["2024-01-01T00:00:00Z"],
            "owner": "4770bb19-20fd-406e-ac64-9dac54c27a0f",
            "spot": {"latitude": 52.5, "longitude": 13.25},
            "year": 2020,
            "rating": 3.0,
        },
        vector=[1.0, 0.5],
    )
    async with opened(server, embedder="e") as engine:
        (hit,) = await hits_of(engine, call, mode="sparse", include_vectors=True)
    assert hit.id == id
    assert text_of_hit(hit) == "fox"
    assert member(hit, "vector") == [1.0, 0.5]
    assert member(hit, "citation")["title"] == "Fox"
    assert meta_of(hit) == {
        "title": "Fox",
        "made": "2024-01-01T00:00:00.123456Z",
        "seen": ["2024-01-01T00:00:00Z"],
        "owner": "4770bb19-20fd-406e-ac64-9dac54c27a0f",
        "spot": {"lat": 52.5, "lon": 13.25},
        "year": 2020,
        "rating": 3.0,
    }


@pytest.mark.anyio
async def test_a_named_vector_comes_back_by_its_name(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    fill(server, vectors={"body": ("none", "cosine"), "head": ("none", "cosine")})
    async with opened(server, embedder="e", vector="head") as engine:
        hits = await hits_of(engine, call, mode="dense", vector=(1.0, 0.0), include_vectors=True, k=1)
        assert member(hits[0], "vector") == [1.0, 0.0]
        assert list(server.last("Search").metadata.vectors) == ["head"]
        assert list(server.last("Search").near_vector.targets.target_vectors) == ["head"]


@pytest.mark.anyio
async def test_records_without_a_text_stay_and_are_told_of_once(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    """R48: no crash, no hit lost, one note."""
    server.create(Collection("Doc", [*PROPS, Prop("body", "text")]))
    for properties in ({"text": "fox a"}, {"title": "fox"}, {"body": "fox c"}):
        server.put("Doc", properties, vector=[1.0, 0.0])
    async with opened(server, embedder="e", text_fields=("text", "body")) as engine:
        reply = await engine.retrieve(ask(mode="sparse"), call)
        assert sorted(str(text_of_hit(hit)) for hit in reply.hits) == ["None", "fox a", "fox c"]
        assert reply.notes == ("1 of 3 hits have no text under text or body",)
        reply = await engine.retrieve(ask(mode="sparse", include_text=False), call)
        assert [text_of_hit(hit) for hit in reply.hits] == [None] * 3
        assert reply.notes == ()


@pytest.mark.anyio
async def test_a_query_without_words_asks_nothing(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    fill(server)
    async with opened(server, embedder="e") as engine:
        before = len(server.requests)
        reply = await engine.retrieve(EngineQuery(text=" ", k=3, mode="sparse"), call)
        assert (reply.hits, reply.exhausted, len(server.requests)) == ((), True, before)
        reply = await engine.retrieve(EngineQuery(text="", k=3, mode="hybrid", vector=(1.0, 0.0)), call)
        assert reply.hits[0].id == "docs/near#0"


@pytest.mark.anyio
async def test_the_body_is_metadata_only_for_who_filters_on_it(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    fill(server)
    async with opened(server, embedder="e") as engine:
        assert "text" not in engine.capabilities().filter.fields  # type: ignore[union-attr]
        assert "text" not in meta_of((await hits_of(engine, call, mode="sparse"))[0])
    async with opened(server, embedder="e", fields={"text": FieldType.TEXT, "lang": None}) as engine:
        fields = engine.capabilities().filter.fields  # type: ignore[union-attr]
        assert fields["text"] == "text"
        assert "lang" not in fields
        tree = parse({"field": "text", "op": "contains", "value": "near f"}, fields)  # type: ignore[arg-type]
        assert tree is not None
        halves = engine.push_down(tree)
        hits = await hits_of(engine, call, mode="sparse", filter=halves.native, fields=halves.needs)
        assert [meta_of(hit)["text"] for hit in hits] == ["the near fox"]


@pytest.mark.anyio
async def test_a_vector_of_another_length_is_our_fault_and_not_retried(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    fill(server)
    from gateway.errors import UpstreamError

    async with opened(server, embedder="e") as engine:
        with pytest.raises(UpstreamError) as raised:
            await hits_of(engine, call, mode="dense", vector=(1.0, 0.0, 0.0))
        assert raised.value.retryable is False
        assert "lengths" in raised.value.detail
        assert sum(name == "Search" for name, _ in server.requests) == 1


@pytest.mark.anyio
async def test_whose_vectors_the_collection_holds_is_told_with_what_it_needs(
    server: WeaviateServer, opened: Opener
) -> None:
    fill(server)
    async with opened(server, embedder="e", embedder_identity="openai/m/2", dimension=2) as engine:
        assert engine.vector_need("dense") == VectorNeed("e", 2, "openai/m/2")
