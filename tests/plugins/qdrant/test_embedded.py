"""The embedded engine (``path:``): search, writing, ownership, and what it says when something does not fit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any, TypeVar

import pytest
import qdrant_edge

from gateway.errors import BackendUnavailable, CallerError, ConfigError, PluginError, RcpError, UpstreamError
from gateway.federation.context import HostContext
from gateway.filters import FieldType, parse
from gateway.model import Document, MmrOptions, RecencyOptions, meta_of, text_of_hit
from gateway.spi.engine import EngineReply
from gateway.spi.http import HttpSettings
from gateway_qdrant.engine import QdrantKind
from gateway_qdrant.settings import (
    DenseSettings,
    FieldSettings,
    HybridSettings,
    PayloadSettings,
    QdrantConfig,
    SparseSettings,
    VectorSettings,
)
from tests.plugins.qdrant.conftest import Opened, StubCall, asked, documents

T = TypeVar("T")
pytestmark = pytest.mark.anyio

BOTH = VectorSettings(dense=DenseSettings(dimension=2), sparse=SparseSettings())
DENSE = VectorSettings(dense=DenseSettings(dimension=2))
SPARSE = VectorSettings(sparse=SparseSettings())

ANIMALS = [
    Document(id="fox", text="The quick brown fox jumps", meta={"n": 1, "lang": "en"}, vector=[1.0, 0.0]),
    Document(id="dog", text="A lazy dog sleeps", meta={"n": 2, "lang": "en"}, vector=[0.8, 0.6]),
    Document(id="Katze", text="Die Katze schläft, kein fox weit und breit, nur Wald", meta={"n": 3}, vector=[0.0, 1.0]),
]


def config(tmp_path: Path, vectors: VectorSettings = BOTH, **given: Any) -> QdrantConfig:
    embedder = "e" if vectors.dense is not None else None
    return QdrantConfig(path=tmp_path / "store", embedder=embedder, vectors=vectors, **given)


def ids(reply: EngineReply) -> list[str]:
    return [hit.id for hit in reply.hits]


async def test_each_mode_finds_the_best_document_first(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    async with opened(config(tmp_path)) as engine:
        await engine.index_add(ANIMALS, call)
        dense = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)
        sparse = await engine.retrieve(asked(mode="sparse"), call)
        hybrid = await engine.retrieve(asked(vector=(0.0, 1.0)), call)
    assert ids(dense) == ["fox", "dog", "Katze"]
    assert ids(sparse) == ["fox", "Katze"]
    assert ids(hybrid)[0] == "Katze"
    for reply in (dense, sparse, hybrid):
        scores = [hit.score for hit in reply.hits]
        assert scores == sorted(scores, reverse=True)
        assert reply.exhausted


async def test_a_document_comes_back_as_it_was_stored(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    meta = {
        "title": "Über Füchse",
        "uri": "file:///fox#1",
        "page": 3,
        "tags": ["a", None],
        "deep": {"er": [1, 2.5]},
        "n": 1,
    }
    given = Document(id="doc/1#äö", text="Füchse", meta=meta, vector=[1.0, 0.0])
    async with opened(config(tmp_path)) as engine:
        result = await engine.index_add([given], call)
        (hit,) = (await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), include_vectors=True), call)).hits
    assert result.ids == ("doc/1#äö",)
    assert hit.id == "doc/1#äö"
    assert text_of_hit(hit) == "Füchse"
    assert meta_of(hit) == meta
    assert hit.members["citation"] == {
        "uri": "file:///fox#1",
        "title": "Über Füchse",
        "page": 3,
    }
    assert hit.members["vector"] == [1.0, 0.0]


async def test_every_id_is_replaced_and_deleted_by_itself(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    wanted = [
        "doc/1#äö",
        "5",
        "05",
        "-1",
        str(2**64 - 1),
        str(2**64),
        str(uuid.uuid4()),
        str(uuid.uuid4()).upper(),
        " ",
    ]
    async with opened(config(tmp_path, DENSE)) as engine:
        for round_ in ("first", "second"):
            added = [Document(id=one, text=f"{round_} {one}", vector=[1.0, 0.0]) for one in wanted]
            assert (await engine.index_add(added, call)).ids == tuple(wanted)
        found = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), k=50), call)
        assert sorted(ids(found)) == sorted(wanted)
        assert all(str(text_of_hit(hit)).startswith("second") for hit in found.hits)
        assert await engine.index_delete([*wanted[:3], wanted[0], "never there"], call) == 3
        assert await engine.index_delete(wanted[:3], call) == 0
        assert len((await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), k=50), call)).hits) == len(wanted) - 3


async def test_documents_without_an_id_get_one_from_their_text_and_numbers_are_read_as_text(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    async with opened(config(tmp_path, DENSE)) as engine:
        added = [Document(id=one, text="t", vector=[1.0, 0.0]) for one in (None, None, 7, 7.0, 7.5)]
        result = await engine.index_add(added, call)
        assert await engine.index_delete(list(result.ids), call) == 3
    assert result.ids[0] == result.ids[1]
    assert result.ids[2:] == ("7", "7", "7.5")


async def test_batches_are_small_and_progress_is_told(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    added = [Document(id=f"d{n}", text=f"word{n} common", vector=[1.0, float(n)]) for n in range(300)]
    async with opened(config(tmp_path, batch=100)) as engine:
        await engine.index_add(added, call)
        found = await engine.retrieve(asked(text="common", mode="sparse", k=1_000), call)
    assert len(found.hits) == 300
    assert call.told == [(1 / 3, "index"), (2 / 3, "index"), (1.0, "index")]


async def test_what_was_stored_is_there_after_reopening(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    settings = config(tmp_path, fields={"n": "int", "lang": "keyword"})
    async with opened(settings) as engine:
        await engine.index_add(ANIMALS, call)
    async with opened(settings) as engine:
        found = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)
    assert ids(found) == ["fox", "dog", "Katze"]


async def test_what_was_stored_survives_a_kill(tmp_path: Path, opened: Opened, call: StubCall) -> None:
    """The write-ahead log, not the flush at the end, keeps what ``index/add`` has confirmed."""
    path = tmp_path / "store"
    code = f"""
