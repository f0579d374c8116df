"""What a collection is, read from its configuration once and kept in plain values: nothing else looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import ConfigError
from gateway.filters import FieldType
from gateway_weaviate.settings import WeaviateConfig

__all__ = ["Collection", "Property", "Vector", "bind", "read_collection", "version_of"]

_TYPES: Mapping[str, FieldType] = {
    "text": FieldType.TEXT,
    "uuid": FieldType.KEYWORD,
    "int": FieldType.INT,
    "number": FieldType.FLOAT,
    "boolean": FieldType.BOOL,
    "date": FieldType.DATE,
    "geoCoordinates": FieldType.GEO,
}
_TOKENIZERS = frozenset({"word", "lowercase", "whitespace", "field"})
_ENGLISH_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
_ENGLISH = frozenset(_ENGLISH_WORDS.split())
"""The preset ``en``. A removal from it is not believed (weaviate#7214): to take a word for a stopword costs a push,
to take a stopword for a word costs an error."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property. ``type`` is what the gateway declares it as, ``None`` if it cannot be filtered on.

    ``base`` is Weaviate's type without ``[]``. ``tokenization`` is ``None`` for other than text, and for tokenizers
    whose tokens we cannot foresee. ``pushable`` is False where the declared type contradicts the stored one.
    """

    name: str
    base: str
    multi: bool
    type: FieldType | None
    tokenization: str | None = None
    pushable: bool = True
    searchable: bool = False
    single_line: bool = False
    trimmed: bool = False


@dataclass(frozen=True, slots=True)
class Vector:
    """``name`` is ``None`` for the unnamed vector; ``vectorizer`` ``None`` if the server makes no vectors."""

    name: str | None
    vectorizer: str | None
    distance: str


@dataclass(frozen=True, slots=True)
class Collection:
    """``null_index`` is ``indexNullState``. ``has_not``: the server knows ``Not`` (1.33)."""

    name: str
    version: tuple[int, int, int]
    properties: Mapping[str, Property]
    vectors: tuple[Vector, ...]
    tenants: bool
    tenants_appear: bool
    null_index: bool
    null_index_complete: bool
    stopwords: frozenset[str]

    @property
    def has_not(self) -> bool:
        return self.version >= (1, 33, 0)


def version_of(text: str) -> tuple[int, int, int]:
    """``1.33.0-rc.1`` → (1, 33, 0). What cannot be read is as old as the client still talks to."""
    numbers: list[int] = []
    for part in text.removeprefix("v").split("-")[0].split(".")[:3]:
        if not part.isascii() or not part.isdigit():
            break
        numbers.append(int(part))
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else (1, 27, 0)


def read_collection(found: Any, version: str, config: WeaviateConfig) -> tuple[Collection, list[str]]:
    """The client's collection configuration as plain values, and warnings. Raises ``ConfigError``."""
    inverted = found.inverted_index_config
    properties, warnings = bind([_property(one, config) for one in found.properties], config)
    return (
        Collection(
            name=found.name,
            version=version_of(version),
            properties=properties,
            vectors=_vectors(found),
            tenants=bool(found.multi_tenancy_config.enabled),
            tenants_appear=bool(getattr(found.multi_tenancy_config, "auto_tenant_creation", False)),
            null_index=bool(inverted.index_null_state),
            null_index_complete=config.null_index_complete,
            stopwords=_stopwords(inverted),
        ),
        warnings,
    )


def bind(properties: list[Property], config: WeaviateConfig) -> tuple[dict[str, Property], list[str]]:
    """Applies the ``fields`` override. A declared type that the stored one contradicts is checked here, not pushed."""
    by_name = {one.name: one for one in properties}
    for setting in ("fields", "single_line", "trimmed"):
        for name in getattr(config, setting):
            if name not in by_name:
                known = ", ".join(sorted(by_name)) or "none"
                raise ConfigError(f"the collection has no property {name!r} (it has: {known})", path=setting)
    warnings: list[str] = []
    bound: dict[str, Property] = {}
    for name, one in by_name.items():
        # The body of a document is not metadata, so it is no filter field unless the settings name it.
        own = None if name in config.text_fields or name == config.id_field else one.type
        declared = config.fields.get(name, own)
        pushable = one.pushable and declared is not None and _fits(declared, one.base)
        if declared is not None and one.type is None:
            warnings.append(f"property {name!r} has no filterable index, so the gateway checks it on the hits")
        elif declared is not None and not _fits(declared, one.base):
            warnings.append(f"property {name!r} holds {one.base}, not {declared}: the gateway checks it on the hits")
        bound[name] = Property(
            name=name,
            base=one.base,
            multi=one.multi,
            type=declared,
            tokenization=one.tokenization,
            pushable=pushable and one.type is not None,
            searchable=one.searchable,
            single_line=name in config.single_line,
            trimmed=name in config.trimmed,
        )
    return bound, warnings


def _fits(declared: FieldType, base: str) -> bool:
    if base == "text":
        return declared in (FieldType.KEYWORD, FieldType.TEXT)
    return _TYPES.get(base) == declared


def _property(found: Any, config: WeaviateConfig) -> Property:
    type_ = str(found.data_type.value)
    base, multi = type_.removesuffix("[]"), type_.endswith("[]")
    tokenization = None if found.tokenization is None else str(found.tokenization.value)
    if base == "text" and tokenization is None:
        tokenization = "word"  # the server's default
    kind = _TYPES.get(base) if found.index_filterable else None
    if kind is FieldType.TEXT and tokenization == "field":
        kind = FieldType.KEYWORD
    # An analyzer that folds letters, or splits them in a way of its own, makes tokens we cannot foresee.
    foreseen = getattr(found, "text_analyzer", None) is None and tokenization in _TOKENIZERS
    return Property(
        name=found.name,
        base=base,
        multi=multi,
        type=kind,
        tokenization=tokenization if base == "text" and foreseen else None,
        searchable=base == "text" and bool(found.index_searchable),
    )


def _stopwords(inverted: Any) -> frozenset[str]:
    words = set(inverted.stopwords.additions or ())
    if _value(inverted.stopwords.preset) != "none":
        words |= _ENGLISH
    for preset in (getattr(inverted, "stopword_presets", None) or {}).values():
        words |= set(preset or ())
    return frozenset(word.lower() for word in words)


def _vectors(found: Any) -> tuple[Vector, ...]:
    if found.vector_config:
        return tuple(
            Vector(name, _vectorizer(one.vectorizer.vectorizer), _distance(one.vector_index_config))
            for name, one in found.vector_config.items()
        )
    if found.vector_index_config is None:
        return ()
    return (Vector(None, _vectorizer(found.vectorizer), _distance(found.vector_index_config)),)


def _vectorizer(value: Any) -> str | None:
    name = _value(value)
    return None if name in (None, "none") else name


def _distance(index: Any) -> str:
    return _value(getattr(index, "distance_metric", None)) or "cosine"


def _value(value: Any) -> str | None:
    return None if value is None else str(getattr(value, "value", value))
