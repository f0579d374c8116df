"""The meaning of a filter, as a program: the oracle that every engine's answer is measured against.

Two-valued and total (``docs/filters.md``):

- a field that is missing, null or ``[]`` is *absent*, and a positive condition on it is false;
- on an array a positive condition holds if some element satisfies it;
- ``ne`` is not ``eq``, ``nin`` is not ``in``, ``exists: false`` is not ``exists: true``, so **all three, and ``not``,
  hold for documents without the field**; to keep documents out, use a positive ``in``;
- strings are equal if their code points are; nothing is folded, trimmed or normalised;
- numbers compare by value; a boolean is no number; a stored value that is not of the declared type matches nothing;
- ``contains`` is substring on ``text`` and membership elsewhere.

Field names are looked up as they are: ``a.b`` is a key, not a path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from operator import ge, gt, le, lt
from typing import Any, Final, TypeAlias, assert_never

from gateway.filters.dates import Instant, stored_micros
from gateway.filters.tree import TRUE, And, Condition, Constant, FieldType, Filter, Not, Op, Or, Scalar

__all__ = ["Judge", "Meta", "Test", "compiled", "holds", "judge", "judged"]

Meta: TypeAlias = Mapping[str, Any]
Test: TypeAlias = Callable[[Meta], bool]
Judge: TypeAlias = Callable[[Meta], bool | None]
_Element: TypeAlias = Callable[[Any], bool]
_Read: TypeAlias = Callable[[Any], Any]

_ORDER: Final[Mapping[Op, Callable[[Any, Any], bool]]] = {Op.GT: gt, Op.GTE: ge, Op.LT: lt, Op.LTE: le}
_ABSENT: Final = object()


def holds(filter: Filter, meta: Meta) -> bool:
    """Whether a document with this metadata satisfies the filter. For many documents, compile once instead."""
    return compiled(filter)(meta)


def judge(filter: Filter, meta: Meta, complete: bool) -> bool | None:
    """Like :func:`holds`, but ``None`` where the metadata does not say.

    ``complete`` is whether ``meta`` is all there is. Where it is not, a condition on a field that is missing from it
    is unknown (one that is null is known to be absent), and unknown spreads by Kleene's strong logic.
    """
    return judged(filter, complete)(meta)


def judged(filter: Filter, complete: bool) -> Judge:
    """:func:`judge` prepared for many documents."""
    return compiled(filter) if complete else _kleene(filter)


def compiled(filter: Filter) -> Test:
    """:func:`holds` prepared for many documents: one closure, no look at the tree any more."""
    match filter:
        case And(parts):
            every = tuple(map(compiled, parts))
            return lambda meta: all(test(meta) for test in every)
        case Or(parts):
            some = tuple(map(compiled, parts))
            return lambda meta: any(test(meta) for test in some)
        case Not(part):
            inner = compiled(part)
            return lambda meta: not inner(meta)
        case Condition():
            return _leaf(filter)
        case Constant():
            verdict = filter is TRUE
            return lambda _: verdict
        case _:
            assert_never(filter)


def _kleene(filter: Filter) -> Judge:
    match filter:
        case And(parts):
            return _combined(tuple(map(_kleene, parts)), decisive=False)
        case Or(parts):
            return _combined(tuple(map(_kleene, parts)), decisive=True)
        case Not(part):
            inner = _kleene(part)

            def negated(meta: Meta) -> bool | None:
                verdict = inner(meta)
                return None if verdict is None else not verdict

            return negated
        case Condition(field):
            test = _leaf(filter)
            return lambda meta: test(meta) if field in meta else None
        case Constant():
            return compiled(filter)
        case _:
            assert_never(filter)


def _combined(judges: tuple[Judge, ...], *, decisive: bool) -> Judge:
    """``or`` if true decides it, ``and`` if false does; otherwise one unknown makes it unknown."""

    def verdict(meta: Meta) -> bool | None:
        result: bool | None = not decisive
        for one in judges:
            answer = one(meta)
            if answer is decisive:
                return decisive
            if answer is None:
                result = None
        return result

    return verdict


def _leaf(condition: Condition) -> Test:
    field, op = condition.field, condition.op
    if op is Op.EXISTS:
        wanted = bool(condition.value)
        return lambda meta: _present(meta.get(field)) is wanted
    negative = op is Op.NE or op is Op.NIN
    matches = _element(condition)
    if op is Op.CONTAINS and condition.type is None and isinstance(condition.value, str):
        return _untyped_contains(field, condition.value)

    def test(meta: Meta) -> bool:
        value = meta.get(field)
        if isinstance(value, list | tuple):
            return any(map(matches, value)) is not negative
        return matches(value) is not negative

    return test


def _present(value: Any) -> bool:
    return len(value) > 0 if isinstance(value, list | tuple) else value is not None


def _untyped_contains(field: str, wanted: str) -> Test:
    """Without a declared type the stored value decides: part of a text, or member of a list."""

    def test(meta: Meta) -> bool:
        value = meta.get(field)
        return isinstance(value, str | list | tuple) and wanted in value

    return test


def _element(condition: Condition) -> _Element:
    """The test of one stored element; null and values of another type fail it, as no reader knows them."""
    op, kind = condition.op, condition.type
    if op in _ORDER:
        return _ordered(_ORDER[op], condition.values[0], kind)
    if op is Op.CONTAINS and kind is FieldType.TEXT:
        part = str(condition.value)
        return lambda element: isinstance(element, str) and part in element
    # Literals of a field without a type may be mixed; each is compared with stored values of its own kind only.
    groups: dict[_Read, set[Any]] = {}
    for literal in condition.values:
        groups.setdefault(_reader(literal, kind), set()).add(_comparable(literal))
    tests = tuple(_member(read, frozenset(wanted)) for read, wanted in groups.items())
    return tests[0] if len(tests) == 1 else lambda element: any(test(element) for test in tests)


def _member(read: _Read, wanted: frozenset[Any]) -> _Element:
    return lambda element: read(element) in wanted


def _ordered(compare: Callable[[Any, Any], bool], literal: Scalar, kind: FieldType | None) -> _Element:
    read, bound = _reader(literal, kind), _comparable(literal)

    def test(element: Any) -> bool:
        value = read(element)
        return value is not _ABSENT and compare(value, bound)

    return test


def _comparable(literal: Scalar) -> Any:
    return literal.micros if isinstance(literal, Instant) else literal


def _reader(literal: Scalar, kind: FieldType | None) -> _Read:
    """How stored elements are read to be compared with the literal; ``_ABSENT`` for what is not comparable with it."""
    if isinstance(literal, Instant):
        return _read_date
    if isinstance(literal, bool):
        return _read_bool
    if isinstance(literal, str):
        return _read_text
    return _NUMBERS.get(kind, _read_number)


def _read_text(element: Any) -> Any:
    return element if isinstance(element, str) else _ABSENT


def _read_bool(element: Any) -> Any:
    return element if isinstance(element, bool) else _ABSENT


def _read_date(element: Any) -> Any:
    micros = stored_micros(element)
    return _ABSENT if micros is None else micros


def _read_number(element: Any) -> Any:
    if isinstance(element, bool):
        return _ABSENT
    if isinstance(element, int) or (isinstance(element, float) and isfinite(element)):
        return element
    return _ABSENT


def _read_int(element: Any) -> Any:
    """Whole numbers only. A fraction in an int field is seen by some indexes and not by others, and what an index
    hides cannot be brought back; what it shows too much is dropped here. So it matches nothing, everywhere."""
    if isinstance(element, float) and not element.is_integer():
        return _ABSENT
    return _read_number(element)


def _read_float(element: Any) -> Any:
    """As a double, which is what stores keep in a float field: large integers lose their last digits there too."""
    number = _read_number(element)
    if number is _ABSENT:
        return number
    try:
        return float(number)
    except OverflowError:
        return _ABSENT


_NUMBERS: Final[Mapping[FieldType | None, _Read]] = {FieldType.INT: _read_int, FieldType.FLOAT: _read_float}
