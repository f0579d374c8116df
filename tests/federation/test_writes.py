"""Documents cut up on their way into an index, writes under idempotency keys, and what becomes of the pieces."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caller import Caller
from gateway.cutting import TARGET, split
from gateway.errors import BackendUnavailable, CallerError, RateLimited, RcpError, UpstreamError
from gateway.model import Document, IndexAddResult
from gateway.service.writes import _pieces
from gateway.spi import Call, VectorNeed
from tests.engines import Running, Script, gateway_of
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

WRITABLE = {"index": {"writable": True}}
LONG = "# One\n\n" + "word " * 500 + "\n\n# Two\n\n" + "other " * 300
EMBEDS = {"retrieve": None, "embed": {"dimension": 2, "identity": "length"}}


async def add(gateway: Running, *documents: Any, **params: Any) -> dict[str, Any]:
    answer = await gateway.call("index/add", {"documents": list(documents), **params})
    assert "result" in answer, answer
    result: dict[str, Any] = answer["result"]
    return result


async def error(gateway: Running, method: str = "index/add", **params: Any) -> dict[str, Any]:
    answer = await gateway.call(method, params)
    assert "error" in answer, answer
    found: dict[str, Any] = answer["error"]
    return found


def stored(script: Script) -> list[str]:
    return [str(document.id) for document in script.added]


async def test_documents_are_cut_into_passages_with_ids_of_their_own() -> None:
    script = Script(capabilities=WRITABLE)
    meta = {"lang": "en", "title": "Mine"}
    async with gateway_of({"a": script}, writes="a") as gateway:
        assert (await gateway.call("info"))["result"]["capabilities"]["index"] == {"writable": True, "chunking": True}
        result = await add(gateway, {"id": "doc", "text": LONG, "meta": meta}, {"text": "short"}, chunk=True)
    passages = split(LONG)
    assert len(passages) > 2
    assert result["ids"][0] == "doc"
    assert result["chunks"] == len(passages) + 1
    assert stored(script) == [*(f"doc#{n}" for n in range(len(passages))), f"{result['ids'][1]}#0"]
    second = script.added[1]
    assert second.text == LONG[passages[1].start : passages[1].end]
    assert second.meta == {**meta, "docId": "doc", "passage": 1, "start": passages[1].start, "end": passages[1].end}


async def test_pieces_have_their_headings_for_a_title_if_there_is_no_other() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        await add(gateway, {"id": "doc", "text": LONG}, chunk=True)
        assert {str((document.meta or {})["title"]) for document in script.added} == {"One", "Two"}
        await add(gateway, {"id": "bare", "text": " "}, chunk=True)
        assert script.added[-1].id == "bare#0"
        assert script.added[-1].text == " "


@given(st.text(max_size=3000))
def test_the_pieces_of_a_document_are_slices_of_it_in_order(text: str) -> None:
    pieces = _pieces(Document(id="d", text=text))
    assert [piece.id for piece in pieces] == [f"d#{n}" for n in range(len(pieces))]
    ends = [0]
    for piece in pieces:
        meta = piece.meta or {}
        assert piece.text == text[meta["start"] : meta["end"]]
        assert len(piece.text.split()) <= 2 * TARGET
        assert meta["start"] >= ends[-1]
        ends.append(meta["end"])


async def test_a_shorter_version_leaves_no_piece_of_the_longer_behind() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        await add(gateway, {"id": "doc", "text": "whole"}, {"id": "doc2", "text": "other"})
        await add(gateway, {"id": "doc", "text": "word " * 100_000}, chunk=True)
        assert len(stored(script)) > 500
        assert "doc" not in stored(script)
        script.added = [*{document.id: document for document in script.added}.values()]
        before = len(script.added)
        result = await add(gateway, {"id": "doc", "text": "short"}, chunk=True)
    assert result == {"ids": ["doc"], "chunks": 1}
    assert before > 500
    assert set(stored(script)) == {"doc2", "doc#0"}


@obligation(182)
async def test_a_document_is_deleted_with_all_its_pieces_and_counts_once() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        await add(gateway, {"id": "one", "text": "word " * 100_000}, {"id": "two", "text": LONG}, chunk=True)
        await add(gateway, {"id": "three", "text": "whole"}, {"id": "other", "text": "whole"})
        gone = await gateway.call("index/delete", {"ids": ["one", "two", "three", "never"]})
        assert gone["result"] == {"deleted": 3}
        assert stored(script) == ["other"]
        again = await gateway.call("index/delete", {"ids": ["one", "two", "three", "never"]})
        assert again["result"] == {"deleted": 0}
        await add(gateway, {"id": "two", "text": LONG}, chunk=True)
        piece = await gateway.call("index/delete", {"ids": ["two#1"]})
        assert piece["result"] == {"deleted": 1}
    assert "two#0" in stored(script)
    assert "two#1" not in stored(script)


@obligation(182)
async def test_a_deletion_that_broke_off_can_be_made_again() -> None:
    script = Script(capabilities=WRITABLE)
    failing = True

    async def delete(ids: Sequence[str], call: Call) -> int:
        if failing and "doc" in ids:
            raise BackendUnavailable("broke off")
        known = set(stored(script)) & set(ids)
        script.added = [document for document in script.added if document.id not in known]
        return len(known)

    async with gateway_of({"a": script}, writes="a") as gateway:
        await add(gateway, {"id": "doc", "text": LONG}, chunk=True)
        script.delete = delete
        assert (await error(gateway, "index/delete", ids=["doc"]))["code"] == -32010
        assert stored(script) == ["doc#0"]
        failing = False
        assert (await gateway.call("index/delete", {"ids": ["doc"]}))["result"] == {"deleted": 1}
    assert script.added == []


async def test_of_one_id_given_twice_the_last_counts() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        result = await add(gateway, {"id": 7, "text": LONG}, {"id": "7", "text": "last"}, chunk=True)
    assert result == {"ids": ["7", "7"], "chunks": 1}
    assert [(document.id, document.text) for document in script.added] == [("7#0", "last")]


async def test_pieces_are_embedded_and_named_within_their_corpus() -> None:
    scripts = {
        "a": Script(capabilities=WRITABLE, document_need=VectorNeed(embedder="e")),
        "e": Script(capabilities=EMBEDS),
    }
    engines = {"a": {"corpus": "docs"}}
    async with gateway_of(scripts, writes="a", engines=engines) as gateway:
        result = await add(gateway, {"id": "docs/x", "text": LONG}, chunk=True)
        assert result["ids"] == ["docs/x"]
        assert stored(scripts["a"])[:2] == ["x#0", "x#1"]
        assert all(document.vector == [float(len(document.text)), 1.0] for document in scripts["a"].added)
        assert (await gateway.call("index/delete", {"ids": ["docs/x"]}))["result"] == {"deleted": 1}
    assert scripts["a"].added == []


# Engines that cut up themselves


async def test_an_engine_that_cuts_up_itself_gets_whole_documents() -> None:
    script = Script(capabilities={"index": {"writable": True, "chunking": True, "contextual": True}})
    async with gateway_of({"a": script}, writes="a") as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["index"]
        assert told == {"writable": True, "chunking": True, "contextual": True}
        assert await add(gateway, {"id": "d", "text": LONG}, chunk=True) == {"ids": ["d"], "chunks": 7}
        await add(gateway, {"id": "d", "text": LONG}, chunk=True, contextual=True)
        await add(gateway, {"id": "d", "text": LONG}, chunk=False)
        assert (await gateway.call("index/delete", {"ids": ["d"]}))["result"] == {"deleted": 1}
    assert [(one.chunk, one.contextual) for one in script.asked] == [(True, False), (True, True)]


@pytest.mark.parametrize(
    ("offer", "params", "option"),
    [
        ({"writable": True}, {"contextual": True}, "contextual"),
        ({"writable": True, "chunking": True}, {"chunk": True, "contextual": True}, "contextual"),
        ({"writable": True, "contextual": True}, {"chunk": True, "contextual": True}, "chunk"),
    ],
)
async def test_context_that_no_engine_tells_is_refused(offer: Any, params: Any, option: str) -> None:
    script = Script(capabilities={"index": offer})
    async with gateway_of({"a": script}, writes="a") as gateway:
        found = await error(gateway, documents=[{"text": "t"}], **params)
    assert (found["code"], found["data"]["option"], found["data"]["field"]) == (-32005, option, option)
    assert (script.added, script.asked) == ([], [])


async def test_an_engine_whose_documents_need_vectors_gets_pieces_all_the_same() -> None:
    offer = {"index": {"writable": True, "chunking": True}}
    scripts = {
        "a": Script(capabilities=offer, document_need=VectorNeed(embedder="e")),
        "e": Script(capabilities=EMBEDS),
    }
    async with gateway_of(scripts, writes="a") as gateway:
        await add(gateway, {"id": "d", "text": "short"}, chunk=True)
    assert stored(scripts["a"]) == ["d#0"]


# Idempotency keys


class Remembering:
    """What ``gateway.state.Idempotency`` is to a write, as far as it matters here."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, str], tuple[str, bytes]] = {}
        self.untouched: list[bool] = []

    async def once(
        self,
        caller: str,
        method: str,
        key: str,
        request: str,
        operation: Callable[[], Awaitable[bytes]],
        *,
        untouched: Callable[[RcpError], bool],
    ) -> bytes:
        known = self.kept.get((caller, method, key))
        if known is not None:
            assert known[0] == request
            return known[1]
        try:
            result = await operation()
        except RcpError as error:
            self.untouched.append(untouched(error))
            raise
        self.kept[caller, method, key] = request, result
        return result


