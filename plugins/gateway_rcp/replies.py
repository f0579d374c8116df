"""What an upstream answered, checked value by value: none of its claims is taken on trust (RCP section 15.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import BackendUnavailable
from gateway.model import Hit, IndexAddResult
from gateway.model.vectors import numbers_of
from gateway.protocol.peer import Answer
from gateway.spi.codec import Raw, decode, finite_float, mend, salvage
from gateway.spi.engine import EmbedReply, EngineReply, SparseVector
from gateway_rcp.encoded import ABSENT, EncodedHit

__all__ = [
    "deleted",
    "embeddings",
    "hits",
    "identifier",
    "ids",
    "notes",
    "plain_hit",
    "result",
    "scores",
    "sparse_vectors",
    "vector",
]

Members = Mapping[str, Any]
_NOTES = 10
_NOTE_LETTERS = 300
_NAMES = 8
_NAME_LETTERS = 64
_VERSION_LETTERS = 1024
_READ_APART = ("id", "score", "confidence")


class _Retrieved(msgspec.Struct, rename="camel"):
    hits: list[EncodedHit]
    index_version: Raw = ABSENT
    usage: Raw = ABSENT
    next_cursor: Raw = ABSENT
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


class _Loose(msgspec.Struct, rename="camel"):
    """The same where not every hit is as the schema has it, or not even an object."""

    hits: list[Raw]
    index_version: Raw = ABSENT
    usage: Raw = ABSENT
    next_cursor: Raw = ABSENT
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


def hits(answer: Answer, *, k: int) -> EngineReply:
    """The answer to a ``retrieve`` that asked for ``k`` hits.

    Raises the upstream's error, or :class:`BackendUnavailable` for an answer without a list of hits.
    """
    reply, found = _retrieved(answer.object(), k)
    given = len(reply.hits)
    bad = min(given, k) - len(found)
    told = _notes(_plain(reply.usage))
    if bad:
        told.append(f"{bad} hits without a usable id were dropped")
    if given > k:
        told.append(f"{given - k} hits beyond the {k} asked for were dropped")
    version = _plain(reply.index_version)
    missing = _missing(_plain(reply.meta))
    return EngineReply(
        hits=found,
        exhausted=given < k and missing is None and not _more(reply),
        # One that was cut could never be asked for again.
        index_version=mend(version) if isinstance(version, str) and len(version) <= _VERSION_LETTERS else None,
        notes=tuple(told),
        partial=missing,
    )


def _retrieved(raw: Raw, k: int) -> tuple[_Retrieved | _Loose, list[Hit]]:
    """The reply, and the first ``k`` of its hits that are hits."""
    try:
        reply = decode(raw, _Retrieved)
    except (ValueError, RecursionError):
        return _loosely(raw, k)
    found: list[Any] = reply.hits[:k]  # they are the mappings of their members too
    return reply, [
        Hit(one.id if type(one.id) is str else str(identifier(one.id)), one.score, one.confidence, one) for one in found
    ]


def _loosely(raw: Raw, k: int) -> tuple[_Loose, list[Hit]]:
    try:
        reply = decode(raw, _Loose)
    except (ValueError, RecursionError) as error:
        raise BackendUnavailable("the engine's answer holds no list of hits") from error
    read = (_hit(_members(one)) for one in reply.hits[:k])
    return reply, [one for one in read if one is not None]


def _members(raw: Raw) -> dict[str, Raw] | None:
    try:
        return decode(raw, dict[str, Raw])
    except (ValueError, RecursionError):
        return None


def _hit(members: Mapping[str, Raw] | None) -> Hit | None:
    if members is None:
        return None
    id = identifier(_plain(members.get("id")))
    if id is None:
        return None
    confidence = finite_float(_plain(members.get("confidence")))
    return Hit(
        id,
        finite_float(_plain(members.get("score"))),
        confidence if confidence is not None and 0 <= confidence <= 1 else None,
        {name: raw for name, raw in members.items() if name not in _READ_APART and not _null(raw)},
    )


def plain_hit(value: Any) -> Hit | None:
    """A hit of plain values, ``None`` if it is none."""
    id = identifier(value.get("id")) if isinstance(value, dict) else None
    if not id:
        return None
    confidence = finite_float(value.get("confidence"))
    return Hit(
        id,
        finite_float(value.get("score")),
        confidence if confidence is not None and 0 <= confidence <= 1 else None,
        {name: item for name, item in value.items() if name not in _READ_APART and item is not None},
    )


def notes(members: Members) -> tuple[str, ...]:
    """What the upstream says of its answer, for the caller."""
    return tuple(_notes(members.get("usage")))


def identifier(value: Any) -> str | None:
    """An id as the text that fusion keys on: 7 and 7.0 are ``"7"``; ``None`` for what is no id."""
    match value:
        case str():
            return mend(value)
        case bool():
            return None
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return str(int(value)) if value.is_integer() else repr(value)
        case _:
            return None


def _more(reply: _Retrieved | _Loose) -> bool:
    cursor = _plain(reply.next_cursor)
    return isinstance(cursor, str) and cursor != ""


def _missing(meta: Any) -> tuple[str, ...] | None:
    """What ``_meta.degraded`` names, where the upstream is a gateway of whose engines some failed (section 16.2)."""
    given = meta.get("degraded") if isinstance(meta, dict) else None
    if not given:
        return None
    names = given if isinstance(given, list) else ()
    return tuple([_sentence(name[:_NAME_LETTERS]) for name in names[:_NAMES] if isinstance(name, str)])


def _notes(usage: Any) -> list[str]:
    given = usage.get("notes") if isinstance(usage, dict) else None
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list):
        return []
    sentences = [_sentence(item) for item in given if isinstance(item, str)]
    return [sentence for sentence in sentences if sentence][:_NOTES]


def _sentence(text: str) -> str:
    cut = text[:_NOTE_LETTERS]
    return "".join(letter if letter.isprintable() else " " for letter in cut).strip()


def embeddings(answer: Answer, *, count: int) -> EmbedReply:
    """One vector per input, of one dimension, finite; base64 of little-endian float32 is read too (section 7.3.1)."""
    members = result(answer)
    given = members.get("vectors")
    if not isinstance(given, list) or len(given) != count:
        raise BackendUnavailable("the engine did not answer with one vector per input")
    vectors = tuple(vector(item) for item in given)
    if len({len(one) for one in vectors}) > 1 or any(not one for one in vectors):
        raise BackendUnavailable("the engine's vectors are not of one dimension")
    return EmbedReply(vectors=vectors)


def sparse_vectors(answer: Answer, *, count: int) -> list[SparseVector]:
    """One sparse vector per input (section 7.4): ``{"sparse": [{"indices": […], "values": […]}]}``."""
    given = result(answer).get("sparse")
    if not isinstance(given, list) or len(given) != count:
        raise BackendUnavailable("the engine did not answer with one sparse vector per input")
    return [_sparse(item) for item in given]


def _sparse(given: Any) -> SparseVector:
    indices = given.get("indices") if isinstance(given, Mapping) else None
    values = given.get("values") if isinstance(given, Mapping) else None
    if not isinstance(indices, list) or not isinstance(values, list) or len(indices) != len(values):
        raise BackendUnavailable("the engine's sparse vector has no indices and values of one length")
    places = [int(item) for item in indices if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
    numbers = [number for number in map(finite_float, values) if number is not None]
    if len(places) != len(indices) or len(numbers) != len(values):
        raise BackendUnavailable("the engine's sparse vector holds something that is not a number")
    return SparseVector(tuple(places), tuple(numbers))


def vector(given: Any) -> tuple[float, ...]:
    """Finite numbers, from a list of them or from base64 of little-endian float32 (section 7.3.1)."""
    numbers = numbers_of(given)
    if numbers is None:
        raise BackendUnavailable("the engine's vector is no list of finite numbers, nor such a list in base64")
    return tuple(numbers)


def scores(answer: Answer, *, count: int) -> list[float | None]:
    """A score per passage: ``scores``, else the ``results`` (or ``hits``, ``ranking``) of real peers (DECISIONS D4)."""
    members = result(answer)
    found: list[float | None] = [None] * count
    aligned = members.get("scores")
    if isinstance(aligned, list):
        for index, value in enumerate(aligned[:count]):
            found[index] = finite_float(value)
    else:
        listed = next(
            (members[key] for key in ("results", "hits", "ranking") if isinstance(members.get(key), list)), None
        )
        if listed is None:
            raise BackendUnavailable("the engine's answer holds no scores")
        for item in listed:
            _place(item, found)
    if count and all(score is None for score in found):
        raise BackendUnavailable("the engine gave no usable score")
    return found


def _place(item: Any, found: list[float | None]) -> None:
    if not isinstance(item, dict):
        return
    index = item.get("index")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(found) or found[index] is not None:
        return
    found[index] = finite_float(item.get("score", item.get("relevance_score")))


def ids(answer: Answer, *, given: Sequence[str | None]) -> IndexAddResult:
    """The ids of added documents, in order; an upstream that does not name them all took ours, if we gave any."""
    members = result(answer)
    listed = members.get("ids")
    read = [identifier(item) for item in listed] if isinstance(listed, list) else []
    if len(read) != len(given):
        read = list(given)
    if any(id is None for id in read):
        raise BackendUnavailable("the engine did not name the documents it added", retryable=False)
    chunks = members.get("chunks")
    counted = chunks if isinstance(chunks, int) and not isinstance(chunks, bool) and chunks >= 0 else None
    return IndexAddResult(ids=tuple(id for id in read if id is not None), chunks=counted)


def deleted(answer: Answer) -> int:
    """How many documents were there; 0 if the upstream does not say."""
    value = result(answer).get("deleted")
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def result(answer: Answer) -> dict[str, Any]:
    """The answer's result as plain values. Raises the upstream's error, or what an unreadable one is."""
    value = _plain(answer.object())
    if not isinstance(value, dict):
        raise BackendUnavailable("the engine's answer cannot be read")
    return value


def _plain(raw: Raw | None) -> Any:
    """Plain values of an encoded member, ``None`` if there is none. A number that overflows costs only itself."""
    if raw is None or not memoryview(raw):
        return None
    try:
        return decode(raw, Any)
    except (ValueError, RecursionError):
        pass
    try:
        return salvage(bytes(raw), allow_nan=True)
    except (ValueError, RecursionError):
        return None


def _null(raw: Raw) -> bool:
    # Texts are long: look at the length before making bytes of it.
    return memoryview(raw).nbytes == 4 and bytes(raw) == b"null"
