"""Filters on Pinecone: nothing lost, nothing wrong let through, whichever way the service reads its own rules."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gateway.errors import ConfigError, RcpError
from gateway.filters import (
    And,
    Condition,
    Exact,
    FieldType,
    Filter,
    Instant,
    Loose,
    Not,
    Op,
    Or,
    Pushdown,
    compiled,
    fold,
    parse,
    push_folded,
)
from gateway.model import Document as Stored
from gateway.model import meta_of
from gateway.testing.filters import (
    HARD_FIELDS,
    MISFIT_DOCUMENTS,
    Document,
    assert_push_down_law,
    distribution,
    filters,
    hard_documents,
)
from gateway.testing.filters import documents as hard_ones
from gateway_pinecone import filters as compiler
from gateway_pinecone.filters import MAX_VALUES, PineconeFilters
from gateway_pinecone.hits import HitReader
from gateway_pinecone.records import Records
from gateway_pinecone.settings import FieldSettings
from tests.plugins.pinecone.support import opened, query, settings
from tests.servers.pinecone import Index, Refused, Rules, selects, stored, validate

ALL_RULES = [
    Rules(ne, lists, empty)  # type: ignore[arg-type]
    for ne, lists, empty in product((True, False), ("none_of", "any_of"), ("absent", "present", "valueless"))
]
FAR_APART = [Rules(False), Rules(False, "any_of", "valueless"), Rules(True, "none_of", "present")]
DOCUMENTED = [Rules(ne_selects_missing=True), Rules(ne_selects_missing=False)]
TREES = 400
"""For each of the seven set-ups; every tree is asked of every document under every reading of the rules."""

_quick = hypothesis_settings(max_examples=TREES, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def declared(dates: str = "rfc3339", *, multi: bool = False, clean: bool = False) -> dict[str, FieldSettings]:
    """The fields of the hard documents; ``multi`` for those that Pinecone can keep lists of."""
    return {
        name: FieldSettings(
            type=kind.value,
            dates=dates,  # type: ignore[arg-type]
            multi=multi and (kind in (FieldType.KEYWORD, FieldType.TEXT) or (kind == "date" and dates == "rfc3339")),
            clean=clean,
        )
        for name, kind in HARD_FIELDS.items()
    }


def as_read(document: Mapping[str, Any], fields: Mapping[str, FieldSettings]) -> tuple[Document, Document] | None:
    """What Pinecone keeps of a document and what the engine gives back of it; ``None`` if it cannot be kept."""
    try:
        kept = stored(document)
    except Refused:
        return None
    reader = HitReader(fields, fields.get, ("text",), negated=False)
    return kept, meta_of(reader.read("id", 0.0, kept))


def corpus(fields: Mapping[str, FieldSettings], documents: Sequence[Document]) -> list[tuple[Document, Document]]:
    """What can be kept of the documents and is within the promises of the declaration (README.md)."""
    found = []
    for document in documents:
        both = as_read(document, fields)
        if both is not None and all(_as_declared(fields[name], value) for name, value in document.items()):
            found.append(both)
    return found


def _as_declared(field: FieldSettings, value: Any) -> bool:
    if isinstance(value, list):
        return field.multi and (bool(value) or not field.clean)
    if value is None or not field.clean:
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match field.type:
        case "int":
            return is_number and float(value).is_integer()
        case "float":
            return is_number
        case "bool":
            return isinstance(value, bool)
        case "date" if field.dates == "epoch_ms":
            return is_number and float(value).is_integer()
        case "keyword" | "text" | "date":
            return isinstance(value, str)
        case _:
            return True


def selected(native: Any, kept: Sequence[Document], rules: Rules) -> set[int]:
    if native is None:
        return set(range(len(kept)))
    validate(native)
    return {index for index, document in enumerate(kept) if selects(native, document, rules)}


def check_law(
    compile: Callable[[Filter], Pushdown[Any]],
    tree: Filter,
    documents: Sequence[tuple[Document, Document]],
    rules: Sequence[Rules],
) -> Pushdown[Any]:
    pushdown = compile(tree)
    kept, read = [one for one, _ in documents], [one for _, one in documents]
    # Most readings of the rules select the same, and then the law needs looking at once.
    for answer in {frozenset(selected(pushdown.native, kept, rule)) for rule in rules}:
        assert_push_down_law(tree, pushdown, read, answer)
    return pushdown


# The law

SETUPS = {
    "as declared, dates as text": (declared(), {"dates": "rfc3339", "arrays": False}, ALL_RULES),
    "as declared, dates as milliseconds": (declared("epoch_ms"), {"dates": "epoch_ms", "arrays": False}, ALL_RULES),
    "lists, dates as text": (declared(multi=True), {"dates": "rfc3339"}, ALL_RULES),
    "lists, dates as milliseconds": (declared("epoch_ms", multi=True), {"dates": "epoch_ms"}, ALL_RULES),
    "clean, dates as milliseconds": (
        declared("epoch_ms", clean=True),
        {"dates": "epoch_ms", "arrays": False, "strays": False},
        ALL_RULES,
    ),
    "clean, dates as text": (
        declared(clean=True),
        {"dates": "rfc3339", "arrays": False, "strays": False},
        ALL_RULES,
    ),
    # A promise that no list is empty still needs the vendor's own word on $ne and lists.
    "clean lists, dates as milliseconds": (
        declared("epoch_ms", multi=True, clean=True),
        {"dates": "epoch_ms", "strays": False, "nulls": False},
        DOCUMENTED,
    ),
}


@pytest.mark.parametrize("setup", SETUPS)
def test_the_push_down_law_holds_for_random_trees_over_hard_documents(
    setup: str, record_property: Callable[[str, object], None]
) -> None:
    fields, options, rules = SETUPS[setup]
    hard = corpus(fields, [*hard_documents(dates=options["dates"]), *MISFIT_DOCUMENTS])
    assert len(hard) > 40
    counts: Counter[str] = Counter()
    trees: list[Filter] = []
    native = PineconeFilters(fields.get)
    numbers = random.Random(5)

    @seed(20261130)
    @_quick
    @given(tree=filters(), extra=st.lists(hard_ones(**options), max_size=2))
    def law(tree: Filter, extra: list[Document]) -> None:
        # A sample of the hard documents for each tree, all of them over the run.
        sample = numbers.sample(hard, min(16, len(hard))) + corpus(fields, extra)
        pushdown = check_law(native.push_down, tree, sample, rules)
        if not pushdown.nothing:
            trees.append(tree)
            counts["trees"] += 1
            counts["exact"] += pushdown.exact
            counts["pushed"] += pushdown.native is not None
            counts["checks"] += len(sample) * len(rules)

    law()
    share, pushed = counts["exact"] / counts["trees"], counts["pushed"] / counts["trees"]
    record_property("exact", share)
    print(f"\n{setup}: {share:.1%} exact, {pushed:.1%} pushed, {counts['trees']} trees, {counts['checks']} checks")
    print(distribution(trees))


@pytest.mark.parametrize("setup", SETUPS)
def test_every_single_condition_keeps_the_law_on_every_hard_document(setup: str) -> None:
    fields, options, rules = SETUPS[setup]
    hard = corpus(fields, [*hard_documents(dates=options["dates"]), *MISFIT_DOCUMENTS])
    native = PineconeFilters(fields.get)
    for condition in conditions():
        for tree in (condition, Not(condition)):
            check_law(native.push_down, tree, hard, rules)


def conditions() -> Iterator[Condition]:
    """Each operator of each type with literals that hit and that miss."""
    strings = ("", "a", "A", "1", "é")
    numbers = (0, 1, -1, 2**53 - 1)
    moments = [Instant(micros) for micros in (0, 1_704_067_200_000_000, 1_704_067_200_000_500, -86_400_000_000)]
    literals: dict[str, tuple[Any, ...]] = {
        "kw": strings,
        "txt": strings,
        "n": numbers,
        "x": (*numbers, 1.5, -1e300),
        "flag": (True, False),
        "at": tuple(moments),
        "spot": (),
    }
    for name, kind in HARD_FIELDS.items():
        yield Condition(name, Op.EXISTS, True, kind)
        for value in literals[name]:
            yield Condition(name, Op.EQ, value, kind)
            yield Condition(name, Op.CONTAINS, value, kind)
            if kind in ("int", "float", "date"):
                yield from (Condition(name, op, value, kind) for op in (Op.GT, Op.GTE, Op.LT, Op.LTE))
        if literals[name]:
            yield Condition(name, Op.IN, literals[name][:2], kind)
            yield Condition(name, Op.IN, literals[name], kind)


@pytest.mark.anyio
@pytest.mark.parametrize("ne_selects_missing", [True, False])
async def test_the_law_holds_over_the_wire(ne_selects_missing: bool) -> None:
    fields = declared("epoch_ms", multi=True)
    documents = corpus(fields, hard_documents(dates="epoch_ms"))
    index = Index(rules=Rules(ne_selects_missing=ne_selects_missing), unsorted=True)
    index.fill({f"d{n}": ((1.0, n / 100), kept) for n, (kept, _) in enumerate(documents)})
    trees: list[Filter] = []

    @seed(7)
    @hypothesis_settings(max_examples=60, deadline=None, database=None)
    @given(tree=filters())
    def collect(tree: Filter) -> None:
        trees.append(tree)

    collect()
    async with opened(index, fields=fields) as engine:
        for tree in trees:
            pushdown = engine.push_down(tree)
            reply = await query(engine, k=1000, filter=pushdown.native)
            got = {int(hit.id[1:]): meta_of(hit) for hit in reply.hits}
            assert all(got[n] == documents[n][1] for n in got)
            assert_push_down_law(tree, pushdown, [read for _, read in documents], got.keys())


# The shared cases


def _shared() -> dict[str, Any]:
    beside = Path(__file__).resolve().parents[3].parent / "shared"
    for folder in (os.environ.get("GATEWAY_SHARED"), beside, beside.parent.parent / "shared"):
        file = Path(folder or "/nowhere") / "filters" / "cases.json"
        if file.is_file():
            found: dict[str, Any] = json.loads(file.read_text("utf-8"))
            return found
    return {"corpora": {}, "cases": []}


SHARED = _shared()
NO_CASES = [pytest.param(None, marks=pytest.mark.skip(reason="no shared cases: set GATEWAY_SHARED to their folder"))]


@pytest.mark.parametrize("clean", [False, True], ids=["unpromised", "clean"])
@pytest.mark.parametrize("dates", ["rfc3339", "epoch_ms"])
@pytest.mark.parametrize("case", SHARED["cases"] or NO_CASES, ids=lambda case: case["id"] if case else "absent")
def test_a_shared_case_gives_the_expected_documents_or_error(case: dict[str, Any], dates: str, clean: bool) -> None:
    corpus = SHARED["corpora"][case["corpus"]]
    kinds = {name: FieldType(kind) for name, kind in corpus["fields"].items()}
    if "expect_error" in case:
        error = case["expect_error"]
        with pytest.raises(RcpError) as raised:
            parse(case["filter"], kinds)
        assert raised.value.code in (error["code"], *error.get("also_acceptable", ()))
        return
    fields = {
        name: FieldSettings(
            type=kind.value,
            dates=dates if kind == "date" else "rfc3339",  # type: ignore[arg-type]
            multi=name in corpus["multi_valued"] and kind in ("keyword", "text"),
            clean=clean,
        )
        for name, kind in kinds.items()
    }
    tree = parse(case["filter"], kinds)
    for rules in DOCUMENTED:
        assert answer(tree, fields, corpus["documents"], rules) == set(case["expect"])


def answer(
    tree: Filter | None, fields: Mapping[str, FieldSettings], documents: Mapping[str, Any], rules: Rules
) -> set[str]:
    """The ids that are left of the documents, written through the engine's own rules, after both halves."""
    config = settings(fields=fields, writable=True)
    made = Records(config)
    kept = {}
    for id, document in documents.items():
        _, records = made.read([_document(id, document)])
        kept[id] = stored(records[0]["metadata"])
    native = PineconeFilters(fields.get)
    pushdown = Pushdown(None, None) if tree is None else push_folded(fold(tree, fields), native.push_down)
    reader = HitReader(fields, fields.get, ("text",), negated=False)
    check = None if pushdown.residual is None else compiled(pushdown.residual)
    found = set()
    for id, metadata in kept.items():
        if pushdown.native is not None:
            validate(pushdown.native)
            if not selects(pushdown.native, metadata, rules):
                continue
        if check is None or check(meta_of(reader.read(id, 0.0, metadata))):
            found.add(id)
    return found