import os, qdrant_edge as q
s = q.EdgeShard.create({str(path)!r}, q.EdgeConfig(vectors={{"dense": q.EdgeVectorParams(2, q.Distance.Cosine)}}))
s.update(q.UpdateOperation.upsert_points([q.Point(1, {{"dense": [1.0, 0.0]}}, {{"id": "kept", "text": "t"}})]))
os.kill(os.getpid(), 9)
"""
    path.mkdir()
    subprocess.run([sys.executable, "-c", code], check=False)
    async with opened(config(tmp_path, DENSE)) as engine:
        assert ids(await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)) == ["kept"]


async def test_a_second_process_is_told_that_the_folder_has_one_owner(opened: Opened, tmp_path: Path) -> None:
    settings = config(tmp_path)
    async with opened(settings):
        code = f"""
import asyncio
from pathlib import Path
from gateway.federation.context import HostContext
from gateway.spi.http import HttpSettings
from gateway_qdrant.engine import QdrantKind
from gateway_qdrant.settings import *
async def main():
    config = QdrantConfig(path=Path({str(tmp_path / "store")!r}), vectors=VectorSettings(sparse=SparseSettings()))
    async with QdrantKind().open(config, HostContext("q", Path("."), http=HttpSettings())):
        pass
asyncio.run(main())
"""
        root = Path(__file__).parents[3]
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": f"{root}:{root / 'plugins'}"},
            check=False,
        )
        with pytest.raises(BackendUnavailable, match="has one owner at a time") as caught:
            async with opened(settings):
                pass
    assert "one owner at a time" in done.stderr
    assert "--url" in done.stderr
    assert caught.value.retryable
    async with opened(settings):  # the failed attempts have taken nothing with them
        pass


async def test_an_engine_that_is_left_by_cancellation_frees_its_folder(opened: Opened, tmp_path: Path) -> None:
    settings, inside = config(tmp_path, DENSE), asyncio.Event()

    async def hold() -> None:
        async with opened(settings):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with opened(settings):
        pass


async def test_a_call_on_a_closed_engine_fails_cleanly(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    async with opened(config(tmp_path, DENSE)) as engine:
        await engine.ping(call)
    with pytest.raises(BackendUnavailable, match="closed"):
        await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)


async def test_another_dimension_or_vector_than_the_collection_has_is_named(opened: Opened, tmp_path: Path) -> None:
    async with opened(config(tmp_path, DENSE)):
        pass
    for vectors, told in (
        (VectorSettings(dense=DenseSettings(dimension=3)), "has 2 dimensions, not 3"),
        (VectorSettings(dense=DenseSettings(name="title", dimension=2)), "no dense vector 'title'; it has 'dense'"),
        (VectorSettings(dense=DenseSettings(dimension=2, distance="dot")), "by cosine, not dot"),
        (BOTH, "no sparse vector; it has none"),
    ):
        with pytest.raises(ConfigError, match=told):
            async with opened(config(tmp_path, vectors)):
                pass
    async with opened(config(tmp_path, DENSE)):  # nothing above has kept the folder
        pass


async def test_a_vector_of_another_dimension_is_refused_before_anything_is_stored(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    async with opened(config(tmp_path, DENSE)) as engine:
        good = Document(id="good", text="t", vector=[1.0, 0.0])
        for vector in ([1.0, 0.0, 0.0], None):
            with pytest.raises(UpstreamError, match=r"dimensions and the collection 2: use the embedder"):
                await engine.index_add([good, Document(id="bad", text="t", vector=vector)], call)
        with pytest.raises(UpstreamError, match="the query vector has 3 dimensions and the collection 2"):
            await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0, 0.0)), call)
        assert not (await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)).hits


async def test_creating_without_a_dimension_says_what_is_missing(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needed to create") as caught:
        async with opened(config(tmp_path, VectorSettings(dense=DenseSettings()))):
            pass
    assert caught.value.path == "vectors.dense.dimension"


async def test_an_unknown_language_is_a_configuration_error(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="klingon"):
        async with opened(config(tmp_path, VectorSettings(sparse=SparseSettings(language="klingon")))):
            pass


async def test_a_missing_package_names_the_extra(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_edge", None)
    with pytest.raises(PluginError, match=r'pip install "rcp-gateway\[local\]"'):
        async with opened(config(tmp_path)):
            pass


async def test_no_call_of_the_engine_runs_on_the_event_loop(
    tmp_path: Path, call: StubCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: the engine's calls block, so a query that takes long must cost nobody else anything."""
    threads: set[threading.Thread] = set()

    class Watched:
        def __init__(self, shard: Any) -> None:
            self._shard = shard

        def __getattr__(self, name: str) -> Any:
            threads.add(threading.current_thread())
            return getattr(self._shard, name)

    class Shards:
        @staticmethod
        def create(*given: Any) -> Watched:
            threads.add(threading.current_thread())
            return Watched(real.create(*given))

    real = qdrant_edge.EdgeShard
    monkeypatch.setattr(qdrant_edge, "EdgeShard", Shards)
    host = HostContext("q", tmp_path, http=HttpSettings())
    async with QdrantKind().open(config(tmp_path), host) as engine:
        await engine.index_add(ANIMALS, call)
        await asyncio.gather(*(engine.retrieve(asked(vector=(1.0, 0.0)), call) for _ in range(20)))
        await engine.index_delete(["fox"], call)
        await engine.ping(call)
    assert threads
    assert threading.main_thread() not in threads


