"""``rcp-gateway explain`` over the three vendors' stores: it asks nobody and tells no secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.explain import run_explain
from gateway.config import load_text
from gateway.filters import FieldType
from tests.end_to_end.stores import KEYS, STORES, Stores, plugins, stores, use_keys

pytestmark = pytest.mark.anyio

FIELDS = {"kw": FieldType.KEYWORD, "n": FieldType.INT, "at": FieldType.DATE}
FILTER = {
    "and": [
        {"field": "n", "op": "gte", "value": 3},
        {"not": {"field": "at", "op": "lt", "value": "2024-01-01T00:00:00+01:00"}},
        {"or": [{"field": "kw", "op": "ne", "value": "fr"}, {"field": "n", "op": "in", "value": [1, 2]}]},
    ]
}


@pytest.fixture(autouse=True)
def _set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")


async def explained(
    found: Stores, capsys: pytest.CaptureFixture[str], params: Mapping[str, Any], *, as_json: bool, **changed: Any
) -> str:
    listed = [found.engine(id, own=changed.get(id)) for id in STORES]
    config = load_text(json.dumps({"name": "explaining", "engines": listed}), base_dir=Path.cwd())
    before = found.asked()
    assert await run_explain(config, plugins(), params, as_json=as_json) == 0
    assert found.asked() == before == 0
    printed = capsys.readouterr()
    assert not any(secret in printed.out + printed.err for secret in KEYS.values())
    return printed.out


async def test_every_native_filter_is_plain_json_and_nobody_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    async with stores(FIELDS) as found:
        out = await explained(found, capsys, {"query": "", "filter": FILTER}, as_json=True)
        rows = {row["engine"]: row for row in json.loads(out)["engines"]}
        assert set(rows) == set(STORES)
        assert all(row["state"] == "asked" for row in rows.values())
        assert rows["qdrant"]["native"]["must"][0] == {"key": "meta.n", "range": {"gte": 3}}
        assert rows["pinecone"]["native"]["$and"][0] == {"n": {"$gte": 3}}
        first = {"path": ["n"], "operator": "GreaterThanEqual", "value": 3}
        assert rows["weaviate"]["native"]["operands"][0] == first
        assert rows["memory"]["native"]["and"][0] == {"field": "n", "op": "gte", "value": 3}
        assert rows["memory"]["residual"] is None
        assert rows["pinecone"]["residual"] is not None

        text = await explained(found, capsys, {"query": "", "filter": FILTER}, as_json=False)
        natives = [line.split("native", 1)[1].strip() for line in text.splitlines() if line.startswith("  native")]
        assert [json.loads(native) for native in natives] == [rows[id]["native"] for id in STORES]
        assert "Leaf(" not in text


async def test_who_is_not_asked_is_listed_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    own = {"collection": "Nowhere"}
    params = {"query": "q", "filter": {"field": "kw", "op": "eq", "value": "fr"}}
    async with stores(FIELDS) as found:
        changed = {"weaviate": {"fields": {"kw": None}}, "qdrant": own}
        rows = json.loads(await explained(found, capsys, params, as_json=True, **changed))["engines"]
        told = {row["engine"]: (row["state"], row.get("reason", "")) for row in rows}
        assert told["weaviate"] == ("unable", "it does not declare kw")
        assert told["qdrant"][0] == "failed"
        assert "no collection 'Nowhere'" in told["qdrant"][1]
        assert told["pinecone"][0] == "asked"
        text = await explained(found, capsys, params, as_json=False, **changed)
        assert "it does not declare kw" in text


async def test_a_stale_key_is_not_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORES_WEAVIATE", "stale-key-77")
    monkeypatch.setenv("STORES_QDRANT", "stale-key-78")
    async with stores(FIELDS) as found:
        for as_json in (True, False):
            out = await explained(found, capsys, {"query": "q"}, as_json=as_json)
            assert "stale-key" not in out
            assert "does not accept the API key" in out
