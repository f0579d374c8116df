"""Filters for an upstream, tried on servers that read the spec differently where it is silent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.filters import FieldType, Op, compiled, holds, parse
from gateway.testing.filters import assert_push_down_law, documents, filters
from gateway_rcp.pushdown import MAX_DEPTH, WireFilters, wire_depth
from tests.obligations import obligation

FIELDS = {
    "kw": FieldType.KEYWORD,
    "txt": FieldType.TEXT,
    "n": FieldType.INT,
    "flag": FieldType.BOOL,
    "at": FieldType.DATE,
    "spot": FieldType.GEO,
}
ALL = [op.value for op in Op]
OPERATORS = st.sets(st.sampled_from(ALL)).map(sorted)


def two_valued(wire, document):
    """A server that reads filters as this gateway does."""
    return holds(parse(wire, FIELDS), document)


def three_valued(wire, document):
    """A server like SQL: a comparison with a field that is not there is unknown, and so is its negation."""
    if "and" in wire:
        parts = [three_valued(part, document) for part in wire["and"]]
        return False if False in parts else None if None in parts else True
    if "or" in wire:
        parts = [three_valued(part, document) for part in wire["or"]]
        return True if True in parts else None if None in parts else False
    if "not" in wire:
        part = three_valued(wire["not"], document)
        return None if part is None else not part
    if wire["op"] != "exists" and document.get(wire["field"]) in (None, []):
        return None
    return holds(parse(wire, FIELDS), document)


def literal_contains(wire, document):
    """A server to which `contains` is for text and for lists, as the table of section 8 has it, and false elsewhere."""
    if "and" in wire:
        return all(literal_contains(part, document) for part in wire["and"])
    if "or" in wire:
        return any(literal_contains(part, document) for part in wire["or"])
    if "not" in wire:
        return not literal_contains(wire["not"], document)
    if wire["op"] == "contains" and FIELDS[wire["field"]] is not FieldType.TEXT:
        value = document.get(wire["field"])
        return isinstance(value, list) and holds(parse(wire, FIELDS), document)
    return holds(parse(wire, FIELDS), document)


@pytest.mark.parametrize("server", [two_valued, three_valued, literal_contains])
@settings(max_examples=150, deadline=None)
@given(
    filter=filters(FIELDS),
    corpus=st.lists(documents(FIELDS), max_size=12),
    operators=st.one_of(st.just(ALL), OPERATORS),
    dates=st.sampled_from(["rfc3339", "epoch_ms"]),
)
def test_the_push_down_law_holds_however_the_server_reads_the_spec(server, filter, corpus, operators, dates):
    split = WireFilters(FIELDS, operators, dates=dates).push_down(filter)
    native = split.native
    returned = {index for index, document in enumerate(corpus) if native is None or server(native, document) is True}
    assert_push_down_law(filter, split, corpus, returned)


@settings(max_examples=200, deadline=None)
@given(filter=filters(FIELDS), operators=OPERATORS)
def test_only_what_is_advertised_is_sent_and_no_combinator_is_empty(filter, operators):
    advertised = {name: kind for name, kind in FIELDS.items() if name in ("kw", "n")}
    split = WireFilters(advertised, operators, trust_negation=True).push_down(filter)
    for node in nodes(split.native):
        if "field" in node:
            assert node["field"] in advertised
            assert node["op"] in operators
        else:
            assert all(node.values())
    if split.native is not None:
        parse(split.native, advertised)


def nodes(wire):
    if wire is None:
        return
    yield wire
    for key in ("and", "or"):
        for part in wire.get(key, ()):
            yield from nodes(part)
    if "not" in wire:
        yield from nodes(wire["not"])


def pushed(wire, operators=ALL, **settings):
    return WireFilters(FIELDS, operators, **settings).push_down(parse(wire, FIELDS))


def leaf(field, op, value):
    return {"field": field, "op": op, "value": value}


ABSENT = leaf("kw", "exists", False)


@obligation(210)
@pytest.mark.parametrize(
    ("wire", "operators", "native"),
    [
        (leaf("kw", "in", ["a", "b"]), ["eq"], {"or": [leaf("kw", "eq", "a"), leaf("kw", "eq", "b")]}),
        (leaf("kw", "in", ["a"]), ["eq"], leaf("kw", "eq", "a")),
        (leaf("kw", "eq", "a"), ["in"], leaf("kw", "in", ["a"])),
        (leaf("n", "gte", 3), ["gt", "eq"], {"or": [leaf("n", "gt", 3), leaf("n", "eq", 3)]}),
        (leaf("n", "gt", 3), ["gt"], leaf("n", "gt", 3)),
        (leaf("kw", "ne", "a"), ["ne", "eq", "exists"], {"or": [leaf("kw", "ne", "a"), ABSENT]}),
        (leaf("kw", "ne", "a"), ["eq", "exists"], {"or": [{"not": leaf("kw", "eq", "a")}, ABSENT]}),
        (leaf("kw", "exists", False), ["exists"], ABSENT),
    ],
)
def test_an_operator_that_is_missing_is_said_with_others(wire, operators, native):
    split = pushed(wire, operators)
    assert split.native == native
    assert split.exact


def test_a_bound_that_is_not_advertised_is_widened_and_checked_here():
    split = pushed(leaf("n", "gt", 3), ["gte"])
    assert split.native == leaf("n", "gte", 3)
    assert not split.exact


def test_a_negation_stays_here_where_absence_cannot_be_asked_for():
    split = pushed(leaf("kw", "ne", "a"), ["ne", "eq"])
    assert split.native is None
    assert split.needs == {"kw"}


def test_a_negation_is_sent_alone_to_an_upstream_that_is_trusted_with_it():
    split = pushed(leaf("kw", "ne", "a"), ["ne", "eq"], trust_negation=True)
    assert split.native == leaf("kw", "ne", "a")
    assert split.exact


def test_membership_in_a_keyword_is_asked_for_both_ways_and_checked():
    split = pushed(leaf("kw", "contains", "a"))
    assert split.native == {"or": [leaf("kw", "eq", "a"), leaf("kw", "contains", "a")]}
    assert not split.exact


def test_dates_go_in_the_encoding_of_the_upstream():
    wire = leaf("at", "gte", "2024-01-01T01:00:00+01:00")
    assert pushed(wire).native == leaf("at", "gte", "2024-01-01T00:00:00Z")
    assert pushed(wire, dates="epoch_ms").native == leaf("at", "gte", 1_704_067_200_000)


def test_an_instant_that_the_encoding_cannot_hold_stays_here():
    split = pushed(leaf("at", "eq", "2024-01-01T00:00:00.000001Z"), dates="epoch_ms")
    assert split.native is None
    assert not split.exact


def test_a_field_of_another_type_upstream_is_not_sent():
    split = WireFilters({"kw": FieldType.TEXT}, ALL).push_down(parse(leaf("kw", "eq", "a"), FIELDS))
    assert split.native is None
    assert not split.exact


def test_a_long_list_is_not_spelt_out():
    assert pushed(leaf("n", "in", list(range(1000))), ["eq"]).native is None


def test_a_filter_deeper_than_upstreams_take_stays_here():
    wire = leaf("n", "gt", 0)
    for number in range(1, 15):
        wire = {"or": [{"and": [wire, leaf("n", "eq", number)]}, leaf("kw", "eq", str(number))]}
    deep = pushed(wire)
    assert deep.native is not None
    assert wire_depth(deep.native) <= MAX_DEPTH
    for number in range(15, 16):
        wire = {"or": [{"and": [wire, leaf("kw", "ne", str(number))]}, leaf("kw", "eq", str(number))]}
    deep = pushed({"or": [{"and": [wire, leaf("kw", "ne", "x")]}, leaf("kw", "eq", "y")]})
    assert deep.native is None
    assert not deep.exact


def test_a_small_filter_is_exact_on_an_upstream_with_every_operator():
    wire = {"and": [leaf("kw", "in", ["a", "b"]), {"not": leaf("n", "lt", 3)}]}
    split = pushed(wire)
    assert split.exact
    assert compiled(parse(split.native, FIELDS))({"kw": "a"})
