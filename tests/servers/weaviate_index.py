"""Weaviate's inverted index, written from the vendor's rules: tokens, deny-lists, a null index.

It evaluates *native* filters (protobuf) by what Weaviate's own sources and documentation say. It knows nothing of the
gateway's filter language and shares no code with the plugin.

=====================  ==========================================================================================
switch                 what it stands for
=====================  ==========================================================================================
``version``            ``Not`` and ``ContainsNone`` exist from 1.33
``null_index``         ``indexNullState``
``signed_zero``        before 2026 a stored ``-0.0`` was indexed below every other number
``raw_like``           up to 2024 at least a ``Like`` pattern became a regular expression unquoted
``stopwords_in_all``   weaviate#9054: a query of stopwords is an error under every tokenizer
=====================  ==========================================================================================
"""

from __future__ import annotations

import itertools
import re
import struct
import unicodedata
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weaviate.proto.v1 import base_pb2

__all__ = ["Corpus", "Prop", "Refused", "nanoseconds", "tokenize"]

Op = base_pb2.Filters
_ENGLISH = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
ENGLISH = set(_ENGLISH.split())
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Refused(Exception):
    """A query that Weaviate answers with an error; on the wire its status is UNKNOWN."""


def go_space(char: str) -> bool:
    return char in "\t\n\v\f\r \x85\xa0" or unicodedata.category(char) in ("Zs", "Zl", "Zp")


def go_lower(text: str) -> str:
    """``strings.ToLower``: letter by letter, so that İ becomes i and a final Σ is like any other."""
    return "".join("i" if char == "İ" else char.lower() if len(char.lower()) == 1 else char for char in text)


def fields(text: str, splits: Callable[[str], bool]) -> list[str]:
    return ["".join(part) for kept, part in itertools.groupby(text, lambda char: not splits(char)) if kept]


def tokenize(tokenization: str, text: str, *, wildcards: bool = False) -> list[str]:
    def alphanumeric(char: str) -> bool:
        return unicodedata.category(char)[0] in "LN" or (wildcards and char in "*?")

    match tokenization:
        case "field":
            start, end = 0, len(text)
            while start < end and go_space(text[start]):
                start += 1
            while end > start and go_space(text[end - 1]):
                end -= 1
            return [text[start:end]]
        case "whitespace":
            return fields(text, go_space)
        case "lowercase":
            return [go_lower(one) for one in fields(text, go_space)]
        case "word":
            return [go_lower(one) for one in fields(text, lambda char: not alphanumeric(char))]
    raise AssertionError(tokenization)


def nanoseconds(text: str) -> int:
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise Refused(f"trying parse time as RFC3339 string: parsing time {text!r}")
    try:
        moment = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    except ValueError as error:
        raise Refused(f"trying parse time as RFC3339 string: {error}") from None
    seconds = round((moment - _EPOCH).total_seconds())
    found_ns = seconds * 10**9 + int((found[2] or "")[:9].ljust(9, "0"))
    if not -(2**63) <= found_ns < 2**63:
        raise Refused("the date does not fit into 64 bits of nanoseconds")
    return found_ns


@dataclass(frozen=True)
class Prop:
    """One property of a class."""

    name: str
    type: str
    tokenization: str | None = None
    filterable: bool = True
    searchable: bool = True

    @property
    def base(self) -> str:
        return self.type.removesuffix("[]")

    @property
    def multi(self) -> bool:
        return self.type.endswith("[]")

    @property
    def tokenizer(self) -> str:
        return self.tokenization or "word"


