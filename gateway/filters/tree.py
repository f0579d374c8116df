"""The filter tree: what a filter is once it has been read.

Trees are immutable and hold typed values, never raw JSON. The meaning of every node is in :mod:`gateway.filters.holds`
and, in prose, in ``docs/filters.md``. The wire form is that of RCP 1.0 section 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, Literal, TypeAlias, assert_never

from gateway.errors import option_unsupported
from gateway.filters.dates import Instant

__all__ = [
    "FALSE",
    "ORDERED_OPS",
    "ORDERED_TYPES",
    "TRUE",
    "And",
    "Condition",
    "Constant",
    "DateEncoding",
    "FieldType",
    "Filter",
    "Not",
    "Op",
    "Or",
    "Scalar",
    "Value",
    "depth",
    "distinct",
    "fields_of",
    "leaves",
    "to_json",
]

Scalar: TypeAlias = str | bool | int | float | Instant
Value: TypeAlias = Scalar | tuple[Scalar, ...]
DateEncoding: TypeAlias = Literal["rfc3339", "epoch_ms"]


class FieldType(StrEnum):
    """The types a server may declare a filter field with (RCP 1.0 section 8)."""

    KEYWORD = "keyword"
    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    DATE = "date"
    GEO = "geo"


class Op(StrEnum):
    """The ten operators of RCP 1.0 section 8."""

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    IN = "in"
    NIN = "nin"
    CONTAINS = "contains"
    EXISTS = "exists"


ORDERED_OPS: Final = frozenset({Op.GT, Op.GTE, Op.LT, Op.LTE})
ORDERED_TYPES: Final = frozenset({FieldType.INT, FieldType.FLOAT, FieldType.DATE})


class Constant(Enum):
    """A filter that ignores the document: everything, or nothing. Compare with ``is``."""

    TRUE = "true"
    FALSE = "false"


TRUE: Final = Constant.TRUE
FALSE: Final = Constant.FALSE


def _tagged(value: Value) -> object:
    """A key under which ``True`` and ``1`` differ, which Python itself calls equal, while ``1`` and ``1.0`` do not."""
    if isinstance(value, tuple):
        return tuple(_tagged(item) for item in value)
    return (isinstance(value, bool), value)


def distinct(values: Iterator[Scalar]) -> tuple[Scalar, ...]:
    """The values in their order, each once; ``True`` and ``1`` are two values, ``1`` and ``1.0`` are one."""
    return tuple({_tagged(value): value for value in values}.values())


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """One comparison of one field.

    ``value`` is a tuple for ``in`` and ``nin``, a boolean for ``exists``, a scalar otherwise; dates are
    :class:`~gateway.filters.dates.Instant`. ``type`` is the declared type it was read against, ``None`` if there is
    none: then the literal's own type decides.
    """

    field: str
    op: Op
    value: Value
    type: FieldType | None = None

    # Written out, because a generated __eq__ would call `eq True` and `eq 1` the same condition and dedupe one away.
    def _key(self) -> object:
        return (self.field, self.op, self.type, _tagged(self.value))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Condition) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def values(self) -> tuple[Scalar, ...]:
        """The literals as a tuple, also where there is only one."""
        return self.value if isinstance(self.value, tuple) else (self.value,)


@dataclass(frozen=True, slots=True)
class And:
    """Every part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Some part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold: the complement, so documents without the field are in it."""

    part: Filter


Filter: TypeAlias = And | Or | Not | Condition | Constant


def leaves(filter: Filter) -> Iterator[Condition]:
    """Every condition, from left to right, repeated ones too."""
    match filter:
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves(part)
        case Not(part):
            yield from leaves(part)
        case Condition():
            yield filter
        case Constant():
            pass
        case _:
            assert_never(filter)


def fields_of(filter: Filter) -> frozenset[str]:
    """The names of the fields that the filter looks at."""
    return frozenset(leaf.field for leaf in leaves(filter))


def depth(filter: Filter) -> int:
    """How many combinators stand above the deepest condition; a single condition has depth 0."""
    match filter:
        case And(parts) | Or(parts):
            return 1 + max(map(depth, parts), default=0)
        case Not(part):
            return 1 + depth(part)
        case _:
            return 0


def to_json(filter: Filter, *, dates: DateEncoding = "rfc3339") -> dict[str, Any]:
    """The filter in RCP wire form (RCP 1.0 section 8), ready for a JSON encoder.

    ``dates`` is the encoding that the receiving server declares. Raises ``-32005`` for what the wire form cannot say:
    a constant (there is no way to write "nothing"; fold first, and do not call at all on FALSE), or an instant that
    is not a whole millisecond under ``epoch_ms``. Rounding it instead could lose or add documents.
    """
    match filter:
        case And(parts):
            return {"and": [to_json(part, dates=dates) for part in parts]}
        case Or(parts):
            return {"or": [to_json(part, dates=dates) for part in parts]}
        case Not(part):
            return {"not": to_json(part, dates=dates)}
        case Condition(field, op, value):
            literal = (
                [_literal(item, field, dates) for item in value]
                if isinstance(value, tuple)
                else _literal(value, field, dates)
            )
            return {"field": field, "op": op.value, "value": literal}
        case Constant():
            raise option_unsupported("a constant filter has no wire form", option="filter")
        case _:
            assert_never(filter)


def _literal(value: Scalar, field: str, dates: DateEncoding) -> str | bool | int | float:
    if not isinstance(value, Instant):
        return value
    if dates == "rfc3339":
        return value.rfc3339()
    whole = value.epoch_ms()
    if whole is None:
        raise option_unsupported("the instant is not a whole millisecond", option="filter", field=field)
    return whole
