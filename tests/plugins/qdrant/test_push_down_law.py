"""The push-down law, on the real engine: no document is lost and none is wrong, whatever payload index there is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import qdrant_edge as edge
from hypothesis import HealthCheck, Phase, given, settings
from qdrant_client import QdrantClient, models

from gateway.federation.context import HostContext
from gateway.filters import Condition, Exact, FieldType, Filter, Op, Pushdown, leaves, parse
from gateway.spi.http import HttpSettings
from gateway.testing.filters import (
    HARD_FIELDS,
    MISFIT_DOCUMENTS,
    Document,
    assert_push_down_law,
    distribution,
    filters,
    hard_documents,
)
from gateway_qdrant.collection import Binding, Collection, bind
from gateway_qdrant.convert import filter_of
from gateway_qdrant.edge import EdgeWire
from gateway_qdrant.engine import QdrantKind
from gateway_qdrant.filters import QdrantFilters, conditions_in
from gateway_qdrant.request import as_filter
from gateway_qdrant.settings import DenseSettings, FieldSettings, QdrantConfig, VectorSettings
from tests.plugins.qdrant.conftest import LIVE, StubCall, asked, collection, documents
from tests.servers.qdrant import qdrant_server

MATCHING = {
    "kw": "keyword",
    "txt": "prefix",
    "n": "integer",
    "x": "float",
    "flag": "bool",
    "at": "datetime",
    "spot": "geo",
}
FULL_TEXT = {"kw": "text", "txt": "text", "n": "integer", "x": "float", "at": "datetime"}
CONTRADICTING = {"kw": "integer", "txt": "integer", "n": "keyword", "x": "integer", "at": "keyword", "spot": "keyword"}
INDEXES: Mapping[str, Mapping[str, str]] = {
    "no index": {},
    "matching": MATCHING,
    "full text": FULL_TEXT,
    "contradicting": CONTRADICTING,
}
DENSE = {"dense": models.VectorParams(size=2, distance=models.Distance.COSINE)}


@cache
def trees(count: int = 450) -> tuple[Filter, ...]:
    """Random trees, the same in every run."""
    made: list[Filter] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(filters())
    def collect(tree: Filter) -> None:
        made.append(tree)

    collect()
    return tuple(made)


@cache
def corpus(dates: str) -> tuple[Document, ...]:
    """The hard documents, and misfits that JSON can hold and that are of the encoding."""
    odd = [one for one in MISFIT_DOCUMENTS if "n" in one or (dates == "rfc3339" and isinstance(one.get("at"), str))]
    return (*hard_documents(dates=dates), *odd)


def keys(index: str, dates: str) -> dict[str, str]:
    kinds = dict(INDEXES[index])
    if dates == "epoch_ms" and kinds.get("at") == "datetime":
        kinds["at"] = "integer"
    return {f"meta.{name}": kind for name, kind in kinds.items()}


def config_for(dates: str = "rfc3339", *, clean: bool = False, **given: Any) -> QdrantConfig:
    fields = {name: FieldSettings(type=kind.value, dates=dates, clean=clean) for name, kind in HARD_FIELDS.items()}
    vectors = VectorSettings(dense=DenseSettings(dimension=2))
    return QdrantConfig(embedder="e", fields=fields, vectors=vectors, max_k=10_000, writable=True, **given)


class Shares:
    """How much of the trees could be pushed."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def count(self, pushed: Pushdown[Any]) -> None:
        self.counted["exact" if pushed.exact else "part" if pushed.native is not None else "none"] += 1

    def told(self, what: str) -> None:
        total = sum(self.counted.values())
        shares = ", ".join(f"{self.counted[name] / total:.0%} {name}" for name in ("exact", "part", "none"))
        print(f"\n{what}: {total} trees, {shares}\n{distribution(trees())}")


