"""Normal form, and folding for one engine.

In negation normal form ``not`` stands on positive conditions only, and ``ne``, ``nin`` and ``exists: false`` are gone
(each is the ``not`` of its positive). ``and`` and ``or`` are then monotone: whoever widens a condition can only widen
the whole, which is what push-down rests on (``docs/filters.md``). Sound because the meaning is two-valued and ``not``
is the complement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, assert_never

from gateway.filters.tree import FALSE, TRUE, And, Condition, Constant, Filter, Not, Op, Or, leaves

__all__ = ["Folded", "Undeclared", "conjunction", "disjunction", "fold", "is_positive", "nnf"]

Undeclared: TypeAlias = Literal["skip", "check", "absent"]
_Literal: TypeAlias = Condition | Not

_POSITIVE: Final = {Op.NE: Op.EQ, Op.NIN: Op.IN}


def conjunction(parts: Iterable[Filter]) -> Filter:
    """All of them: flattened, each part once, constants folded. No parts at all is TRUE."""
    return _joined(parts, And, unit=TRUE, zero=FALSE)


def disjunction(parts: Iterable[Filter]) -> Filter:
    """Any of them: flattened, each part once, constants folded. No parts at all is FALSE."""
    return _joined(parts, Or, unit=FALSE, zero=TRUE)


def _joined(parts: Iterable[Filter], node: type[And] | type[Or], *, unit: Constant, zero: Constant) -> Filter:
    kept: dict[Filter, None] = {}  # a set that keeps the order
    for part in parts:
        if part is zero:
            return zero
        if part is not unit:
            kept.update(dict.fromkeys(part.parts if isinstance(part, node) else (part,)))
    if not kept:
        return unit
    return next(iter(kept)) if len(kept) == 1 else node(tuple(kept))


def nnf(filter: Filter) -> Filter:
    """The same filter in negation normal form, folded.

    The result is a constant, or a tree without constants of ``And`` and ``Or`` (two or more parts, none of its own
    kind, no part twice) over positive conditions and ``Not`` of such.
    """
    return _mapped(filter, lambda literal: literal, negated=False)


def is_positive(filter: Filter) -> bool:
    """Whether no negation is left in normal form: then a document without the fields cannot get in.

    A filter that is to keep documents from somebody must be positive.
    """
    return _positive(nnf(filter))


def _positive(filter: Filter) -> bool:
    match filter:
        case And(parts) | Or(parts):
            return all(map(_positive, parts))
        case Condition():
            return True
        case Not():
            return False
        case Constant():
            return filter is FALSE
        case _:
            assert_never(filter)


def _mapped(filter: Filter, change: Callable[[_Literal], Filter], *, negated: bool) -> Filter:
    """Normal form with every literal replaced; ``change`` sees literals only, so it cannot break monotony."""
    match filter:
        case And(parts) | Or(parts):
            mapped = (_mapped(part, change, negated=negated) for part in parts)
            return conjunction(mapped) if isinstance(filter, And) is not negated else disjunction(mapped)
        case Not(part):
            return _mapped(part, change, negated=not negated)
        case Condition():
            positive, flipped = _positive_form(filter)
            return change(Not(positive) if negated is not flipped else positive)
        case Constant():
            return filter if not negated else FALSE if filter is TRUE else TRUE
        case _:
            assert_never(filter)


def _positive_form(condition: Condition) -> tuple[Condition, bool]:
    """The positive condition, and whether the given one is its negation."""
    field, op, value, kind = condition.field, condition.op, condition.value, condition.type
    if op is Op.EXISTS:
        return Condition(field, op, True, kind), value is False
    if op in _POSITIVE:
        return Condition(field, _POSITIVE[op], value, kind), True
    return condition, False


@dataclass(frozen=True, slots=True)
class Folded:
    """A filter fitted to the fields that one engine declares; both trees are in negation normal form.

    ``filter`` is what the engine's documents must satisfy: FALSE if none can, so that the engine need not be asked.
    ``pushable`` is ``filter`` without what the engine must not be told about (fields it does not declare), hence a
    superset of it. ``undeclared`` are the names met that the engine does not declare, sorted.
    """

    filter: Filter
    pushable: Filter
    undeclared: tuple[str, ...]


def fold(filter: Filter, declared: Collection[str], undeclared: Undeclared = "skip") -> Folded:
    """Fit a filter to one engine.

    "Not declared" is not "absent from its documents", so what becomes of a condition on such a field is a setting:

    - ``skip``: false, **a negated one too**, since an engine that cannot check ``not x`` must not let it pass;
    - ``check``: kept, to be checked on the returned metadata and never pushed;
    - ``absent``: as for a document without the field (positive false, negated true); right only for an engine whose
      declared fields are all there are, and never for a filter that protects documents.
    """
    unknown = {leaf.field for leaf in leaves(filter) if leaf.field not in declared}

    def replaced(by: Callable[[bool], Filter | None]) -> Filter:
        def change(literal: _Literal) -> Filter:
            negated = isinstance(literal, Not)
            condition = literal.part if isinstance(literal, Not) else literal
            if isinstance(condition, Condition) and condition.field in unknown:
                new = by(negated)
                return literal if new is None else new
            return literal

        return _mapped(filter, change, negated=False)

    names = tuple(sorted(unknown))
    if undeclared == "check":
        return Folded(nnf(filter), replaced(lambda _: TRUE), names)
    folded = replaced(lambda negated: TRUE if negated and undeclared == "absent" else FALSE)
    return Folded(folded, folded, names)
