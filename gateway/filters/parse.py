"""The strict reader of wire filters (RCP 1.0 section 8).

It stands in front of every engine because other readers are lenient: an empty ``or``, ``exists: "false"``, a boolean
in a number field and the like are accepted by servers, and each then means something else there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from math import ceil, floor, isfinite
from typing import Any, Final, NoReturn

from gateway.errors import invalid_params, option_unsupported
from gateway.filters.dates import Instant, literal_instant
from gateway.filters.tree import (
    FALSE,
    ORDERED_OPS,
    ORDERED_TYPES,
    TRUE,
    And,
    Condition,
    FieldType,
    Filter,
    Not,
    Op,
    Or,
    Scalar,
    distinct,
)

__all__ = ["MAX_SAFE_INTEGER", "Limits", "nearest", "parse"]

MAX_SAFE_INTEGER: Final = 2**53 - 1
_COMBINATORS: Final = ("and", "or", "not")
_LEAF_KEYS: Final = ("field", "op", "value")
_PATH_LIMIT: Final = 400
_TOLD: Final = 20
_TOLD_CHARACTERS: Final = 60
_COMPARED: Final = 100
_EXAMPLES: Final[Mapping[FieldType | None, str]] = {
    FieldType.KEYWORD: '"en"',
    FieldType.TEXT: '"some words"',
    FieldType.INT: "2024",
    FieldType.FLOAT: "0.5",
    FieldType.BOOL: "true",
    FieldType.DATE: '"2024-01-31T12:00:00Z", "2024-01-31" or 1706702400000',
    None: '"en", 2024 or true',
}
"""What a value of the type looks like in JSON."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one filter may cost (RCP 1.0 section 15.5). ``depth`` counts the combinators above a condition.

    ``values`` is per ``in`` or ``nin``; ``literal_bytes`` is over all literals, a string counting its UTF-8 bytes and
    anything else 8.
    """

    depth: int = 32
    leaves: int = 1_000
    values: int = 10_000
    literal_bytes: int = 1_000_000


DEFAULT_LIMITS: Final = Limits()


def parse(
    value: object,
    fields: Mapping[str, FieldType | None],
    operators: Collection[Op] | None = None,
    *,
    limits: Limits = DEFAULT_LIMITS,
    path: str = "filter",
) -> Filter | None:
    """Read a filter in wire form; ``None`` means "no filter" and comes from ``None`` and ``{}`` only.

    ``fields`` are the declared fields with their types; a declared field of type ``None`` takes any scalar.
    ``operators`` are those advertised, ``None`` for all. ``path`` is where the filter stands in ``params``.

    Raises ``-32602`` for everything that is not a valid filter and ``-32005`` for a valid operator that is not
    advertised, and nothing else whatever ``value`` is. ``data.path`` says where. ``data.field`` is the field's name
    where a field is at fault (undeclared, wrong operator or value for its type) and the path otherwise;
    ``data.option`` is the operator that is not advertised (RCP 1.0 sections 8 and 12).

    The tree may hold constants: a fraction can equal no ``int`` field, so ``eq 2.5`` on one is FALSE.
    """
    if value is None or (isinstance(value, dict) and not value):
        return None
    return _Reader(fields, operators, limits).node(value, path, 0)


def _refuse(message: str, path: str, field: str | None = None) -> NoReturn:
    where = path if len(path) <= _PATH_LIMIT else path[:_PATH_LIMIT] + "…"
    raise invalid_params(message, field=_printable(path if field is None else field), path=where)


def _printable(text: str) -> str:
    """The text with lone surrogates replaced, which no JSON encoder would write."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _told(name: str) -> str:
    """A name as it may be shown: engines and clients may have written anything."""
    short = name if len(name) <= _TOLD_CHARACTERS else name[: _TOLD_CHARACTERS - 1] + "…"
    return short if short.isprintable() else repr(short)


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean x?)`` or nothing; looks at no more than is quickly compared."""
    if len(word) > _TOLD_CHARACTERS:
        return ""
    names = [name for name in islice(known, _COMPARED) if len(name) <= _TOLD_CHARACTERS]
    close = get_close_matches(word, names, n=1) or [name for name in names if name.lower() == word.lower()]
    return f" (did you mean {_told(close[0])}?)" if close else ""


def _example(kind: FieldType | None) -> str:
    """One of the examples, where several would be read as several values."""
    return _EXAMPLES[kind].split(", ")[0]


class _Reader:
    """One reading: the declarations and what has been used up of the limits."""

    def __init__(
        self, fields: Mapping[str, FieldType | None], operators: Collection[Op] | None, limits: Limits
    ) -> None:
        self.fields = fields
        self.operators = operators
        self.limits = limits
        self.leaves = 0
        self.bytes = 0

    def node(self, value: object, path: str, depth: int) -> Filter:
        # The check stands before the recursion, so that the interpreter's own limit is never reached.
        if depth > self.limits.depth:
            _refuse(f"filter nested deeper than {self.limits.depth}", path)
        if not isinstance(value, dict):
            _refuse("a filter node must be an object", path)
        # RCP 1.0 section 4.6: a member that is null is absent.
        combinators = [key for key in _COMBINATORS if value.get(key) is not None]
        is_leaf = any(value.get(key) is not None for key in _LEAF_KEYS)
        if len(combinators) + is_leaf != 1:
            _refuse("a filter node is exactly one of and, or, not, or a field condition", path)
        if is_leaf:
            return self.leaf(value, path)
        name = combinators[0]
        inner = f"{path}.{name}"
        if name == "not":
            return Not(self.node(value[name], inner, depth + 1))
        children = value[name]
        if not isinstance(children, list) or not children:
            _refuse(f"{name} needs a non-empty array", inner)
        parts = tuple(self.node(child, f"{inner}[{index}]", depth + 1) for index, child in enumerate(children))
        return And(parts) if name == "and" else Or(parts)

    def leaf(self, node: Mapping[str, Any], path: str) -> Filter:
        self.leaves += 1
        if self.leaves > self.limits.leaves:
            _refuse(f"filter has more than {self.limits.leaves} conditions", path)
        field, name, value = node.get("field"), node.get("op"), node.get("value")
        if not isinstance(field, str):
            _refuse("a condition needs a field name", f"{path}.field")
        if not isinstance(name, str):
            _refuse("a condition needs an operator", f"{path}.op")
        try:
            op = Op(name)
        except ValueError:
            _refuse(f"not a filter operator{nearest(name, Op)}; there are {', '.join(Op)}", f"{path}.op")
        if field not in self.fields:
            told = f"not a declared filter field{nearest(field, self.fields)}; {self.known()}"
            _refuse(told, f"{path}.field", field)
        if self.operators is not None and op not in self.operators:
            where = f"{path}.op"[:_PATH_LIMIT]
            raise option_unsupported("filter operator not offered", option=op.value, field=where[:120], path=where)
        return self.condition(field, op, value, path)

    def known(self) -> str:
        """The fields there are, as a sentence of bounded length: engines name them, and may declare any number."""
        names = [_told(name) for name in islice(self.fields, _TOLD)]
        more = f" and {len(self.fields) - _TOLD} more" if len(self.fields) > _TOLD else ""
        return f"there are {', '.join(names)}{more}" if names else "no field can be filtered on"

    def condition(self, field: str, op: Op, value: object, path: str) -> Filter:
        kind = self.fields[field]
        if op is Op.EXISTS:
            if value is not None and not isinstance(value, bool):
                _refuse("exists takes a boolean: true or false", f"{path}.value", field)
            return Condition(field, op, value is not False, kind)
        if kind is FieldType.GEO:
            _refuse("a geo field can only be tested with exists", f"{path}.op", field)
        if op in ORDERED_OPS and kind is not None and kind not in ORDERED_TYPES:
            told = f"{op.value} needs an int, float or date field; this one is {kind.value}"
            _refuse(told, f"{path}.op", field)
        if op is Op.IN or op is Op.NIN:
            return self.membership(field, op, value, path)
        literal = self.scalar(value, field, op, f"{path}.value")
        if kind is FieldType.INT and isinstance(literal, float):
            if op not in ORDERED_OPS:
                return TRUE if op is Op.NE else FALSE
            # Rounded so that the operator stays what it was (it may be the only one an upstream offers):
            # among integers, > 2.5 is > 2 and <= 2.5 is <= 2; the other two round up.
            literal = floor(literal) if op in {Op.GT, Op.LTE} else ceil(literal)
        return Condition(field, op, literal, kind)

    def membership(self, field: str, op: Op, value: object, path: str) -> Filter:
        where = f"{path}.value"
        if not isinstance(value, list) or not value:
            _refuse(f"{op.value} takes a non-empty array, such as [{_example(self.fields[field])}]", where, field)
        if len(value) > self.limits.values:
            _refuse(f"{op.value} takes at most {self.limits.values} values", where, field)
        literals = [self.scalar(item, field, op, f"{where}[{index}]") for index, item in enumerate(value)]
        kind = self.fields[field]
        if kind is FieldType.INT:
            literals = [literal for literal in literals if not isinstance(literal, float)]
            if not literals:
                return TRUE if op is Op.NIN else FALSE
        return Condition(field, op, distinct(iter(literals)), kind)

    def scalar(self, value: object, field: str, op: Op, path: str) -> Scalar:
        if isinstance(value, str):
            try:
                self.bytes += len(value.encode())
            except UnicodeEncodeError:
                _refuse("the text is not valid Unicode", path, field)
        else:
            self.bytes += 8
        if self.bytes > self.limits.literal_bytes:
            _refuse(f"filter literals exceed {self.limits.literal_bytes} bytes", path)
        kind = self.fields[field]
        literal = _ordered(value) if kind is None and op in ORDERED_OPS else _READERS[kind](value)
        if literal is None:
            expected = "a number or a date" if kind is None and op in ORDERED_OPS else _EXPECTED[kind]
            example = _EXAMPLES[FieldType.INT if kind is None and op in ORDERED_OPS else kind]
            _refuse(f"the value must be {expected}, such as {example}", path, field)
        return literal


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: object) -> int | float | None:
    # By exclusion of bool first: in Python True is an int.
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) <= MAX_SAFE_INTEGER else None
    return value if isinstance(value, float) and isfinite(value) else None


def _int(value: object) -> int | float | None:
    """An integer, also where it is spelled ``5.0``; a float only if it has a fraction."""
    number = _number(value)
    if number is None or abs(number) > MAX_SAFE_INTEGER:
        return None
    return int(number) if number == int(number) else number


def _date(value: object) -> Instant | None:
    if isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        return None
    return literal_instant(value)


def _ordered(value: object) -> int | float | Instant | None:
    """For a field without a type: text can only be ordered as a date."""
    return _date(value) if isinstance(value, str) else _number(value)


def _any(value: object) -> str | bool | int | float | None:
    return value if isinstance(value, str | bool) else _number(value)


_EXPECTED: Final[Mapping[FieldType | None, str]] = {
    FieldType.KEYWORD: "text",
    FieldType.TEXT: "text",
    FieldType.INT: "an integer",
    FieldType.FLOAT: "a number",
    FieldType.BOOL: "true or false",
    FieldType.DATE: "a date",
    None: "text, a number, true or false",
}

_READERS: Final[Mapping[FieldType | None, Callable[[object], Scalar | None]]] = {
    FieldType.KEYWORD: _text,
    FieldType.TEXT: _text,
    FieldType.INT: _int,
    FieldType.FLOAT: _number,
    FieldType.BOOL: _bool,
    FieldType.DATE: _date,
    None: _any,
}