class Shard:
    """The embedded engine over documents, with payload indexes of the test's choice."""

    def __init__(self, folder: Path, metas: Sequence[Document], indexes: Mapping[str, str]) -> None:
        dense = edge.EdgeVectorParams(2, edge.Distance.Cosine)
        self.metas = metas
        self.shard = edge.EdgeShard.create(str(folder), edge.EdgeConfig(vectors={"dense": dense}))
        points = [edge.Point(number, {"dense": [1.0, 0.0]}, {"meta": meta}) for number, meta in enumerate(metas)]
        half = len(points) // 2
        self.shard.update(edge.UpdateOperation.upsert_points(points[:half]))
        # Half before the indexes and half after, as in a collection that lives.
        for key, kind in indexes.items():
            prefix = kind == "prefix"
            schema = edge.KeywordIndexParams(prefix=True) if prefix else getattr(edge.PayloadSchemaType, kind.title())
            self.shard.update(edge.UpdateOperation.create_field_index(key, schema))
        self.shard.update(edge.UpdateOperation.upsert_points(points[half:]))
        host = HostContext("q", folder, http=HttpSettings())
        self.found: Collection = asyncio.run(EdgeWire(edge, self.shard, folder, host).describe())

    def select(self, native: Mapping[str, Any] | None) -> set[int]:
        asked_for = None if native is None else filter_of(edge, as_filter(native))
        found, _ = self.shard.scroll(edge.ScrollRequest(limit=10_000, filter=asked_for, with_payload=False))
        return {one.id for one in found}

    def check(self, tree: Filter, pushed: Pushdown[Any]) -> None:
        returned = set() if pushed.nothing else self.select(pushed.native)
        assert_push_down_law(tree, pushed, self.metas, returned)


@pytest.mark.parametrize("dates", ["rfc3339", "epoch_ms"])
@pytest.mark.parametrize("index", INDEXES)
def test_no_document_is_lost_or_wrong_on_the_embedded_engine(tmp_path: Path, index: str, dates: str) -> None:
    shard, shares = Shard(tmp_path, corpus(dates), keys(index, dates)), Shares()
    bindings, warnings = bind(config_for(dates, path=tmp_path), shard.found)
    compiler = QdrantFilters(bindings, shard.found)
    for tree in trees():
        pushed = compiler.push_down(tree)
        shares.count(pushed)
        shard.check(tree, pushed)
    shares.told(f"embedded, {index}, {dates}")
    shard.shard.close()
    assert (index == "contradicting") is any("payload index of type" in one for one in warnings)


def test_a_field_that_is_clean_is_pushed_whole(tmp_path: Path) -> None:
    strays = [" ", "T00:00+", "T00:00\n", "soon", "\n", "60Z"]
    clean = [
        meta
        for meta in hard_documents(dates="rfc3339")
        if not any(
            isinstance(value, str) and any(stray in value for stray in strays)
            for value in (meta.get("at") if isinstance(meta.get("at"), list) else [meta.get("at")])
        )
    ]
    shard, shares = Shard(tmp_path, clean, keys("matching", "rfc3339")), Shares()
    bindings, _ = bind(config_for(clean=True, path=tmp_path), shard.found)
    compiler = QdrantFilters(bindings, shard.found)
    pushable = [
        tree
        for tree in trees()
        if not any(
            leaf.type is FieldType.BOOL or (leaf.op is Op.CONTAINS and leaf.value == "") for leaf in leaves(tree)
        )
    ]
    for tree in pushable:
        pushed = compiler.push_down(tree)
        shares.count(pushed)
        shard.check(tree, pushed)
    shares.told("embedded, clean fields without booleans")
    shard.shard.close()
    assert len(pushable) > 250
    assert shares.counted["exact"] == len(pushable)


@pytest.mark.parametrize("index", ["no index", "matching"])
@pytest.mark.parametrize("dates", ["rfc3339", "epoch_ms"])
def test_long_lists_lose_nothing_and_stay_cheap(tmp_path: Path, index: str, dates: str) -> None:
    """Thousands of ranges would read every payload thousands of times."""
    shard = Shard(tmp_path, corpus(dates), keys(index, dates))
    bindings, _ = bind(config_for(dates, path=tmp_path), shard.found)
    compiler = QdrantFilters(bindings, shard.found)
    lists: dict[str, list[Any]] = {
        "kw": ["a", *(f"k{n}" for n in range(5_000))],
        "n": [40, 2**31, -1, *range(3, 5_000)],
        "x": [1.5, -1.5, *(n / 7 for n in range(5_000))],
        "at": ["2024-01-01T00:00:00.000001Z", *(f"2024-01-01T{n // 60:02}:{n % 60:02}:00Z" for n in range(1_000))],
    }
    for field, values in lists.items():
        for op in ("in", "nin"):
            tree = parse({"field": field, "op": op, "value": values}, HARD_FIELDS)
            assert tree is not None
            pushed = compiler.push_down(tree)
            shard.check(tree, pushed)
            conditions, _ = conditions_in(pushed.native)
            assert conditions <= 1
            assert pushed.exact is (field == "kw" or (field == "n" and index == "matching"))
    shard.shard.close()


