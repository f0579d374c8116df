"""The shared filter cases, on the embedded engine and over REST."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import CallerError
from gateway.federation.context import HostContext
from gateway.filters import FieldType, compiled, parse
from gateway.model import Document, meta_of
from gateway.spi.http import HttpSettings
from gateway_qdrant.engine import QdrantKind
from gateway_qdrant.settings import DenseSettings, QdrantConfig, VectorSettings
from tests.plugins.qdrant.conftest import StubCall, asked, collection
from tests.plugins.qdrant.test_rest import DENSE_PARAMS
from tests.servers.qdrant import qdrant_server


def _load() -> dict[str, Any]:
    beside = Path(__file__).resolve().parents[3].parent / "shared"
    file = Path(os.environ.get("GATEWAY_SHARED", beside)) / "filters" / "cases.json"
    if not file.is_file():
        return {"corpora": {"stock": {"fields": {}, "documents": {}}}, "cases": []}
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


CASES = _load()
FIELDS = {name: FieldType(kind) for name, kind in CASES["corpora"]["stock"]["fields"].items()}
STOCK = CASES["corpora"]["stock"]["documents"]

pytestmark = pytest.mark.skipif(not CASES["cases"], reason="no shared cases: set GATEWAY_SHARED to their folder")


async def _check_all(config: QdrantConfig, folder: Path) -> int:
    """Every case as the gateway answers it: native filter first, then the residual on what came back."""
    asked_for = 0
    async with QdrantKind().open(config, HostContext("q", folder, http=HttpSettings())) as engine:
        added = [Document(id=id_, text=id_, meta=meta, vector=[1.0, 0.0]) for id_, meta in STOCK.items()]
        await engine.index_add(added, StubCall())
        for case in CASES["cases"]:
            if "expect_error" in case:
                error = case["expect_error"]
                with pytest.raises(CallerError) as caught:
                    parse(case["filter"], FIELDS)
                assert caught.value.code in (error["code"], *error.get("also_acceptable", ())), case["id"]
                continue
            tree = parse(case["filter"], FIELDS)
            native, residual = None, None
            if tree is not None:
                pushed = engine.push_down(tree)
                native, residual = pushed.native, pushed.residual
            query = asked(mode="dense", vector=(1.0, 0.0), k=100, filter=native)
            hits = (await engine.retrieve(query, StubCall())).hits
            kept = [hit.id for hit in hits if residual is None or compiled(residual)(meta_of(hit))]
            assert sorted(kept) == sorted(case["expect"]), case["id"]
            asked_for += 1
    return asked_for


def _config(**given: Any) -> QdrantConfig:
    fields = {name: kind.value for name, kind in FIELDS.items()}
    vectors = VectorSettings(dense=DenseSettings(dimension=2))
    return QdrantConfig(embedder="e", vectors=vectors, fields=fields, writable=True, **given)


def test_the_shared_cases_hold_on_the_embedded_engine(tmp_path: Path) -> None:
    assert len(CASES["cases"]) == 42
    assert asyncio.run(_check_all(_config(path=tmp_path / "store"), tmp_path)) > 20


def test_the_shared_cases_hold_over_rest(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        async with collection(url, vectors=DENSE_PARAMS) as (name, _):
            assert await _check_all(_config(url=url, collection=name), tmp_path) > 20

    with qdrant_server() as server:
        asyncio.run(run(server.url))
