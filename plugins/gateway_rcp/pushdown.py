"""A filter for an upstream: RCP's own wire form, with the fields and operators that it advertises (RCP section 8).

The spec does not say what a negation means for a document without the field. A negation is therefore sent together with
``exists: false``, which is right under either reading, or it stays here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gateway.errors import RcpError
from gateway.filters import (
    ORDERED_OPS,
    ORDERED_TYPES,
    Condition,
    DateEncoding,
    Exact,
    FieldType,
    Filter,
    FilterCompiler,
    Loose,
    Op,
    Pushdown,
    to_json,
)

__all__ = ["MAX_DEPTH", "WireFilter", "WireFilters", "wire_depth"]

WireFilter = dict[str, Any]
Bound = Exact[WireFilter] | Loose[WireFilter] | None

MAX_DEPTH = 32
_MAX_ALTERNATIVES = 256
_STRICT = {Op.GTE: Op.GT, Op.LTE: Op.LT}
_WIDER = {Op.GT: Op.GTE, Op.LT: Op.LTE}


class WireFilters(FilterCompiler[WireFilter]):
    """``fields`` are the advertised ones with their types, ``operators`` the advertised ones.

    ``trust_negation`` says that the upstream counts a document without the field among those a negation selects.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldType],
        operators: Collection[str],
        *,
        dates: DateEncoding = "rfc3339",
        trust_negation: bool = False,
    ) -> None:
        self._fields = fields
        self._operators = frozenset(operators)
        self._dates: DateEncoding = dates
        self._trust_negation = trust_negation
        self._ways: dict[Op, Callable[[Condition], Bound]] = {
            Op.EQ: self._equal,
            Op.IN: self._among,
            Op.CONTAINS: self._contains,
            Op.EXISTS: self._present,
            **dict.fromkeys(ORDERED_OPS, self._ordered),
        }

    def push_down(self, filter: Filter) -> Pushdown[WireFilter]:
        split = super().push_down(filter)
        if split.native is not None and wire_depth(split.native) > MAX_DEPTH:
            return Pushdown.unpushed(filter)
        return split

    def satisfying(self, c: Condition) -> Bound:
        type = self._fields.get(c.field)
        if type is None or (c.type is not None and c.type is not type):
            return None
        if type is FieldType.GEO and c.op is not Op.EXISTS:
            return None
        if c.op in ORDERED_OPS and type not in ORDERED_TYPES:
            return None
        way = self._ways.get(c.op)
        return None if way is None else way(c)

    def violating(self, c: Condition) -> Bound:
        if c.op is Op.EXISTS:
            return self._leaf(c.field, Op.EXISTS, False) if self._knows(c) else None
        positive = self.satisfying(c)
        if not isinstance(positive, Exact):
            return None
        opposite = {Op.EQ: Op.NE, Op.IN: Op.NIN}.get(c.op)
        direct = self._written(c, opposite) if opposite is not None else None
        negative = direct.native if direct is not None else {"not": positive.native}
        absent = self._leaf(c.field, Op.EXISTS, False)
        if absent is not None:
            return Exact(self.any_of([negative, absent.native]))
        return Exact(negative) if self._trust_negation else None

    def all_of(self, parts: Sequence[WireFilter]) -> WireFilter:
        return {"and": list(parts)}

    def any_of(self, parts: Sequence[WireFilter]) -> WireFilter:
        return {"or": list(parts)}

    def _knows(self, c: Condition) -> bool:
        return c.field in self._fields

    def _equal(self, c: Condition) -> Bound:
        return self._written(c, Op.EQ) or self._written(c, Op.IN, (c.value,))

    def _among(self, c: Condition) -> Bound:
        whole = self._written(c, Op.IN)
        if whole is not None or not c.values or len(c.values) > _MAX_ALTERNATIVES:
            return whole
        parts = [self._written(c, Op.EQ, value) for value in c.values]
        natives = [part.native for part in parts if part is not None]
        if len(natives) != len(parts):
            return None
        return Exact(natives[0] if len(natives) == 1 else self.any_of(natives))

    def _contains(self, c: Condition) -> Bound:
        if self._fields[c.field] is FieldType.TEXT:
            return self._written(c, Op.CONTAINS)
        # Membership here. The spec gives `contains` that meaning for lists only; single values are asked for by `eq`.
        single, member = self._equal(c), self._written(c, Op.CONTAINS)
        if single is None or member is None:
            return single
        return Loose(self.any_of([single.native, member.native]))

    def _present(self, c: Condition) -> Bound:
        return self._leaf(c.field, Op.EXISTS, True)

    def _ordered(self, c: Condition) -> Bound:
        exact = self._written(c, c.op)
        if exact is not None:
            return exact
        if c.op in _STRICT:
            beyond, equal = self._written(c, _STRICT[c.op]), self._equal(c)
            return None if beyond is None or equal is None else Exact(self.any_of([beyond.native, equal.native]))
        wider = self._written(c, _WIDER[c.op])
        return None if wider is None else Loose(wider.native)

    def _leaf(self, field: str, op: Op, value: bool) -> Exact[WireFilter] | None:
        return self._written(Condition(field, op, value), op)

    def _written(self, c: Condition, op: Op, value: Any = None) -> Exact[WireFilter] | None:
        """The condition with this operator, ``None`` if it is not advertised or its literal cannot be written."""
        if op.value not in self._operators:
            return None
        try:
            return Exact(
                to_json(Condition(c.field, op, c.value if value is None else value, c.type), dates=self._dates)
            )
        except RcpError:
            return None


def wire_depth(filter: WireFilter) -> int:
    """How many nodes lie on the longest way from the root to a leaf."""
    for key in ("and", "or"):
        if key in filter:
            return 1 + max(map(wire_depth, filter[key]))
    return 1 + wire_depth(filter["not"]) if "not" in filter else 1