def _document(id: str, meta: Mapping[str, Any]) -> Any:
    return Stored(id=id, text="t", meta=dict(meta), vector=[1.0, 0.0])


# What becomes of single filters


def native(wire: dict[str, Any], **fields: Any) -> Pushdown[Any]:
    config = settings(fields=fields)
    kinds = {name: FieldType(field.type) for name in fields if (field := config.field(name)) is not None}
    tree = parse(wire, kinds)
    assert tree is not None
    return PineconeFilters(config.field).push_down(tree)


def test_a_negation_never_relies_on_what_ne_says_of_a_missing_field() -> None:
    same = {"$or": [{"lang": {"$ne": "en"}}, {"lang": {"$exists": False}}]}
    assert native({"field": "lang", "op": "ne", "value": "en"}, lang="keyword") == Pushdown(same, None)
    assert native({"not": {"field": "lang", "op": "eq", "value": "en"}}, lang="keyword") == Pushdown(same, None)


def test_ne_and_not_eq_both_keep_the_document_without_the_field() -> None:  # R38
    fields = {"lang": FieldSettings(type="keyword")}
    documents = {"en": {"lang": "en"}, "de": {"lang": "de"}, "none": {}}
    for rules in ALL_RULES:
        for wire in (
            {"field": "lang", "op": "ne", "value": "en"},
            {"not": {"field": "lang", "op": "eq", "value": "en"}},
            {"field": "lang", "op": "nin", "value": ["en", "fr"]},
        ):
            tree = parse(wire, {"lang": FieldType.KEYWORD})
            assert answer(tree, fields, documents, rules) == {"de", "none"}


