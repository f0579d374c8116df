"""Filters for Weaviate, whose conditions look into an inverted index of *tokens* and not at values.

What that means, and what is never relied on (README.md, "Filters"):

- ``Equal`` on text is "every token of the query is there", so it is a bound for equality and no more; its negation is
  no bound at all, except on a property with the ``field`` tokenizer whose stored values are known to be trimmed;
- a query that consists of stopwords, or of no token, is an *error* there, so such a literal is not sent;
- ``Like`` knows ``*`` and ``?`` and no escape, and what else it knows depends on the version: up to 2024 at least the
  pattern went into a regular expression unquoted. Every character that means something in one is sent as ``?``;
- a date is kept in nanoseconds and a literal has microseconds: equality is a window, and on an array a window may be
  met by two elements, so there it is only a bound;
- two bounds of one field never become one range, and a flipped comparison is no negation on an array;
- ``-0.0`` was indexed below all other numbers by servers before 2026, so it is asked for by name;
- ``IsNull: true`` misses objects that are older than the property; the complement of ``IsNull: false`` does not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from typing import Any, Final, Literal, TypeAlias

from gateway.filters import (
    ORDERED_OPS,
    Bound,
    Condition,
    Exact,
    FieldType,
    FilterCompiler,
    Instant,
    Loose,
    Op,
    Scalar,
)
from gateway_weaviate.schema import Collection, Property

__all__ = ["Group", "Leaf", "Native", "WeaviateFilters", "described", "go_trim", "tokens"]

Operator: TypeAlias = Literal[
    "Equal", "NotEqual", "GreaterThan", "GreaterThanEqual", "LessThan", "LessThanEqual", "Like", "IsNull"
]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A condition in Weaviate's own words; dates are RFC 3339 text."""

    property: str
    operator: Operator
    value: str | bool | int | float


@dataclass(frozen=True, slots=True)
class Group:
    """``And`` and ``Or`` have two or more parts, ``Not`` one."""

    operator: Literal["And", "Or", "Not"]
    parts: tuple[Native, ...]


Native: TypeAlias = Leaf | Group


def described(native: Native) -> dict[str, Any]:
    """The filter as Weaviate's documentation writes one: ``{path, operator, value}`` and ``{operator, operands}``."""
    if isinstance(native, Leaf):
        return {"path": [native.property], "operator": native.operator, "value": native.value}
    return {"operator": native.operator, "operands": [described(part) for part in native.parts]}


_ORDER: Final[Mapping[Op, Operator]] = {
    Op.GT: "GreaterThan",
    Op.GTE: "GreaterThanEqual",
    Op.LT: "LessThan",
    Op.LTE: "LessThanEqual",
}
_FLIPPED: Final = {Op.GT: Op.LTE, Op.GTE: Op.LT, Op.LT: Op.GTE, Op.LTE: Op.GT}
_SPACES: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)
"""What Go's ``unicode.IsSpace`` calls a space. Python's ``isspace`` has four control characters more."""
_SPLIT: Final = re.compile(f"[{re.escape(_SPACES)}]+")
_META: Final = re.compile(r"[\\^$.|?*+()\[\]{}]")
_INT64: Final = 2**63
_MICROS: Final = _INT64 // 1000


def go_trim(text: str) -> str:
    return text.strip(_SPACES)


def tokens(tokenization: str, text: str) -> list[str]:
    """The tokens Weaviate makes, but for the case of letters, which is never looked at here."""
    if tokenization == "field":
        trimmed = go_trim(text)
        return [trimmed] if trimmed else []
    if tokenization == "word":
        return "".join(char if unicodedata.category(char)[0] in "LN" else " " for char in text).split()
    return [part for part in _SPLIT.split(text) if part]


