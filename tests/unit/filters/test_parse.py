from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RcpError
from gateway.filters import (
    FALSE,
    TRUE,
    And,
    Condition,
    FieldType,
    Instant,
    Limits,
    Not,
    Op,
    Or,
    compiled,
    depth,
    fields_of,
    leaves,
    parse,
    to_json,
)
from gateway.testing.filters import HARD_FIELDS, wire_filters
from tests.obligations import obligation

BIG = 2**53


def leaf(field: str, op: str, *value: Any) -> dict[str, Any]:
    return {"field": field, "op": op, **({"value": value[0]} if value else {})}


def refusal(wire: object, **options: Any) -> RcpError:
    with pytest.raises(RcpError) as raised:
        parse(wire, HARD_FIELDS, **options)
    json.dumps(raised.value.to_wire()).encode()
    return raised.value


@pytest.mark.parametrize("wire", [None, {}])
def test_only_null_and_the_empty_object_are_no_filter(wire: object) -> None:
    assert parse(wire, {}) is None


@pytest.mark.parametrize("wire", [[], "", 0, False, {"comment": 1}, {"and": None}, {"AND": []}, {"filter": {}}, {1: 2}])
def test_what_looks_empty_but_is_not_is_refused_rather_than_dropped(wire: object) -> None:
    assert refusal(wire).code == -32602


def test_a_tree_is_read_with_its_types() -> None:
    wire = {
        "and": [
            leaf("kw", "in", ["a", "b", "a"]),
            {"not": leaf("at", "gte", "2024-01-01T01:00:00+01:00")},
            {"or": [leaf("x", "lt", 1.5), leaf("n", "eq", 5.0), leaf("flag", "ne", False)]},
        ]
    }
    tree = parse(wire, HARD_FIELDS)
    assert tree == And(
        (
            Condition("kw", Op.IN, ("a", "b"), FieldType.KEYWORD),
            Not(Condition("at", Op.GTE, Instant(1_704_067_200_000_000), FieldType.DATE)),
            Or(
                (
                    Condition("x", Op.LT, 1.5, FieldType.FLOAT),
                    Condition("n", Op.EQ, 5, FieldType.INT),
                    Condition("flag", Op.NE, False, FieldType.BOOL),
                )
            ),
        )
    )
    assert tree is not None
    assert fields_of(tree) == {"kw", "at", "x", "n", "flag"}
    assert [condition.field for condition in leaves(tree)] == ["kw", "at", "x", "n", "flag"]
    assert depth(tree) == 2


@pytest.mark.parametrize(
    ("wire", "field", "path"),
    [
        (leaf("zzz", "eq", 1), "zzz", "filter.field"),
        ({"and": [leaf("kw", "eq", "a"), {"or": [leaf("zzz", "eq", 1)]}]}, "zzz", "filter.and[1].or[0].field"),
        ({"not": leaf("n", "eq", "1")}, "n", "filter.not.value"),
        (leaf("n", "in", [1, "x"]), "n", "filter.value[1]"),
        (leaf("kw", "gt", "a"), "kw", "filter.op"),
        (leaf("spot", "eq", "x"), "spot", "filter.op"),
        ({"and": [leaf("kw", "zap", "a")]}, "filter.and[0].op", "filter.and[0].op"),
        ({"and": [{}]}, "filter.and[0]", "filter.and[0]"),
        ({"and": []}, "filter.and", "filter.and"),
        ({"or": {"field": "kw"}}, "filter.or", "filter.or"),
        ({"not": []}, "filter.not", "filter.not"),
        ({"op": "eq", "value": 1}, "filter.field", "filter.field"),
        ({"field": "kw", "value": "a"}, "filter.op", "filter.op"),
        (leaf("kw", "eq"), "kw", "filter.value"),
    ],
)
def test_a_refusal_names_the_field_at_fault_and_the_place(wire: object, field: str, path: str) -> None:
    error = refusal(wire)
    assert error.code == -32602
    assert error.data == {"field": field, "path": path}


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        (leaf("flga", "eq", True), "not a declared filter field (did you mean flag?); there are kw, txt, n, x, flag, "),
        (leaf("KW", "eq", "a"), "not a declared filter field (did you mean kw?); there are "),
        (leaf("something", "eq", 1), "not a declared filter field; there are kw, txt, n, x, flag, at, spot"),
        (leaf("kw", "$eq", "a"), "not a filter operator (did you mean eq?); there are eq, ne, gt, gte, lt, lte, in, "),
        (leaf("kw", "EXISTS", True), "not a filter operator (did you mean exists?); there are "),
        (leaf("kw", "=", "a"), "not a filter operator; there are "),
        (leaf("kw", "gt", "a"), "gt needs an int, float or date field; this one is keyword"),
        (leaf("kw", "exists", "yes"), "exists takes a boolean: true or false"),
    ],
)
def test_a_refusal_says_what_there_is_and_what_may_have_been_meant(wire: object, told: str) -> None:
    assert refusal(wire).message.startswith(told)


