"""Filters on LlamaCloud: what is pushed is a flat conjunction, and nothing is lost or let through."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.filters import Condition, FieldType, Filter, Not, Op, compiled, parse, to_json
from gateway.testing.filters import HARD_FIELDS, Document, assert_push_down_law, documents, filters, hard_documents
from gateway_llamacloud.filters import LlamaCloudFilters
from gateway_llamacloud.settings import FieldSettings
from tests.servers.llamacloud import Rules, selects, validate

FILE = "parsed_directory_file_id"
FIELDS = {**HARD_FIELDS, FILE: FieldType.KEYWORD}


def compiler(
    dates: str = "rfc3339", *, multi: bool = False, clean: bool = False, negations: bool = False
) -> LlamaCloudFilters:
    declared = {
        name: FieldSettings(
            type=kind.value,
            dates=dates,  # type: ignore[arg-type]
            multi=multi and name != FILE,
            clean=clean or name == FILE,
        )
        for name, kind in FIELDS.items()
    }
    return LlamaCloudFilters(declared.get, negation_includes_missing=negations)


def check_native(native: Any) -> None:
    """The service takes it, as the request's types and as JSON."""
    if native is not None:
        json.loads(json.dumps(native))
        validate({"index_id": "i", "query": "q", **native})


def law(native: LlamaCloudFilters, tree: Filter, found: Sequence[Document], rules: Sequence[Rules]) -> Any:
    pushdown = native.push_down(tree)
    check_native(pushdown.native)
    for rule in rules:
        returned = {index for index, one in enumerate(found) if selects(pushdown.native, one, rule)}
        assert_push_down_law(tree, pushdown, found, returned)
    return pushdown


ALL_RULES = [Rules(missing, lists) for missing in (True, False) for lists in (True, False)]
SETUPS: dict[str, tuple[LlamaCloudFilters, dict[str, Any], list[Rules]]] = {
    "no promises, dates as text": (compiler(), {"dates": "rfc3339", "arrays": False}, ALL_RULES),
    "no promises, dates as milliseconds": (compiler("epoch_ms"), {"dates": "epoch_ms", "arrays": False}, ALL_RULES),
    "lists": (compiler("epoch_ms", multi=True), {"dates": "epoch_ms"}, ALL_RULES),
    "clean": (
        compiler("epoch_ms", clean=True),
        {"dates": "epoch_ms", "arrays": False, "strays": False},
        ALL_RULES,
    ),
    "clean, negations include what is missing": (
        compiler("epoch_ms", clean=True, negations=True),
        {"dates": "epoch_ms", "arrays": False, "strays": False},
        [Rules(missing=True)],
    ),
    "no promises, negations include what is missing": (
        compiler("epoch_ms", negations=True),
        {"dates": "epoch_ms", "arrays": False},
        [Rules(missing=True)],
    ),
}