class WeaviateFilters(FilterCompiler[Native]):
    """Compiles for one collection."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def all_of(self, parts: Sequence[Native]) -> Native:
        return Group("And", tuple(parts))

    def any_of(self, parts: Sequence[Native]) -> Native:
        return Group("Or", tuple(parts))

    def satisfying(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        field = self._field(c)
        if field is None:
            return None
        if c.op is Op.EXISTS:
            # A stored "" counts as null there and as a value here.
            if field.base == "text" or not self._collection.null_index:
                return None
            return Exact(Leaf(field.name, "IsNull", False))
        match field.base:
            case "text":
                return self._contains(field, c) if _is_substring(c) else self._text(field, c)
            case "uuid":
                return _any(field, [value for value in c.values if _is_uuid(value)])
            case "boolean":
                return _any(field, list(c.values))
            case "int":
                return _int(field, c)
            case "number":
                return _number(field, c)
            case "date":
                return _date(field, c)
            case _:
                return None

    def violating(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        field = self._field(c)
        if field is None:
            return None
        if c.op is Op.EXISTS:
            empty = self._empty(field)
            return None if empty is None else Loose(empty) if field.base == "text" else Exact(empty)
        if field.base == "text":
            return None if _is_substring(c) else self._not_text(field, c)
        if c.op in ORDERED_OPS:
            return self._not_ordered(field, c)
        if field.base == "date":
            return self._not_date(field, c)
        values = [value for value in c.values if field.base != "uuid" or _is_uuid(value)]
        return _none(field, _whole(values) if field.base == "int" else values)

    def _field(self, c: Condition) -> Property | None:
        """The property, if conditions on it may be pushed: declared with this type, and stored as it."""
        field = self._collection.properties.get(c.field)
        if field is None or not field.pushable or field.type != c.type or field.type == FieldType.GEO:
            return None
        return field

    def _empty(self, field: Property) -> Native | None:
        """Documents without a value: a superset of them for text, where a stored ``""`` is among them."""
        if not self._collection.null_index:
            return None
        if self._collection.has_not:
            return Group("Not", (Leaf(field.name, "IsNull", False),))
        return Leaf(field.name, "IsNull", True) if self._collection.null_index_complete else None

    def _not_ordered(self, field: Property, c: Condition) -> Bound[Native]:
        if self._collection.has_not:
            positive = self.satisfying(c)
            return Exact(Group("Not", (positive.native,))) if isinstance(positive, Exact) else None
        empty = self._empty(field)
        flipped = self.satisfying(Condition(c.field, _FLIPPED[c.op], c.value, c.type))
        if empty is None or flipped is None:
            return None
        native = Group("Or", (flipped.native, empty))
        # Of [1, 9] some element is at least 5, and yet it is not so that none is below 5.
        return Exact(native) if isinstance(flipped, Exact) and not field.multi else Loose(native)

    def _not_date(self, field: Property, c: Condition) -> Bound[Native]:
        positive = self.satisfying(c)
        if isinstance(positive, Exact) and self._collection.has_not:
            return Exact(Group("Not", (positive.native,)))
        moments = [value for value in c.values if isinstance(value, Instant) and _in_range(value)]
        empty = self._empty(field)
        if empty is not None and not field.multi and len(moments) == len(c.values) == 1:
            before = Leaf(field.name, "LessThan", moments[0].rfc3339())
            after = Leaf(field.name, "GreaterThanEqual", _next(moments[0]).rfc3339())
            return Exact(Group("Or", (before, after, empty)))
        # Whoever holds exactly this instant satisfies the condition, so leaving those out loses nothing.
        found = _joined("And", [Leaf(field.name, "NotEqual", moment.rfc3339()) for moment in moments])
        return None if found is None else Loose(found)

    def _text(self, field: Property, c: Condition) -> Bound[Native]:
        parts: list[Native] = []
        exact = field.tokenization == "field" and field.trimmed
        for value in map(str, c.values):
            if value == "" and not field.multi:
                empty = self._empty(field)
                if empty is None:
                    return None
                parts.append(empty)
                exact = False
            elif self._can_be_asked(field, value):
                parts.append(Leaf(field.name, "Equal", value))
                exact = exact and go_trim(value) == value
            else:
                return None
        native = _joined("Or", parts)
        return None if native is None else Exact(native) if exact else Loose(native)

    def _not_text(self, field: Property, c: Condition) -> Bound[Native]:
        if field.tokenization != "field" or not field.trimmed:
            return None
        wanted = list(map(str, c.values))
        asked = [value for value in wanted if self._can_be_asked(field, value) and go_trim(value) == value]
        native = _joined("And", [Leaf(field.name, "NotEqual", value) for value in asked])
        return None if native is None else Exact(native) if len(asked) == len(wanted) else Loose(native)

    def _contains(self, field: Property, c: Condition) -> Bound[Native]:
        part = str(c.value)
        if field.tokenization is None or not _is_text(part):
            return None
        if field.tokenization == "word":
            # All but letters and digits stands between tokens, and wildcards would not be taken out.
            pattern = part.replace("*", " ").replace("?", " ")
        elif field.tokenization == "field":
            # The stored value was trimmed, and a wildcard does not reach across lines.
            if not field.single_line:
                return None
            part = go_trim(part)
            pattern = _META.sub("?", part)
        else:
            pattern = _META.sub("?", part)
        if not tokens(field.tokenization, part):
            return None
        return Loose(Leaf(field.name, "Like", f"*{pattern}*"))

    def _can_be_asked(self, field: Property, value: str) -> bool:
        """Whether the value has a token that is not a stopword; else Weaviate answers with an error."""
        if field.tokenization is None or not _is_text(value):
            return False
        return any(token.lower() not in self._collection.stopwords for token in tokens(field.tokenization, value))


def _is_substring(c: Condition) -> bool:
    return c.op is Op.CONTAINS and c.type == FieldType.TEXT


def _is_text(value: str) -> bool:
    """Whether it can be written as UTF-8; protobuf takes nothing else."""
    return not any("\ud800" <= char <= "\udfff" for char in value)


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _is_uuid(value: Scalar) -> bool:
    """As it is spelt in an answer: another text equals no UUID, and Weaviate refuses it or reads it as one."""
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _joined(operator: Literal["And", "Or"], parts: Sequence[Native]) -> Native | None:
    """``None`` for no parts: an empty group means something else to each version."""
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Group(operator, tuple(parts))


def _spelt(field: Property, values: Sequence[Scalar]) -> list[str | bool | int | float]:
    """The literals as the property's type has them; zero comes in both signs, which were two keys once."""
    found: list[str | bool | int | float] = []
    for value in values:
        if isinstance(value, Instant):
            continue
        if field.base != "number" or isinstance(value, str | bool):
            found.append(value)
        elif value == 0:
            found += [0.0, -0.0]
        else:
            found.append(float(value))
    return found


