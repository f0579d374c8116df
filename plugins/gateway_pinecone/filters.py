"""Filters in Pinecone's metadata language.

What is known of it, and what is not, is in README.md. Here is only emitted what means the same under every reading:

- no negation stands alone: whether ``$ne`` and ``$nin`` select records without the field has changed over time, so
  ``$exists: false`` stands beside them;
- no ``$not``: negations have been moved to the conditions before they come here;
- one operator for each condition; lists only under ``$in``, ``$nin``, ``$and`` and ``$or``, none of them empty;
- whether ``[]`` exists is not documented: where lists may be stored, nothing hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.filters import ORDERED_OPS, Bound, Condition, Exact, FilterCompiler, Instant, Loose, Op, Scalar
from gateway_pinecone.settings import FieldSettings

__all__ = ["MAX_VALUES", "PineconeFilters"]

Native = dict[str, Any]

MAX_VALUES: Final = 10_000
"""How many values one ``$in`` or ``$nin`` takes."""

_ORDER: Final = {Op.GT: "$gt", Op.GTE: "$gte", Op.LT: "$lt", Op.LTE: "$lte"}
_FLIPPED: Final = {Op.GT: Op.LTE, Op.GTE: Op.LT, Op.LT: Op.GTE, Op.LTE: Op.GT}


class PineconeFilters(FilterCompiler[Native]):
    """Compiles for the fields that the configuration declares."""

    def __init__(self, field: Callable[[str], FieldSettings | None]) -> None:
        self._field = field

    def satisfying(self, c: Condition) -> Bound[Native]:
        field = self._declared(c)
        if field is None:
            return None
        present = _exists(c.field, found=True)
        if c.op is Op.EXISTS:
            return Exact(present) if not field.multi or field.clean else Loose(present)
        match field.type:
            case "keyword":
                return Exact(_in(c.field, c.values))
            case "text":
                return Loose(present) if c.op is Op.CONTAINS else Exact(_in(c.field, c.values))
            case "int" | "float" if c.op in ORDERED_OPS:
                native = {c.field: {_ORDER[c.op]: c.value}}
                # Pinecone compares the fractions that a stray value has; for us they are no integers.
                return Exact(native) if field.type == "float" or field.clean else Loose(native)
            case "int" | "float":
                return Exact(_in(c.field, c.values))
            case "bool":
                return Exact(_any([{c.field: {"$eq": value}} for value in c.values]))
            case "date" if field.dates == "epoch_ms":
                return _instants(c, field)
            case "date":
                # As text they have no order, and equal instants many spellings.
                return Loose(present)
            case _:
                return None

    def violating(self, c: Condition) -> Bound[Native]:
        """Only where the answer is the same whatever Pinecone makes of a missing field, ``[]`` and strays."""
        field = self._declared(c)
        if field is None or (field.multi and not field.clean):
            return None
        absent = _exists(c.field, found=False)
        if c.op is Op.EXISTS:
            return Exact(absent)
        if c.op in ORDERED_OPS:
            # The flipped range leaves out values that are no numbers, and they do not satisfy c either.
            if not field.clean or field.type == "geo" or (field.type == "date" and field.dates == "rfc3339"):
                return None
            if field.type == "date":
                return Exact(_any([_millis(c.field, _FLIPPED[c.op], value) for value in c.values] + [absent]))
            return Exact(_any([{c.field: {_ORDER[_FLIPPED[c.op]]: c.value}}, absent]))
        match field.type:
            case "keyword" | "int" | "float":
                return Exact(_any([_not_in(c.field, c.values), absent]))
            case "text" if c.op is not Op.CONTAINS:
                return Exact(_any([_not_in(c.field, c.values), absent]))
            case "bool":
                return Exact(_any([_all([{c.field: {"$ne": value}} for value in c.values]), absent]))
            case "date" if field.dates == "epoch_ms":
                stored = [whole for value in c.values if (whole := _whole(value)) is not None]
                if not stored:
                    return None
                native = _any([_not_in(c.field, stored), absent])
                # An instant between two milliseconds excludes nothing, unless a stray fraction is stored.
                return Exact(native) if field.clean or len(stored) == len(c.values) else Loose(native)
            case _:
                return None

    def all_of(self, parts: Sequence[Native]) -> Native:
        return _all(parts)

    def any_of(self, parts: Sequence[Native]) -> Native:
        return _any(parts)

    def _declared(self, c: Condition) -> FieldSettings | None:
        """The field, if the condition was read against the same declaration; Pinecone reserves keys with ``$``."""
        field = self._field(c.field)
        if field is None or c.type is None or c.type.value != field.type or c.field.startswith("$"):
            return None
        return field


def _joined(operator: str, parts: Sequence[Native]) -> Native:
    """Two or more parts under the operator, those of its own kind taken out of their shell; one part stands alone."""
    flat: list[Native] = []
    for part in parts:
        flat += part.get(operator, [part])
    return flat[0] if len(flat) == 1 else {operator: flat}


def _all(parts: Sequence[Native]) -> Native:
    return _joined("$and", parts)


def _any(parts: Sequence[Native]) -> Native:
    return _joined("$or", parts)


def _exists(key: str, *, found: bool) -> Native:
    return {key: {"$exists": found}}


def _chunks(values: Sequence[Scalar]) -> list[list[Scalar]]:
    return [list(values[at : at + MAX_VALUES]) for at in range(0, len(values), MAX_VALUES)]


def _in(key: str, values: Sequence[Scalar]) -> Native:
    if len(values) == 1:
        return {key: {"$eq": values[0]}}
    return _any([{key: {"$in": chunk}} for chunk in _chunks(values)])


def _not_in(key: str, values: Sequence[Scalar]) -> Native:
    if len(values) == 1:
        return {key: {"$ne": values[0]}}
    return _all([{key: {"$nin": chunk}} for chunk in _chunks(values)])


def _instants(c: Condition, field: FieldSettings) -> Bound[Native]:
    """Dates stored as milliseconds."""
    if not all(isinstance(value, Instant) for value in c.values):
        return None
    whole = [_whole(value) for value in c.values]
    if c.op not in ORDERED_OPS and None not in whole:
        return Exact(_in(c.field, [value for value in whole if value is not None]))
    native = _any([_millis(c.field, c.op, value) for value in c.values])
    return Exact(native) if field.clean else Loose(native)


def _whole(value: Scalar) -> int | None:
    return value.epoch_ms() if isinstance(value, Instant) else None


def _millis(key: str, op: Op, value: Scalar) -> Native:
    """One instant against whole milliseconds. One that lies between two of them orders like the gap it lies in, and a
    stored fraction of the same gap is let through rather than missed."""
    if not isinstance(value, Instant):
        raise AssertionError("a date is compared with an instant")
    floor, rest = divmod(value.micros, 1000)
    if not rest:
        return {key: {_ORDER.get(op, "$eq"): floor}}
    match op:
        case Op.GT | Op.GTE:
            return {key: {"$gt": floor}}
        case Op.LT | Op.LTE:
            return {key: {"$lt": floor + 1}}
        case _:
            return _all([{key: {"$gt": floor}}, {key: {"$lt": floor + 1}}])
