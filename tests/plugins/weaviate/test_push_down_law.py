"""The push-down law over hard documents, under every tokenizer, with and without ``Not`` and the null index.

Run with ``-s`` to see how much of random filters Weaviate applies in full.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.filters import And, Condition, FieldType, Filter, Not, Op, Or, compiled, parse
from gateway.testing.filters import HARD_FIELDS, assert_push_down_law, distribution, filters
from gateway.testing.filters import documents as any_documents
from tests.plugins.weaviate.corpora import TOKENIZERS, Fixture, check, clean

WORLDS = [
    (tokenizer, multi, has_not, null_index, promised)
    for tokenizer in TOKENIZERS
    for multi in (False, True)
    for has_not in (True, False)
    for null_index in (True, False)
    for promised in ((False, True) if tokenizer == "field" and null_index else (False,))
]


def named(world: tuple[str, bool, bool, bool, bool]) -> str:
    tokenizer, multi, has_not, null_index, promised = world
    parts = (tokenizer, "lists" if multi else "scalars", "1.33" if has_not else "1.27", "nulls" * null_index)
    return "-".join([*filter(None, parts), *(["promised"] if promised else [])])


@pytest.mark.parametrize("world", WORLDS, ids=named)
def test_no_document_is_lost_and_none_is_wrong(
    world: tuple[str, bool, bool, bool, bool], trees: list[Filter], leaves: list[Filter]
) -> None:
    tokenizer, multi, has_not, null_index, promised = world
    fixture = Fixture(tokenizer, multi=multi, has_not=has_not, null_index=null_index, promised=promised)
    turn = WORLDS.index(world)
    for leaf in leaves[turn % 3 :: 3]:
        check(fixture, leaf)
    trees = trees[turn % 4 :: 4]
    halves = [check(fixture, tree) for tree in trees]
    exact = sum(half.exact for half in halves) / len(halves)
    pushed = sum(half.native is not None for half in halves) / len(halves)
    print(f"SHARE {named(world)}: exact {exact:.1%}, something pushed {pushed:.1%} of {len(trees)} trees")
    print(distribution(trees))


@pytest.mark.parametrize("switch", ["signed_zero", "raw_like", "stopwords_in_all"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_server_that_has_been_mended_gives_the_same(
    switch: str, tokenizer: str, trees: list[Filter], leaves: list[Filter]
) -> None:
    for multi in (False, True):
        fixture = Fixture(tokenizer, multi=multi, **{switch: False})
        for tree in (*leaves[::5], *trees[::20]):
            check(fixture, tree)


@settings(max_examples=80)
@given(filters(max_leaves=12), st.data(), st.sampled_from(TOKENIZERS), st.booleans(), st.booleans(), st.booleans())
def test_the_law_holds_for_documents_nobody_chose(
    tree: Filter, data: st.DataObject, tokenizer: str, multi: bool, has_not: bool, null_index: bool
) -> None:
    drawn = data.draw(st.lists(any_documents(dates="rfc3339", strays=False), max_size=12))
    stored = [document for one in drawn if (document := clean(one, multi=multi)) is not None]
    world = Fixture(tokenizer, multi=multi, has_not=has_not, null_index=null_index, stored=stored)
    halves, selected = world.push(tree)
    assert_push_down_law(tree, halves, world.documents, selected)


def test_an_old_property_gap_in_the_null_index_loses_nothing() -> None:
    """Objects that are older than a property are in no null index (BACKENDS.md 2.3)."""
    for has_not in (True, False):
        world = Fixture("field", has_not=has_not, stored=[{}, {"n": 3}, {"kw": "a"}])
        for nulls in world.corpus.nulls.values():
            nulls[True].clear()
        tree = parse({"field": "n", "op": "exists", "value": False}, HARD_FIELDS)
        assert tree is not None
        halves, selected = world.push(tree)
        assert_push_down_law(tree, halves, world.documents, selected)


def test_a_nested_tree_is_translated_by_recursion() -> None:
    """R42: ``not(and(a=1, or(b=2, not(c exists))))`` over every combination of its leaves."""
    wire = {
        "not": {
            "and": [
                {"field": "n", "op": "eq", "value": 1},
                {
                    "or": [
                        {"field": "x", "op": "eq", "value": 2},
                        {"not": {"field": "flag", "op": "exists", "value": True}},
                    ]
                },
            ]
        }
    }
    tree = parse(wire, HARD_FIELDS)
    assert tree is not None
    stored = [
        {k: v for k, v in (("n", n), ("x", x), ("flag", flag)) if v is not None}
        for n in (1, 2)
        for x in (2.0, None)
        for flag in (True, None)
    ]
    world = Fixture("word", stored=stored)
    halves, selected = world.push(tree)
    assert halves.exact
    assert selected == {i for i, document in enumerate(stored) if compiled(tree)(document)}


def test_a_negative_condition_keeps_documents_without_the_field() -> None:
    """R38: ``ne`` and ``not eq`` are the same, and both hold where there is no field."""
    stored = [{"kw": "en"}, {"kw": "de"}, {}]
    for has_not in (True, False):
        world = Fixture("field", stored=stored, has_not=has_not, promised=True)
        for wire in (
            {"field": "kw", "op": "ne", "value": "en"},
            {"not": {"field": "kw", "op": "eq", "value": "en"}},
            {"field": "kw", "op": "nin", "value": ["en", "fr"]},
        ):
            tree = parse(wire, HARD_FIELDS)
            assert tree is not None
            halves, selected = world.push(tree)
            assert halves.exact
            assert selected == {1, 2}


def test_numbers_in_a_list_stay_numbers() -> None:
    """R41: members of ``in`` keep their type, and a whole float finds an integer."""
    world = Fixture("word", stored=[{"n": 2023}, {"n": 2024}, {"n": 7}, {"x": 2023.0}])
    tree = parse({"field": "n", "op": "in", "value": [2023, 2024.0, 2.5]}, HARD_FIELDS)
    assert tree is not None
    halves, selected = world.push(tree)
    assert halves.exact
    assert selected == {0, 1}


def test_dates_are_compared_as_instants_whatever_their_spelling() -> None:
    """R40: the month that mem0 lost, and an hour's offset."""
    world = Fixture(
        "word",
        stored=[{"at": "2024-01-15T00:00:00Z"}, {"at": "2024-01-01T00:30:00+01:00"}, {"at": "2024-02-01T00:00:00Z"}],
    )
    tree = parse(
        {
            "and": [
                {"field": "at", "op": "gte", "value": "2024-01-01T00:00:00Z"},
                {"field": "at", "op": "lt", "value": 1_706_745_600_000},
            ]
        },
        HARD_FIELDS,
    )
    assert tree is not None
    halves, selected = world.push(tree)
    assert halves.exact
    assert selected == {0}


def test_nothing_empty_is_ever_sent() -> None:
    """R39: no group without parts, whatever the filter: an empty one selects everything on some servers."""
    world = Fixture("field", promised=True)
    for values in ([""], [" "], ["the"], [2.5]):
        kind = FieldType.INT if isinstance(values[0], float) else FieldType.KEYWORD
        leaf: Filter = Condition("n" if kind is FieldType.INT else "kw", Op.IN, tuple(values), kind)
        for tree in (leaf, Not(leaf), And((leaf, Not(leaf))), Or((leaf, Not(leaf)))):
            halves, selected = world.push(tree)
            assert_push_down_law(tree, halves, world.documents, selected)