def _any(field: Property, values: Sequence[Scalar]) -> Bound[Native]:
    native = _joined("Or", [Leaf(field.name, "Equal", value) for value in _spelt(field, values)])
    return None if native is None else Exact(native)


def _none(field: Property, values: Sequence[Scalar]) -> Bound[Native]:
    """``NotEqual`` is the complement, documents without the value among them (Weaviate 1.24 and later)."""
    native = _joined("And", [Leaf(field.name, "NotEqual", value) for value in _spelt(field, values)])
    return None if native is None else Exact(native)


def _whole(values: Sequence[Scalar]) -> list[Scalar]:
    """Those that an integer may equal, as integers."""
    return [
        int(value)
        for value in values
        if isinstance(value, int | float) and isfinite(value) and value == int(value) and abs(value) < _INT64
    ]


def _int(field: Property, c: Condition) -> Bound[Native]:
    if c.op not in ORDERED_OPS:
        return _any(field, _whole(c.values))
    value = c.values[0]
    if not isinstance(value, int | float) or not isfinite(value) or abs(value) >= _INT64:
        return None
    if value == int(value):
        return Exact(Leaf(field.name, _ORDER[c.op], int(value)))
    # Above 2.5 is from 3 on.
    if c.op in (Op.GT, Op.GTE):
        return Exact(Leaf(field.name, "GreaterThanEqual", ceil(value)))
    return Exact(Leaf(field.name, "LessThanEqual", floor(value)))


def _number(field: Property, c: Condition) -> Bound[Native]:
    if c.op not in ORDERED_OPS:
        return _any(field, c.values)
    value = c.values[0]
    if not isinstance(value, int | float) or not isfinite(value):
        return None
    bound = float(value) + 0.0  # -0.0 becomes 0.0
    native = Leaf(field.name, _ORDER[c.op], bound)
    zero_satisfies = _ZERO[c.op](bound)
    # Indexed below everything, -0.0 is among the lesser ones, and never among the greater.
    if c.op in (Op.GT, Op.GTE):
        return Exact(Group("Or", (native, Leaf(field.name, "Equal", -0.0))) if zero_satisfies else native)
    if zero_satisfies:
        return Exact(native)
    # [-1.0, -0.0] is not to be left out for its second element.
    return Loose(native) if field.multi else Exact(Group("And", (native, Leaf(field.name, "NotEqual", -0.0))))


_ZERO: Final = {
    Op.GT: lambda bound: bound < 0,
    Op.GTE: lambda bound: bound <= 0,
    Op.LT: lambda bound: bound > 0,
    Op.LTE: lambda bound: bound >= 0,
}


def _in_range(moment: Instant) -> bool:
    """Whether it, and the microsecond after it, fit into 64 bits of nanoseconds: 1677 to 2262."""
    return -_MICROS < moment.micros < _MICROS - 1


def _next(moment: Instant) -> Instant:
    return Instant(moment.micros + 1)


def _date(field: Property, c: Condition) -> Bound[Native]:
    moments = [value for value in c.values if isinstance(value, Instant)]
    if len(moments) != len(c.values) or not all(map(_in_range, moments)):
        return None
    first = moments[0]
    # Digits beyond the microsecond are cut off: until v is until just before the next one.
    match c.op:
        case Op.GT:
            return Exact(Leaf(field.name, "GreaterThanEqual", _next(first).rfc3339()))
        case Op.GTE:
            return Exact(Leaf(field.name, "GreaterThanEqual", first.rfc3339()))
        case Op.LT:
            return Exact(Leaf(field.name, "LessThan", first.rfc3339()))
        case Op.LTE:
            return Exact(Leaf(field.name, "LessThan", _next(first).rfc3339()))
    windows: list[Native] = [
        Group(
            "And",
            (
                Leaf(field.name, "GreaterThanEqual", moment.rfc3339()),
                Leaf(field.name, "LessThan", _next(moment).rfc3339()),
            ),
        )
        for moment in moments
    ]
    native = _joined("Or", windows)
    return None if native is None else Loose(native) if field.multi else Exact(native)