def _over_rest(url: str, index: str, count: int, folder: Path) -> Shares:
    """Through the whole adapter: what the engine pushed, sent, and read back."""
    shares = Shares()

    async def run() -> None:
        metas = corpus("rfc3339")
        kinds = {key: kind.replace("prefix", "keyword") for key, kind in keys(index, "rfc3339").items()}
        async with collection(url, vectors=DENSE, indexes=kinds) as (name, _):
            host = HostContext("q", folder, http=HttpSettings())
            async with QdrantKind().open(config_for(url=url, collection=name), host) as engine:
                await engine.index_add(documents(metas), StubCall())
                for tree in trees()[:count]:
                    pushed = engine.push_down(tree)
                    shares.count(pushed)
                    if pushed.nothing:
                        continue
                    query = asked(mode="dense", vector=(1.0, 0.0), k=len(metas), filter=pushed.native)
                    reply = await engine.retrieve(query, StubCall())
                    assert_push_down_law(tree, pushed, metas, {int(hit.id[1:]) for hit in reply.hits})

    asyncio.run(run())
    return shares


@pytest.mark.parametrize("index", INDEXES)
def test_no_document_is_lost_or_wrong_over_rest(index: str, tmp_path: Path) -> None:
    with qdrant_server() as server:
        _over_rest(server.url, index, 50, tmp_path).told(f"REST, {index}")


@pytest.mark.skipif(LIVE is None, reason="GATEWAY_TEST_QDRANT_URL is not set")
@pytest.mark.parametrize("index", INDEXES)
def test_no_document_is_lost_or_wrong_on_a_live_server(index: str, tmp_path: Path) -> None:
    _over_rest(LIVE or "", index, 300, tmp_path).told(f"live, {index}")


def test_booleans_select_the_same_on_another_implementation() -> None:
    """The embedded engine reads booleans as integers; the official client's local mode does not."""
    metas = corpus("rfc3339")
    client = QdrantClient(":memory:")
    client.create_collection("c", vectors_config=DENSE["dense"])
    client.upsert("c", [models.PointStruct(id=n, vector=[1.0, 0.0], payload={"meta": m}) for n, m in enumerate(metas)])
    compiler = QdrantFilters(
        {"flag": Binding(type="bool", key="meta.flag"), "kw": Binding(type="keyword", key="meta.kw")},
        Collection(dense={}, sparse={}),
    )
    checked = 0
    for tree in trees():
        names = {leaf.field for leaf in leaves(tree)}
        if "flag" not in names:
            continue
        pushed = compiler.push_down(tree)
        if pushed.native is None:
            continue
        native = models.Filter.model_validate(as_filter(pushed.native))
        found, _ = client.scroll("c", scroll_filter=native, limit=10_000)
        assert_push_down_law(tree, pushed, metas, {int(one.id) for one in found})
        checked += 1
    client.close()
    print(f"\n:memory:, {checked} trees with booleans")
    assert checked > 30


# A mutant is a translation that others really use; each must be found out by the law.


class _Except(QdrantFilters):
    """``ne`` and ``nin`` as ``match.except``, as llama-index has it."""

    def violating(self, c: Condition) -> Exact[dict[str, Any]] | None:
        bound = super().violating(c)
        if c.op in (Op.EQ, Op.IN) and c.type is FieldType.KEYWORD and bound is not None:
            return Exact({"key": self._bindings[c.field].key, "match": {"except": list(c.values)}})
        return bound


class _NoEmptyArm(QdrantFilters):
    """A negation that demands the field, as stores with three-valued logic have it."""

    def violating(self, c: Condition) -> Exact[dict[str, Any]] | None:
        bound = super().violating(c)
        if bound is None or c.op is Op.EXISTS:
            return bound
        key = self._bindings[c.field].key
        return Exact({"must": [bound.native, {"must_not": [{"is_empty": {"key": key}}]}]})


