"""One filter over Qdrant, Pinecone, Weaviate and memory at once, each with its own share of hard documents."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from gateway.filters import FieldType, holds, parse
from gateway.testing.filters import hard_documents, wire_filters
from tests.end_to_end.stores import STORES, WORD, Stores, put, running, stores, use_keys
from tests.engines import Running, ids
from tests.servers.pinecone import Rules

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
TREES = 250


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
    @given(wire_filters(FIELDS))
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
        found = ids(await self.gateway.retrieve(WORD, k=1000, **given, **params))
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


HARD = {f"d{n}": document for n, document in enumerate(hard_documents(FIELDS, dates="rfc3339"))}


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
        assert all(len(held) > 50 for held in all_of_it.where.values()), all_of_it.where
        assert await all_of_it.found(None) == set(HARD)
        hit = 0
        for number, wire in enumerate(trees(TREES, 11)):
            wanted = all_of_it.matching(wire)
            # What may be left out under `strict: false` is an option, never the filter.
            loose = {"strict": False, "mode": "dense"} if number % 5 == 0 else {}
            assert await all_of_it.found(wire, **loose) == wanted, wire
            hit += 0 < len(wanted) < len(HARD)
        assert hit > TREES / 2
