"""Push-down against a toy engine whose native filter is a predicate, and mutants of the algebra."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.filters import (
    FALSE,
    TRUE,
    And,
    Condition,
    Exact,
    FieldType,
    Filter,
    FilterCompiler,
    Loose,
    Not,
    Op,
    Or,
    Pushdown,
    compiled,
    fields_of,
    fold,
    holds,
    nnf,
    push_folded,
)
from gateway.testing.filters import (
    HARD_DOCUMENTS,
    HARD_FIELDS,
    Document,
    assert_push_down_law,
    documents,
    filters,
)

Native = Callable[[Document], bool]
A, B, C = (Condition(name, Op.EQ, "x", FieldType.KEYWORD) for name in "abc")


class Toy(FilterCompiler[Native]):
    """Answers exactly, loosely or not at all, as ``choose`` has it; it checks what it is promised."""

    def __init__(self, choose: Callable[[Condition], str]) -> None:
        self.choose = choose

    def _bound(self, c: Condition, literal: Filter) -> Exact[Native] | Loose[Native] | None:
        assert c.op not in (Op.NE, Op.NIN)
        assert c.op is not Op.EXISTS or c.value is True
        test = compiled(literal)
        match self.choose(c):
            case "exact":
                return Exact(test)
            case "loose":
                return Loose(lambda document: test(document) or len(document) % 2 == 0)
            case _:
                return None

    def satisfying(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        return self._bound(c, c)

    def violating(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        return self._bound(c, Not(c))

    def all_of(self, parts: Sequence[Native]) -> Native:
        assert len(parts) >= 2
        return lambda document: all(part(document) for part in parts)

    def any_of(self, parts: Sequence[Native]) -> Native:
        assert len(parts) >= 2
        return lambda document: any(part(document) for part in parts)


def dice(seed: int) -> Callable[[Condition], str]:
    rolls = random.Random(seed)
    return lambda _: rolls.choice(["exact", "exact", "loose", "none"])


def by_name(**answers: str) -> Callable[[Condition], str]:
    return lambda c: answers[c.field]


def selected(pushdown: Pushdown[Native], corpus: Sequence[Document]) -> set[int]:
    native = pushdown.native
    return {index for index, document in enumerate(corpus) if native is None or native(document)}


def obeys(compiler: FilterCompiler[Native], tree: Filter, corpus: Sequence[Document]) -> None:
    pushdown = compiler.push_down(tree)
    assert_push_down_law(tree, pushdown, corpus, selected(pushdown, corpus))


@given(filters(), st.lists(documents(), max_size=10), st.integers(0, 2**32))
def test_the_push_down_law_holds_whatever_the_engine_can_do(tree: Filter, corpus: list[Document], seed: int) -> None:
    obeys(Toy(dice(seed)), tree, corpus)


@given(filters(), st.integers(0, 2**32))
def test_the_push_down_law_holds_on_the_hard_documents(tree: Filter, seed: int) -> None:
    obeys(Toy(dice(seed)), tree, HARD_DOCUMENTS)


@given(filters())
def test_an_engine_that_can_do_everything_leaves_no_residual(tree: Filter) -> None:
    pushdown = Toy(lambda _: "exact").push_down(tree)
    assert pushdown.nothing or pushdown.exact


@given(filters(), st.lists(documents(), max_size=10))
def test_an_engine_that_can_do_nothing_gets_everything_as_residual(tree: Filter, corpus: list[Document]) -> None:
    for pushdown in (Toy(lambda _: "none").push_down(tree), Pushdown[Native].unpushed(tree)):
        assert pushdown.native is None
        assert pushdown.residual == (None if nnf(tree) is TRUE else nnf(tree))
        assert_push_down_law(tree, pushdown, corpus, range(len(corpus)))


def test_a_conjunction_keeps_only_its_inexact_parts_as_residual() -> None:
    pushdown = Toy(by_name(a="exact", b="loose", c="none")).push_down(And((A, B, Not(C))))
    assert pushdown.native is not None
    assert pushdown.residual == And((B, Not(C)))
    assert pushdown.needs == {"b", "c"}
    assert not pushdown.exact


def test_a_disjunction_with_one_part_that_cannot_be_pushed_is_not_pushed() -> None:
    tree = Or((A, C))
    assert Toy(by_name(a="exact", c="none")).push_down(tree) == Pushdown(None, tree)


def test_a_disjunction_with_one_loose_part_is_checked_as_a_whole() -> None:
    tree = Or((A, B))
    pushdown = Toy(by_name(a="exact", b="loose")).push_down(tree)
    assert pushdown.native is not None
    assert pushdown.residual == tree


def test_negations_are_not_pushed_unless_the_author_says_how() -> None:
    class Positive(Toy):
        violating = FilterCompiler.violating  # type: ignore[assignment]

    assert Positive(lambda _: "exact").push_down(Not(A)) == Pushdown(None, Not(A))


def test_a_filter_that_nothing_satisfies_never_looks_like_no_filter() -> None:
    pushdown = Toy(lambda _: "exact").push_down(And((A, FALSE)))
    assert pushdown.nothing
    assert not pushdown.exact
    assert pushdown.residual is FALSE
    assert Pushdown[Native].unpushed(FALSE).nothing


def test_a_filter_that_everything_satisfies_pushes_nothing() -> None:
    assert Toy(lambda _: "exact").push_down(Or((A, TRUE))) == Pushdown(None, None)
    assert Pushdown[Native].unpushed(TRUE) == Pushdown(None, None)


DECLARED = ["kw", "n", "at"]


@given(filters(), st.sampled_from(["skip", "check", "absent"]), st.lists(documents(), max_size=8), st.integers(0, 99))
def test_a_folded_filter_obeys_the_law_and_the_engine_never_sees_an_undeclared_field(
    tree: Filter, policy: Any, corpus: list[Document], seed: int
) -> None:
    def push_down(pushable: Filter) -> Pushdown[Native]:
        assert pushable not in (TRUE, FALSE)
        assert fields_of(pushable) <= set(DECLARED)
        return Toy(dice(seed)).push_down(pushable)

    folded = fold(tree, DECLARED, policy)
    pushdown = push_folded(folded, push_down)
    if not pushdown.nothing:
        assert_push_down_law(folded.filter, pushdown, corpus, selected(pushdown, corpus))
    else:
        assert not any(holds(folded.filter, document) for document in corpus)


class DropsTheResidualOfAConjunction(Toy):
    def _all(self, halves: Sequence[Pushdown[Native]]) -> Pushdown[Native]:
        return Pushdown(super()._all(halves).native, None)


class PushesWhatItCanOfADisjunction(Toy):
    def _any(self, halves: Sequence[Pushdown[Native]], whole: Filter) -> Pushdown[Native]:
        return super()._any([half for half in halves if half.native is not None] or halves, whole)


class ChecksOnlyTheInexactPartsOfADisjunction(Toy):
    def _any(self, halves: Sequence[Pushdown[Native]], whole: Filter) -> Pushdown[Native]:
        left = [half.residual for half in halves if half.residual is not None]
        return Pushdown(super()._any(halves, whole).native, And(tuple(left)) if left else None)


class NegatesALooseFilter(Toy):
    def violating(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        bound = self.satisfying(c)
        return None if bound is None else Loose(lambda document: not bound.native(document))


class LosesMissingUnderNegation(Toy):
    def violating(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        return Exact(lambda document: c.field in document and not holds(c, document))


class TakesAnEmptyDisjunctionForEverything(Toy):
    """``in`` as a disjunction over those values the store can hold, of which there may be none."""

    def satisfying(self, c: Condition) -> Exact[Native] | Loose[Native] | None:
        if c.op is not Op.IN:
            return super().satisfying(c)
        tests = [compiled(Condition(c.field, Op.EQ, value, c.type)) for value in c.values if isinstance(value, int)]
        return Exact(lambda document: not tests or any(test(document) for test in tests))


MUTANTS = [
    DropsTheResidualOfAConjunction,
    PushesWhatItCanOfADisjunction,
    ChecksOnlyTheInexactPartsOfADisjunction,
    NegatesALooseFilter,
    LosesMissingUnderNegation,
    TakesAnEmptyDisjunctionForEverything,
]
KW = [Condition("kw", Op.EQ, value, HARD_FIELDS["kw"]) for value in ("a", "fr")]
TREES: list[Filter] = [
    And((KW[0], Condition("n", Op.GT, 1, FieldType.INT))),
    Or((KW[0], Condition("n", Op.GT, 1, FieldType.INT))),
    Or((KW[0], KW[1], Not(Condition("flag", Op.EQ, True, FieldType.BOOL)))),
    Not(KW[0]),
    Condition("kw", Op.IN, ("a", "b"), FieldType.KEYWORD),
]


def broken(kind: type[Toy]) -> bool:
    """Whether the law catches this compiler on some tree."""
    for tree in TREES:
        for seed in range(8):
            try:
                obeys(kind(dice(seed)), tree, HARD_DOCUMENTS)
            except AssertionError:
                return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_law_catches_a_compiler_that_is_off(mutant: type[Toy]) -> None:
    assert not broken(Toy)
    assert broken(mutant)


def test_the_strategies_make_filters_that_some_documents_satisfy_and_some_do_not() -> None:
    mixed = 0

    @settings(max_examples=100, derandomize=True, database=None)
    @given(filters())
    def count(tree: Filter) -> None:
        nonlocal mixed
        test = compiled(tree)
        mixed += len({test(document) for document in HARD_DOCUMENTS}) == 2

    count()
    assert mixed > 40