class _MergedBounds(QdrantFilters):
    """Two bounds in one range, which one element of an array would have to meet."""

    def all_of(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        merged: dict[str, dict[str, Any]] = {}
        rest = []
        for part in parts:
            if "range" in part:
                merged.setdefault(part["key"], {}).update(part["range"])
            else:
                rest.append(part)
        return super().all_of([*rest, *({"key": key, "range": bounds} for key, bounds in merged.items())])


class _MatchNumbers(QdrantFilters):
    """``match`` for whole numbers, which misses 1.0."""

    def _positive(self, c: Condition) -> dict[str, Any] | None:
        if c.type in (FieldType.INT, FieldType.FLOAT) and c.op is Op.EQ and float(c.values[0]).is_integer():
            return {"key": self._bindings[c.field].key, "match": {"value": int(c.values[0])}}
        return super()._positive(c)


class _DatesAsText(QdrantFilters):
    """A date compared by its spelling."""

    def _positive(self, c: Condition) -> dict[str, Any] | None:
        native = super()._positive(c)
        if native is not None and c.type is FieldType.DATE and c.op is Op.EQ:
            return {"key": native["key"], "match": {"value": native["range"]["gte"]}}
        return native


class _FlippedOrder(QdrantFilters):
    """Not greater as less or equal, or missing."""

    def violating(self, c: Condition) -> Exact[dict[str, Any]] | None:
        if c.op is Op.GT and c.type is FieldType.FLOAT:
            key = self._bindings[c.field].key
            flipped = {"key": key, "range": {"lte": c.values[0]}}
            return Exact({"should": [flipped, {"is_empty": {"key": key}}]})
        return super().violating(c)


class _NegatedLoose(QdrantFilters):
    """The complement of a superset."""

    def _same_reading(self, c: Condition) -> bool:
        return True


MUTANTS = [_Except, _NoEmptyArm, _MergedBounds, _MatchNumbers, _DatesAsText, _FlippedOrder, _NegatedLoose]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_translation_is_found_out(tmp_path: Path, mutant: type[QdrantFilters]) -> None:
    shard = Shard(tmp_path, corpus("rfc3339"), {})
    bindings, _ = bind(config_for(path=tmp_path), shard.found)
    compiler = mutant(bindings, shard.found)
    try:
        with pytest.raises(AssertionError, match=r"unsound|not the filter"):
            for tree in trees():
                pushed = compiler.push_down(tree)
                native = pushed.native
                returned = _select_raw(shard, native) if not pushed.nothing else set()
                assert_push_down_law(tree, pushed, shard.metas, returned)
    finally:
        shard.shard.close()


def test_pushing_under_a_contradicting_index_is_found_out(tmp_path: Path) -> None:
    shard = Shard(tmp_path, corpus("rfc3339"), keys("contradicting", "rfc3339"))
    bindings = {name: Binding(type=kind.value, key=f"meta.{name}", clean=True) for name, kind in HARD_FIELDS.items()}
    compiler = QdrantFilters(bindings, shard.found)
    try:
        with pytest.raises(AssertionError, match="unsound"):
            for tree in trees():
                shard.check(tree, compiler.push_down(tree))
    finally:
        shard.shard.close()


def _select_raw(shard: Shard, native: dict[str, Any] | None) -> set[int]:
    """Like ``select``, for natives that the converter would refuse."""
    if native is None or "except" not in repr(native):
        return shard.select(native)
    found, _ = shard.shard.scroll(
        edge.ScrollRequest(limit=10_000, filter=edge.Filter(must=[_raw(native)]), with_payload=False)
    )
    return {one.id for one in found}


def _raw(native: Mapping[str, Any]) -> Any:
    if "except" in native.get("match", {}):
        return edge.FieldCondition(native["key"], match=edge.MatchExcept(native["match"]["except"]))
    if native.keys() & {"must", "should", "must_not"}:
        return edge.Filter(**{clause: [_raw(part) for part in parts] for clause, parts in native.items()})
    return filter_of(edge, {"must": [native]})


def test_no_empty_clause_and_no_forbidden_condition_is_ever_emitted() -> None:
    bindings = {name: Binding(type=kind.value, key=f"meta.{name}") for name, kind in HARD_FIELDS.items()}
    compiler = QdrantFilters(bindings, Collection(dense={}, sparse={}))
    adapter = models.Filter
    for tree in trees():
        native = compiler.push_down(tree).native
        if native is None:
            continue
        adapter.model_validate(as_filter(native))
        for part in _parts(as_filter(native)):
            assert all(part.get(clause, [1]) for clause in ("must", "should", "must_not"))
            assert "is_null" not in part
            assert not part.get("match", {}).keys() & {"except", "text", "phrase", "text_any"}
            assert not ("match" in part and "range" in part)


def _parts(native: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield native
    for clause in ("must", "should", "must_not"):
        for part in native.get(clause, ()):
            yield from _parts(part)
