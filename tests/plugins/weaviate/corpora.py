"""The hard documents as a Weaviate holds them, and the plugin's filters over them."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import RcpError
from gateway.filters import (
    ORDERED_TYPES,
    FieldType,
    Filter,
    Not,
    Pushdown,
    compiled,
    parse,
    stored_micros,
)
from gateway.model import Document
from gateway.testing.filters import HARD_FIELDS, assert_push_down_law, hard_documents
from gateway_weaviate.filters import Native, WeaviateFilters
from gateway_weaviate.schema import Collection, Property, bind
from gateway_weaviate.sdk import load_sdk, sdk_filter
from gateway_weaviate.settings import WeaviateConfig
from gateway_weaviate.values import properties_of
from tests.servers.weaviate_index import ENGLISH, Corpus, Prop, go_space

TOKENIZERS = ("word", "lowercase", "whitespace", "field")
_BASES = {
    "kw": "text",
    "txt": "text",
    "n": "int",
    "x": "number",
    "flag": "boolean",
    "at": "date",
    "spot": "geoCoordinates",
}


def props(tokenizer: str, *, multi: bool) -> list[Prop]:
    """The hard fields as a class's properties: all scalars, or all lists."""
    return [
        Prop(
            name, base if base == "geoCoordinates" or not multi else f"{base}[]", tokenizer if base == "text" else None
        )
        for name, base in _BASES.items()
    ]


def clean(document: Mapping[str, Any], *, multi: bool) -> dict[str, Any] | None:
    """The document if a class of scalars (or of lists) can hold it: Weaviate checks types when it writes."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        base = _BASES[name]
        if value is None:
            continue
        if isinstance(value, list) is not multi and base != "geoCoordinates":
            return None
        for one in value if isinstance(value, list) else [value]:
            number = isinstance(one, int | float) and not isinstance(one, bool)
            if not {
                "text": isinstance(one, str),
                "int": number and one == int(one),
                "number": number,
                "boolean": isinstance(one, bool),
                "date": isinstance(one, str) and stored_micros(one) is not None,
                "geoCoordinates": isinstance(one, dict),
            }[base]:
                return None
        found[name] = value
    return found


def trim(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with every text trimmed, for collections that promise it."""

    def trimmed(value: Any) -> Any:
        if isinstance(value, list):
            return [trimmed(one) for one in value]
        if not isinstance(value, str):
            return value
        start, end = 0, len(value)
        while start < end and go_space(value[start]):
            start += 1
        while end > start and go_space(value[end - 1]):
            end -= 1
        return value[start:end]

    return {name: trimmed(value) for name, value in document.items()}


@functools.cache
def documents(*, multi: bool) -> tuple[dict[str, Any], ...]:
    kept = (clean(document, multi=multi) for document in hard_documents(dates="rfc3339"))
    return tuple(document for document in kept if document is not None)


class Fixture:
    """A class with documents in it, and the compiler the plugin would use for it."""

    def __init__(
        self,
        tokenizer: str,
        *,
        multi: bool = False,
        has_not: bool = True,
        null_index: bool = True,
        promised: bool = False,
        stored: Sequence[Mapping[str, Any]] | None = None,
        compiler: type[WeaviateFilters] = WeaviateFilters,
        **switches: bool,
    ) -> None:
        self.props = props(tokenizer, multi=multi)
        self.world = (multi, promised) if stored is None else None
        self.documents = list(documents(multi=multi) if stored is None else stored)
        if promised:
            self.documents = [
                document
                for document in map(trim, self.documents)
                if not any("\n" in text for text in _texts(document.get("txt")))
            ]
        self.corpus = Corpus(self.props, version=(1, 33) if has_not else (1, 27), null_index=null_index, **switches)
        config = WeaviateConfig(
            url="http://localhost:8080",
            collection="Doc",
            text_fields=("body",),
            fields=HARD_FIELDS,
            single_line=("txt",) if promised else (),
            trimmed=("kw", "txt") if promised else (),
        )
        bound, _ = bind([_bound(prop) for prop in self.props], config)
        for number, document in enumerate(self.documents):
            written = properties_of(Document(text="", meta=document), str(number), config, bound, "d")
            self.corpus.add(number, written, str(number))
        self.compiler = compiler(
            Collection(
                name="Doc",
                version=(1, 33, 0) if has_not else (1, 27, 0),
                properties=bound,
                vectors=(),
                tenants=False,
                tenants_appear=False,
                null_index=null_index,
                null_index_complete=promised,
                stopwords=frozenset(ENGLISH),
            )
        )

    def push(self, filter: Filter) -> tuple[Pushdown[Native], set[int]]:
        """The two halves, and the documents the server selects for the native one."""
        pushed = self.compiler.push_down(filter)
        return pushed, set(range(len(self.documents))) if pushed.native is None else self.select(pushed.native)

    def select(self, native: Native) -> set[int]:
        return self.corpus.select(to_wire(native))