def test_an_empty_list_never_becomes_no_filter() -> None:  # R39
    with pytest.raises(RcpError):
        native({"field": "id", "op": "in", "value": []}, id="keyword")
    with pytest.raises(RcpError):
        native({"or": []}, id="keyword")


def test_dates_are_instants_under_both_encodings() -> None:  # R40
    wire = {
        "and": [
            {"field": "made", "op": "gte", "value": "2024-01-01T01:00:00+01:00"},
            {"field": "made", "op": "lt", "value": "2024-02-01T00:00:00Z"},
        ]
    }
    millis = {"$and": [{"made": {"$gte": 1704067200000}}, {"made": {"$lt": 1706745600000}}]}
    epoch = FieldSettings(type="date", dates="epoch_ms", clean=True)
    assert native(wire, made=epoch) == Pushdown(millis, None)
    text = native(wire, made="date")
    assert text.native == {"$and": [{"made": {"$exists": True}}, {"made": {"$exists": True}}]}
    assert text.needs == {"made"}


def test_lists_of_literals_keep_their_types() -> None:  # R41
    pushed = native({"field": "year", "op": "in", "value": [2023, 2024]}, year="int")
    assert pushed == Pushdown({"year": {"$in": [2023, 2024]}}, None)


def test_a_nested_filter_is_translated_whole() -> None:  # R42
    wire = {
        "not": {
            "and": [
                {"field": "a", "op": "eq", "value": 1},
                {
                    "or": [
                        {"field": "b", "op": "eq", "value": 2},
                        {"not": {"field": "c", "op": "exists", "value": True}},
                    ]
                },
            ]
        }
    }
    kinds = {"a": FieldType.INT, "b": FieldType.INT, "c": FieldType.BOOL}
    fields = {name: FieldSettings(type=kind.value) for name, kind in kinds.items()}
    documents = {
        f"{a}{b}{c}": {"a": a, "b": b, **({} if c is None else {"c": c})}
        for a, b, c in product((0, 1), (2, 3), (True, False, None))
    }
    tree = parse(wire, kinds)
    assert tree is not None
    truth = {id for id, document in documents.items() if compiled(tree)(document)}
    assert 0 < len(truth) < len(documents)
    for rules in ALL_RULES:
        assert answer(tree, fields, documents, rules) == truth
    assert PineconeFilters(fields.get).push_down(tree).exact