async def test_concurrent_reading_and_writing_lose_nothing(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    async with opened(config(tmp_path)) as engine:

        async def write(start: int) -> None:
            added = [Document(id=f"d{n}", text="common", vector=[1.0, 0.0]) for n in range(start, start + 50)]
            await engine.index_add(added, call)

        async def read() -> None:
            await engine.retrieve(asked(text="common", vector=(1.0, 0.0), k=50), call)

        await asyncio.gather(*(write(start) for start in range(0, 400, 50)), *(read() for _ in range(40)))
        found = await engine.retrieve(asked(text="common", mode="sparse", k=1_000), call)
    assert len(found.hits) == 400


async def test_a_query_without_a_word_finds_nothing_and_says_why(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    async with opened(config(tmp_path)) as engine:
        await engine.index_add(ANIMALS, call)
        reply = await engine.retrieve(asked(text="the, of; ?!", mode="sparse"), call)
        hybrid = await engine.retrieve(asked(text="", vector=(1.0, 0.0)), call)
    assert (ids(reply), reply.exhausted) == ([], True)
    assert "no word" in reply.notes[0]
    assert ids(hybrid) == ["fox", "dog", "Katze"]


async def test_hybrid_scores_are_reciprocal_ranks_counted_from_one(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    async with opened(config(tmp_path, hybrid=HybridSettings(rrf_k=10))) as engine:
        await engine.index_add(ANIMALS, call)
        reply = await engine.retrieve(asked(vector=(1.0, 0.0)), call)
    assert [round(hit.score or 0, 6) for hit in reply.hits] == [
        round(2 / 11, 6),
        round(1 / 12 + 1 / 13, 6),
        round(1 / 12, 6),
    ]


async def test_weights_move_the_fused_order(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    firsts = {}
    for name, weights in (("dense", {"dense_weight": 9.0}), ("sparse", {"sparse_weight": 9.0})):
        settings = config(tmp_path, hybrid=HybridSettings(rrf_k=0, **weights))
        async with opened(settings) as engine:
            await engine.index_add(ANIMALS, call)
            reply = await engine.retrieve(asked(text="quick brown", vector=(0.0, 1.0)), call)
            firsts[name] = reply.hits[0].id
    assert firsts == {"dense": "Katze", "sparse": "fox"}


async def test_dbsf_is_served_when_configured(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    async with opened(config(tmp_path, hybrid=HybridSettings(fusion="dbsf"))) as engine:
        await engine.index_add(ANIMALS, call)
        assert ids(await engine.retrieve(asked(vector=(1.0, 0.0)), call))[0] == "fox"


async def test_a_mode_that_is_not_configured_is_refused_by_name(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    async with opened(config(tmp_path, SPARSE)) as engine:
        assert engine.vector_need(None) is None
        assert engine.document_need() is None
        with pytest.raises(CallerError) as caught:
            await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)
    assert caught.value.code == -32005
    assert caught.value.data["option"] == "dense"


async def test_the_embedder_and_dimension_that_are_needed_are_told_per_mode(opened: Opened, tmp_path: Path) -> None:
    async with opened(config(tmp_path)) as engine:
        assert engine.vector_need("sparse") is None
        for need in (engine.vector_need("dense"), engine.vector_need("hybrid"), engine.vector_need(None)):
            assert need is not None
            assert (need.embedder, need.dimension) == ("e", 2)
        assert engine.sparse_need("hybrid") is None  # its own BM25 makes the sparse side
        assert engine.document_need() == engine.vector_need("dense")


async def test_capabilities_follow_the_settings(opened: Opened, tmp_path: Path) -> None:
    settings = config(tmp_path, fields={"n": "int", "made": FieldSettings(type="date")}, max_k=77)
    async with opened(settings) as engine:
        found = engine.capabilities()
    assert found.retrieve is not None
    assert found.retrieve.modes == ("dense", "sparse", "hybrid")
    assert found.retrieve.default_mode == "hybrid"
    assert found.retrieve.max_k == 77
    assert found.index is not None
    assert found.filter is not None
    assert found.filter.fields == {"n": "int", "made": "date"}
    assert QdrantKind().offers(settings).filter == found.filter
    async with opened(QdrantConfig(path=tmp_path / "s", vectors=SPARSE, writable=False)) as engine:
        found = engine.capabilities()
    assert found.index is None
    assert found.retrieve is not None
    assert (found.retrieve.score_scale, found.retrieve.score_floor) == ("bm25", 0.0)


@pytest.mark.parametrize("distance", ["cosine", "dot", "euclid", "manhattan"])
async def test_the_nearest_has_the_largest_score_whatever_the_distance(
    opened: Opened, tmp_path: Path, call: StubCall, distance: Any
) -> None:
    """R18: distances are turned round."""
    vectors = VectorSettings(dense=DenseSettings(dimension=2, distance=distance))
    async with opened(config(tmp_path, vectors)) as engine:
        added = [
            Document(id=name, text="t", vector=[x, y]) for name, x, y in (("a", 4, 0.1), ("b", 3, 2), ("c", -1, 3))
        ]
        await engine.index_add(added, call)
        reply = await engine.retrieve(asked(mode="dense", vector=(4.0, 0.1)), call)
        capabilities = engine.capabilities().retrieve
    scores = [hit.score for hit in reply.hits]
    assert ids(reply) == ["a", "b", "c"]
    assert scores == sorted(scores, reverse=True)
    assert capabilities is not None
    if distance == "euclid":
        assert scores[0] == 0.0
        assert str(scores[0]) == "0.0"
    assert capabilities.score_floor == (-1.0 if distance == "cosine" else None)


async def test_native_mmr_puts_a_different_document_before_a_repetition(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    async with opened(config(tmp_path, DENSE, native=("mmr",))) as engine:
        added = [
            Document(id=name, text="t", vector=vector)
            for name, vector in (("first", [1.0, 0.0]), ("again", [1.0, 0.01]), ("other", [0.7, -0.7]))
        ]
        await engine.index_add(added, call)
        plain = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.05)), call)
        diverse = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.05), mmr=MmrOptions(lambda_=0.3)), call)
        kept = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.05), mmr=MmrOptions(lambda_=1.0)), call)
    assert ids(plain) == ids(kept) == ["again", "first", "other"]
    assert ids(diverse) == ["again", "other", "first"]


