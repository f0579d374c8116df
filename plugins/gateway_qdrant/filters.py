"""Filters in Qdrant's own form, as the JSON that its REST interface takes.

What is never emitted, because it means something else than it seems to (``/docs`` of this plugin, README.md):
``match.except`` (its answer depends on the index), an empty ``should`` (it selects everything), ``match`` for numbers
(1 misses 1.0), two predicates in one condition (either suffices), ``is_null`` (it sees nulls inside arrays), and
``match.text`` (it folds case and splits words).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.filters import Condition, Exact, Filter, FilterCompiler, Instant, Loose, Op, Pushdown, Scalar
from gateway_qdrant.collection import Binding, Collection

__all__ = ["QdrantFilters", "conditions_in"]

Native = dict[str, Any]
_ORDER = {Op.GT: "gt", Op.GTE: "gte", Op.LT: "lt", Op.LTE: "lte"}

_RANGES = 16
_INDEXED_RANGES = 256
"""How many ranges one list may become. Without an index each reads every payload again: 15 ms per 20,000 points."""


class QdrantFilters(FilterCompiler[Native]):
    """Compiles for one collection. A native filter is a condition, or a filter object that nests as one."""

    def __init__(self, bindings: Mapping[str, Binding], found: Collection) -> None:
        self._bindings = bindings
        self._found = found

    def push_down(self, filter: Filter) -> Pushdown[Native]:
        """As the law has it; a filter over strict mode's limits is not pushed at all rather than refused there."""
        pushed = super().push_down(filter)
        strict = self._found.strict
        if pushed.native is None or (strict.max_conditions is None and strict.max_values is None):
            return pushed
        conditions, values = conditions_in(pushed.native)
        fits = conditions <= (strict.max_conditions or conditions) and values <= (strict.max_values or values)
        return pushed if fits else Pushdown.unpushed(filter)

    def satisfying(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        native = self._positive(c)
        if native is not None:
            return Exact(native) if self._same_reading(c) else Loose(native)
        wider = self._span(c)
        return None if wider is None else Loose(wider)

    def violating(self, c: Condition) -> Exact[Native] | None:
        """``must_not`` is the complement over all points, those without the field among them.

        So it is exact where the condition is; elsewhere it would hide what Qdrant reads and the filter language does
        not, and nothing is pushed.
        """
        if c.op is Op.EXISTS:
            empty = self._empty(c)
            return None if empty is None else Exact(empty)
        native = self._positive(c)
        return None if native is None or not self._same_reading(c) else Exact({"must_not": [native]})

    def _same_reading(self, c: Condition) -> bool:
        """Whether Qdrant reads every stored value as the filter language does.

        It orders fractions in a field of integers, which are no integers, and takes more spellings for dates: with
        blanks around them, without seconds, with a leap second.
        """
        field = self._bindings.get(c.field)
        if field is None or field.clean or c.op is Op.EXISTS:
            return True
        return not (field.type == "int" and c.op in _ORDER) and (field.type != "date" or field.epoch_ms)

    def all_of(self, parts: Sequence[Native]) -> Native:
        return {"must": list(parts)}

    def any_of(self, parts: Sequence[Native]) -> Native:
        return {"should": list(parts)}

    def _bound(self, c: Condition) -> tuple[Binding, str] | None:
        """The field, and its key, if conditions on it are pushed."""
        field = self._bindings.get(c.field)
        # A condition without a type, or read against another declaration, says nothing of how values are stored here.
        if field is None or field.key is None or c.type is None or c.type.value != field.type:
            return None
        return field, field.key

    def _positive(self, c: Condition) -> Native | None:
        bound = self._bound(c)
        if bound is None:
            return None
        field, key = bound
        if c.op is Op.EXISTS:
            empty = self._empty(c)
            return None if empty is None else {"must_not": [empty]}
        match field.type:
            case "keyword" | "text":
                return self._strings(key, field, c)
            case "int" if field.index == "integer" and len(c.values) > 1:
                # This index keeps 1.0 as 1. Without it `match` misses 1.0.
                return {"key": key, "match": {"any": list(c.values)}}
            case "int" | "float" | "date":
                if len(c.values) > (_RANGES if field.index is None else _INDEXED_RANGES):
                    return None
                return _any(_ranged(field, key, c.op, value) for value in c.values)
            case "bool" if self._found.booleans:
                return _any({"key": key, "match": {"value": value}} for value in c.values)
            case _:
                return None

    def _span(self, c: Condition) -> Native | None:
        """For a list too long for a range each: one range that an element must lie in to be any of them."""
        bound = self._bound(c)
        if bound is None or c.op is not Op.IN or bound[0].type not in ("int", "float", "date"):
            return None
        field, key = bound
        low = _ranged(field, key, Op.GTE, min(c.values))
        high = _ranged(field, key, Op.LTE, max(c.values))
        return {"key": key, "range": {**low["range"], **high["range"]}}

    def _empty(self, c: Condition) -> Native | None:
        """Missing, null and ``[]`` are one, here as in the filter language. ``[null]`` is present in both."""
        field = self._bindings.get(c.field)
        if field is None or field.key is None:
            return None
        return {"is_empty": {"key": field.key}}

    def _strings(self, key: str, field: Binding, c: Condition) -> Native | None:
        if c.op is Op.CONTAINS and field.type == "text":
            # `contains ""` asks for any text at all, which no condition says.
            if not self._found.substring or not c.value:
                return None
            return {"key": key, "match": {"substring": c.value}}
        values = list(c.values)
        return {"key": key, "match": {"value": values[0]} if len(values) == 1 else {"any": values}}


def _any(parts: Iterable[Native]) -> Native:
    """One of the parts; a list of literals is never empty, and one part needs no ``should`` around it."""
    alternatives = list(parts)
    return alternatives[0] if len(alternatives) == 1 else {"should": alternatives}


def _range(key: str, **bounds: Any) -> Native:
    return {"key": key, "range": bounds}


def _number(key: str, op: Op, value: Scalar) -> Native:
    """One bound, or both of one value: two bounds of *different* conditions may be met by two elements of an array."""
    return _range(key, **{_ORDER[op]: value}) if op in _ORDER else _range(key, gte=value, lte=value)


def _ranged(field: Binding, key: str, op: Op, value: Scalar) -> Native:
    """A condition on a number or a date. Dates are compared as instants, to the microsecond, however stored."""
    if not isinstance(value, Instant):
        return _number(key, op, value)
    return _millis(key, op, value) if field.epoch_ms else _number(key, op, value.rfc3339())


def _millis(key: str, op: Op, value: Instant) -> Native:
    """Dates stored as whole milliseconds. An instant between two of them equals none, and orders like the gap."""
    whole, rest = divmod(value.micros, 1000)
    if not rest:
        return _number(key, op, whole)
    match op:
        case Op.GT | Op.GTE:
            return _range(key, gt=whole)
        case Op.LT | Op.LTE:
            return _range(key, lte=whole)
        case _:
            return _range(key, gt=whole, lt=whole + 1)


def conditions_in(native: Any) -> tuple[int, int]:
    """How many conditions a native filter has, and the longest list of values in one; strict mode limits both."""
    if not isinstance(native, dict):
        return 0, 0
    inner = [part for clause in ("must", "should", "must_not") for part in native.get(clause, ())]
    if not inner:
        match = native.get("match")
        return 1, len(match["any"]) if isinstance(match, dict) and "any" in match else 0
    counts = [conditions_in(part) for part in inner]
    return sum(count for count, _ in counts), max(values for _, values in counts)
