"""Writing and deleting: ids, types, tenants, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from weaviate.util import generate_uuid5

from gateway.errors import CallerError, UpstreamError
from gateway.model import Document, meta_of, text_of_hit
from gateway.spi.engine import EngineQuery
from gateway_weaviate.values import object_id
from tests.plugins.weaviate.conftest import Opener, StubCall
from tests.servers.weaviate import Collection, Prop, WeaviateServer

PROPS = [
    Prop("text", "text"),
    Prop("rcp_id", "text", "field"),
    Prop("n", "int"),
    Prop("xs", "number[]"),
    Prop("at", "date"),
    Prop("tags", "text[]", "field"),
]


@pytest.mark.anyio
async def test_any_id_is_stored_under_a_uuid_and_comes_back(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    """R45: ``doc/1#äö`` is no UUID."""
    server.create(Collection("Doc", PROPS))
    own = "4770bb19-20fd-406e-ac64-9dac54c27a0f"
    async with opened(server, writable=True, embedder="e", dimension=2) as engine:
        assert engine.document_need().dimension == 2  # type: ignore[union-attr]
        result = await engine.index_add(
            [
                Document(id="doc/1#äö", text="a fox", vector=[1.0, 0.0]),
                Document(id=own, text="b fox", vector=[0.0, 1.0]),
                Document(id=7.0, text="c fox", vector=[0.5, 0.5]),
            ],
            call,
        )
        assert result.ids == ("doc/1#äö", own, "7")
        assert set(server.collections["Doc"].objects[None]) == {generate_uuid5("doc/1#äö"), own, generate_uuid5("7")}
        assert object_id("doc/1#äö") == generate_uuid5("doc/1#äö")
        reply = await engine.retrieve(EngineQuery(text="", k=5, mode="dense", vector=(1.0, 0.0)), call)
        assert [hit.id for hit in reply.hits] == ["doc/1#äö", "7", own]
        assert "rcp_id" not in meta_of(reply.hits[0])
        # The same id again replaces; of two with one id in a call the last one stays.
        await engine.index_add(
            [Document(id="7", text="old", vector=[1.0, 1.0]), Document(id="7", text="new", vector=[1.0, 1.0])], call
        )
        reply = await engine.retrieve(EngineQuery(text="new", k=5, mode="sparse"), call)
        assert [(hit.id, text_of_hit(hit)) for hit in reply.hits] == [("7", "new")]
        assert len(server.collections["Doc"].objects[None]) == 3


