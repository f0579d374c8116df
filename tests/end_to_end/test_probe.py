"""``rcp-gateway probe`` against servers that behave in each of the ways that vendors and versions have behaved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

import gateway.federation.probe as probing
import gateway.service
from gateway.caller import ANONYMOUS
from gateway.cli.add import narrowed
from gateway.cli.probe import run_probe
from gateway.config import load_text
from gateway.errors import ConfigError, RcpError
from gateway.filters import FieldType
from tests.end_to_end.running import SDK, child
from tests.end_to_end.stores import KEYS, Stores, plugins, running, stores, use_keys
from tests.servers.pinecone import Fault, Rules

pytestmark = pytest.mark.anyio

FIELDS = {"kw": FieldType.KEYWORD, "at": FieldType.DATE}


@pytest.fixture(autouse=True)
def _set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that takes the first answer, for servers that show what was written at once."""

    async def at_once(*args: Any, **given: Any) -> Any:
        return await probing.probe(*args, **{**given, "patience": 0.0})

    monkeypatch.setattr(gateway.service, "probe", at_once)


async def probed(engine: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[str]]:
    """Exit code, what was printed, and the settings among it."""
    config = load_text(json.dumps({"name": "probing", "engines": [engine]}), base_dir=Path.cwd())
    code = await run_probe(config, plugins(), engine["id"])
    out = capsys.readouterr().out
    _, _, lines = out.partition("settings for `with:`")
    return code, out, [line.strip() for line in lines.splitlines()[1:]]


def answer(out: str, question: str) -> str:
    """The answer under the question."""
    lines = out.splitlines()
    place = next(n for n, line in enumerate(lines) if question in line)
    return lines[place + 1].strip()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("lists", ["none_of", "any_of"])