def _texts(value: Any) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _bound(prop: Prop) -> Property:
    return Property(
        name=prop.name,
        base=prop.base,
        multi=prop.multi,
        type=HARD_FIELDS[prop.name],
        tokenization=prop.tokenization,
        searchable=prop.base == "text",
    )


_sdk = functools.cache(load_sdk)


def to_wire(native: Native) -> Any:
    """The filter as the real client puts it on the wire."""
    from weaviate.collections.filters import _FilterToGRPC

    return _FilterToGRPC.convert(sdk_filter(_sdk(), native))


def check(fixture: Fixture, tree: Filter) -> Pushdown[Native]:
    """The law, by sets: what the filter selects is remembered, and only what the server returned is checked again."""
    halves, selected = fixture.push(tree)
    wanted = _wanted(fixture.world, tree, fixture)
    if halves.residual is not None:
        test = compiled(halves.residual)
        kept = {number for number in selected if test(fixture.documents[number])}
    else:
        kept = selected
    if kept != wanted or not wanted <= selected:
        assert_push_down_law(tree, halves, fixture.documents, selected)  # says which document, and why
        raise AssertionError("the two checks of the law differ")
    return halves


_truths: dict[tuple[object, Filter], set[int]] = {}


def _wanted(world: object, tree: Filter, fixture: Fixture) -> set[int]:
    key = (world, tree)
    if world is None or key not in _truths:
        test = compiled(tree)
        found = {number for number, document in enumerate(fixture.documents) if test(document)}
        if world is None:
            return found
        _truths[key] = found
    return _truths[key]


_MORE: Mapping[FieldType, tuple[Any, ...]] = {
    FieldType.INT: (2.5, -1.5, -0.0),
    FieldType.FLOAT: (2, -25, 2**53 - 1),
    FieldType.DATE: (1_704_067_200_000, -1, "1600-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
}


@functools.cache
def _literals(name: str) -> tuple[Any, ...]:
    """Every hard value of the field that is a valid literal, once."""
    kind = HARD_FIELDS[name]
    found: dict[tuple[str, Any], Any] = {}
    stored = [document[name] for document in (*documents(multi=False),) if name in document]
    for value in (*stored, *_MORE.get(kind, ())):
        wire = {"field": name, "op": "eq", "value": value}
        try:
            parse(wire, HARD_FIELDS)
        except RcpError:
            continue
        found[repr(value), type(value)] = value
    return tuple(found.values())


def _operators(kind: FieldType) -> tuple[str, ...]:
    if kind is FieldType.GEO:
        return ("exists",)
    ordered = ("gt", "gte", "lt", "lte") if kind in ORDERED_TYPES else ()
    return ("eq", "ne", "in", "nin", "contains", "exists", *ordered)


def all_leaves() -> list[Filter]:
    rng = random.Random(1)
    found: list[Filter] = []
    for name, kind in HARD_FIELDS.items():
        for op in _operators(kind):
            values: list[Any]
            if op == "exists":
                values = [True, False]
            elif op in ("in", "nin"):
                values = [rng.choices(_literals(name), k=rng.randint(1, 4)) for _ in range(15)]
            else:
                values = list(_literals(name))
            for value in values:
                leaf = parse({"field": name, "op": op, "value": value}, HARD_FIELDS)
                assert leaf is not None
                found.append(leaf)
                if op not in ("eq", "ne", "in", "nin", "exists"):
                    found.append(Not(leaf))
    return found


def random_trees(count: int) -> list[Filter]:
    rng = random.Random(2)

    def leaf() -> dict[str, Any]:
        name = rng.choice([*HARD_FIELDS])
        op = rng.choice(_operators(HARD_FIELDS[name]))
        if op == "exists":
            return {"field": name, "op": op, "value": rng.random() < 0.5}
        if op in ("in", "nin"):
            return {"field": name, "op": op, "value": rng.choices(_literals(name), k=rng.randint(1, 4))}
        return {"field": name, "op": op, "value": rng.choice(_literals(name))}

    def node(depth: int) -> dict[str, Any]:
        roll = rng.random()
        if depth == 0 or roll < 0.3:
            return leaf()
        if roll < 0.5:
            return {"not": node(depth - 1)}
        return {"and" if roll < 0.75 else "or": [node(depth - 1) for _ in range(rng.randint(1, 3))]}

    found = [parse(node(rng.randint(0, 4)), HARD_FIELDS) for _ in range(count)]
    return [tree for tree in found if tree is not None]