@pytest.mark.anyio
async def test_deleting_counts_what_was_there(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    server.create(Collection("Doc", PROPS))
    async with opened(server, writable=True, batch=2) as engine:
        await engine.index_add([Document(id=str(number), text="fox") for number in range(5)], call)
        foreign = server.put("Doc", {"text": "fox"})
        assert await engine.index_delete(["0", "1", "1", "9", foreign], call) == 3
        assert await engine.index_delete(["0"], call) == 0
        with pytest.raises(CallerError):
            await engine.index_delete([""], call)
    assert len(server.collections["Doc"].objects[None]) == 3


@pytest.mark.anyio
async def test_values_are_spelt_as_their_type_wants_them(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    server.create(Collection("Doc", PROPS))
    async with opened(server, writable=True) as engine:
        meta: dict[str, Any] = {"n": 3.0, "xs": [1, 2.5], "at": "2024-01-01", "tags": [], "gone": None}
        await engine.index_add([Document(id="a", text="fox", meta=meta)], call)
        await engine.index_add([Document(id="b", text="fox", meta={"at": 1_704_067_200_000})], call)
        await engine.index_add([Document(id="c", text="fox", meta={"at": "2024-01-01T01:00:00.1234567+01:00"})], call)
    stored = {one.properties["rcp_id"]: one.properties for one in server.collections["Doc"].objects[None].values()}
    assert stored["a"] | {"text": 0} == {
        "rcp_id": "a",
        "text": 0,
        "n": 3,
        "xs": [1.0, 2.5],
        "at": "2024-01-01T00:00:00Z",
        "tags": [],
    }
    assert stored["b"]["at"] == "2024-01-01T00:00:00Z"
    assert stored["c"]["at"] == "2024-01-01T01:00:00.1234567+01:00"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "meta",
    [{"id": 1}, {"vector": [1]}, {"text": "x"}, {"rcp_id": "x"}, {"a b": 1}, {"tags": ["a", None]}, {"at": "soon"},
     {"at": "1500-01-01T00:00:00Z"}],
    ids=str,
)  # fmt: skip
async def test_what_could_not_be_held_is_refused_before_anything_is_stored(
    meta: dict[str, Any], server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    server.create(Collection("Doc", PROPS))
    async with opened(server, writable=True) as engine:
        with pytest.raises(CallerError) as raised:
            await engine.index_add([Document(id="a", text="fox"), Document(id="b", text="fox", meta=meta)], call)
    assert raised.value.data["field"].startswith("documents[1].meta.")
    assert not server.collections["Doc"].objects[None]


@pytest.mark.anyio
async def test_documents_that_weaviate_refuses_are_named_and_the_others_stay(
    server: WeaviateServer, opened: Opener, call: StubCall, caplog: pytest.LogCaptureFixture
) -> None:
    server.create(Collection("Doc", PROPS))
    async with opened(server, writable=True, batch=2) as engine:
        documents = [
            Document(id=str(n), text="private fox", meta={"n": "x"} if n in (1, 2, 3) else {}) for n in range(5)
        ]
        with pytest.raises(UpstreamError, match=r"refused 3 of 5 documents \(positions 1, 2, 3\)") as raised:
            await engine.index_add(documents, call)
        assert raised.value.data["refused"] == [1, 2, 3]
        assert raised.value.retryable is False
        assert "invalid int property" in raised.value.detail
        with pytest.raises(UpstreamError, match="refused 1 of 1"):
            await engine.index_add(documents[1:2], call)
    ids = sorted(one.properties["rcp_id"] for one in server.collections["Doc"].objects[None].values())
    assert ids == ["0", "4"]
    assert "private fox" not in caplog.text  # the client would log the whole batch


@pytest.mark.anyio
async def test_the_tenant_goes_with_every_kind_of_call(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    """R50: none of them is without."""
    server.create(Collection("Doc", PROPS, tenants=["acme", "other"]))
    async with opened(server, writable=True, tenant="acme", embedder="e", consistency="quorum") as engine:
        await engine.index_add([Document(id="a", text="fox", vector=[1.0, 0.0])], call)
        for mode in ("dense", "sparse", "hybrid"):
            vector = None if mode == "sparse" else (1.0, 0.0)
            reply = await engine.retrieve(EngineQuery(text="fox", k=1, mode=mode, vector=vector), call)  # type: ignore[arg-type]
            assert [hit.id for hit in reply.hits] == ["a"]
        assert await engine.index_delete(["a"], call) == 1
    sent = [(name, request) for name, request in server.requests if name in ("Search", "BatchDelete", "BatchObjects")]
    assert [name for name, _ in sent] == ["BatchObjects", "Search", "Search", "Search", "BatchDelete"]
    for name, request in sent:
        tenants = [one.tenant for one in request.objects] if name == "BatchObjects" else [request.tenant]
        assert tenants == ["acme"]
        assert request.consistency_level == 2


@pytest.mark.anyio
async def test_a_named_vector_is_written_under_its_name(server: WeaviateServer, opened: Opener, call: StubCall) -> None:
    server.create(Collection("Doc", PROPS, vectors={"body": ("none", "cosine"), "head": ("none", "cosine")}))
    async with opened(server, writable=True, embedder="e", vector="head") as engine:
        await engine.index_add([Document(id="a", text="fox", vector=[1.0, 0.0])], call)
        with pytest.raises(UpstreamError, match="0 dimensions"):
            await engine.index_add([Document(id="b", text="fox")], call)
    (stored,) = server.collections["Doc"].objects[None].values()
    assert stored.vectors == {"head": [1.0, 0.0]}


@pytest.mark.anyio
async def test_nothing_to_add_and_nothing_to_delete_asks_nothing(
    server: WeaviateServer, opened: Opener, call: StubCall
) -> None:
    server.create(Collection("Doc", PROPS))
    async with opened(server, writable=True) as engine:
        before = len(server.requests)
        assert (await engine.index_add([], call)).ids == ()
        assert await engine.index_delete([], call) == 0
        assert len(server.requests) == before
