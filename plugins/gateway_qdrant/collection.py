"""A collection as it was found: its vectors, payload indexes and limits, and what the settings make of them.

Qdrant's answer to a filter depends on the payload index: the same condition over the same data finds other documents
under an index of another type. So a field whose index contradicts its declared type is never pushed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import ConfigError
from gateway_qdrant.settings import Distance, FieldSettings, FieldType, QdrantConfig

__all__ = [
    "Binding",
    "Collection",
    "Strict",
    "Vector",
    "bind",
    "index_of",
    "index_type",
    "key_of",
    "path_of",
    "resolve",
    "vector_of",
]

_BARE = re.compile(r"[A-Za-z0-9_-]+")

_INDEX_TYPES: Mapping[str, FieldType] = {
    "keyword": "keyword",
    "integer": "int",
    "float": "float",
    "geo": "geo",
    "text": "text",
    "bool": "bool",
    "datetime": "date",
    "uuid": "keyword",
}
"""What a payload index says about a field that nobody declared."""

_FITTING: Mapping[FieldType, frozenset[str]] = {
    # Equality of strings is the same with a full-text index, by experiment. A uuid index folds case.
    "keyword": frozenset({"keyword", "text"}),
    "text": frozenset({"keyword", "text"}),
    "int": frozenset({"integer"}),
    "float": frozenset({"float"}),
    "bool": frozenset({"bool"}),
    "geo": frozenset({"geo"}),
}


class Vector(msgspec.Struct, frozen=True):
    """A dense vector: numbers per vector, and how two are compared."""

    size: int
    distance: Distance


class Strict(msgspec.Struct, frozen=True):
    """Strict mode's limits that concern a search; ``None`` where there is none."""

    unindexed: bool = True
    max_limit: int | None = None
    max_conditions: int | None = None
    max_values: int | None = None
    max_timeout: int | None = None
    max_batch: int | None = None


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """``dense`` and ``sparse`` are by name, ``""`` the unnamed vector; a sparse vector says whether IDF is applied.

    ``indexes`` maps a payload key, as the server spells it, to its index type. ``substring`` and ``booleans`` say
    whether such conditions can be trusted here. ``made_by`` is the identity of the embedder that made the dense
    vectors, ``""`` if that is not known or there are none.
    """

    dense: Mapping[str, Vector]
    sparse: Mapping[str, bool]
    indexes: Mapping[str, str] = {}
    strict: Strict = Strict()
    substring: bool = True
    booleans: bool = True
    made_by: str = ""


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One filterable field: its type, and its payload key as Qdrant writes it, ``None`` if nothing on it is pushed.

    ``index`` is the type of its payload index, ``None`` if it has none. ``path`` is the way through the payload for a
    field that is not simply a key of the metadata. ``clean`` says that no stored value can be read by Qdrant in another
    way than the filter language reads it.
    """

    type: FieldType
    key: str | None
    epoch_ms: bool = False
    clean: bool = False
    index: str | None = None
    path: tuple[str, ...] | None = None


def key_of(path: Sequence[str]) -> str | None:
    """The path in Qdrant's notation; ``None`` where it has none: a quote or backslash, or an empty name."""
    if any(not name or '"' in name or "\\" in name for name in path):
        return None
    return ".".join(name if _BARE.fullmatch(name) else f'"{name}"' for name in path)


def path_of(key: str) -> tuple[str, ...] | None:
    """A key in Qdrant's notation as a path; ``None`` if it goes into arrays or is not such a key."""
    names = [quoted if quoted is not None else bare for quoted, bare in _segments(key)]
    spelt = key_of(names) if names else None
    return tuple(names) if spelt is not None and _plain(spelt) == _plain(key) else None


def _segments(key: str) -> Iterator[tuple[str | None, str]]:
    for found in re.finditer(r'(?:^|\.)(?:"([^"]*)"|([^".\[\]]+))', key):
        yield found[1], found[2] or ""


def _plain(key: str) -> str:
    """Quotes around a name that needs none make no difference."""
    return re.sub(r'"([A-Za-z0-9_-]+)"', r"\1", key)


def index_type(type_: FieldType, *, epoch_ms: bool) -> str:
    """The payload index that suits a field. For text it is the one of keywords, which answers substrings too."""
    match type_:
        case "date":
            return "integer" if epoch_ms else "datetime"
        case "int":
            return "integer"
        case "text":
            return "keyword"
        case _:
            return type_


