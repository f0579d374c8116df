"""Filters as ``custom_filters`` and ``static_filters``: a flat conjunction, one condition or numeric range of a field.

There is no ``or``, ``not``, ``exists`` or ``contains``. So of the filter's top-level conjunction each part is pushed
that is one condition of one field, and the rest stays with the gateway:

- alternatives of one field fold into ``in``, conjunctions of negations into ``nin``;
- several bounds of a numeric field become a list; a second condition of any other kind on a field does not fit;
- what a negation means for a document without the field is not documented, so negations are pushed only where the
  settings say (``negation_includes_missing``);
- how lists compare is not documented either: fields that may hold some are never pushed.

The law is that of :class:`gateway.filters.FilterCompiler`, whose algebra does not fit a language in which two sound
conditions may have no conjunction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.filters import (
    FALSE,
    ORDERED_OPS,
    TRUE,
    And,
    Condition,
    Constant,
    Filter,
    Instant,
    Not,
    Op,
    Or,
    Pushdown,
    Scalar,
    conjunction,
    nnf,
)
from gateway_llamacloud.settings import FieldSettings
from gateway_llamacloud.wire import FILE_FIELD, Bound

__all__ = ["LlamaCloudFilters", "Native"]

Native = dict[str, dict[str, Any]]
"""``custom_filters`` and ``static_filters``, as they are sent."""

_NUMBERS: Final = ("int", "float", "date")
_VALUES: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Clause:
    """One condition of one field. ``exact`` if it selects what the part it comes from selects."""

    field: str
    operator: str
    values: tuple[Scalar, ...]
    exact: bool = True

    @property
    def is_range(self) -> bool:
        return self.operator in ("gt", "gte", "lt", "lte")

    def bound(self) -> Bound:
        if self.operator not in ("in", "nin"):
            return Bound(self.operator, self.values[0])
        if len(self.values) == 1:
            return Bound("eq" if self.operator == "in" else "ne", self.values[0])
        return Bound(self.operator, list(self.values))


class LlamaCloudFilters:
    """Compiles for the fields that the settings declare."""

    def __init__(self, field: Callable[[str], FieldSettings | None], *, negation_includes_missing: bool) -> None:
        self._field = field
        self._negations = negation_includes_missing

    def push_down(self, filter: Filter) -> Pushdown[Native]:
        tree = nnf(filter)
        if isinstance(tree, Constant):
            return Pushdown(None, None if tree is TRUE else FALSE)
        taken: dict[str, list[_Clause]] = {}
        residual: list[Filter] = []
        for part in tree.parts if isinstance(tree, And) else (tree,):
            clause = self._clause(part)
            if clause is None or not _joined(taken, clause) or not clause.exact:
                residual.append(part)
        return Pushdown(_written(taken.values()), conjunction(residual) if residual else None)

    def _clause(self, part: Filter) -> _Clause | None:
        match part:
            case Condition():
                return self._positive(part)
            case Not(Condition() as condition) if self._negations and condition.op not in ORDERED_OPS:
                clause = self._positive(condition)
                # The complement of a superset would miss documents.
                return None if clause is None or not clause.exact else _Clause(clause.field, "nin", clause.values)
            case Or(parts):
                return self._alternatives(parts)
            case _:
                return None

    def _alternatives(self, parts: Sequence[Filter]) -> _Clause | None:
        """``a or b`` of one field, as one ``in``."""
        clauses = [self._positive(part) if isinstance(part, Condition) else None for part in parts]
        found = [clause for clause in clauses if clause is not None and clause.operator == "in" and clause.exact]
        if len(found) < len(parts) or len({clause.field for clause in found}) != 1:
            return None
        values = _distinct(value for clause in found for value in clause.values)
        return _Clause(found[0].field, "in", values) if len(values) <= _VALUES else None

    def _positive(self, c: Condition) -> _Clause | None:
        field = self._field(c.field)
        if field is None or field.multi or c.type is None or c.type.value != field.type:
            return None
        if c.op in ORDERED_OPS:
            return _ranged(c, field) if field.type in _NUMBERS else None
        if c.op is Op.CONTAINS and field.type == "text":
            return None
        if c.op not in (Op.EQ, Op.IN, Op.CONTAINS) or len(c.values) > _VALUES:
            return None
        match field.type:
            case "keyword" | "text" | "bool" | "int" | "float":
                return _Clause(c.field, "in", c.values)
            case "date" if field.dates == "epoch_ms":
                whole = [value.epoch_ms() if isinstance(value, Instant) else None for value in c.values]
                # An instant between two milliseconds may meet a stored fraction: that is for the gateway to see.
                known = tuple(value for value in whole if value is not None)
                return _Clause(c.field, "in", known) if len(known) == len(whole) else None
            case _:
                # As text, one instant has many spellings.
                return None


def _ranged(c: Condition, field: FieldSettings) -> _Clause | None:
    """A bound of a number. Values that are no whole numbers do not match an ``int`` field here, but do there."""
    if field.type != "date":
        return _Clause(c.field, c.op.value, c.values, exact=field.type == "float" or field.clean)
    instant = c.values[0]
    if field.dates != "epoch_ms" or not isinstance(instant, Instant):
        return None
    floor, rest = divmod(instant.micros, 1000)
    if not rest:
        return _Clause(c.field, c.op.value, (floor,), exact=field.clean)
    # Between two milliseconds: whole ones order like the gap, and a stored fraction of the gap is let through.
    operator, edge = ("gt", floor) if c.op in (Op.GT, Op.GTE) else ("lt", floor + 1)
    return _Clause(c.field, operator, (edge,), exact=field.clean)


def _joined(taken: dict[str, list[_Clause]], clause: _Clause) -> bool:
    """Adds the clause to those of its field, if together they can be written."""
    there = taken.setdefault(clause.field, [])
    if not there or (clause.is_range and all(one.is_range for one in there)):
        there.append(clause)
        return True
    if clause.operator == "nin" and there[0].operator == "nin":
        values = _distinct((*there[0].values, *clause.values))
        if len(values) <= _VALUES:
            there[0] = _Clause(clause.field, "nin", values)
            return True
    return False


def _written(taken: Iterable[list[_Clause]]) -> Native | None:
    native: Native = {}
    for clauses in taken:
        name = clauses[0].field
        bounds = [clause.bound() for clause in clauses]
        place = native.setdefault("static_filters" if name == FILE_FIELD else "custom_filters", {})
        plain = [{"operator": bound.operator, "value": bound.value} for bound in bounds]
        place[name] = plain[0] if len(plain) == 1 else plain
    return native or None


def _distinct(values: Iterable[Scalar]) -> tuple[Scalar, ...]:
    """Each once, in order; ``True`` and ``1`` are two values."""
    return tuple({(isinstance(value, bool), value): value for value in values}.values())
