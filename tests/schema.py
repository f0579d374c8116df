"""Every frame we emit, held against the published JSON Schema and what a schema cannot say.

The schema is looked up in ``$GATEWAY_SHARED/spec`` or in a folder ``shared`` beside the checkout; without it the checks
that need no schema remain.
"""

from __future__ import annotations

import base64
import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gateway.errors import Code

__all__ = ["check_batch", "check_exchange", "check_frame", "check_notification", "check_ranking", "schema_path"]

_ABSENT = object()


def schema_path() -> Path | None:
    """Where the schema stands, ``None`` if it is not at hand."""
    places = [Path(os.environ["GATEWAY_SHARED"])] if os.environ.get("GATEWAY_SHARED") else []
    # A worktree's neighbours count as the checkout's.
    places += [parent / "shared" for parent in Path(__file__).resolve().parents[1:4]]
    found = (place / "spec" / "rcp-1.0.schema.json" for place in places)
    return next((path for path in found if path.is_file()), None)


def check_frame(method: str, frame: bytes, *, id: Any = _ABSENT) -> dict[str, Any]:
    """Asserts that the frame answers a call of the method, as one line of compact JSON, and returns it.

    With ``id``, that it is echoed with its type.
    """
    answer = _load(frame)
    assert isinstance(answer, dict)
    assert answer["jsonrpc"] == "2.0"
    assert ("result" in answer) != ("error" in answer)
    assert "id" in answer
    if id is not _ABSENT:
        assert answer["id"] == id
        assert type(answer["id"]) is type(id)
    if "error" in answer:
        assert answer["error"]["code"] in set(Code)
        assert isinstance(answer["error"]["message"], str)
        assert isinstance(answer["error"].get("data", {}), dict)
        _conforms("JsonRpcError", answer)
    else:
        assert isinstance(answer["result"], dict)
        _conforms("JsonRpcSuccess", answer)
        if method in _methods():
            _conforms("ResultFor", {"method": method, "result": answer["result"]})
        _no_nulls(answer["result"])
    return answer


def check_exchange(sent: bytes, came: bytes) -> Any:
    """Asserts what must hold of the answer ``came`` to the message ``sent``, whatever that was, and returns it.

    Beside the schema: the id comes back as it went, and a list of hits is at most k long, descending and without
    duplicates.
    """
    try:
        request = json.loads(sent)
    except (ValueError, RecursionError):
        return check_frame("", came, id=None)
    if came.startswith(b"["):
        return check_batch(came)
    if not isinstance(request, dict) or not isinstance(request.get("method"), str):
        return check_frame("", came)
    answer = check_frame(request["method"], came)
    if answer["id"] is not None:
        assert json.dumps(answer["id"]) == json.dumps(request.get("id"))
    if request["method"] == "retrieve" and "result" in answer:
        params = request.get("params") or {}
        # Under a budget of tokens alone the budget takes the place of the number (section 7.7.2).
        check_ranking(answer["result"]["hits"], params.get("k") or (10 if "tokenBudget" not in params else math.inf))
    return answer


def check_ranking(hits: list[dict[str, Any]], k: float) -> None:
    """Asserts what a schema cannot say of a list of hits."""
    ids = [str(hit["id"]) for hit in hits]
    scores = [hit["score"] for hit in hits]
    assert len(hits) <= k
    assert len(ids) == len(set(ids)), ids
    assert scores == sorted(scores, reverse=True), scores
    assert all(type(score) in (int, float) for score in scores)


def check_batch(frame: bytes) -> list[dict[str, Any]]:
    """Asserts that the frame is a batch of answers and returns them."""
    answers = _load(frame)
    assert isinstance(answers, list)
    assert answers
    return [
        check_frame("", json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()) for answer in answers
    ]


def check_notification(kind: Literal["progress", "log"], frame: bytes) -> dict[str, Any]:
    """Asserts that the frame is a notification of the kind and returns its ``params``."""
    found = _load(frame)
    assert "id" not in found
    assert found["method"] == f"notifications/{kind}"
    _conforms({"progress": "ProgressNotification", "log": "LogNotification"}[kind], found)
    params = found["params"]
    assert isinstance(params, dict)
    if "partial" in params:
        check_ranking(params["partial"]["hits"], float("inf"))
    return params


def _unpacked(value: Any) -> Any:
    """With vectors of hits as numbers: the schema forbids what section 7.3.1 allows there (DECISIONS, schema 1)."""
    result = value.get("result") if isinstance(value, dict) else None
    if not isinstance(result, dict) or result.get("encoding") != "f32-base64" or "hits" not in result:
        return value
    hits = [
        {**hit, "vector": list(memoryview(base64.b64decode(hit["vector"], validate=True)).cast("f"))}
        if "vector" in hit
        else hit
        for hit in result["hits"]
    ]
    return {**value, "result": {**result, "hits": hits}}


def _load(frame: bytes) -> Any:
    assert b"\n" not in frame
    assert b"\r" not in frame

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} in a frame")

    def number(token: str) -> float:
        value = float(token)
        assert value not in (float("inf"), float("-inf")), token
        return value

    return json.loads(frame.decode("utf-8"), parse_constant=refuse, parse_float=number)


def _no_nulls(value: Any) -> None:
    """No null outside ``meta``, whose values are the documents' own (section 4.6)."""
    if isinstance(value, dict):
        for name, item in value.items():
            assert item is not None, f"null under {name}"
            if name != "meta":
                _no_nulls(item)
    elif isinstance(value, list):
        for item in value:
            _no_nulls(item)


@cache
def _schema() -> dict[str, Any] | None:
    path = schema_path()
    return None if path is None else json.loads(path.read_text("utf-8"))


@cache
def _methods() -> frozenset[str]:
    schema = _schema()
    return frozenset(schema["$defs"]["MethodName"]["anyOf"][0]["enum"]) if schema else frozenset()


@cache
def _validator(definition: str) -> Any:
    schema = _schema()
    if schema is None:
        return None
    import jsonschema

    return jsonschema.Draft202012Validator({"$defs": schema["$defs"], "$ref": f"#/$defs/{definition}"})


def _conforms(definition: str, value: Any) -> None:
    validator = _validator(definition)
    value = _unpacked(value)
    if validator is not None:
        errors = [error.message for error in validator.iter_errors(value)]
        assert not errors, f"{definition}: {errors[:3]}"