def test_true_is_never_one() -> None:
    assert native({"field": "flag", "op": "eq", "value": True}, flag="bool").native == {"flag": {"$eq": True}}
    both = native({"field": "flag", "op": "in", "value": [True, False]}, flag="bool")
    assert both.native == {"$or": [{"flag": {"$eq": True}}, {"flag": {"$eq": False}}]}
    neither = native({"field": "flag", "op": "nin", "value": [True, False]}, flag="bool")
    assert neither.native == {
        "$or": [{"$and": [{"flag": {"$ne": True}}, {"flag": {"$ne": False}}]}, {"flag": {"$exists": False}}]
    }


def test_what_pinecone_cannot_say_is_widened_and_checked_here() -> None:
    for wire, field in (
        ({"field": "f", "op": "contains", "value": "a"}, "text"),
        ({"field": "f", "op": "eq", "value": "2024-01-01T00:00:00Z"}, "date"),
    ):
        pushed = native(wire, f=field)
        assert pushed.native == {"f": {"$exists": True}}
        assert pushed.needs == {"f"}
        refused = native({"not": wire}, f=field)
        assert refused.native is None
        assert refused.needs == {"f"}


def test_nothing_hangs_on_whether_an_empty_list_exists() -> None:
    tags = FieldSettings(type="keyword", multi=True)
    present = native({"field": "tags", "op": "exists", "value": True}, tags=tags)
    assert present.native == {"tags": {"$exists": True}}
    assert not present.exact
    assert native({"field": "tags", "op": "exists", "value": False}, tags=tags).native is None
    assert native({"field": "tags", "op": "ne", "value": "a"}, tags=tags).native is None
    assert native({"field": "tags", "op": "contains", "value": "a"}, tags=tags) == Pushdown(
        {"tags": {"$eq": "a"}}, None
    )