def keyed(gateway: Running) -> Remembering:
    once = Remembering()
    gateway.gateway.service.handlers["index/add"].__self__._idempotency = once  # type: ignore[attr-defined]
    return once


@obligation(183)
async def test_callers_that_choose_the_same_key_write_each_their_own() -> None:
    script = Script(capabilities=WRITABLE)
    meta = {"idempotencyKey": "k"}
    async with gateway_of({"a": script}, writes="a") as gateway:
        one, two = (Running(gateway.gateway, gateway.scripts, Caller(id=id)) for id in ("one", "two"))
        first = await add(one, {"id": "x", "text": LONG}, chunk=True, _meta=meta)
        assert await add(one, {"id": "x", "text": LONG}, chunk=True, _meta=meta) == first
        assert len(script.added) == first["chunks"]
        other = await error(one, documents=[{"id": "x", "text": "t"}], _meta=meta)
        assert (other["code"], other["data"]["field"]) == (-32602, "_meta.idempotencyKey")
        await add(two, {"id": "x", "text": "t"}, _meta=meta)
    assert script.added[-1].text == "t"


@obligation(183)
async def test_an_engine_that_was_down_takes_the_same_key_when_it_is_back() -> None:
    script = Script(capabilities=WRITABLE)
    meta = {"idempotencyKey": "k"}
    async with gateway_of({"a": script}, writes="a") as gateway:
        member = gateway.gateway.fleet.members["a"]
        engine = member.engine
        assert engine is not None
        member.closed(BackendUnavailable("went away"))
        assert (await error(gateway, documents=[{"id": "x", "text": "t"}], _meta=meta))["code"] == -32010
        member.opened(engine)
        assert (await add(gateway, {"id": "x", "text": "t"}, _meta=meta))["ids"] == ["x"]
    assert stored(script) == ["x"]


