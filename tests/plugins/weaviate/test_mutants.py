"""Faults that somebody has shipped (PEERS.md): the push-down law must notice each of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.filters import Bound, Condition, Exact, FieldType, Filter, Instant, Loose, Op
from gateway_weaviate.filters import Group, Leaf, Native, WeaviateFilters
from tests.plugins.weaviate.corpora import Fixture, check
from tests.servers.weaviate_index import Refused

FLIPPED = {Op.GT: Op.LTE, Op.GTE: Op.LT, Op.LT: Op.GTE, Op.LTE: Op.GT}


class TokensPosingAsEquality(WeaviateFilters):
    def satisfying(self, c: Condition) -> Bound[Native]:
        found = super().satisfying(c)
        return Exact(found.native) if isinstance(found, Loose) and c.op is Op.EQ else found


class NegatedTokens(WeaviateFilters):
    def violating(self, c: Condition) -> Bound[Native]:
        if c.type is FieldType.TEXT and c.op is Op.EQ:
            found = self.satisfying(c)
            if found is not None and isinstance(found.native, Leaf):
                return Loose(Leaf(c.field, "NotEqual", str(c.value)))
        return super().violating(c)


class NoNullArm(WeaviateFilters):
    def _not_ordered(self, field: Any, c: Condition) -> Bound[Native]:
        return self.satisfying(Condition(c.field, FLIPPED[c.op], c.value, c.type))


class MergedBounds(WeaviateFilters):
    def satisfying(self, c: Condition) -> Bound[Native]:
        found = super().satisfying(c)
        return Exact(found.native) if found is not None and c.type is FieldType.DATE and c.op is Op.EQ else found

    def violating(self, c: Condition) -> Bound[Native]:
        if c.type is FieldType.DATE and c.op is Op.EQ:
            found = self.satisfying(c)
            return None if found is None else Exact(Group("Not", (found.native,)))
        return super().violating(c)


class TrueAsOne(WeaviateFilters):
    def satisfying(self, c: Condition) -> Bound[Native]:
        found = super().satisfying(c)
        if c.type is FieldType.BOOL and found is not None and isinstance(found.native, Leaf):
            return Exact(Leaf(c.field, "Equal", int(bool(c.values[0]))))
        return found


class DatesAsText(WeaviateFilters):
    def satisfying(self, c: Condition) -> Bound[Native]:
        if c.type is FieldType.DATE and c.op is Op.EQ and isinstance(c.value, Instant):
            return Exact(Leaf(c.field, "Equal", c.value.rfc3339()))
        return super().satisfying(c)


class FlipOnLists(WeaviateFilters):
    def _not_ordered(self, field: Any, c: Condition) -> Bound[Native]:
        found = super()._not_ordered(field, c)
        return Exact(found.native) if isinstance(found, Loose) else found


class NorForNand(WeaviateFilters):
    def all_of(self, parts: Any) -> Native:
        return Group("Or", tuple(parts))


class UnquotedLike(WeaviateFilters):
    def satisfying(self, c: Condition) -> Bound[Native]:
        found = super().satisfying(c)
        if found is not None and isinstance(found.native, Leaf) and found.native.operator == "Like":
            return Loose(Leaf(c.field, "Like", f"*{c.value}*"))
        return found


class OneZero(WeaviateFilters):
    def satisfying(self, c: Condition) -> Bound[Native]:
        found = super().satisfying(c)
        if c.type is FieldType.FLOAT and found is not None and isinstance(found.native, Group):
            first = found.native.parts[0]
            return Exact(first)
        return found


class StopwordsAsked(WeaviateFilters):
    def _can_be_asked(self, field: Any, value: str) -> bool:
        return True


class NullAsAbsentText(WeaviateFilters):
    def violating(self, c: Condition) -> Bound[Native]:
        found = super().violating(c)
        return Exact(found.native) if isinstance(found, Loose) and c.op is Op.EXISTS else found


class TrimmedWithoutPromise(WeaviateFilters):
    def violating(self, c: Condition) -> Bound[Native]:
        if c.type is FieldType.KEYWORD and c.op is Op.EQ and str(c.value).strip() and c.value not in ("a", "the"):
            return Exact(Leaf(c.field, "NotEqual", str(c.value)))
        return super().violating(c)


MUTANTS: list[tuple[type[WeaviateFilters], dict[str, Any]]] = [
    (TokensPosingAsEquality, {"tokenizer": "word"}),
    (NegatedTokens, {"tokenizer": "word"}),
    (NoNullArm, {"tokenizer": "word", "has_not": False}),
    (MergedBounds, {"tokenizer": "word", "multi": True}),
    (TrueAsOne, {"tokenizer": "word"}),
    (DatesAsText, {"tokenizer": "word"}),
    (FlipOnLists, {"tokenizer": "field", "multi": True, "has_not": False, "promised": True}),
    (NorForNand, {"tokenizer": "word"}),
    (UnquotedLike, {"tokenizer": "whitespace"}),
    (OneZero, {"tokenizer": "word"}),
    (StopwordsAsked, {"tokenizer": "field"}),
    (NullAsAbsentText, {"tokenizer": "word"}),
    (TrimmedWithoutPromise, {"tokenizer": "field"}),
]


def caught(fixture: Fixture, tree: Filter) -> bool:
    """Whether the filter shows a fault: a document lost or wrong, or an error where there should be none."""
    try:
        check(fixture, tree)
    except (AssertionError, Refused):
        return True
    return False


@pytest.mark.parametrize(("mutant", "world"), MUTANTS, ids=lambda one: one.__name__ if isinstance(one, type) else "")
def test_a_mutant_is_noticed(
    mutant: type[WeaviateFilters], world: dict[str, Any], trees: list[Filter], leaves: list[Filter]
) -> None:
    """That the law holds without the mutation is what test_push_down_law says of the same worlds and filters."""
    fixture = Fixture(**world, compiler=mutant)
    assert any(caught(fixture, tree) for tree in (*leaves, *trees))