def test_a_negated_range_is_flipped_only_where_no_strays_are_stored() -> None:
    wire = {"not": {"field": "year", "op": "lt", "value": 2020}}
    assert native(wire, year="int").native is None
    flipped = {"$or": [{"year": {"$gte": 2020}}, {"year": {"$exists": False}}]}
    assert native(wire, year=FieldSettings(type="int", clean=True)) == Pushdown(flipped, None)


def test_long_lists_are_cut_into_what_one_operator_takes() -> None:
    fields = {"f": FieldSettings(type="keyword")}
    values = tuple(f"v{n}" for n in range(2 * MAX_VALUES + 1))
    long = Condition("f", Op.IN, values, FieldType.KEYWORD)
    documents = [as_read(document, fields) for document in ({"f": "v0"}, {"f": "v20000"}, {"f": "w"}, {})]
    kept = [document for document in documents if document is not None]
    for tree, arms in ((long, "$or"), (Not(long), "$and")):
        pushdown = check_law(PineconeFilters(fields.get).push_down, tree, kept, DOCUMENTED)
        assert pushdown.exact
        within = pushdown.native if arms == "$or" else pushdown.native["$or"][0]
        assert [len(next(iter(part["f"].values()))) for part in within[arms]] == [MAX_VALUES, MAX_VALUES, 1]


def test_a_field_that_is_not_declared_or_declared_otherwise_is_not_pushed() -> None:
    native_filters = PineconeFilters({"n": FieldSettings(type="int")}.get)
    for condition in (
        Condition("m", Op.EQ, 1, FieldType.INT),
        Condition("n", Op.EQ, "1", FieldType.KEYWORD),
        Condition("n", Op.EQ, 1, None),
    ):
        assert native_filters.push_down(condition) == Pushdown(None, condition)


def test_a_key_that_pinecone_reserves_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        settings(fields={"$or": "keyword"})
    assert raised.value.path == "fields.$or"
    trick = PineconeFilters({"$or": FieldSettings(type="keyword")}.get)
    assert trick.push_down(Condition("$or", Op.EQ, "a", FieldType.KEYWORD)).native is None


def test_keys_and_values_need_no_escaping() -> None:
    for text in ('"', "$eq", "a.b", "\\", "en' OR '1'='1", "😀", "\n"):
        pushed = native({"field": "a.b c", "op": "eq", "value": text}, **{"a.b c": "keyword"})
        assert pushed == Pushdown({"a.b c": {"$eq": text}}, None)


# Mutants: each is a fault that other translators had, and the law has to see it


class MergesBounds(PineconeFilters):
    """Two bounds of one field in one object, the second over the first."""

    def all_of(self, parts: Sequence[Any]) -> Any:
        merged: dict[str, Any] = {}
        for part in parts:
            for name, value in part.items():
                if name.startswith("$"):
                    return super().all_of(parts)
                merged[name] = {**merged.get(name, {}), **value}
        return merged


class TrueAsOne(PineconeFilters):
    def satisfying(self, c: Condition) -> Any:
        if c.type == "bool" and c.op is Op.EQ:
            return Exact({c.field: {"$eq": int(bool(c.value))}})
        return super().satisfying(c)


class DatesAsText(PineconeFilters):
    def satisfying(self, c: Condition) -> Any:
        if c.op is Op.EQ and isinstance(c.value, Instant):
            return Exact({c.field: {"$eq": c.value.rfc3339()}})
        return super().satisfying(c)