def bind(config: QdrantConfig, found: Collection) -> tuple[dict[str, Binding], list[str]]:
    """The fields to advertise, and what to tell the operator about those that are not or not fully used.

    Declared fields, and fields that only an index tells of. Under strict mode, which refuses conditions on fields
    without an index, only indexed ones.
    """
    bindings: dict[str, Binding] = {}
    warnings: list[str] = []
    indexes = {_plain(key): kind for key, kind in found.indexes.items()}
    declared = {name: config.field(name) for name in config.fields}
    for name, settings in (*declared.items(), *_discovered(config, found, declared)):
        if settings is None:
            continue
        path = _path(config, name, settings)
        key = key_of(path)
        index = None if key is None else indexes.get(_plain(key))
        fits = index is None or index in _fitting(settings)
        if not found.strict.unindexed and index is None:
            warnings.append(f"field {name!r} has no payload index, which strict mode demands: not offered for filters")
            continue
        if key is None:
            warnings.append(f"field {name!r} cannot be written as a Qdrant key: the gateway checks it on the hits")
        elif not fits:
            warnings.append(
                f"field {name!r} is declared {settings.type} but has a payload index of type {index}, under which "
                "Qdrant would hide documents: the gateway checks it on the hits; change the index or the settings"
            )
        bindings[name] = Binding(
            type=settings.type,
            key=key if fits else None,
            epoch_ms=settings.dates == "epoch_ms",
            # An integer index holds whole numbers only, which is what the filter language sees in an int field.
            clean=settings.clean or (settings.type == "int" and index == "integer"),
            index=index if fits else None,
            path=None if path == _home(config, name) else path,
        )
    return bindings, warnings


def index_of(config: QdrantConfig, found: Collection, name: str) -> tuple[str | None, str | None, bool]:
    """A declared or discovered field's key, the type of its payload index, and whether that suits what is declared."""
    declared = config.field(name)
    others = dict(_discovered(config, found, {one: config.field(one) for one in config.fields}))
    settings = declared or others.get(name)
    if settings is None:
        return None, None, True
    key = key_of(_path(config, name, settings))
    index = None if key is None else {_plain(one): kind for one, kind in found.indexes.items()}.get(_plain(key))
    return key, index, index is None or index in _fitting(settings)


def _fitting(settings: FieldSettings) -> frozenset[str]:
    if settings.type == "date":
        return frozenset({"integer"} if settings.dates == "epoch_ms" else {"datetime"})
    return _FITTING[settings.type]


def _home(config: QdrantConfig, name: str) -> tuple[str, ...]:
    """Where a field stands if nothing else is said: a key of the metadata, even if its name has dots."""
    return (config.payload.meta, name) if config.payload.meta else (name,)


def _path(config: QdrantConfig, name: str, settings: FieldSettings) -> tuple[str, ...]:
    return tuple(settings.path.split(".")) if settings.path is not None else _home(config, name)


def _discovered(
    config: QdrantConfig, found: Collection, declared: Mapping[str, FieldSettings | None]
) -> Iterator[tuple[str, FieldSettings]]:
    """Fields that the collection indexes and the settings do not mention."""
    payload = config.payload
    taken = {_path(config, name, settings) for name, settings in declared.items() if settings is not None}
    for key, index in found.indexes.items():
        path, type_ = path_of(key), _INDEX_TYPES.get(index)
        if path is None or type_ is None or path in taken or path[0] == payload.id or path[0] in payload.text:
            continue
        inner = path[1:] if payload.meta and path[0] == payload.meta else path
        name = ".".join(inner)
        if not inner or name in declared:
            continue
        # Names with dots are kept apart from paths: one says path, the other does not.
        simple = path == _home(config, name)
        yield name, FieldSettings(type=type_, path=None if simple else ".".join(path))


def resolve(config: QdrantConfig, found: Collection) -> QdrantConfig:
    """The settings with the names of the vectors filled in.

    Raises ``ConfigError`` if the collection has no such vectors, or several where none was named; it names those there
    are.
    """
    vectors, replace = config.vectors, msgspec.structs.replace
    dense, sparse = vectors.dense, vectors.sparse
    return replace(
        config,
        vectors=replace(
            vectors,
            dense=dense and replace(dense, name=_name("dense", dense.name, found.dense)),
            sparse=sparse and replace(sparse, name=_name("sparse", sparse.name, found.sparse)),
        ),
    )


def _name(kind: str, wanted: str | None, there: Mapping[str, Any]) -> str:
    if wanted is None and len(there) == 1:
        return next(iter(there))
    if wanted is not None and wanted in there:
        return wanted
    named = "" if wanted is None else f" {wanted!r}"
    told = f"several {kind} vectors, and the settings name none" if there and not named else f"no {kind} vector{named}"
    raise ConfigError(f"the collection has {told}; it has {_names(there)}", path=f"vectors.{kind}.name")


def vector_of(config: QdrantConfig, found: Collection) -> Vector | None:
    """The dense vector in use, after ``resolve``. Raises ``ConfigError`` if it is not what the settings say."""
    dense = config.vectors.dense
    if dense is None:
        return None
    vector = found.dense[dense.name or ""]
    if dense.dimension and dense.dimension != vector.size:
        raise ConfigError(
            f"the collection's vector {dense.name!r} has {vector.size} dimensions, not {dense.dimension}: "
            "use the embedder it was filled with, or index the documents anew",
            path="vectors.dense.dimension",
        )
    if found.made_by and config.embedder_identity not in (None, found.made_by):
        raise ConfigError(
            f"the collection holds vectors made by {found.made_by!r}, not by {config.embedder_identity!r}: use the "
            "embedder it was filled with, or index the documents anew",
            path="embedder_identity",
        )
    if dense.distance is not None and dense.distance != vector.distance:
        raise ConfigError(
            f"the collection compares vector {dense.name!r} by {vector.distance}, not {dense.distance}",
            path="vectors.dense.distance",
        )
    return vector


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) if name else '"" (unnamed)' for name in sorted(names)) or "none"
