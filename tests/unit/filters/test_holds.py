"""The meaning, case by case, and the mutants that these cases must kill."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.filters import (
    FALSE,
    TRUE,
    And,
    Condition,
    FieldType,
    Instant,
    Not,
    Op,
    Or,
    compiled,
    fields_of,
    holds,
    judge,
    judged,
    parse,
)
from gateway.testing.filters import HARD_DOCUMENTS, HARD_FIELDS, MISFIT_DOCUMENTS, Document, documents, filters

# The package's attributes of these names are the functions.
HOLDS: Any = importlib.import_module("gateway.filters.holds")

ABSENT = object()
NEW_YEAR = "2024-01-01T00:00:00Z"
# field, operator, literal, stored values it holds for, stored values it does not hold for
MEANING: list[tuple[str, str, Any, list[Any], list[Any]]] = [
    ("kw", "eq", "a",
     ["a", ["a"], ["x", "a"], ["a", None], [1, "a"]],
     [ABSENT, None, [], [None], "A", " a", "a ", "ab", 1, [["a"]]]),
    ("kw", "ne", "a", [ABSENT, None, [], [None], "A", "b", ["b"], 1, True], ["a", ["a"], ["b", "a"]]),
    ("kw", "in", ["a", "b"], ["a", "b", ["c", "b"]], [ABSENT, None, [], "c", "A", 1]),
    ("kw", "nin", ["a", "b"], [ABSENT, None, [], [None], "c", 1], ["a", "b", ["c", "b"]]),
    ("kw", "contains", "a", ["a", ["b", "a"]], ["ab", ["ab"], "A", ABSENT]),
    ("kw", "eq", "", ["", ["", "a"]], [ABSENT, None, [], " ", [None]]),
    ("kw", "eq", "1", ["1"], [1, 1.0, True, "1.0"]),
    ("kw", "eq", "a*", ["a*"], ["a", "ab", "abc"]),
    ("kw", "eq", "en' OR '1'='1", ["en' OR '1'='1"], ["en", "1"]),
    ("kw", "eq", "é", ["é"], ["e\u0301", "e", "É"]),
    ("kw", "eq", "ß", ["ß"], ["ss", "SS", "ẞ"]),
    ("kw", "eq", "😀", ["😀"], ["😁", ""]),
    ("kw", "eq", NEW_YEAR, [NEW_YEAR], ["2024-01-01", "2024-01-01T01:00:00+01:00"]),
    ("txt", "contains", "ick br",
     ["quick brown", ["x", "quick brown"]],
     ["quick  brown", "QUICK BROWN", ["ick", " br"], ABSENT, 1]),
    ("txt", "contains", "", ["", "a", ["a"]], [ABSENT, None, [], [None], 1]),
    ("txt", "contains", "50% off*", ["now 50% off*!"], ["50% off", "50 off*"]),
    ("txt", "contains", "a.b", ["xa.by"], ["axb"]),
    ("txt", "contains", "a\nb", ["xa\nby"], ["a b"]),
    ("txt", "eq", "a b", ["a b"], ["b a", "a b c", "A B", "a  b"]),
    ("n", "eq", 1, [1, 1.0, [2, 1]], [True, "1", 1.5, ABSENT, None, [True], ["1"]]),
    ("n", "ne", 1, [True, "1", 1.5, ABSENT, None, [], 2], [1, 1.0, [2, 1]]),
    ("n", "eq", 0, [0, 0.0, -0.0], [False, "", "0", None, []]),
    ("n", "gt", 1, [2, [0, 2], 2.0], [1, True, "2", ABSENT, None, [0, 1], 1.5]),
    ("n", "gte", 1, [1, 1.0, [0, 1]], [0, True, "1", ABSENT]),
    ("n", "lt", 1, [0, -1, [0, 5]], [1, False, "0", ABSENT, None, [], [None]]),
    ("n", "lte", 1, [1, 0, [1, 5]], [2, True, ABSENT]),
    ("n", "in", [1, 3], [1, 3.0, [2, 3]], [True, 2, "1", ABSENT]),
    ("n", "nin", [1, 3], [2, True, ABSENT, None, []], [1, 3.0, [2, 3]]),
    ("n", "eq", 2**53 - 1, [2**53 - 1], [2**53, 2**53 + 1]),
    ("n", "gt", 2**53 - 1, [2**53, 2**53 + 1], [2**53 - 1]),
    ("x", "eq", 1.5, [1.5, [1, 1.5]], [1, "1.5", True, ABSENT]),
    ("x", "eq", 1, [1, 1.0], [True, "1", float("nan"), 10**400]),
    ("x", "gt", 0.1, [0.2, 1, 10**18], [0.1, float("nan"), float("inf"), "1", ABSENT]),
    ("flag", "eq", True, [True, [False, True]], [1, 1.0, "true", ABSENT, None, False]),
    ("flag", "eq", False, [False], [0, 0.0, "", ABSENT, None, [], "false"]),
    ("flag", "ne", True, [1, ABSENT, None, False, [], "true"], [True, [False, True]]),
    ("flag", "in", [True, False], [True, False], [0, 1, ABSENT]),
    ("at", "eq", NEW_YEAR,
     [NEW_YEAR, "2024-01-01", "2024-01-01T01:00:00+01:00", 1_704_067_200_000, "2024-01-01T00:00:00.0000009Z"],
     ["2024-01-01T00:00:00+01:00", "soon", True, ABSENT, "2024-01-01T00:00:00.000001Z"]),
    ("at", "ne", NEW_YEAR, ["soon", ABSENT, None, "2016-12-31T23:59:60Z"], ["2024-01-01", "2023-12-31T23:00:00-01:00"]),
    ("at", "gt", "2024-01-01T00:30:00+01:00",
     [NEW_YEAR, "2023-12-31T23:30:00.000001Z"],
     ["2024-01-01T00:10:00+01:00", "2023-12-31T23:30:00Z", "zzz"]),
    ("at", "lt", "2024-01-01T00:30:00Z",
     ["2024-01-01T01:15:00+01:00", NEW_YEAR, -1],
     ["2024-01-01T00:30:00", "2024-01-01T00:00:00-01:00", "", "0"]),
    ("at", "gte", 0, ["1970-01-01", 0, 0.0], ["1969-12-31T23:59:59.9999999Z", -1, False]),
    ("at", "in", ["2024-01-01T01:00:00+01:00"], [NEW_YEAR], ["2024-01-01T01:00:00Z"]),
    ("at", "contains", NEW_YEAR, [["soon", "2024-01-01"]], ["2024-01-02"]),
    ("spot", "exists", True, [{"lat": 1}, [None], "", 0, False, [[]]], [ABSENT, None, []]),
    ("spot", "exists", False, [ABSENT, None, []], [{"lat": 1}, [None], ""]),
]  # fmt: skip
VERDICTS = [
    pytest.param(field, op, value, stored, verdict, id=f"{field}-{op}-{str(value)[:20]}-{index}-{verdict}")
    for field, op, value, yes, no in MEANING
    for verdict, pool in ((True, yes), (False, no))
    for index, stored in enumerate(pool)
]


def failures() -> list[tuple[Any, ...]]:
    """The lines of MEANING that the code, as it now is, gets wrong."""
    wrong = []
    for field, op, value, yes, no in MEANING:
        tree = parse({"field": field, "op": op, "value": value}, HARD_FIELDS)
        assert tree is not None
        for verdict, pool in ((True, yes), (False, no)):
            wrong += [(field, op, value, x) for x in pool if compiled(tree)(stored_as(field, x)) is not verdict]
    return wrong


def stored_as(field: str, value: Any) -> Document:
    return {} if value is ABSENT else {field: value}


@pytest.mark.parametrize(("field", "op", "value", "stored", "verdict"), VERDICTS)
def test_a_condition_means_what_the_table_says(field: str, op: str, value: Any, stored: Any, verdict: bool) -> None:
    tree = parse({"field": field, "op": op, "value": value}, HARD_FIELDS)
    assert tree is not None
    assert holds(tree, stored_as(field, stored)) is verdict


def true_counts_as_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HOLDS, "_read_number", lambda e: e if isinstance(e, int | float) else HOLDS._ABSENT)


def one_counts_as_true(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HOLDS, "_read_bool", lambda e: e)


def dates_are_compared_as_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HOLDS, "_read_date", HOLDS._read_text)
    patch.setattr(HOLDS, "_comparable", lambda v: v.rfc3339() if isinstance(v, Instant) else v)


def case_is_folded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HOLDS, "_read_text", lambda e: e.casefold() if isinstance(e, str) else HOLDS._ABSENT)


def edges_are_trimmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HOLDS, "_read_text", lambda e: e.strip() if isinstance(e, str) else HOLDS._ABSENT)


def null_is_present(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HOLDS, "_present", lambda _: True)


def missing_satisfies_nothing(patch: pytest.MonkeyPatch) -> None:
    real = HOLDS._leaf
    patch.setattr(HOLDS, "_leaf", lambda c: lambda meta: meta.get(c.field) is not None and real(c)(meta))


def only_the_first_element_counts(patch: pytest.MonkeyPatch) -> None:
    real = HOLDS._leaf

    def first(condition: Condition) -> Any:
        test = real(condition)
        return lambda m: test({k: v[:1] if isinstance(v, list) else v for k, v in m.items()})

    patch.setattr(HOLDS, "_leaf", first)


MUTANTS = [
    true_counts_as_one,
    one_counts_as_true,
    dates_are_compared_as_text,
    case_is_folded,
    edges_are_trimmed,
    null_is_present,
    missing_satisfies_nothing,
    only_the_first_element_counts,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_table_catches_a_meaning_that_is_off(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures() == []
    mutant(monkeypatch)
    assert failures()


def test_every_operator_is_in_the_table() -> None:
    assert {op for _, op, *_ in MEANING} == set(Op)


def test_without_a_declared_type_the_literal_and_the_stored_value_decide() -> None:
    def untyped(op: Op, value: Any) -> Any:
        return compiled(Condition("a", op, value))

    assert untyped(Op.CONTAINS, "b")({"a": "abc"})
    assert untyped(Op.CONTAINS, "b")({"a": ["b"]})
    assert not untyped(Op.CONTAINS, "b")({"a": ["abc"]})
    assert not untyped(Op.CONTAINS, "b")({"a": 1})
    assert untyped(Op.CONTAINS, 1)({"a": [1.0]})
    assert not untyped(Op.CONTAINS, 1)({"a": [True, "1"]})
    mixed = untyped(Op.IN, (1, True, "x"))
    assert [mixed({"a": value}) for value in (1.0, True, "x", False, "1", 0, None)] == [True] * 3 + [False] * 4
    assert untyped(Op.GT, Instant(0))({"a": "2024-01-01"})
    assert untyped(Op.GT, 1)({"a": 1.5})


def test_a_field_name_is_a_key_and_not_a_path() -> None:
    assert holds(Condition("a.b", Op.EQ, "x", FieldType.KEYWORD), {"a.b": "x"})
    assert not holds(Condition("a.b", Op.EQ, "x", FieldType.KEYWORD), {"a": {"b": "x"}})


@given(filters(), documents())
def test_not_is_the_complement_and_twice_not_is_nothing(tree: Any, document: Document) -> None:
    assert holds(Not(tree), document) is not holds(tree, document)
    assert holds(Not(Not(tree)), document) is holds(tree, document)


@given(st.lists(filters(max_leaves=3), min_size=1, max_size=3), documents())
def test_de_morgan_holds(parts: list[Any], document: Document) -> None:
    negated = tuple(Not(part) for part in parts)
    assert holds(Not(And(tuple(parts))), document) is holds(Or(negated), document)
    assert holds(Not(Or(tuple(parts))), document) is holds(And(negated), document)


@given(filters(operators=[Op.NE, Op.NIN], max_leaves=1), documents())
def test_ne_is_not_eq_and_nin_is_not_in(tree: Any, document: Document) -> None:
    if isinstance(tree, Condition):
        positive = Op.EQ if tree.op is Op.NE else Op.IN
        twin = Condition(tree.field, positive, tree.value, tree.type)
        assert holds(tree, document) is not holds(twin, document)


@given(filters())
def test_a_verdict_comes_for_every_hard_document(tree: Any) -> None:
    test, unsure = compiled(tree), judged(tree, complete=False)
    for document in (*HARD_DOCUMENTS, *MISFIT_DOCUMENTS):
        assert test(document) in (True, False)
        assert unsure(document) in (test(document), None)


@given(filters(), documents())
def test_complete_metadata_leaves_nothing_unknown(tree: Any, document: Document) -> None:
    assert judge(tree, document, complete=True) is holds(tree, document)
    everything = {**dict.fromkeys(fields_of(tree)), **document}
    assert judge(tree, everything, complete=False) is holds(tree, document)


@given(filters(), documents(), documents())
def test_a_verdict_on_partial_metadata_stands_whatever_the_rest_is(tree: Any, shown: Document, rest: Document) -> None:
    verdict = judge(tree, shown, complete=False)
    if verdict is not None:
        assert holds(tree, {**rest, **shown}) is verdict
        assert holds(tree, shown) is verdict


def test_unknown_spreads_by_kleene() -> None:
    known = Condition("a", Op.EQ, "x", FieldType.KEYWORD)
    unseen = Condition("b", Op.EQ, "x", FieldType.KEYWORD)
    meta = {"a": "x"}
    assert judge(unseen, meta, complete=False) is None
    assert judge(Not(unseen), meta, complete=False) is None
    assert judge(And((unseen, known)), meta, complete=False) is None
    assert judge(And((unseen, Not(known))), meta, complete=False) is False
    assert judge(Or((unseen, known)), meta, complete=False) is True
    assert judge(Or((unseen, Not(known))), meta, complete=False) is None
    assert judge(Or((unseen, TRUE)), meta, complete=False) is True
    assert judge(And((unseen, FALSE)), meta, complete=False) is False
    assert judge(unseen, {"b": None}, complete=False) is False
    assert judge(Condition("b", Op.EXISTS, False), meta, complete=False) is None