class NorForNand(PineconeFilters):
    def push_down(self, filter: Filter) -> Pushdown[Any]:
        def wrong(node: Filter) -> Filter:
            match node:
                case Not(And(parts)):
                    return And(tuple(Not(wrong(part)) for part in parts))
                case And(parts):
                    return And(tuple(map(wrong, parts)))
                case Or(parts):
                    return Or(tuple(map(wrong, parts)))
                case Not(part):
                    return Not(wrong(part))
                case _:
                    return node

        return super().push_down(wrong(filter))


class DropsTheExistsArm(PineconeFilters):
    def violating(self, c: Condition) -> Any:
        bound = super().violating(c)
        if isinstance(bound, Exact) and len(bound.native.get("$or", ())) > 1:
            return Exact({"$or": bound.native["$or"][:-1]} if len(bound.native["$or"]) > 2 else bound.native["$or"][0])
        return bound


class ExistsIsExactOnLists(PineconeFilters):
    def violating(self, c: Condition) -> Any:
        return Exact({c.field: {"$exists": False}}) if c.op is Op.EXISTS else super().violating(c)


class ContainsIsEquality(PineconeFilters):
    def satisfying(self, c: Condition) -> Any:
        return Exact({c.field: {"$eq": c.value}}) if c.op is Op.CONTAINS else super().satisfying(c)


class NegatesTheSuperset(PineconeFilters):
    """The complement of a superset, which loses documents."""

    def violating(self, c: Condition) -> Any:
        loose = self.satisfying(c)
        return Loose({c.field: {"$exists": False}}) if isinstance(loose, Loose) else super().violating(c)


class FlipsRangesOverStrays(PineconeFilters):
    def violating(self, c: Condition) -> Any:
        if c.op in compiler._FLIPPED and c.type in ("int", "float"):
            flipped = compiler._ORDER[compiler._FLIPPED[c.op]]
            return Exact({"$or": [{c.field: {flipped: c.value}}, {c.field: {"$exists": False}}]})
        return super().violating(c)


MUTANTS = [
    (MergesBounds, declared("epoch_ms")),
    (TrueAsOne, declared()),
    (DatesAsText, declared()),
    (NorForNand, declared()),
    (DropsTheExistsArm, declared()),
    (ExistsIsExactOnLists, declared(multi=True)),
    (ContainsIsEquality, declared()),
    (NegatesTheSuperset, declared()),
    (FlipsRangesOverStrays, declared()),
]


@pytest.mark.parametrize(("mutant", "fields"), MUTANTS, ids=[mutant.__name__ for mutant, _ in MUTANTS])
def test_the_law_sees_a_wrong_translation(mutant: type[PineconeFilters], fields: dict[str, FieldSettings]) -> None:
    dates = fields["at"].dates
    hard = corpus(fields, hard_documents(dates=dates))
    compile = mutant(fields.get).push_down
    trees = [*conditions(), *map(Not, conditions())]
    numbers = random.Random(3)
    for name in HARD_FIELDS:
        own = [condition for condition in conditions() if condition.field == name]
        for _ in range(30 if len(own) > 1 else 0):
            pair = And(tuple(numbers.sample(own, 2)))
            trees += [pair, Not(pair)]
    numbers.shuffle(trees)
    with pytest.raises((AssertionError, Refused)):
        for tree in trees:
            check_law(compile, tree, hard, FAR_APART)


def test_the_server_speaks_of_filters_as_the_vendor_does() -> None:
    movie = {"genre": ["comedy", "documentary"], "year": 2020.0, "new": True}
    for filter in (
        {"genre": "comedy"},
        {"genre": {"$in": ["documentary", "action"]}},
        {"$and": [{"genre": "comedy"}, {"genre": "documentary"}]},
        {"year": {"$gte": 2020}},
        {"new": {"$eq": True}},
        {"missing": {"$exists": False}},
    ):
        validate(filter)
        assert selects(filter, movie), filter
    for filter in ({"genre": {"$ne": "comedy"}}, {"genre": {"$nin": ["comedy"]}}, {"new": 1}, {"year": "2020"}):
        validate(filter)
        assert not selects(filter, movie), filter
    for filter in (
        {"genre": ["comedy"]},
        {"genre": {"$eq": ["comedy"]}},
        {"genre": {"$regex": "c"}},
        {"$gt": 3},
        {"$not": {"genre": "comedy"}},
        {"year": {"$gt": "2019"}},
        {"new": {"$in": [True]}},
        {"genre": {"$in": []}},
        {"genre": {"$in": ["x"] * 10_001}},
        {"$or": []},
    ):
        with pytest.raises(Refused):
            validate(filter)