@obligation(183)
async def test_a_write_under_a_key_is_made_once_and_answered_alike() -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        once = keyed(gateway)
        meta = {"idempotencyKey": "k", "deadlineMs": 20_000}
        first = await add(gateway, {"text": "t"}, _meta=meta)
        assert await add(gateway, {"text": "t"}, _meta={**meta, "deadlineMs": 10_000}) == first
        assert len(script.added) == 1
        await add(gateway, {"text": "t"}, _meta={"idempotencyKey": "other"})
        await add(gateway, {"text": "t"})
        assert len(script.added) == 3
        assert (await gateway.call("index/delete", {"ids": first["ids"], "_meta": meta}))["result"] == {"deleted": 1}
        assert (await gateway.call("index/delete", {"ids": first["ids"], "_meta": meta}))["result"] == {"deleted": 1}
    assert {(method, key) for _, method, key in once.kept} == {
        ("index/add", "k"), ("index/add", "other"), ("index/delete", "k")}  # fmt: skip


@obligation(183)
async def test_a_key_is_free_again_only_if_certainly_nothing_was_written() -> None:
    thrown = [
        UpstreamError("it broke", upstream_code=-32603),
        UpstreamError("it refused", upstream_code=-32602),
        RateLimited("queue full"),
        ValueError("bug"),
        CallerError("no"),
        BackendUnavailable("broke off"),
    ]

    async def fails(documents: Any, call: Call) -> IndexAddResult:
        raise thrown.pop()

    async with gateway_of({"a": Script(capabilities=WRITABLE, add=fails)}, writes="a") as gateway:
        once = keyed(gateway)
        while thrown:
            await error(gateway, documents=[{"text": "t"}], _meta={"idempotencyKey": "k"})
        gateway.gateway.fleet.members["a"].closed(BackendUnavailable("went away"))
        await error(gateway, documents=[{"text": "t"}], _meta={"idempotencyKey": "k"})
    assert once.untouched == [False, True, False, True, True, False, True]


async def test_a_refusal_after_the_pieces_are_there_does_not_free_the_key() -> None:
    async def refuses(ids: Any, call: Call) -> int:
        raise RateLimited("busy")

    script = Script(capabilities=WRITABLE, delete=refuses)
    async with gateway_of({"a": script}, writes="a") as gateway:
        once = keyed(gateway)
        await error(gateway, documents=[{"id": "d", "text": "t"}], chunk=True, _meta={"idempotencyKey": "k"})
    assert [document.id for document in script.added] == ["d#0"]
    assert once.untouched == [False]


@pytest.mark.parametrize("key", ["", 7, True, ["k"], "k" * 257])
async def test_a_key_that_is_none_is_refused_before_anything_is_written(key: Any) -> None:
    script = Script(capabilities=WRITABLE)
    async with gateway_of({"a": script}, writes="a") as gateway:
        for method, params in (("index/add", {"documents": [{"text": "t"}]}), ("index/delete", {"ids": ["x"]})):
            found = await error(gateway, method, **params, _meta={"idempotencyKey": key})
            assert (found["code"], found["data"]["field"]) == (-32602, "_meta.idempotencyKey")
    assert script.added == []


async def test_a_long_document_is_cut_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[bool] = []

    def cutting(text: str) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return split(text)

    monkeypatch.setattr("gateway.cutting.split", cutting)
    async with gateway_of({"a": Script(capabilities=WRITABLE)}, writes="a") as gateway:
        await add(gateway, {"id": "d", "text": "short"}, chunk=True)
        await add(gateway, {"id": "d", "text": "word " * 3000}, chunk=True)
    assert where == [True, False]
