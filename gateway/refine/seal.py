"""The last look at a hit before it is sent: decoded, checked, encoded.

Everything in a hit comes from an engine and is trusted in nothing. What does not fit the schema is left out rather than
sent; members the schema does not know survive if they are sound JSON. Encoded members never reach the wire as they
came: they may hold line breaks, bad UTF-8 or numbers no parser takes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import Any

from gateway._json import Raw, encode, encode_sound, finite_float, mend, sound
from gateway.fusion.ranking import TRUST_LEVELS
from gateway.model import MODALITIES, UNITS, Hit, decoded
from gateway.model.vectors import F32_BASE64, numbers_of, packed_floats

__all__ = ["seal"]

_CONTENT_TYPES = frozenset({"text", "image", "audio", "blob"})
_LEFT_OUT = {(True, True): (), (True, False): ("vector",), (False, True): ("text",), (False, False): ("text", "vector")}
_NO_SCORES: Mapping[str, float] = MappingProxyType({})
_BAD = object()
_DEPTH = 64
"""How deep a member may nest; readers of JSON have limits of their own, and ours must not end an answer."""

Check = Callable[[Any], Any]


def seal(
    hit: Hit,
    score: float,
    *,
    include_text: bool,
    include_vectors: bool,
    encoding: str | None = None,
    scores: Mapping[str, float] = _NO_SCORES,
) -> Raw:
    """The hit as final JSON with this score; ``text`` and ``vector`` only where they are wanted.

    ``scores`` are the gateway's own, and win over the engine's of the same name. A vector is sent as numbers, under
    the ``encoding`` f32-base64 as text, whichever of them the engine gave.
    """
    left_out = _LEFT_OUT[include_text, include_vectors]
    shallow, deep = _PACKING if encoding == F32_BASE64 else _PLAIN
    # Nearly every hit is sound, which encoding it tells; only what is not is looked through value by value.
    encoded = encode_sound(_checked(hit, score, left_out, shallow, scores))
    if encoded is None:
        encoded = encode(_checked(hit, score, left_out, deep, scores))
    return Raw(encoded)


def _checked(
    hit: Hit, score: float, left_out: Container[str], checks: Mapping[str, Check], scores: Mapping[str, float]
) -> dict[str, Any]:
    sealed: dict[str, Any] = {"id": mend(hit.id), "score": score}
    if hit.confidence is not None and 0 <= hit.confidence <= 1:
        sealed["confidence"] = hit.confidence
    for name, value in hit.members.items():
        if name in left_out or name in sealed:
            continue
        if isinstance(value, Raw):
            value = decoded(value)
        if value is None:
            continue
        checked = checks.get(name, _anything)(value)
        if checked is not _BAD:
            sealed[name if name in checks else mend(name)] = checked
    if scores:
        sealed["scores"] = {**sealed.get("scores", _NO_SCORES), **scores}
    return sealed


def _anything(value: Any) -> Any:
    """A member the schema does not know: any sound JSON, without members that are null (section 4.6)."""
    found = _any_json(value)
    return found if found is _BAD else _without_nulls(found)


def _any_json(value: Any) -> Any:
    try:
        return sound(value, _DEPTH)
    except ValueError:
        return _BAD


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _shallow_meta(value: Any) -> Any:
    return value if type(value) is dict else _meta(value)


def _shallow_text(value: Any) -> Any:
    return value if type(value) is str else _text(value)


def _meta(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _BAD
    kept = {mend(str(key)): _any_json(item) for key, item in value.items()}  # nulls are the document's own
    return {key: item for key, item in kept.items() if item is not _BAD}


def _text(value: Any) -> Any:
    return mend(str(value)) if isinstance(value, str) else _BAD


def _one_of(allowed: frozenset[str]) -> Callable[[Any], Any]:
    return lambda value: str(value) if isinstance(value, str) and value in allowed else _BAD


def _count(value: Any) -> Any:
    number = _integer(value)
    return number if number is not None and number >= 0 else _BAD


def _integer(value: Any) -> int | None:
    return int(value) if finite_float(value) is not None and value == int(value) else None


def _vector(value: Any) -> Any:
    numbers = numbers_of(value)
    return _BAD if numbers is None else numbers


def _packed_vector(value: Any) -> Any:
    numbers = numbers_of(value)
    return _BAD if numbers is None else packed_floats(numbers)


def _scores(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _BAD
    numbers = ((mend(str(name)), finite_float(number)) for name, number in value.items())
    return {name: number for name, number in numbers if number is not None} or _BAD


def _shape(texts: frozenset[str], integers: frozenset[str]) -> Callable[[Any], Any]:
    """An object whose listed members have a type; others are kept if they are sound."""

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return _BAD
        kept: dict[str, Any] = {}
        for name, item in value.items():
            if name in texts:
                item = _text(item)
            elif name in integers:
                number = _integer(item)
                item = _BAD if number is None else number
            elif item is not None:
                item = _anything(item)
            if item is not _BAD and item is not None:
                kept[mend(str(name))] = item
        return kept or _BAD

    return check


def _content(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return _BAD
    return [block for block in (_block(item) for item in value) if block is not None] or _BAD


def _block(value: Any) -> dict[str, Any] | None:
    """One content block, if it is one (section 4.8)."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str) or value["type"] not in _CONTENT_TYPES:
        return None
    block = {mend(str(name)): mend(str(item)) for name, item in value.items() if isinstance(item, str)}
    bodies = [name for name in ("data", "uri") if name in block]
    if block["type"] == "text":
        return block if "text" in block and len(bodies) < 2 else None
    return block if "mimeType" in block and len(bodies) == 1 else None