class Corpus:
    """The inverted index of some objects. An object is a mapping of properties, checked as a write is."""

    def __init__(
        self,
        props: Iterable[Prop],
        *,
        version: tuple[int, int] = (1, 33),
        null_index: bool = True,
        signed_zero: bool = True,
        raw_like: bool = True,
        stopwords_in_all: bool = True,
    ) -> None:
        self.props = {prop.name: prop for prop in props}
        self.version, self.null_index = version, null_index
        self.signed_zero, self.raw_like, self.stopwords_in_all = signed_zero, raw_like, stopwords_in_all
        self.all: set[int] = set()
        self.ids: dict[int, str] = {}
        self.keys: dict[str, dict[Any, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.nulls: dict[str, dict[bool, set[int]]] = defaultdict(lambda: {True: set(), False: set()})

    def add(self, number: int, properties: Mapping[str, Any], id: str = "") -> None:
        """Writes an object; a property that comes into the class later knows nothing of it."""
        self.all.add(number)
        self.ids[number] = id
        for name, prop in self.props.items():
            value = properties.get(name)
            if prop.base not in ("geoCoordinates", "object"):
                empty = value is None or (isinstance(value, str | list) and len(value) == 0)
                self.nulls[name][empty].add(number)
            for one in value if isinstance(value, list) else [] if value is None else [value]:
                for key in self._keys(prop, one):
                    self.keys[name][key].add(number)

    def _keys(self, prop: Prop, value: Any) -> list[Any]:
        match prop.base:
            case "text":
                return tokenize(prop.tokenizer, value)
            case "number":
                return [self.sortable(value)]
            case "int":
                return [int(value)]
            case "date":
                return [nanoseconds(value)]
            case "boolean":
                return [value]
            case "uuid":
                return [uuid.UUID(value).bytes]
        return []

    def sortable(self, value: float) -> bytes:
        """``LexicographicallySortableFloat64``: a negative zero passes for a positive number and only has its sign
        flipped, so that it sorts before all others; since 2026 it is made positive first."""
        if value == 0 and not self.signed_zero:
            value = 0.0
        (bits,) = struct.unpack(">Q", struct.pack(">d", value))
        return struct.pack(">Q", bits ^ (1 << 63) if value >= 0 else bits ^ (2**64 - 1))

    def select(self, native: Any) -> set[int]:
        """The objects that a native filter (protobuf) selects."""
        match native.operator:
            case Op.OPERATOR_AND | Op.OPERATOR_OR:
                if not native.filters:
                    raise Refused("an empty group")
                parts = [self.select(part) for part in native.filters]
                return set.intersection(*parts) if native.operator == Op.OPERATOR_AND else set.union(*parts)
            case Op.OPERATOR_NOT:
                self._needs((1, 33), "Not")
                (part,) = native.filters
                return self.all - self.select(part)
        return self._leaf(native)

    def _needs(self, version: tuple[int, int], what: str) -> None:
        if self.version < version:
            raise Refused(f"unknown filter operator {what}")

    def _leaf(self, native: Any) -> set[int]:
        name = native.target.property
        if name in ("id", "_id"):
            wanted = set(native.value_text_array.values) or {native.value_text}
            return {number for number, id in self.ids.items() if id in wanted}
        prop = self.props.get(name)
        if prop is None:
            raise Refused(f"no such prop with name {name!r} found in class")
        if not prop.filterable:
            raise Refused(f"Filtering by property {name!r} requires inverted index")
        if native.operator == Op.OPERATOR_IS_NULL:
            if not self.null_index:
                raise Refused("Nullstate must be indexed to be filterable")
            return self.nulls[name][native.value_boolean]
        if prop.base == "text":
            return self._text(prop, native)
        return self._valued(prop, native)

    def _text(self, prop: Prop, native: Any) -> set[int]:
        if native.WhichOneof("test_value") != "value_text":
            raise Refused(f"text property {prop.name!r} filtered with {native.WhichOneof('test_value')}")
        like = native.operator == Op.OPERATOR_LIKE
        terms = tokenize(prop.tokenizer, native.value_text, wildcards=like)
        if prop.tokenizer == "word" or self.stopwords_in_all:
            terms = [term for term in terms if term not in ENGLISH]
        if not terms:
            raise Refused("invalid search term, only stopwords provided")
        index = self.keys[prop.name]
        match native.operator:
            case Op.OPERATOR_EQUAL:
                return set.intersection(*(index.get(term, set()) for term in terms))
            case Op.OPERATOR_NOT_EQUAL:
                return set.intersection(*(self.all - index.get(term, set()) for term in terms))
            case Op.OPERATOR_LIKE:
                return set.intersection(*(self._like(index, term) for term in terms))
        raise Refused(f"operator {native.operator} on text")

    def _like(self, index: Mapping[str, set[int]], term: str) -> set[int]:
        if self.raw_like:
            pattern = term.replace("?", ".").replace("*", ".*")
        else:
            pattern = re.escape(term).replace(r"\?", ".").replace(r"\*", ".*")
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise Refused(f"compile regex from 'like' string: {error}") from None
        return set().union(*(found for token, found in index.items() if compiled.fullmatch(token)))

    def _valued(self, prop: Prop, native: Any) -> set[int]:
        expected = {
            "int": "value_int",
            "number": "value_number",
            "boolean": "value_boolean",
            "date": "value_text",
            "uuid": "value_text",
        }.get(prop.base)
        if native.WhichOneof("test_value") != expected:
            raise Refused(f"{prop.base} property {prop.name!r} filtered with {native.WhichOneof('test_value')}")
        value = getattr(native, expected)
        if prop.base == "uuid":
            try:
                value = uuid.UUID(value).bytes
            except ValueError:
                raise Refused("parse uuid string") from None
        elif prop.base == "date":
            value = nanoseconds(value)
        elif prop.base == "number":
            value = self.sortable(value)
        index = self.keys[prop.name]
        match native.operator:
            case Op.OPERATOR_EQUAL:
                return index.get(value, set())
            case Op.OPERATOR_NOT_EQUAL:
                return self.all - index.get(value, set())
            case Op.OPERATOR_GREATER_THAN:
                return set().union(*(found for key, found in index.items() if key > value))
            case Op.OPERATOR_GREATER_THAN_EQUAL:
                return set().union(*(found for key, found in index.items() if key >= value))
            case Op.OPERATOR_LESS_THAN:
                return set().union(*(found for key, found in index.items() if key < value))
            case Op.OPERATOR_LESS_THAN_EQUAL:
                return set().union(*(found for key, found in index.items() if key <= value))
        raise Refused(f"operator {native.operator} on {prop.base}")
