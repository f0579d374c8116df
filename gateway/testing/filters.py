"""Filters and documents to try an engine with: hypothesis strategies, hard cases, and the push-down law.

For authors of engines (``docs/filters.md``)::

    @given(filter=filters(), documents=st.lists(documents(), max_size=20))
    def test_the_push_down_law_holds(filter, documents):
        pushdown = compiler.push_down(filter)
        returned = {i for i, document in enumerate(documents) if my_engine_selects(pushdown.native, document)}
        assert_push_down_law(filter, pushdown, documents, returned)

``HARD_DOCUMENTS`` should be put through the same. Literals and stored values come from the same small pools, so that
conditions do hit and a test is not vacuous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

from gateway.filters import (
    ORDERED_OPS,
    ORDERED_TYPES,
    DateEncoding,
    FieldType,
    Filter,
    Op,
    Pushdown,
    compiled,
    leaves,
    parse,
)

__all__ = [
    "HARD_DOCUMENTS",
    "HARD_FIELDS",
    "MISFIT_DOCUMENTS",
    "Document",
    "assert_push_down_law",
    "distribution",
    "documents",
    "filters",
    "hard_documents",
    "wire_filters",
]

Document: TypeAlias = dict[str, Any]

HARD_FIELDS: Final[Mapping[str, FieldType]] = MappingProxyType(
    {
        "kw": FieldType.KEYWORD,
        "txt": FieldType.TEXT,
        "n": FieldType.INT,
        "x": FieldType.FLOAT,
        "flag": FieldType.BOOL,
        "at": FieldType.DATE,
        "spot": FieldType.GEO,
    }
)

_TEXTS: Final = (
    *("", " ", "a", "A", "ab", "a b", " a", "a ", "a\nb", "b\ta", "fr", "FR", "the", "quick brown fox", "ick br"),
    *("1", "1.0", "true", "null", "[]", "2024-01-01", "2024-01-01T00:00:00Z"),
    *('"', "'", "\\", 'say "a"', "en' OR '1'='1", "50% off*", "a*", "a?", "a_", "%", "*", "a.b", "a-b", "$eq", "{a}"),
    *("é", "e\u0301", "straße", "STRASSE", "ß", "İ", "i", "ﬁ", "fi", "😀", "👩‍👩‍👧", "中文", "\u00a0a", "\u200ba"),
)
_BIG: Final = 2**53
_INTS: Final = (0, 1, -1, 2, 3, 40, -25, 2**31, -(2**31) - 1, _BIG - 1, 1 - _BIG)
_FLOATS: Final = (0.0, -0.0, 1.0, 1.5, -1.5, 2.5, 0.1, 1e-9, 3.0, 1e18, -1e300)
# One instant in many spellings, its neighbours one microsecond away, and both sides of 1970.
_DATES: Final = (
    *("2024-01-01T00:00:00Z", "2024-01-01T01:00:00+01:00", "2023-12-31T23:00:00-01:00", "2024-01-01T00:00:00-00:00"),
    *("2024-01-01t00:00:00z", "2024-01-01 00:00:00", "2024-01-01T00:00:00", "2024-01-01", "2024-01-01T00:00:00.000Z"),
    *("2024-01-01T05:45:00+05:45", "2024-01-01T00:00:00.000001Z", "2024-01-01T00:00:00.0000009Z"),
    *("2023-12-31T23:59:59.999999Z", "2023-12-31T23:59:59.9999999Z", "2024-02-29T12:00:00Z", "1999-12-31T23:59:30Z"),
    *("1969-12-31T23:59:59.999999Z", "1969-12-31", "1970-01-01T00:00:00Z"),
)
_MILLIS: Final = (0, -1, 1, 1_704_067_200_000, 1_704_067_200_001, 1_704_067_199_999, -86_400_000)
_UNREADABLE_DATES: Final = ("", "soon", "2024-13-01", "2023-02-29", "2024-01-01T25:00:00Z", "2024-01-01T00:00:00Z\n")
_SPOTS: Final = ({"lat": 52.5, "lon": 13.4}, {"lat": 0, "lon": 0})

_STORED: Final[Mapping[FieldType, tuple[Any, ...]]] = {
    FieldType.KEYWORD: _TEXTS,
    FieldType.TEXT: _TEXTS,
    FieldType.INT: (*_INTS, 1.0, 3.0, _BIG, _BIG + 1, -_BIG),
    FieldType.FLOAT: (*_FLOATS, *_INTS),
    FieldType.BOOL: (True, False),
    FieldType.GEO: _SPOTS,
}
_STRAYS: Final[Mapping[FieldType, tuple[Any, ...]]] = {
    FieldType.KEYWORD: (1, 0, 1.0, True, False),
    FieldType.TEXT: (1, 0, 1.0, True, False),
    FieldType.INT: ("1", "", True, False, "true"),
    FieldType.FLOAT: ("1.5", "", True, False, "NaN"),
    FieldType.BOOL: (1, 0, 1.0, "true", "false", ""),
    FieldType.DATE: (*_UNREADABLE_DATES, True, False),
    FieldType.GEO: ("here", 1),
}
_LITERALS: Final[Mapping[FieldType, tuple[Any, ...]]] = {
    FieldType.KEYWORD: _TEXTS,
    FieldType.TEXT: _TEXTS,
    FieldType.INT: (*_INTS, 1.0, -0.0, 2.5, -1.5),
    FieldType.FLOAT: (*_FLOATS, *_INTS),
    FieldType.BOOL: (True, False),
    FieldType.DATE: (*_DATES, *_MILLIS),
}

MISFIT_DOCUMENTS: Final[tuple[Document, ...]] = (
    {"n": 1.5},
    {"n": [1.5, 2]},
    {"at": "2016-12-31T23:59:60Z"},
    {"at": "2024-01-01T00:00"},
    {"at": "2024-01-01T00:00:00+0100"},
    {"at": 1_704_067_200_000.5},
    {"x": 10**400},
)
"""Values that some engines read and our meaning does not, or that JSON stores cannot hold: what we say of them is
fixed, but an engine that lets them through is only loose, and checking the hits repairs it."""


def _stored(kind: FieldType, dates: DateEncoding | None) -> tuple[Any, ...]:
    if kind is not FieldType.DATE:
        return _STORED[kind]
    return {"rfc3339": _DATES, "epoch_ms": _MILLIS, None: (*_DATES, *_MILLIS)}[dates]


def hard_documents(
    fields: Mapping[str, FieldType] = HARD_FIELDS, *, dates: DateEncoding | None = None
) -> tuple[Document, ...]:
    """Documents on which translators go wrong: each hard value alone and in arrays, strays of other types, and every
    way of being absent.

    ``dates`` is how the engine stores dates: with it the other encoding is left out, which such an engine need not
    read; ``None`` mixes both.
    """
    found: list[Document] = [{}, dict.fromkeys(fields), {name: [] for name in fields}]
    for name, kind in fields.items():
        good, stray = _stored(kind, dates), _STRAYS[kind]
        found += [{name: value} for value in (None, [], [None], *good, *stray)]
        found += [{name: [value]} for value in good[:4]]
        found += [{name: [first, second]} for first, second in pairwise(good)]
        found += [{name: [None, good[0]]}, {name: [stray[0], good[-1]]}, {name: list(stray)}]
    return tuple(found)


HARD_DOCUMENTS: Final[tuple[Document, ...]] = hard_documents()


def documents(
    fields: Mapping[str, FieldType] = HARD_FIELDS,
    *,
    dates: DateEncoding | None = None,
    arrays: bool = True,
    strays: bool = True,
    nulls: bool = True,
) -> st.SearchStrategy[Document]:
    """Metadata with hard values. The switches turn off what a store cannot hold: arrays, values that are not of the
    declared type, nulls (in arrays too)."""

    def values(kind: FieldType) -> st.SearchStrategy[Any]:
        pool: tuple[Any, ...] = _stored(kind, dates)
        extra = (*(_STRAYS[kind] if strays else ()), *((None,) if nulls else ()))
        one = st.sampled_from(pool)
        # Strays and nulls are one in five at most: a corpus of misfits matches nothing and proves nothing.
        mixed = st.one_of(one, one, one, one, st.sampled_from(extra)) if extra else one
        return st.one_of(mixed, mixed, st.lists(mixed, max_size=3)) if arrays else mixed

    return st.fixed_dictionaries({}, optional={name: values(kind) for name, kind in fields.items()})


def wire_filters(
    fields: Mapping[str, FieldType] = HARD_FIELDS,
    *,
    operators: Collection[Op] | None = None,
    max_leaves: int = 8,
) -> st.SearchStrategy[dict[str, Any]]:
    """Valid filters as RCP clients send them: every declared field, every operator its type allows, any nesting."""
    allowed = frozenset(Op if operators is None else operators)
    leaf = st.one_of([_leaves(name, kind, op) for name, kind in fields.items() for op in _ops(kind) if op in allowed])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=3)}),
            st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=3)}),
            st.fixed_dictionaries({"not": inner}),
        ),
        max_leaves=max_leaves,
    )


def filters(
    fields: Mapping[str, FieldType] = HARD_FIELDS,
    *,
    operators: Collection[Op] | None = None,
    max_leaves: int = 8,
) -> st.SearchStrategy[Filter]:
    """:func:`wire_filters`, read."""

    def read(wire: dict[str, Any]) -> Filter:
        tree = parse(wire, fields)
        if tree is None:
            raise AssertionError("a filter with conditions was read as none")
        return tree

    return wire_filters(fields, operators=operators, max_leaves=max_leaves).map(read)


def _ops(kind: FieldType) -> list[Op]:
    """The operators that a field of this type takes, in a fixed order."""
    if kind is FieldType.GEO:
        return [Op.EXISTS]
    return [op for op in Op if kind in ORDERED_TYPES or op not in ORDERED_OPS]


def _leaves(name: str, kind: FieldType, op: Op) -> st.SearchStrategy[dict[str, Any]]:
    value: st.SearchStrategy[Any]
    if op is Op.EXISTS:
        value = st.booleans()
    elif op in (Op.IN, Op.NIN):
        value = st.lists(st.sampled_from(_LITERALS[kind]), min_size=1, max_size=4)
    else:
        value = st.sampled_from(_LITERALS[kind])
    return st.fixed_dictionaries({"field": st.just(name), "op": st.just(op.value), "value": value})


def assert_push_down_law(
    filter: Filter,
    pushdown: Pushdown[Any],
    documents: Sequence[Mapping[str, Any]],
    returned: Collection[int],
) -> None:
    """Check an engine's answer to ``pushdown.native`` over ``documents``; ``returned`` are the indexes it selected.

    Raises ``AssertionError`` if the engine hid a document that satisfies the filter (no residual can bring it back),
    or if native and residual together are not the filter.
    """
    test = compiled(filter)
    check = None if pushdown.residual is None else compiled(pushdown.residual)
    for index, document in enumerate(documents):
        wanted, got = test(document), index in returned
        if wanted and not got:
            raise AssertionError(f"unsound: {pushdown.native!r} hides {document!r}, which satisfies {filter!r}")
        if (got and (check is None or check(document))) is not wanted:
            raise AssertionError(f"not the filter: {pushdown!r} lets {document!r} through, against {filter!r}")


def distribution(trees: Iterable[Filter]) -> str:
    """How often each operator and size occurs in these trees: a share of exact translations says little without it."""
    operators: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    for tree in trees:
        found = list(leaves(tree))
        sizes[len(found)] += 1
        operators.update(leaf.op.value for leaf in found)
    total, count = sum(operators.values()) or 1, sum(sizes.values()) or 1
    ops = ", ".join(f"{name} {number / total:.0%}" for name, number in sorted(operators.items()))
    few = ", ".join(f"{size}: {number / count:.0%}" for size, number in sorted(sizes.items()))
    return f"conditions by operator: {ops}; trees by number of conditions: {few}"