async def test_pinecone_is_asked_what_the_vendor_leaves_open(
    missing: bool, lists: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = Rules(ne_selects_missing=missing, lists=lists)
    async with stores(FIELDS, multi=frozenset({"kw"}), pinecone={"rules": rules}) as found:
        code, out, lines = await probed(found.engine("pinecone"), capsys)
        assert code == 0, out
        for operator in ("$ne", "$nin"):
            told = answer(out, f"does {operator} select records without the field?")
            assert told.startswith("yes" if missing else "no")
        assert answer(out, "does $exists see a list?") == "yes"
        assert lines == ([] if lists == "none_of" else ['fields: {"kw": {type: keyword, multi: true, clean: false}}'])
        assert found.held() == {"qdrant": 0, "pinecone": 0, "weaviate": 0}


@pytest.mark.usefixtures("hasty")
async def test_a_promise_that_pinecone_does_not_keep_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    rules = Rules(lists="any_of")
    own = {"fields": {"kw": {"type": "keyword", "multi": True, "clean": True}}}
    async with stores(FIELDS, pinecone={"rules": rules}) as found:
        code, out, lines = await probed(found.engine("pinecone", own=own), capsys)
        assert code == 1
        assert "wrongly returns both" in answer(out, "does kw ne 'alpha' mean what it means everywhere?")
        assert lines == ['fields: {"kw": {type: keyword, multi: true, clean: false}}']
        # The line does mend it.
        own = {"fields": {"kw": {"type": "keyword", "multi": True, "clean": False}}}
        code, out, _ = await probed(found.engine("pinecone", own=own), capsys)
        assert code == 0, out


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("version", ["1.33.0", "1.32.4"])
@pytest.mark.parametrize("null_index", [True, False])
@pytest.mark.parametrize("lists", [True, False])
async def test_weaviate_is_asked_what_its_version_and_its_collection_decide(
    version: str, null_index: bool, lists: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    multi = frozenset({"kw"} if lists else ())
    async with stores(FIELDS, weaviate={"version": version}, multi=multi, null_index=null_index) as found:
        code, out, lines = await probed(found.engine("weaviate"), capsys)
        assert found.held() == {"qdrant": 0, "pinecone": 0, "weaviate": 0}
    assert code == 0, out
    assert answer(out, "does NotEqual select objects without the property?") == "yes"
    knows = answer(out, "does the server know Not?")
    assert knows == ("yes; the gateway uses it" if version == "1.33.0" else
                     "no: this is 1.32.4, and the gateway uses it from 1.33 on")  # fmt: skip
    nulls = answer(out, "is there a null index, and what is " + ("[]" if lists else '""'))
    assert ("counts as null" in nulls) is null_index
    assert ("there is none" in nulls) is not null_index
    promise = ["null_index_complete: true  # only if that is so"]
    assert lines == (promise if null_index and version != "1.33.0" else [])


@pytest.mark.usefixtures("hasty")
async def test_a_weaviate_whose_negation_loses_documents_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.servers import weaviate_index

    whole = weaviate_index.Corpus._text

    def present_only(self: Any, prop: Any, native: Any) -> set[int]:
        found = whole(self, prop, native)
        if native.operator == weaviate_index.Op.OPERATOR_NOT_EQUAL:  # as before 1.24
            found &= set().union(*self.keys[prop.name].values())
        return found

    monkeypatch.setattr(weaviate_index.Corpus, "_text", present_only)
    async with stores(FIELDS) as found:
        code, out, lines = await probed(found.engine("weaviate"), capsys)
    assert code == 1
    assert "upgrade the server" in answer(out, "does NotEqual select objects without the property?")
    assert lines == ["fields: {kw: null}"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("index", [None, "keyword", "integer"])
async def test_qdrant_is_asked_what_its_payload_index_makes_of_a_field(
    index: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stores(FIELDS) as found:
        if index is not None:
            await index_field(found, "meta.kw", index)
            await index_field(found, "meta.at", "datetime" if index == "keyword" else "integer")
        code, out, lines = await probed(found.engine("qdrant"), capsys)
        assert found.held() == {"qdrant": 0, "pinecone": 0, "weaviate": 0}
    assert code == 0, out
    told = answer(out, "does an equal value of kw match under its payload index?")
    assert (f"of type {index}" in told) is (index is not None)
    assert ("not what the settings declare" in told) is (index == "integer")
    ranged = answer(out, "does a range find dates of at that are stored as text?")
    assert ranged.startswith("no" if index == "integer" else "yes")
    wanted = ["fields: {at: {type: date, dates: epoch_ms}}  # if they are milliseconds"] if index == "integer" else []
    assert lines == wanted


async def index_field(found: Stores, key: str, kind: str) -> None:
    import httpx

    async with httpx.AsyncClient(base_url=found.qdrant.url, headers={"api-key": KEYS["qdrant"]}) as client:
        body = {"field_name": key, "field_schema": kind}
        (await client.put("/collections/docs/index", json=body)).raise_for_status()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("two_valued", "milliseconds", "bare"),
    [(True, False, False), (False, False, True), (True, True, True), (False, True, False)],
)
async def test_an_rcp_server_is_asked_what_the_spec_leaves_open(
    two_valued: bool, milliseconds: bool, bare: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"--two-valued": two_valued, "--milliseconds": milliseconds, "--bare": bare}
    own = child(SDK, "--writable", *(flag for flag, on in flags.items() if on))
    code, out, lines = await probed({"id": "far", "kind": "rcp", "with": own}, capsys)
    assert answer(out, "does `ne` select documents without the field?") == ("yes" if two_valued else "no")
    assert answer(out, "does `not eq` select documents without the field?") == ("yes" if two_valued else "no")
    wanted = {
        "trust_negation": two_valued,
        "date_encoding": "epoch_ms" if milliseconds else "rfc3339",
        "meta_complete": not bare,
    }
    assert lines == [f"{name}: {str(value).lower()}" for name, value in wanted.items()], out
    # A wrong encoding is something to worry about until the line is there.
    assert code == int(milliseconds), out
    code, out, again = await probed({"id": "far", "kind": "rcp", "with": {**own, **wanted}}, capsys)
    assert again == lines
    assert code == 0, out


async def test_a_store_that_shows_a_write_only_later_is_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    own = child(SDK, "--writable", "--two-valued", "--slow", "3")
    code, out, lines = await probed({"id": "far", "kind": "rcp", "with": own}, capsys)
    assert "trust_negation: true" in lines
    assert "are the scratch documents found?" not in out
    assert code == 0, out


@pytest.mark.usefixtures("hasty")
async def test_documents_that_are_never_seen_are_told_and_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    own = child(SDK, "--writable", "--slow", "1000")
    code, out, lines = await probed({"id": "far", "kind": "rcp", "with": own}, capsys)
    assert code == 1
    assert answer(out, "are the scratch documents found?").startswith("0 of ")
    assert lines == []


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("id", ["qdrant", "pinecone", "weaviate"])
async def test_scratch_documents_are_gone_when_the_probe_breaks_off(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any) -> Any:
        raise RuntimeError("half-way")

    async with stores(FIELDS) as found, running(found.engine(id), writes=id) as gateway:
        service = gateway.gateway.service
        monkeypatch.setattr(probing, "_law", broken)
        with pytest.raises(RuntimeError, match="half-way"):
            await service.probe(id, ANONYMOUS)
        assert not any(found.held().values())

        reached = asyncio.Event()

        async def stuck(*args: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(probing, "_law", stuck)
        task = asyncio.create_task(service.probe(id, ANONYMOUS))
        await reached.wait()
        assert found.held()[id] > 5
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(found.held().values())


@pytest.mark.usefixtures("hasty")
async def test_a_store_that_fails_for_a_while_is_cleaned_up_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stores(FIELDS) as found, running(found.engine("pinecone"), writes="pinecone") as gateway:
        original = probing._Asker.look

        async def breaking(self: Any) -> Any:
            result = await original(self)
            found.pinecone.broken = Fault(status=503)
            asyncio.get_running_loop().call_later(0.4, setattr, found.pinecone, "broken", None)
            return result

        monkeypatch.setattr(probing._Asker, "look", breaking)
        answers = await gateway.gateway.service.probe("pinecone", ANONYMOUS)
        assert any("refuses to say" in one.answer for one in answers)
        assert not any(found.held().values())


@pytest.mark.usefixtures("hasty")
async def test_what_cannot_be_removed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_CLEANING_SECONDS", 0.3)
    async with stores(FIELDS) as found, running(found.engine("weaviate"), writes="weaviate") as gateway:
        found.weaviate.fail("BatchDelete", grpc.StatusCode.UNAVAILABLE)
        *_, last = await gateway.gateway.service.probe("weaviate", ANONYMOUS)
    assert last.question == "are the scratch documents gone?"
    assert not last.ok
    assert "remove those whose id starts with rcp-probe-" in last.answer


@pytest.mark.parametrize("id", ["qdrant", "pinecone", "weaviate"])
async def test_a_read_only_store_is_one_clear_error_and_is_not_touched(id: str) -> None:
    async with stores(FIELDS) as found:
        engine = found.engine(id, own={"writable": False})
        config = load_text(json.dumps({"name": "probing", "engines": [engine]}), base_dir=Path.cwd())
        with pytest.raises(ConfigError, match=f"engine '{id}' .*cannot be written to.*writable: true"):
            narrowed(config, plugins(), id)
        assert not found.pinecone.requests
        assert not found.weaviate.requests


async def test_a_read_only_rcp_server_is_one_clear_error() -> None:
    engine = {"id": "far", "kind": "rcp", "with": child(SDK)}
    config = load_text(json.dumps({"name": "probing", "engines": [engine]}), base_dir=Path.cwd())
    with pytest.raises(RcpError, match="engine far is read-only"):
        await run_probe(config, plugins(), "far")
