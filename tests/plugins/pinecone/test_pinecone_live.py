"""Against a real index: set GATEWAY_TEST_PINECONE_HOST and GATEWAY_TEST_PINECONE_API_KEY.

The index must be dense and without integrated inference. The tests write into a namespace of their own and empty it.
They also print what the vendor leaves open, which is what :class:`tests.servers.pinecone.Rules` has switches for.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, seed
from hypothesis import settings as hypothesis_settings

from gateway.errors import RcpError
from gateway.filters import Filter
from gateway.model import Document, meta_of
from gateway.secret import Secret
from gateway.spi import Engine
from gateway.testing.filters import assert_push_down_law, filters, hard_documents
from gateway_pinecone.engine import PineconeKind
from tests.plugins.pinecone.support import call, context, ids, query, settings
from tests.plugins.pinecone.test_pinecone_filters import corpus, declared

HOST, KEY = os.environ.get("GATEWAY_TEST_PINECONE_HOST"), os.environ.get("GATEWAY_TEST_PINECONE_API_KEY")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not (HOST and KEY), reason="set GATEWAY_TEST_PINECONE_HOST and GATEWAY_TEST_PINECONE_API_KEY"),
    pytest.mark.timeout(300),
]

FIELDS = declared("epoch_ms", multi=True)


@asynccontextmanager
async def live(documents: Mapping[str, dict[str, Any]]) -> AsyncIterator[tuple[Engine, list[float]]]:
    """The index with these records, written by the SDK alone, in a namespace of their own, once all can be seen."""
    from pinecone import AsyncIndex

    namespace = f"gateway-test-{uuid.uuid4().hex}"
    async with AsyncIndex(host=HOST or "", api_key=KEY) as raw:
        found = await raw.describe_index_stats()
        vector = [1.0] + [0.0] * ((found.dimension or 1) - 1)
        config = settings(
            host=HOST,
            api_key=Secret(KEY or ""),
            metric=found.metric or "cosine",
            namespace=namespace,
            writable=True,
            fields=FIELDS,
        )
        records = [{"id": id, "values": vector, "metadata": meta} for id, meta in documents.items()]
        try:
            for at in range(0, len(records), 100):
                await raw.upsert(vectors=records[at : at + 100], namespace=namespace)
            async with PineconeKind().open(config, context()) as engine:
                async with asyncio.timeout(120):
                    while len((await query(engine, vector, k=1000)).hits) < len(records):
                        await asyncio.sleep(2)
                yield engine, vector
        finally:
            await raw.delete(delete_all=True, namespace=namespace)


async def test_the_push_down_law_holds_on_the_real_service() -> None:
    kept = corpus(FIELDS, hard_documents(dates="epoch_ms"))
    trees: list[Filter] = []

    @seed(11)
    @hypothesis_settings(max_examples=100, deadline=None, database=None)
    @given(tree=filters())
    def collect(tree: Filter) -> None:
        trees.append(tree)

    collect()
    async with live({f"d{n}": stored for n, (stored, _) in enumerate(kept)}) as (engine, vector):
        for tree in trees:
            pushdown = engine.push_down(tree)
            reply = await query(engine, vector, k=1000, filter=pushdown.native)
            got = {int(hit.id[1:]): meta_of(hit) for hit in reply.hits}
            assert_push_down_law(tree, pushdown, [read for _, read in kept], got.keys())


async def test_documents_are_stored_found_and_counted_when_they_go() -> None:
    async with live({"a": {"kw": "x", "n": 3}, "b": {}}) as (engine, vector):
        reply = await query(engine, vector)
        assert ids(reply) == ["a", "b"]
        assert repr(meta_of(reply.hits[0])["n"]) == "3"
        await engine.index_add([Document(id="c", text="t", vector=vector)], call(30))
        async with asyncio.timeout(120):
            while "c" not in ids(await query(engine, vector)):
                await asyncio.sleep(2)
        assert await engine.index_delete(["a", "c", "nothing"], call(30)) == 2


async def test_what_the_vendor_leaves_open_is_printed() -> None:
    documents = {"one": {"kw": "x"}, "list": {"kw": ["x", "y"]}, "empty": {"kw": []}, "missing": {}}
    async with live(documents) as (engine, vector):
        for told, native in (
            ("$ne", {"kw": {"$ne": "x"}}),
            ("$nin", {"kw": {"$nin": ["x"]}}),
            ("$exists true", {"kw": {"$exists": True}}),
            ("$exists false", {"kw": {"$exists": False}}),
            ("$not", {"kw": {"$not": {"$eq": "x"}}}),
            ("two operators in one object", {"x": {"$gt": 1, "$lt": 2}}),
        ):
            try:
                print(told, sorted(ids(await query(engine, vector, filter=native))))
            except RcpError as error:
                print(told, error.detail)