async def test_native_recency_puts_the_newer_of_two_equals_first_and_needs_no_date(
    tmp_path: Path, call: StubCall
) -> None:
    class Later(HostContext):
        def now(self) -> float:
            return 1_704_067_200.0  # 2024-01-01

    settings = config(tmp_path, native=("recency",), fields={"made": "date"})
    async with QdrantKind().open(settings, Later("q", tmp_path, http=HttpSettings())) as engine:
        dates = {"old": "2020-01-01T00:00:00Z", "new": "2023-12-31T00:00:00Z", "none": None}
        added = [
            Document(id=name, text="fox", vector=[1.0, 0.0], meta={"made": date} if date else {})
            for name, date in dates.items()
        ]
        await engine.index_add(added, call)
        recency = RecencyOptions(field="made", half_life_days=30)
        for mode in ("dense", "sparse", "hybrid"):
            reply = await engine.retrieve(asked(mode=mode, vector=(1.0, 0.0), recency=recency), call)
            assert ids(reply)[0] == "new", mode
            assert sorted(ids(reply)) == ["new", "none", "old"]
            if mode == "dense":
                assert ids(reply) == ["new", "none", "old"]
                assert reply.hits[1].score == pytest.approx(0.5)
        with pytest.raises(RcpError) as caught:
            await engine.retrieve(asked(vector=(1.0, 0.0), recency=RecencyOptions(field="nowhere")), call)
    assert caught.value.code == -32005