@pytest.mark.parametrize(
    ("field", "op", "wrong"),
    [
        *((name, "eq", value) for name, value in (("kw", 1), ("txt", 1), ("n", "1"), ("x", "1"), ("flag", 1))),
        *(("at", op, "soon") for op in ("eq", "lt")),
        *((name, "in", "x") for name in ("kw", "txt", "n", "x", "flag", "at")),
    ],
)
def test_the_examples_in_a_refusal_are_accepted_in_place_of_what_was_wrong(field: str, op: str, wrong: Any) -> None:
    _, _, told = refusal(leaf(field, op, wrong)).message.partition("such as ")
    examples = json.loads(f"[{told.replace(' or ', ', ')}]")
    assert examples
    for example in examples:
        assert parse(leaf(field, op, example), HARD_FIELDS) is not None


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("kw", 'the value must be text, such as "en"'),
        ("n", "the value must be an integer, such as 2024"),
        ("x", "the value must be a number, such as 0.5"),
        ("flag", "the value must be true or false, such as true"),
        ("at", "the value must be a date, such as"),
    ],
)
def test_a_value_of_the_wrong_type_is_told_in_words_what_it_must_be(field: str, told: str) -> None:
    assert refusal(leaf(field, "eq", {})).message.startswith(told)


@pytest.mark.parametrize(("op", "wrong"), [("eq", {}), ("gt", True)])
def test_the_examples_for_a_field_without_a_type_are_accepted_too(op: str, wrong: Any) -> None:
    with pytest.raises(RcpError) as raised:
        parse(leaf("f", op, wrong), {"f": None})
    _, _, told = raised.value.message.partition("such as ")
    for example in json.loads(f"[{told.replace(' or ', ', ')}]"):
        assert parse(leaf("f", op, example), {"f": None}) is not None


def test_a_refusal_is_of_bounded_length_whatever_names_there_are() -> None:
    names = dict.fromkeys((f"{'long' * 50}{n}" for n in range(5_000)), FieldType.INT)
    for field in ("x" * 100_000, "long", f"{'long' * 50}"):
        with pytest.raises(RcpError) as raised:
            parse(leaf(field, "eq", 1), names)
        assert len(raised.value.message) < 2_000
        assert raised.value.message.endswith(" and 4980 more")
    with pytest.raises(RcpError) as raised:
        parse(leaf("a", "eq", 1), {"a\n\ud800": FieldType.INT})
    assert raised.value.message.endswith("there are 'a\\n\\ud800'")
    raised.value.message.encode()
    with pytest.raises(RcpError) as raised:
        parse(leaf("a", "eq", 1), {})
    assert raised.value.message == "not a declared filter field; no field can be filtered on"


def test_the_place_starts_where_the_caller_says() -> None:
    assert refusal({"or": []}, path="defaults.filter").data["field"] == "defaults.filter.or"


@obligation(161)
def test_an_operator_that_is_not_advertised_is_an_unsupported_option() -> None:
    error = refusal({"and": [leaf("kw", "contains", "a")]}, operators={Op.EQ})
    assert error.code == -32005
    assert error.data == {"option": "contains", "field": "filter.and[0].op", "path": "filter.and[0].op"}
    assert parse(leaf("kw", "eq", "a"), HARD_FIELDS, {Op.EQ}) is not None


def test_an_undeclared_field_is_reported_before_an_operator_that_is_not_advertised() -> None:
    assert refusal(leaf("zzz", "contains", "a"), operators={Op.EQ}).data["field"] == "zzz"


@pytest.mark.parametrize(
    "wire",
    [
        {"and": [leaf("kw", "eq", "a")], "or": [leaf("kw", "eq", "a")]},
        {"and": [leaf("kw", "eq", "a")], **leaf("kw", "eq", "a")},
        {"not": leaf("kw", "eq", "a"), "value": 1},
        {"or": []},
        {"not": {}},
        {"and": [None]},
        {"and": (leaf("kw", "eq", "a"),)},
    ],
)
def test_a_node_that_is_not_exactly_one_thing_is_refused(wire: object) -> None:
    assert refusal(wire).code == -32602


def test_unknown_members_and_members_that_are_null_are_ignored() -> None:
    wire = {**leaf("kw", "eq", "a"), "comment": "why", "and": None, "not": None}
    assert parse(wire, HARD_FIELDS) == Condition("kw", Op.EQ, "a", FieldType.KEYWORD)