def _fits(document: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
    values = [value for name, value in document.items() if name != "spot"]
    if not options.get("arrays", True) and any(isinstance(value, list) for value in values):
        return False
    return options.get("strays", True) or all(_of_type(HARD_FIELDS[name], v) for name, v in document.items())


def _of_type(kind: FieldType, value: Any) -> bool:
    if value is None:
        return True
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case FieldType.INT | FieldType.DATE:
            return number and float(value).is_integer()
        case FieldType.FLOAT:
            return number
        case FieldType.BOOL:
            return isinstance(value, bool)
        case FieldType.GEO:
            return True
        case _:
            return isinstance(value, str)


def _dated(options: Mapping[str, Any]) -> list[Document]:
    return [one for one in hard_documents(dates=options["dates"]) if _fits(one, options)]


@pytest.mark.parametrize("setup", SETUPS)
def test_the_push_down_law_holds_for_random_trees(setup: str) -> None:
    native, options, rules = SETUPS[setup]
    hard = _dated(options)
    assert len(hard) > 40
    counts: Counter[str] = Counter()

    @settings(max_examples=40)
    @given(
        tree=filters(FIELDS, max_leaves=5),
        extra=st.lists(documents(**options), max_size=5),
        files=st.lists(st.sampled_from(["", "a", "b", "fr"]), max_size=3),
        start=st.integers(0, 1000),
    )
    def check(tree: Filter, extra: list[Document], files: list[str], start: int) -> None:
        sample = [hard[(start + 7 * step) % len(hard)] for step in range(15)]
        pushdown = law(native, tree, [*sample, *extra, *({FILE: file} for file in files)], rules)
        counts["trees"] += 1
        counts["exact"] += pushdown.exact
        counts["pushed"] += pushdown.native is not None

    check()
    print(f"\n{setup}: {dict(counts)}")
    assert counts["pushed"] or setup == "lists"


@pytest.mark.parametrize("setup", SETUPS)
def test_every_single_condition_keeps_the_law_on_every_hard_document(setup: str) -> None:
    native, options, rules = SETUPS[setup]
    hard = _dated(options)
    literals: dict[FieldType, tuple[Any, ...]] = {
        FieldType.KEYWORD: ("a", "", "fr", "1"),
        FieldType.TEXT: ("a", "ick br"),
        FieldType.INT: (1, -1, 2.5, 2**53 - 1),
        FieldType.FLOAT: (1.5, 0.0, 1, -1e300),
        FieldType.BOOL: (True, False),
        FieldType.DATE: ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00.000001Z", "1969-12-31T23:59:59.999999Z", -1),
    }
    for name, kind in HARD_FIELDS.items():
        for op in Op:
            for value in literals.get(kind, ()):
                wire: dict[str, Any] = {"field": name, "op": op.value, "value": value}
                if op in (Op.IN, Op.NIN):
                    wire["value"] = [value, literals[kind][0]]
                if op is Op.EXISTS:
                    wire["value"] = True
                if op in (Op.GT, Op.GTE, Op.LT, Op.LTE) and kind not in (
                    FieldType.INT,
                    FieldType.FLOAT,
                    FieldType.DATE,
                ):
                    continue
                tree = parse(wire, HARD_FIELDS)
                assert tree is not None
                # What is about another field is alike under every literal.
                about = [one for one in hard if name in one or not one]
                law(native, tree, about, rules)
                law(native, Not(tree), about, rules)


def pushed(wire: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    tree = parse(wire, FIELDS)
    assert tree is not None
    pushdown = compiler("epoch_ms", clean=True, **options).push_down(tree)
    return pushdown.native, None if pushdown.residual is None else to_json(pushdown.residual)


def eq(field: str, value: Any, op: str = "eq") -> dict[str, Any]:
    return {"field": field, "op": op, "value": value}


def custom(**fields: Any) -> dict[str, Any]:
    return {"custom_filters": fields}


def one(operator: str, value: Any) -> dict[str, Any]:
    return {"operator": operator, "value": value}


@pytest.mark.parametrize(
    ("wire", "native", "residual"),
    [
        (eq("kw", "en"), custom(kw=one("eq", "en")), None),
        (eq("kw", ["en", "de"], "in"), custom(kw=one("in", ["en", "de"])), None),
        ({"or": [eq("kw", "en"), eq("kw", ["de", "en"], "in")]}, custom(kw=one("in", ["en", "de"])), None),
        (eq("n", 2000, "gte"), custom(n=one("gte", 2000)), None),
        (
            {"and": [eq("n", 2000, "gte"), eq("n", 2020, "lt")]},
            custom(n=[one("gte", 2000), one("lt", 2020)]),
            None,
        ),
        # The year 2020 twice over: one condition of another kind than a bound is all a field can have.
        ({"and": [eq("n", 2000, "gte"), eq("n", 2020)]}, custom(n=one("gte", 2000)), eq("n", 2020)),
        (
            {"and": [eq("kw", "en"), {"or": [eq("n", 2023, "gte"), eq("txt", ["news", "blog"], "in")]}]},
            custom(kw=one("eq", "en")),
            {"or": [eq("n", 2023, "gte"), eq("txt", ["news", "blog"], "in")]},
        ),
        (eq(FILE, "f"), {"static_filters": {FILE: one("eq", "f")}}, None),
        (
            {"and": [eq(FILE, "f"), eq("flag", True)]},
            {"static_filters": {FILE: one("eq", "f")}} | custom(flag=one("eq", True)),
            None,
        ),
        (eq("kw", "en", "ne"), None, {"not": eq("kw", "en")}),
        (eq("kw", True, "exists"), None, eq("kw", True, "exists")),
        (eq("txt", "x", "contains"), None, eq("txt", "x", "contains")),
        (eq("kw", "x", "contains"), custom(kw=one("eq", "x")), None),
        (eq("at", 5, "gte"), custom(at=one("gte", 5)), None),
    ],
)  # fmt: skip
def test_what_is_pushed_and_what_stays(wire: dict[str, Any], native: Any, residual: Any) -> None:
    assert pushed(wire) == (native, residual)


def test_negations_are_pushed_where_the_settings_say_what_they_mean() -> None:
    both = {"and": [eq("kw", "en", "ne"), {"not": eq("kw", ["de"], "in")}]}
    assert pushed(both, negations=True) == (custom(kw=one("nin", ["en", "de"])), None)
    assert pushed(eq("kw", "en", "ne"), negations=True) == (custom(kw=one("ne", "en")), None)
    # Less or equal would leave out what has no such field.
    assert pushed({"not": eq("n", 5, "gt")}, negations=True) == (None, {"not": eq("n", 5, "gt")})
    assert pushed({"not": {"or": [eq("kw", "a"), eq("flag", True)]}}, negations=True)[0] == custom(
        kw=one("ne", "a"), flag=one("ne", True)
    )


def test_fields_that_are_not_declared_or_were_read_otherwise_are_left_to_the_gateway() -> None:
    for condition in (Condition("other", Op.EQ, "x"), Condition("kw", Op.EQ, "x", FieldType.TEXT)):
        pushdown = compiler().push_down(condition)
        assert (pushdown.native, pushdown.residual) == (None, condition)


def test_the_checker_notices_a_translation_that_loses_documents() -> None:
    tree = parse(eq("kw", "a", "ne"), FIELDS)
    assert tree is not None
    with pytest.raises(AssertionError, match="unsound"):
        law(compiler(negations=True), tree, [{}], [Rules(missing=False)])
    assert compiled(tree)({})