async def test_flat_metadata_is_read_and_written_beside_the_text(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    layout = PayloadSettings(id="_id", text=("content", "body"), meta="")
    settings = config(tmp_path, DENSE, payload=layout, fields={"lang": "keyword"})
    async with opened(settings) as engine:
        given = Document(id="a", text="t", meta={"lang": "en", "n": 1}, vector=[1.0, 0.0])
        await engine.index_add([given], call)
        tree = parse({"field": "lang", "op": "eq", "value": "en"}, {"lang": FieldType.KEYWORD})
        assert tree is not None
        pushed = engine.push_down(tree)
        (hit,) = (await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), filter=pushed.native), call)).hits
        with pytest.raises(CallerError, match="body"):
            await engine.index_add([Document(id="b", text="t", meta={"body": "x"}, vector=[1.0, 0.0])], call)
    assert pushed.native == {"key": "lang", "match": {"value": "en"}}
    assert pushed.exact
    assert (hit.id, text_of_hit(hit), meta_of(hit)) == ("a", "t", {"lang": "en", "n": 1})


async def test_field_names_are_keys_and_not_paths_unless_a_path_is_given(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    metas: list[dict[str, Any]] = [{"a.b": 1}, {"a": {"b": 1}}, {"é x": 1}, {"$x[0]": 1}, {'q"t': 1}, {"b\\s": 1}, {}]
    names = ["a.b", "é x", "$x[0]", 'q"t', "b\\s"]
    fields: dict[str, Any] = {**dict.fromkeys(names, "int"), "inner": FieldSettings(type="int", path="meta.a.b")}
    async with opened(config(tmp_path, DENSE, fields=fields)) as engine:
        await engine.index_add(documents(metas), call)
        for name, wanted in zip([*names, "inner"], ["d0", "d2", "d3", "d4", "d5", "d1"], strict=True):
            tree = parse({"field": name, "op": "eq", "value": 1}, {name: FieldType.INT})
            assert tree is not None
            pushed = engine.push_down(tree)
            reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), filter=pushed.native), call)
            if '"' in name or "\\" in name:
                assert pushed.native is None
                assert pushed.residual == tree
                assert wanted in ids(reply)
            else:
                assert pushed.exact
                assert ids(reply) == [wanted]
            if name == "inner":
                assert meta_of(reply.hits[0]) == {"a": {"b": 1}, "inner": 1}


