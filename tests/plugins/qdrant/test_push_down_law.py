"""The push-down law, on the real engine: no document is lost and none is wrong, whatever payload index there is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import qdrant_edge as edge
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models

from gateway.federation.context import HostContext
from gateway.filters import Exact, FieldType, Filter, Op, compiled
from gateway.spi.engine import Engine
from gateway.spi.http import HttpSettings
from gateway.testing.filters import HARD_FIELDS, assert_push_down_law, filters, hard_documents
from gateway_qdrant.collection import Binding, Collection, Strict
from gateway_qdrant.convert import filter_of
from gateway_qdrant.engine import QdrantEngine, QdrantKind
from gateway_qdrant.filters import QdrantFilters
from gateway_qdrant.request import as_filter
from gateway_qdrant.settings import DenseSettings, FieldSettings, PayloadSettings, QdrantConfig, VectorSettings
from tests.plugins.qdrant.conftest import LIVE, StubCall, asked, collection, documents
from tests.servers.qdrant import qdrant_server

MATCHING = {"kw": "keyword", "n": "integer", "x": "float", "at": "datetime", "spot": "geo"}
FULL_TEXT = {"kw": "text", "txt": "text", "n": "integer", "x": "float", "at": "datetime"}
CONTRADICTING = {"kw": "integer", "txt": "integer", "n": "keyword", "x": "integer", "at": "keyword", "spot": "keyword"}
INDEXES: dict[str, Mapping[str, str]] = {
    "no index": {},
    "matching": MATCHING,
    "full text": FULL_TEXT,
    "contradicting": CONTRADICTING,
}

many = settings(
    max_examples=600,
    deadline=None,
    database=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def config_for(dates: str, **given: Any) -> QdrantConfig:
    fields = {
        name: FieldSettings(type=kind.value, dates=dates if kind is FieldType.DATE else "rfc3339")
        for name, kind in HARD_FIELDS.items()
    }
    return QdrantConfig(
        embedder="e",
        fields=fields,
        vectors=VectorSettings(dense=DenseSettings(dimension=2)),
        max_k=10_000,
        **given,
    )


class Bench:
    """An open engine over the hard documents, driven from a test that is not asynchronous."""

    def __init__(self, runner: asyncio.Runner, engine: Engine, metas: Sequence[Mapping[str, Any]]) -> None:
        self.engine = engine
        self.metas = metas
        self.shares: Counter[str] = Counter()
        self._run = runner.run

    def check(self, tree: Filter) -> None:
        pushed = self.engine.push_down(tree)
        self.shares["exact" if pushed.exact else "part" if pushed.native is not None else "none"] += 1
        if pushed.nothing:
            assert_push_down_law(tree, pushed, self.metas, ())
            return
        query = asked(mode="dense", vector=(1.0, 0.0), k=len(self.metas), filter=pushed.native, include_text=False)
        reply = self._run(self.engine.retrieve(query, StubCall()))
        assert_push_down_law(tree, pushed, self.metas, {int(hit.id[1:]) for hit in reply.hits})

    def told(self, what: str) -> None:
        total = sum(self.shares.values())
        print(f"{what}: {total} trees, {self.shares['exact'] / total:.0%} exact, {self.shares['none'] / total:.0%} none")


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str, str], Bench]]:
    """Benches by wire, index and encoding of dates; each is made once."""
    made: dict[tuple[str, str, str], Bench] = {}
    with asyncio.Runner() as runner, ExitStack() as stack:
        entered: list[AbstractAsyncContextManager[Any]] = []

        def enter(manager: AbstractAsyncContextManager[Any]) -> Any:
            value = runner.run(manager.__aenter__())
            entered.append(manager)
            return value

        def bench(wire: str, index: str, dates: str) -> Bench:
            key = (wire, index, dates)
            if key not in made:
                folder = tmp_path_factory.mktemp("law")
                metas = hard_documents(dates=dates)
                keys = {f"meta.{name}": kind for name, kind in INDEXES[index].items()}
                if index in ("matching", "full text") and dates == "epoch_ms":
                    keys["meta.at"] = "integer"
                host = HostContext("q", folder, http=HttpSettings())
                if wire == "edge":
                    path = folder / "q"
                    _prepared(path, keys)
                    config = config_for(dates, path=path, manage_indexes=False)
                else:
                    if wire == "rest":
                        url = stack.enter_context(qdrant_server()).url
                    else:
                        url = LIVE or ""
                    vectors = {"dense": models.VectorParams(size=2, distance=models.Distance.COSINE)}
                    if "meta.kw" in keys and index == "matching":
                        keys["meta.flag"] = "bool"
                    name, _ = enter(collection(url, vectors=vectors, indexes=keys))
                    config = config_for(dates, url=url, collection=name)
                engine = enter(QdrantKind().open(config, host))
                runner.run(engine.index_add(documents(metas), StubCall()))
                made[key] = Bench(runner, engine, metas)
            return made[key]

        yield bench
        for key, one in made.items():
            one.told(" / ".join(key))
        for manager in reversed(entered):
            runner.run(manager.__aexit__(None, None, None))


def _prepared(path: Path, keys: Mapping[str, str]) -> None:
    path.mkdir()
    dense = edge.EdgeVectorParams(2, edge.Distance.Cosine)
    shard = edge.EdgeShard.create(str(path), edge.EdgeConfig(vectors={"dense": dense}))
    for key, kind in keys.items():
        schema = getattr(edge.PayloadSchemaType, kind.capitalize())
        shard.update(edge.UpdateOperation.create_field_index(key, schema))
    shard.close()


@pytest.mark.parametrize("dates", ["rfc3339", "epoch_ms"])
@pytest.mark.parametrize("index", INDEXES)
def test_no_document_is_lost_or_wrong_on_the_embedded_engine(
    benches: Callable[[str, str, str], Bench], index: str, dates: str
) -> None:
    bench = benches("edge", index, dates)

    @many
    @given(filters())
    def law(tree: Filter) -> None:
        bench.check(tree)

    law()


@pytest.mark.parametrize("index", INDEXES)
def test_no_document_is_lost_or_wrong_over_rest(benches: Callable[[str, str, str], Bench], index: str) -> None:
    bench = benches("rest", index, "rfc3339")

    @settings(many, max_examples=150)
    @given(filters())
    def law(tree: Filter) -> None:
        bench.check(tree)

    law()


@pytest.mark.skipif(LIVE is None, reason="GATEWAY_TEST_QDRANT_URL is not set")
@pytest.mark.parametrize("index", INDEXES)
def test_no_document_is_lost_or_wrong_on_a_live_server(benches: Callable[[str, str, str], Bench], index: str) -> None:
    bench = benches("live", index, "rfc3339")

    @settings(many, max_examples=300)
    @given(filters())
    def law(tree: Filter) -> None:
        bench.check(tree)

    law()