def _shallow_trust(value: Any) -> Any:
    return value if type(value) is dict and len(value) == 1 and value.get("level") in TRUST_LEVELS else _trust(value)


def _trust(value: Any) -> Any:
    if not isinstance(value, Mapping) or value.get("level") not in TRUST_LEVELS:
        return _BAD
    trust: dict[str, Any] = {"level": value["level"]}
    score = finite_float(value.get("score"))
    if score is not None and 0 <= score <= 1:
        trust["score"] = score
    for name in ("injectionSuspected", "sanitized"):
        if isinstance(value.get(name), bool):
            trust[name] = value[name]
    return trust


def _provenance(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _BAD
    kept: dict[str, Any] = {}
    for name, item in value.items():
        if name in ("path", "nodes", "leaves"):
            if isinstance(item, list | tuple) and all(isinstance(one, str) for one in item):
                kept[name] = [mend(str(one)) for one in item]
        elif name == "edges":
            if isinstance(item, list | tuple) and all(map(_edge, item)):
                edges = _anything(item)
                if edges is not _BAD:
                    kept[name] = edges
        elif item is not None and (other := _anything(item)) is not _BAD:
            kept[mend(str(name))] = other
    return kept or _BAD


def _edge(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("src"), str) and isinstance(value.get("dst"), str)


_CHECKS: dict[str, Check] = {
    "text": _text,
    "content": _content,
    "modality": _one_of(frozenset(MODALITIES)),
    "unit": _one_of(frozenset(UNITS)),
    "level": _count,
    "meta": _meta,
    "vector": _vector,
    "scores": _scores,
    "citation": _shape(frozenset({"source", "uri", "title"}), frozenset({"start", "end", "page"})),
    "provenance": _provenance,
    "trust": _trust,
    "chunk": _shape(frozenset({"docId", "context"}), frozenset({"index"})),
}
_PLAIN = ({**_CHECKS, "meta": _shallow_meta, "text": _shallow_text, "trust": _shallow_trust}, _CHECKS)
_PACKING = tuple({**checks, "vector": _packed_vector} for checks in _PLAIN)
"""What is checked when nearly all is left to the encoder, and when nothing is; for each encoding of vectors."""
