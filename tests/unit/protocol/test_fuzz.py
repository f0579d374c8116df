"""Whatever comes in: an answer or silence, no exception, and the session lives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol import Limits
from gateway.protocol.envelope import _bounds, parse
from gateway.protocol.methods import METHODS
from tests.obligations import obligation
from tests.schema import check_batch, check_frame
from tests.unit.protocol.fakes import Client, Server, ready

_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_values: st.SearchStrategy[Any] = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_methods = st.sampled_from([*METHODS, "x-acme/dance", "does/not/exist", "notifications/cancel", "notifications/zz"])
_options = st.sampled_from(
    [
        "query",
        "k",
        "mode",
        "candidateK",
        "fusion",
        "rerank",
        "mmr",
        "rewrite",
        "filter",
        "minScore",
        "recency",
        "unit",
        "level",
        "tokenBudget",
        "sessionId",
        "strict",
        "cursor",
        "includeText",
        "seed",
        "inputs",
        "texts",
        "passages",
        "documents",
        "topN",
        "ids",
        "protocolVersion",
        "client",
        "capabilities",
        "nonce",
        "id",
        "_meta",
    ]
)
_nested = st.dictionaries(
    st.sampled_from(
        [
            "method",
            "weights",
            "rrfK",
            "alpha",
            "topN",
            "lambda",
            "field",
            "halfLifeDays",
            "type",
            "text",
            "data",
            "uri",
            "mimeType",
            "name",
        ]
    ),
    _values,
    max_size=3,
)
_params = st.dictionaries(_options, _values | _nested | st.lists(_nested, max_size=2), max_size=5) | _values
_frames = st.fixed_dictionaries(
    {}, optional={"jsonrpc": st.just("2.0") | _values, "id": _values, "method": _methods | _values, "params": _params}
)


def _answers(frame: bytes) -> list[Any]:
    """All answers to a frame, each held against the schema; then proof that the session lives."""

    async def run() -> list[Any]:
        client = await ready()
        answer = await client.raw(frame)
        if not client.session.initialized:
            return []
        await client.result("ping", id="alive")
        if answer is None:
            return []
        return check_batch(answer) if answer.startswith(b"[") else [check_frame("", answer)]

    return asyncio.run(run())


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_answered_or_ignored(frame: bytes) -> None:
    _answers(frame)


@obligation(2, 4, 34)
@given(st.one_of(_frames, st.lists(_frames | _values, max_size=4)))
@settings(max_examples=250, deadline=None)
def test_any_json_is_answered_in_form(frame: Any) -> None:
    _answers(json.dumps(frame).encode())


@given(_frames, st.data())
@settings(max_examples=120, deadline=None)
def test_a_frame_with_bytes_damaged_is_answered_or_ignored(frame: Any, data: st.DataObject) -> None:
    damaged = bytearray(json.dumps(frame).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
            st.sampled_from(b'"\\{}[],:0\xff\xed\n') | st.integers(0, 255)
        )
    _answers(bytes(damaged))


@obligation(66)
@given(st.lists(st.tuples(st.integers() | st.text(), _methods, _params), min_size=1, max_size=10))
@settings(max_examples=80, deadline=None)
def test_every_member_with_an_id_is_answered_once(calls: list[tuple[Any, str, Any]]) -> None:
    members = [{"id": id, "method": method, "params": params} for id, method, params in calls]

    async def run() -> Any:
        return await Client(Server(), kind="implicit").raw(json.dumps(members))

    answer = asyncio.run(run())
    if b"NaN" in json.dumps(members).encode() or b"Infinity" in json.dumps(members).encode():
        return
    assert answer is not None
    sent = [json.loads(json.dumps(id).encode("utf-8", "replace")) for id, _, _ in calls]
    got = [entry["id"] for entry in check_batch(answer)]
    assert len(got) == len(sent)
    if all(not _has_surrogate(id) and len(json.dumps(id)) < 500 for id in sent):
        assert got == sent


def _has_surrogate(id: Any) -> bool:
    return isinstance(id, str) and any("\ud800" <= char <= "\udfff" for char in id)


def _depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 0


@obligation(31)
@given(
    st.recursive(
        st.text(alphabet='[]{}"\\,:a', max_size=6),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[]{}"\\', max_size=3), inner, max_size=3)
        ),
        max_leaves=30,
    ),
    st.integers(1, 6),
)
@settings(max_examples=200, deadline=None)
def test_depth_and_members_are_counted_as_the_parser_would(value: Any, limit: int) -> None:
    frame = json.dumps(value).encode()
    fault = _bounds(frame, is_batch=False, limits=Limits(depth=limit))
    assert (fault is not None) == (_depth(value) > limit)
    if isinstance(value, list):
        fault = _bounds(frame, is_batch=True, limits=Limits(batch=limit))
        assert (fault is not None) == (len(value) > limit)
    parse(frame, Limits(depth=limit, batch=limit))