async def test_declared_fields_are_indexed_and_a_changed_type_is_indexed_anew(
    opened: Opened, tmp_path: Path, call: StubCall, caplog: pytest.LogCaptureFixture
) -> None:
    tree = parse({"field": "v", "op": "eq", "value": 1}, {"v": FieldType.INT})
    assert tree is not None
    async with opened(config(tmp_path, DENSE, fields={"v": "keyword"})) as engine:
        await engine.index_add(documents([{"v": 1}, {"v": "1"}]), call)
        assert engine.push_down(tree).native is None  # read against another type than is stored here
    async with opened(config(tmp_path, DENSE, fields={"v": "int"})) as engine:
        pushed = engine.push_down(tree)
        reply = await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0), filter=pushed.native), call)
    assert ids(reply) == ["d0"]
    assert not caplog.records


async def test_the_window_follows_what_is_asked_for(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    """R22: no default of the engine's cuts a deeper search short, in any mode."""
    added = [Document(id=f"d{n}", text="common" + " word" * n, vector=[1.0, n / 100]) for n in range(120)]
    async with opened(config(tmp_path)) as engine:
        await engine.index_add(added, call)
        for mode in ("dense", "sparse", "hybrid"):
            reply = await engine.retrieve(asked(text="common", mode=mode, vector=(1.0, 0.0), k=100), call)
            assert (len(reply.hits), reply.exhausted) == (100, False)
            less = await engine.retrieve(asked(text="common", mode=mode, vector=(1.0, 0.0), k=7, candidate_k=100), call)
            assert ids(less) == ids(reply)[:7]


async def test_text_can_be_left_out(opened: Opened, tmp_path: Path, call: StubCall) -> None:
    async with opened(config(tmp_path)) as engine:
        await engine.index_add(ANIMALS, call)
        reply = await engine.retrieve(asked(vector=(1.0, 0.0), include_text=False), call)
    assert [text_of_hit(hit) for hit in reply.hits] == [None] * 3
    assert not reply.notes
    assert meta_of(reply.hits[0]) == {"n": 1, "lang": "en"}


async def test_a_damaged_folder_is_a_clear_error_and_never_more_than_that(
    opened: Opened, tmp_path: Path, call: StubCall
) -> None:
    """The engine panics over some damage, with an exception that ``except Exception`` does not see."""
    settings = config(tmp_path, DENSE)
    async with opened(settings) as engine:
        await engine.index_add(documents([{}, {}]), call)
    (status,) = (tmp_path / "store").glob("segments/*/vector_storage-dense/deleted/status.dat")
    for damaged in (status, tmp_path / "store" / "edge_config.json"):
        damaged.write_bytes(b"")
        with pytest.raises(ConfigError, match="cannot be opened") as caught:
            async with opened(settings):
                pass
        assert caught.value.path == "path"


async def test_a_panic_during_a_call_costs_that_call_only(
    opened: Opened, tmp_path: Path, call: StubCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """As the engine's binding names it."""

    def panicking(*_: Any) -> None:
        raise PanicException("index out of bounds")

    async with opened(config(tmp_path, DENSE)) as engine:
        await engine.index_add(documents([{}]), call)
        with monkeypatch.context() as patched:
            patched.setattr("gateway_qdrant.convert.query_request", panicking)
            with pytest.raises(BackendUnavailable, match="engine failed"):
                await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)
        assert ids(await engine.retrieve(asked(mode="dense", vector=(1.0, 0.0)), call)) == ["d0"]


async def test_a_path_that_is_a_file_is_a_configuration_error(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(ConfigError, match="cannot be used as a folder"):
        async with opened(config(tmp_path, DENSE)):
            pass
