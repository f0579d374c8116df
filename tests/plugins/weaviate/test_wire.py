"""Filters through the real client and over real sockets; and the same against a real Weaviate, where there is one.

The live part needs GATEWAY_TEST_WEAVIATE_URL (``http://host:8080``) and GATEWAY_TEST_WEAVIATE_GRPC (``host:50051``); it
makes one collection per tokenizer, named GatewayTest…, and removes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import RcpError
from gateway.federation.context import HostContext
from gateway.filters import FieldType, Filter, compiled, parse
from gateway.model import Document, meta_of
from gateway.spi.engine import Engine, EngineQuery
from gateway.testing.filters import HARD_FIELDS, assert_push_down_law
from gateway_weaviate.engine import WeaviateKind
from gateway_weaviate.settings import WeaviateConfig, endpoint
from tests.plugins.weaviate.conftest import Opener, StubCall
from tests.plugins.weaviate.corpora import TOKENIZERS, documents, props
from tests.servers.weaviate import Collection, Prop, WeaviateServer

OWN = [Prop("body", "text"), Prop("rcp_id", "text", "field")]
LIVE_URL, LIVE_GRPC = os.environ.get("GATEWAY_TEST_WEAVIATE_URL"), os.environ.get("GATEWAY_TEST_WEAVIATE_GRPC")


def _shared() -> dict[str, Any]:
    beside = Path(__file__).resolve().parents[3].parent / "shared"
    file = Path(os.environ.get("GATEWAY_SHARED", beside)) / "filters" / "cases.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {"corpora": {}, "cases": []}


SHARED = _shared()
ABSENT = [pytest.param(None, marks=pytest.mark.skip(reason="no shared cases: set GATEWAY_SHARED to their folder"))]
_PLAIN = {"keyword": "text", "text": "text", "int": "int", "float": "number", "bool": "boolean", "date": "date"}


async def found(engine: Engine, tree: Filter | None, call: StubCall) -> tuple[Any, set[str], set[str]]:
    """What came back for the native half, and what is left of it after the residual one."""
    pushed = None if tree is None else engine.push_down(tree)
    query = EngineQuery(
        text="body", k=1_000, mode="sparse",
        filter=None if pushed is None else pushed.native,
        fields=frozenset() if pushed is None else pushed.needs,
    )  # fmt: skip
    hits = (await engine.retrieve(query, call)).hits
    residual = None if pushed is None else pushed.residual
    kept = {hit.id for hit in hits if residual is None or compiled(residual)(meta_of(hit))}
    return pushed, {hit.id for hit in hits}, kept


@pytest.mark.anyio
@pytest.mark.parametrize("case", SHARED["cases"] or ABSENT, ids=lambda case: case["id"] if case else "absent")
async def test_a_shared_case_gives_the_expected_documents_or_error(
    case: dict[str, Any], server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    corpus = SHARED["corpora"][case["corpus"]]
    fields = {name: FieldType(kind) for name, kind in corpus["fields"].items()}
    if "expect_error" in case:
        with pytest.raises(RcpError) as raised:
            parse(case["filter"], fields)
        assert raised.value.code in (case["expect_error"]["code"], *case["expect_error"].get("also_acceptable", ()))
        return
    own = [Prop(name, _PLAIN[kind], "field" if kind == "keyword" else None) for name, kind in fields.items()]
    server.create(Collection("Doc", [*OWN, *own]))
    tree = parse(case["filter"], fields)
    async with opened(server, writable=True, text_fields=("body",), trimmed=("label", "shelf", "stage")) as engine:
        await engine.index_add(
            [Document(id=name, text="body", meta=meta) for name, meta in corpus["documents"].items()], call
        )
        _, _, kept = await found(engine, tree, call)
    assert kept == set(case["expect"])


@pytest.mark.anyio
@pytest.mark.parametrize("version", ["1.27.0", "1.33.2"])
@pytest.mark.parametrize("multi", [False, True], ids=["scalars", "lists"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
async def test_the_law_holds_over_the_wire(
    tokenizer: str,
    multi: bool,
    version: str,
    server: WeaviateServer,
    opened: Opener,
    call: StubCall,
    trees: list[Filter],
) -> None:
    server.version = version
    server.create(Collection("Doc", [*OWN, *props(tokenizer, multi=multi)]))
    async with opened(server, writable=True, text_fields=("body",), fields=HARD_FIELDS) as engine:
        await check(engine, call, multi=multi, trees=trees[TOKENIZERS.index(tokenizer) :: 80])


async def check(engine: Engine, call: StubCall, *, multi: bool, trees: list[Filter]) -> None:
    """Stores hard documents through the engine, and compares every answer with the oracle on what was stored."""
    stored = [one for one in documents(multi=multi) if not one.get("spot")][::3]
    await engine.index_add([Document(id=str(number), text="body", meta=one) for number, one in enumerate(stored)], call)
    for tree in trees:
        pushed, selected, kept = await found(engine, tree, call)
        assert_push_down_law(tree, pushed, stored, {int(id) for id in selected})
        assert {int(id) for id in kept} == {n for n, one in enumerate(stored) if compiled(tree)(one)}


@asynccontextmanager
async def live(host: HostContext, tokenizer: str, *, multi: bool) -> AsyncIterator[Engine]:
    import weaviate
    from weaviate.classes.config import Configure, DataType, Property, Tokenization

    rest, grpc = endpoint(LIVE_URL or "", path="url"), endpoint(LIVE_GRPC or "", path="grpc", secure=False)
    name = f"GatewayTest{tokenizer.title()}{'Lists' if multi else 'Scalars'}"
    client = weaviate.use_async_with_custom(
        rest.host, rest.port, rest.secure, grpc.host, grpc.port, grpc.secure, skip_init_checks=True
    )
    async with client:
        await client.collections.delete(name)
        await client.collections.create(
            name,
            properties=[
                Property(
                    name=prop.name,
                    data_type=DataType(prop.type),
                    tokenization=Tokenization(prop.tokenization) if prop.tokenization else None,
                )
                for prop in [*OWN, *props(tokenizer, multi=multi)]
            ],
            inverted_index_config=Configure.inverted_index(index_null_state=True),
            vector_config=Configure.Vectors.self_provided(),
        )
        config = WeaviateConfig(
            url=LIVE_URL, grpc=LIVE_GRPC, collection=name, writable=True, text_fields=("body",), fields=HARD_FIELDS
        )
        try:
            async with WeaviateKind().open(config, host) as engine:
                yield engine
        finally:
            await client.collections.delete(name)


@pytest.mark.anyio
@pytest.mark.skipif(not (LIVE_URL and LIVE_GRPC), reason="set GATEWAY_TEST_WEAVIATE_URL and GATEWAY_TEST_WEAVIATE_GRPC")
@pytest.mark.parametrize("multi", [False, True], ids=["scalars", "lists"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
async def test_the_law_holds_on_a_real_weaviate(
    tokenizer: str, multi: bool, host: HostContext, call: StubCall, trees: list[Filter], leaves: list[Filter]
) -> None:
    async with live(host, tokenizer, multi=multi) as engine:
        await check(engine, call, multi=multi, trees=[*leaves, *trees[:300]])
