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
    Constant,
    FieldType,
    Filter,
    Not,
    Op,
    Or,
    compiled,
    conjunction,
    disjunction,
    fields_of,
    fold,
    holds,
    is_positive,
    leaves,
    nnf,
    parse,
)
from gateway.testing.filters import HARD_DOCUMENTS, HARD_FIELDS, Document, documents, filters

NORMAL: Any = importlib.import_module("gateway.filters.normal")

POSITIVE_OPS = set(Op) - {Op.NE, Op.NIN}
A, B, C = (Condition(name, Op.EQ, "x", FieldType.KEYWORD) for name in "abc")


def with_constants(tree: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    part = tree | st.sampled_from(Constant)
    lists = st.lists(part, max_size=3).map(tuple)
    return st.one_of(part, lists.map(And), lists.map(Or), part.map(Not))


def assert_normal(tree: Filter, above: type | None = None) -> None:
    match tree:
        case And(parts) | Or(parts):
            assert len(parts) >= 2
            assert len(set(parts)) == len(parts)
            assert type(tree) is not above
            for part in parts:
                assert_normal(part, type(tree))
        case Not(part):
            assert isinstance(part, Condition)
            assert_normal(part)
        case Condition(op=op, value=value):
            assert op in POSITIVE_OPS
            assert op is not Op.EXISTS or value is True
        case Constant():
            assert above is None


@given(with_constants(filters()), documents())
def test_normal_form_means_the_same(tree: Filter, document: Document) -> None:
    assert holds(nnf(tree), document) is holds(tree, document)


@given(with_constants(filters()))
def test_normal_form_negates_positive_conditions_only_and_is_folded(tree: Filter) -> None:
    assert_normal(nnf(tree))
    assert nnf(nnf(tree)) == nnf(tree)


@given(filters())
def test_normal_form_means_the_same_on_the_hard_documents(tree: Filter) -> None:
    before, after = compiled(tree), compiled(nnf(tree))
    assert all(before(document) is after(document) for document in HARD_DOCUMENTS)


def test_the_negative_operators_become_negated_positives() -> None:
    assert nnf(Condition("a", Op.NE, "x")) == Not(Condition("a", Op.EQ, "x"))
    assert nnf(Condition("a", Op.NIN, ("x",))) == Not(Condition("a", Op.IN, ("x",)))
    assert nnf(Condition("a", Op.EXISTS, False)) == Not(Condition("a", Op.EXISTS, True))
    assert nnf(Not(Condition("a", Op.EXISTS, False))) == Condition("a", Op.EXISTS, True)


def test_a_negated_conjunction_is_a_disjunction_of_negations() -> None:
    assert nnf(Not(And((A, Or((B, Not(C))))))) == Or((Not(A), And((Not(B), C))))


def test_constants_repeats_and_nesting_are_folded_away() -> None:
    assert nnf(And((A, TRUE, And((B, A)), Or((C, FALSE))))) == And((A, B, C))
    assert nnf(And((A, FALSE))) is FALSE
    assert nnf(Or((A, Not(FALSE)))) is TRUE
    assert nnf(And((A, A))) == A
    assert conjunction([]) is TRUE
    assert disjunction([]) is FALSE


def test_true_is_not_deduped_into_one() -> None:
    one, true = Condition("a", Op.EQ, 1), Condition("a", Op.EQ, True)
    assert nnf(Or((one, true))) == Or((one, true))
    assert holds(nnf(Or((one, true))), {"a": True})


def test_a_mutant_that_takes_nor_for_nand_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Not(And((A, B)))
    document = {"a": "x", "b": "y"}
    assert holds(nnf(tree), document)
    monkeypatch.setattr(NORMAL, "disjunction", NORMAL.conjunction)
    assert holds(tree, document)
    assert not holds(nnf(tree), document)


def test_a_filter_is_positive_if_no_document_gets_in_by_lacking_a_field() -> None:
    assert is_positive(And((A, Or((B, Not(Not(C)))))))
    assert is_positive(Not(Condition("a", Op.NE, "x")))
    assert is_positive(FALSE)
    for tree in (Condition("a", Op.NE, "x"), Condition("a", Op.EXISTS, False), Or((A, Not(B))), TRUE, Or((A, TRUE))):
        assert not is_positive(tree)


@given(filters())
def test_a_positive_filter_admits_no_empty_document(tree: Filter) -> None:
    assert not (is_positive(tree) and holds(tree, {}))


DECLARED = ["kw", "n", "at"]


@given(filters(), documents())
def test_skip_admits_only_documents_that_satisfy_the_filter_whatever_they_hold(
    tree: Filter, document: Document
) -> None:
    folded = fold(tree, DECLARED, "skip")
    assert fields_of(folded.filter) <= set(DECLARED)
    assert folded.pushable == folded.filter
    if holds(folded.filter, document):
        assert holds(tree, document)


@given(filters(), documents())
def test_absent_judges_as_if_the_undeclared_fields_were_not_there(tree: Filter, document: Document) -> None:
    folded = fold(tree, DECLARED, "absent")
    assert fields_of(folded.filter) <= set(DECLARED)
    shown = {name: value for name, value in document.items() if name in DECLARED}
    assert holds(folded.filter, document) is holds(tree, shown)


@given(filters(), documents())
def test_check_keeps_the_filter_and_pushes_a_superset_without_undeclared_fields(
    tree: Filter, document: Document
) -> None:
    folded = fold(tree, DECLARED, "check")
    assert folded.filter == nnf(tree)
    assert fields_of(folded.pushable) <= set(DECLARED)
    assert holds(folded.pushable, document) or not holds(tree, document)


@given(filters())
def test_the_undeclared_fields_are_named_and_a_declared_filter_is_left_alone(tree: Filter) -> None:
    assert set(fold(tree, DECLARED).undeclared) == {leaf.field for leaf in leaves(tree)} - set(DECLARED)
    for policy in ("skip", "check", "absent"):
        assert fold(tree, HARD_FIELDS, policy) == fold(nnf(tree), HARD_FIELDS, policy)
        assert fold(tree, HARD_FIELDS, policy).filter == nnf(tree)


def test_skip_makes_negated_conditions_false_too() -> None:
    wire = {"field": "tenant", "op": "ne", "value": "x"}
    tree = parse(wire, {"tenant": FieldType.KEYWORD})
    assert tree is not None
    assert fold(tree, [], "skip").filter is FALSE
    assert fold(Not(tree), [], "skip").filter is FALSE
    assert fold(tree, [], "absent").filter is TRUE
    assert fold(tree, [], "check").filter == Not(Condition("tenant", Op.EQ, "x", FieldType.KEYWORD))
    assert fold(tree, [], "check").pushable is TRUE
    assert fold(Or((tree, A)), ["a"], "skip").filter == A
