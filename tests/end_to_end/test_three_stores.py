"""One filter over Qdrant, Pinecone, Weaviate and memory at once, each with its own share of hard documents."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from starlette.responses import PlainTextResponse

from gateway.caller import ANONYMOUS
from gateway.filters import FieldType, holds, parse
from gateway.protocol.session import Session
from gateway.testing.filters import hard_documents, wire_filters
from tests.end_to_end.stores import STORES, WORD, Stores, put, running, stores, use_keys
from tests.engines import Running, ids, notes
from tests.servers.pinecone import Fault, Rules

pytestmark = pytest.mark.anyio

FIELDS = {
    "kw": FieldType.KEYWORD,
    "txt": FieldType.TEXT,
    "n": FieldType.INT,
    "x": FieldType.FLOAT,
    "flag": FieldType.BOOL,
    "at": FieldType.DATE,
    "tags": FieldType.KEYWORD,
}
MULTI = frozenset({"tags"})
TREES = 110
"""Under each set of switches."""


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)


def trees(count: int, seed: int) -> list[dict[str, Any]]:
    """As many different random filters, the same in every run."""
    found: dict[str, dict[str, Any]] = {}

    @settings(
        max_examples=count + count // 4,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(wire=wire_filters(FIELDS))
    def collect(wire: dict[str, Any]) -> None:
        found.setdefault(json.dumps(wire), wire)

    collect()
    chosen = list(found.values())
    random.Random(seed).shuffle(chosen)
    return chosen[:count]


@dataclass
class Filled:
    """A gateway over the stores, and which documents each of them has."""

    gateway: Running
    stores: Stores
    documents: Mapping[str, Mapping[str, Any]]
    where: Mapping[str, set[str]]

    def matching(self, wire: Any, *engines: str, fields: Mapping[str, FieldType] = FIELDS) -> set[str]:
        """By the reference: the ids that satisfy the filter, of what these engines hold together."""
        filter = parse(wire, fields) if wire is not None else None
        held = set[str]().union(*(self.where[id] for id in engines or STORES))
        return {id for id in held if filter is None or holds(filter, self.documents[id])}

    async def found(self, wire: Any, **params: Any) -> set[str]:
        given = {} if wire is None else {"filter": wire}
        params = {"query": WORD, "k": 1000, "includeText": False, **given, **params}
        # Not through `Running`: to hold some hundred hits against the schema takes longer than to find them.
        sent = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": params}).encode()
        answer = await self.gateway.gateway.dispatcher.answer(sent, Session("implicit", ANONYMOUS))
        found = ids(json.loads(answer or b"")["result"])
        assert len(found) == len(set(found))
        return set(found)


def shares(documents: Mapping[str, Any], seed: int) -> dict[str, list[str]]:
    """Each document goes to one or two of the stores, some to all."""
    chooser = random.Random(seed)
    split: dict[str, list[str]] = {id: [] for id in STORES}
    for name in documents:
        for id in chooser.sample(STORES, chooser.choice((1, 1, 2, 2, 4))):
            split[id].append(name)
    return split


@asynccontextmanager
async def filled(
    documents: Mapping[str, Mapping[str, Any]], fields: Mapping[str, FieldType] = FIELDS, **given: Any
) -> AsyncIterator[Filled]:
    async with stores(fields, multi=MULTI & fields.keys(), **given) as found:
        engines = [found.engine(id) for id in STORES]
        async with running(*engines) as gateway:
            split = shares(documents, 7)
            where = {id: await put(gateway, id, [(name, documents[name]) for name in split[id]]) for id in STORES}
            # What none of its stores could hold goes into memory, which holds anything.
            homeless = [(name, documents[name]) for name in documents if not any(name in one for one in where.values())]
            where["memory"] |= await put(gateway, "memory", homeless)
            yield Filled(gateway, found, documents, where)


HARD = {f"d{n}": document for n, document in enumerate(hard_documents(FIELDS, dates="rfc3339")) if n < 10 or n % 3 == 0}


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {
            "pinecone": {"rules": Rules(ne_selects_missing=False, empty_list="valueless")},
            "weaviate": {"version": "1.32.0"},
            "null_index": False,
        },
    ],
    ids=["as documented", "as it was"],
)
async def test_a_filter_finds_the_same_documents_in_all_stores_at_once(switches: Mapping[str, Any]) -> None:
    async with filled(HARD, **switches) as all_of_it:
        assert all(len(held) > 20 for held in all_of_it.where.values()), all_of_it.where
        assert await all_of_it.found(None) == set(HARD)
        hit = 0
        for number, wire in enumerate(trees(TREES, 11)):
            wanted = all_of_it.matching(wire)
            # What may be left out under `strict: false` is an option, never the filter.
            loose = {"strict": False, "mode": "dense"} if number % 5 == 0 else {}
            assert await all_of_it.found(wire, **loose) == wanted, wire
            hit += 0 < len(wanted) < len(HARD)
        assert hit > TREES / 2


@pytest.mark.parametrize("down", ["qdrant", "pinecone", "weaviate"])
async def test_with_one_store_down_the_others_answer_the_filter_and_the_loss_is_told(down: str) -> None:
    async with filled(SOME) as all_of_it:
        others = [id for id in STORES if id != down]
        break_(all_of_it.stores, down)
        for wire in ({"field": "kw", "op": "ne", "value": "a"}, {"not": {"field": "n", "op": "gte", "value": 1}}):
            result = await all_of_it.gateway.retrieve(WORD, k=1000, filter=wire)
            assert set(ids(result)) == all_of_it.matching(wire, *others)
            assert f"engine {down} failed" in notes(result)
            assert result["_meta"]["degraded"] == [down]


def break_(found: Stores, id: str) -> None:
    match id:
        case "qdrant":
            found.qdrant.fault = PlainTextResponse("out of order", 500)
        case "pinecone":
            found.pinecone.broken = Fault(status=503)
        case "weaviate":
            found.weaviate.fail("Search", grpc.StatusCode.INTERNAL, "out of order")


SOME = {name: document for number, (name, document) in enumerate(HARD.items()) if number % 5 == 0}
TWO = {"kw": FieldType.KEYWORD, "n": FieldType.INT}
UNDECLARED: tuple[dict[str, Any], ...] = (
    {"field": "kw", "op": "eq", "value": "a"},
    {"field": "kw", "op": "ne", "value": "a"},
    {"not": {"field": "kw", "op": "in", "value": ["a", "b"]}},
    {"or": [{"field": "kw", "op": "exists", "value": False}, {"field": "n", "op": "gt", "value": 1}]},
    {"and": [{"field": "kw", "op": "ne", "value": "a"}, {"not": {"field": "n", "op": "eq", "value": 1}}]},
)


@pytest.mark.parametrize("undeclared", ["skip", "check", "absent"])
@pytest.mark.parametrize("blind", ["qdrant", "pinecone", "weaviate"])
async def test_a_store_that_does_not_declare_a_field_is_left_out_checked_or_taken_at_its_word(
    undeclared: str, blind: str
) -> None:
    kws, numbers = ["a", "b", None], [1, 2, None]
    documents = {
        f"{kw}-{n}": {name: value for name, value in (("kw", kw), ("n", n)) if value is not None}
        for kw in kws
        for n in numbers
    }
    own: dict[str, Any] = {"fields": {"kw": None}} if blind == "weaviate" else {"fields": {"n": "int"}}
    async with stores(TWO) as found:
        engines = [found.engine(id, **({"own": own, "undeclared": undeclared} if id == blind else {})) for id in STORES]
        async with running(*engines) as gateway:
            # A document of the blind store is nowhere else, so what is found of it is that store's doing.
            where = {}
            for id in STORES:
                where[id] = await put(gateway, id, [(f"{id}:{name}", meta) for name, meta in documents.items()])
            all_ = {f"{id}:{name}": meta for id in STORES for name, meta in documents.items()}
            world = Filled(gateway, found, all_, where)
            assert where[blind] == {f"{blind}:{name}" for name in documents}
            for wire in UNDECLARED:
                seen = await world.found(wire)
                others = world.matching(wire, *(id for id in STORES if id != blind), fields=TWO)
                assert {id for id in seen if not id.startswith(blind)} == others
                assert {id for id in seen if id.startswith(blind)} == blindly(world, blind, wire, undeclared)


def blindly(world: Filled, blind: str, wire: dict[str, Any], undeclared: str) -> set[str]:
    """What a store that knows nothing of ``kw`` may give."""
    filter = parse(wire, TWO)
    assert filter is not None
    if undeclared == "check":
        return {id for id in world.where[blind] if holds(filter, world.documents[id])}
    without = {
        id: {name: value for name, value in world.documents[id].items() if name != "kw"} for id in world.where[blind]
    }
    if undeclared == "absent":
        return {id for id, meta in without.items() if holds(filter, meta)}
    # Left out: no condition on the field holds, negated or not. Of these filters only one has another way to hold.
    return {id for id, meta in without.items() if "or" in wire and (meta.get("n") or 0) > 1}


def shared_cases() -> dict[str, Any]:
    beside = Path(__file__).resolve().parents[2].parent / "shared"
    file = Path(os.environ.get("GATEWAY_SHARED", beside)) / "filters" / "cases.json"
    if not file.is_file() and (Path(__file__).resolve().parents[3].parent / "shared").is_dir():
        file = Path(__file__).resolve().parents[3].parent / "shared" / "filters" / "cases.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


SHARED = shared_cases()


@pytest.mark.skipif(not SHARED, reason="no shared cases: set GATEWAY_SHARED to their folder")
async def test_the_shared_cases_hold_over_all_stores() -> None:
    corpus = SHARED["corpora"]["stock"]
    fields = {name: FieldType(kind) for name, kind in corpus["fields"].items()}
    async with filled(corpus["documents"], fields) as all_of_it:
        assert len(SHARED["cases"]) == 42
        for case in SHARED["cases"]:
            for strict in (True, False):
                if "expect_error" in case:
                    error = await all_of_it.gateway.refused(WORD, filter=case["filter"], strict=strict)
                    allowed = (case["expect_error"]["code"], *case["expect_error"].get("also_acceptable", ()))
                    assert error["code"] in allowed, case["id"]
                else:
                    found = await all_of_it.found(case["filter"], strict=strict)
                    assert found == set(case["expect"]), case["id"]