@pytest.mark.parametrize(
    "wire",
    [
        *(leaf("kw", "eq", value) for value in (None, 1, True, ["a"], {"a": 1}, b"a", "\ud800")),
        *(leaf("txt", "contains", value) for value in (None, 1, ["a"])),
        *(leaf("n", "eq", value) for value in (None, "1", True, [1], BIG, -BIG, 10**5000, 1e16, float("nan"))),
        *(leaf("x", "gt", value) for value in (None, "1", False, BIG, float("inf"), float("-inf"), float("nan"))),
        *(leaf("flag", "eq", value) for value in (None, 1, 0, 1.0, "true")),
        *(
            leaf("at", "lt", value)
            for value in (None, "junk", 1.5, True, "2016-12-31T23:59:60Z", BIG, [1], float("nan"))
        ),
        *(
            leaf("kw", op, value)
            for op in ("in", "nin")
            for value in (None, [], "a", ("a",), ["a", None], [["a"]], {"a"})
        ),
        *(leaf("n", "in", value) for value in ([1, True], [1, "1"], [BIG])),
        *(leaf("flag", op, True) for op in ("gt", "gte", "lt", "lte")),
        *(leaf("kw", "exists", value) for value in ("true", "false", 1, 0, [], {})),
        *(leaf("spot", op, "x") for op in ("eq", "ne", "in", "contains", "gt")),
        {"field": "kw", "op": ["eq"], "value": "a"},
        {"field": ["kw"], "op": "eq", "value": "a"},
    ],
)
def test_a_value_that_does_not_fit_is_refused(wire: dict[str, Any]) -> None:
    assert refusal(wire).code == -32602


@pytest.mark.parametrize("value", [(), (True,), (None,)])
def test_exists_without_a_value_means_true(value: tuple[Any, ...]) -> None:
    assert parse(leaf("spot", "exists", *value), HARD_FIELDS) == Condition("spot", Op.EXISTS, True, FieldType.GEO)


@pytest.mark.parametrize(
    ("op", "value", "expected"),
    [
        ("eq", 2.5, FALSE),
        ("contains", 2.5, FALSE),
        ("ne", 2.5, TRUE),
        ("in", [2.5], FALSE),
        ("nin", [2.5, 0.5], TRUE),
        ("in", [1, 2.5, 1.0], Condition("n", Op.IN, (1,), FieldType.INT)),
        ("gt", 2.5, Condition("n", Op.GT, 2, FieldType.INT)),
        ("gte", 2.5, Condition("n", Op.GTE, 3, FieldType.INT)),
        ("lt", -2.5, Condition("n", Op.LT, -2, FieldType.INT)),
        ("lte", -2.5, Condition("n", Op.LTE, -3, FieldType.INT)),
    ],
)
def test_a_fraction_equals_no_integer_and_is_rounded_in_an_order(op: str, value: object, expected: object) -> None:
    assert parse(leaf("n", op, value), HARD_FIELDS) == expected


@pytest.mark.parametrize("op", ["gt", "gte", "lt", "lte"])
@pytest.mark.parametrize("bound", [2.5, -2.5, 2.0])
def test_rounding_changes_no_verdict_on_integers(op: str, bound: float) -> None:
    as_int, as_float = parse(leaf("n", op, bound), HARD_FIELDS), parse(leaf("n", op, bound), {"n": FieldType.FLOAT})
    assert as_int is not None
    assert as_float is not None
    for stored in range(-5, 6):
        assert compiled(as_int)({"n": stored}) is compiled(as_float)({"n": stored})


def test_a_field_without_a_type_takes_any_scalar_and_orders_numbers_and_dates() -> None:
    fields = {"a": None}
    tree = parse(leaf("a", "in", [1, True, 1.0, "x", "1"]), fields)
    assert tree == Condition("a", Op.IN, (1, True, "x", "1"))
    assert parse(leaf("a", "gt", "2024-01-01"), fields) == Condition("a", Op.GT, Instant(1_704_067_200_000_000))
    for wire in (leaf("a", "gt", "soon"), leaf("a", "gt", True), leaf("a", "eq", None), leaf("a", "eq", {})):
        with pytest.raises(RcpError):
            parse(wire, fields)


def test_true_and_one_are_two_conditions() -> None:
    assert Condition("a", Op.EQ, True) != Condition("a", Op.EQ, 1)
    assert Condition("a", Op.IN, (True,)) != Condition("a", Op.IN, (1,))
    assert Condition("a", Op.EQ, 1) == Condition("a", Op.EQ, 1.0)
    assert len({Condition("a", Op.EQ, True), Condition("a", Op.EQ, 1), Condition("a", Op.EQ, 1.0)}) == 2


def nested(times: int, node: object) -> object:
    for _ in range(times):
        node = {"not": node}
    return node


def test_thirty_two_combinators_may_be_nested_and_no_more() -> None:
    assert parse(nested(32, leaf("kw", "eq", "a")), HARD_FIELDS) is not None
    assert refusal(nested(33, leaf("kw", "eq", "a"))).code == -32602


def test_a_tree_as_deep_as_one_likes_is_refused_and_not_crashed_on() -> None:
    error = refusal(nested(100_000, leaf("kw", "eq", "a")))
    assert error.code == -32602
    assert len(error.data["field"]) <= 120


def test_a_value_that_contains_itself_is_refused() -> None:
    ring: dict[str, Any] = {}
    ring["and"] = [ring, ring]
    assert refusal(ring).code == -32602


def test_the_number_of_conditions_is_limited() -> None:
    assert parse({"and": [leaf("kw", "eq", "a")] * 1000}, HARD_FIELDS) is not None
    assert refusal({"and": [leaf("kw", "eq", "a")] * 1001}).data["field"] == "filter.and[1000]"


def test_the_number_of_values_is_limited() -> None:
    assert parse(leaf("n", "in", list(range(10_000))), HARD_FIELDS) is not None
    assert refusal(leaf("n", "in", list(range(10_001)))).data["field"] == "n"


def test_the_bytes_of_all_literals_together_are_limited() -> None:
    half = leaf("kw", "eq", "é" * 250_000)
    assert parse({"and": [half, half]}, HARD_FIELDS) is not None
    assert refusal({"and": [half, half, leaf("n", "eq", 1)]}).data["field"] == "filter.and[2].value"
    assert refusal(leaf("kw", "eq", "abc"), limits=Limits(literal_bytes=2)).code == -32602


def test_names_and_literals_do_not_get_into_messages() -> None:
    for wire in (
        leaf("s3cret", "eq", "a"),
        leaf("n", "eq", "s3cret"),
        leaf("kw", "s3cret", 1),
        leaf("n", "in", "s3cret"),
    ):
        assert "s3cret" not in refusal(wire).message


def test_a_field_name_that_cannot_be_encoded_is_still_reported() -> None:
    assert refusal(leaf("a\ud800", "eq", 1)).data["field"] == "a?"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["kw", "n", "at", "eq", "in"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["and", "or", "not", "field", "op", "value", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)
NODES = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "field": st.sampled_from([*HARD_FIELDS, "zzz", 1]),
            "op": st.sampled_from([*Op, "zap", None]),
            "value": JSON,
        },
    ),
    lambda inner: st.dictionaries(
        st.sampled_from(["and", "or", "not"]), st.lists(inner, max_size=3) | inner, max_size=2
    ),
    max_leaves=6,
)


@given(JSON | NODES)
def test_whatever_comes_in_a_filter_or_an_rcp_error_comes_out(wire: object) -> None:
    try:
        tree = parse(wire, HARD_FIELDS)
    except RcpError as refused:
        code, field, answer = refused.code, refused.data["field"], refused.to_wire()
    else:
        assert (tree is None) is (wire is None or wire == {})
        return
    assert code == -32602
    assert field
    json.dumps(answer).encode()


@given(wire_filters())
def test_a_filter_written_as_json_reads_back_as_itself(wire: dict[str, Any]) -> None:
    fractionless = {name: kind for name, kind in HARD_FIELDS.items() if kind is not FieldType.INT}
    tree = parse(wire, {**fractionless, "n": FieldType.FLOAT})
    assert tree is not None
    again = parse(json.loads(json.dumps(to_json(tree))), {**fractionless, "n": FieldType.FLOAT})
    assert again == tree


def test_dates_are_written_in_the_encoding_asked_for() -> None:
    tree = parse(leaf("at", "in", ["2024-01-01T01:00:00+01:00", 1]), HARD_FIELDS)
    assert tree is not None
    assert to_json(tree)["value"] == ["2024-01-01T00:00:00Z", "1970-01-01T00:00:00.001000Z"]
    assert to_json(tree, dates="epoch_ms")["value"] == [1_704_067_200_000, 1]


@pytest.mark.parametrize("tree", [TRUE, Not(FALSE), Condition("at", Op.GT, Instant(1), FieldType.DATE)])
def test_what_the_wire_cannot_say_is_refused_rather_than_rounded(tree: Any) -> None:
    with pytest.raises(RcpError) as raised:
        to_json(tree, dates="epoch_ms")
    assert raised.value.code == -32005
