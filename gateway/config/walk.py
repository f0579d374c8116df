"""Plain values into typed structs, reporting every fault with its path.

msgspec stops at the first error; somebody who edits a configuration wants all of them at once, with the nearest key for
a misspelt one. So the loader walks the types itself.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from gateway.config.yaml import join
from gateway.errors import ConfigError, ConfigErrors
from gateway.secret import Secret

__all__ = ["FAULT", "Walker", "nearest"]

FAULT: Any = object()
"""What :meth:`Walker.read` returns in place of a value it could not read; the error has been noted."""


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_LIMIT = 64 * 1024


class Walker:
    """Reads values and gathers ``errors``. ``base_dir`` is where relative paths and secret files start.

    Types are those of msgspec structs: plain ones, ``Annotated`` with ``msgspec.Meta`` (whose ``description`` is then
    what an error says), literals, string enums, lists, mappings, nested structs, ``Path`` and ``Secret``.
    """

    def __init__(self, base_dir: Path) -> None:
        self.base_dir = base_dir
        self.errors: list[ConfigError] = []

    def fault(self, path: str, message: str) -> Any:
        self.errors.append(ConfigError(message, path=path))
        return FAULT

    def read(self, type_: Any, value: Any, path: str) -> Any:
        """``value`` as ``type_``, or :data:`FAULT`."""
        origin = get_origin(type_)
        if type_ is Any:
            return value
        if origin is Annotated:
            return self._annotated(get_args(type_), value, path)
        if origin in (Union, types.UnionType):
            return self._union(get_args(type_), value, path)
        if origin is Literal:
            return self._literal(get_args(type_), value, path)
        if origin in (list, tuple, frozenset, set):
            return self._items(origin, get_args(type_), value, path)
        if origin in (dict, Mapping) or origin is get_origin(Mapping[str, Any]):
            return self._mapping(get_args(type_), value, path)
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            return self.struct(type_, value, path)
        return self._scalar(type_, value, path)

    def struct(self, type_: type[msgspec.Struct], value: Any, path: str) -> Any:
        """A mapping as a struct; unknown keys, missing keys and the struct's own objections are errors."""
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            return self.fault(path, f"must be a mapping, not {_kind(value)}")
        fields = {field.encode_name: field for field in msgspec.structs.fields(type_)}
        for key in value:
            if key not in fields:
                hint = nearest(str(key), fields) or f" (known: {', '.join(sorted(fields))})"
                self.fault(join(path, key), f"unknown key{hint}")
        arguments: dict[str, Any] = {}
        whole = True
        for name, field in fields.items():
            if name in value:
                arguments[field.name] = self.read(field.type, value[name], join(path, name))
                whole = whole and arguments[field.name] is not FAULT
            elif field.required:
                self.fault(join(path, name), "is required")
                whole = False
        if not whole:
            return FAULT
        try:
            return type_(**arguments)
        except ConfigError as error:
            for one in error.errors if isinstance(error, ConfigErrors) else (error,):
                # A struct may name a key inside itself, as `headers.x` or `[0]`.
                inner = f"{path}{'' if not path or one.path.startswith('[') else '.'}{one.path}" if one.path else path
                self.fault(inner, one.message)
            return FAULT

    def _annotated(self, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        result = self.read(arguments[0], value, path)
        if result is FAULT:
            return FAULT
        for meta in arguments[1:]:
            broken = _broken(meta, result) if isinstance(meta, msgspec.Meta) else None
            if broken is not None:
                return self.fault(path, meta.description or broken)
        return result

    def _union(self, options: tuple[Any, ...], value: Any, path: str) -> Any:
        if value is None and type(None) in options:
            return None
        rest = [option for option in options if option is not type(None)]
        if len(rest) == 1:
            return self.read(rest[0], value, path)
        for option in rest:
            trial = Walker(self.base_dir)
            result = trial.read(option, value, path)
            if not trial.errors:
                return result
        # None fits. If only one of them has the value's shape, its errors say what is wrong.
        shaped = [option for option in rest if _shaped(option, value)]
        if len(shaped) == 1:
            return self.read(shaped[0], value, path)
        return self.fault(path, f"{_kind(value)} is not allowed here")

    def _literal(self, choices: tuple[Any, ...], value: Any, path: str) -> Any:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return choice
        close = nearest(value, map(str, choices)) if isinstance(value, str) else ""
        return self.fault(path, f"must be one of {', '.join(map(str, choices))}{close or f', not {_shown(value)}'}")

    def _items(self, origin: Any, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        if not isinstance(value, list | tuple):
            return self.fault(path, f"must be a list, not {_kind(value)}")
        item_type = arguments[0] if arguments else Any
        items = [self.read(item_type, item, f"{path}[{index}]") for index, item in enumerate(value)]
        return FAULT if any(item is FAULT for item in items) else origin(items)

    def _mapping(self, arguments: tuple[Any, ...], value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return self.fault(path, f"must be a mapping, not {_kind(value)}")
        key_type, item_type = arguments or (str, Any)
        pairs = {
            self.read(key_type, key, join(path, key)): self.read(item_type, item, join(path, key))
            for key, item in value.items()
        }
        return FAULT if FAULT in pairs or any(item is FAULT for item in pairs.values()) else pairs

    def _scalar(self, type_: Any, value: Any, path: str) -> Any:
        if type_ is Secret:
            return self._secret(value, path)
        if type_ is Path:
            return self._path(value, path)
        if isinstance(type_, type) and issubclass(type_, StrEnum):
            chosen = self._literal(tuple(map(str, type_)), value, path)
            return FAULT if chosen is FAULT else type_(chosen)
        if type_ is str:
            hint = "; put it in quotes" if isinstance(value, bool | int | float) else ""
            return value if isinstance(value, str) else self.fault(path, f"must be text, not {_kind(value)}{hint}")
        if type_ is bool:
            return value if isinstance(value, bool) else self.fault(path, f"must be true or false, not {_shown(value)}")
        if type_ is int or type_ is float:
            return self._number(type_, value, path)
        return self.fault(path, f"the plugin asks for a {type_!r}, which a configuration cannot hold")

    def _number(self, type_: type[int] | type[float], value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.fault(path, f"must be {_NAMES[type_]}, not {_shown(value)}")
        try:
            finite = math.isfinite(value)
        except OverflowError:  # an integer beyond all floats
            finite = False
        if not finite:
            return self.fault(path, "must be a finite number")
        if type_ is int and value != int(value):
            return self.fault(path, f"must be a whole number, not {_shown(value)}")
        return type_(value)

    def _path(self, value: Any, path: str) -> Any:
        if not isinstance(value, str):
            return self.fault(path, f"must be a path, not {_kind(value)}")
        try:
            return self._resolved(value)
        except ValueError:
            return self.fault(path, "must be a path")

    def _resolved(self, name: str) -> Path:
        """A path from the configuration's folder. Raises ``ValueError`` for what no file can be called."""
        if not name or "\0" in name:
            raise ValueError("a path is not empty and holds no NUL")
        try:
            return Path(os.path.abspath(self.base_dir / Path(name).expanduser()))
        except RuntimeError as error:  # "~somebody" whom the system does not know
            raise ValueError(str(error)) from error

    def _secret(self, value: Any, path: str) -> Any:
        """The value that a reference leads to. What is written in its place is never repeated: it may be the secret."""
        if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in ("env", "file"):
            return self.fault(path, "a secret is given by reference: {env: NAME} or {file: path}")
        source, name = next(iter(value.items()))
        return self._from_env(name, f"{path}.env") if source == "env" else self._from_file(name, f"{path}.file")

    def _from_env(self, name: Any, path: str) -> Any:
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            return self.fault(path, "must be the name of an environment variable")
        found = os.environ.get(name)
        return Secret(found, source=f"env:{name}") if found else self.fault(path, f"the variable {name} is not set")

    def _from_file(self, name: Any, path: str) -> Any:
        if not isinstance(name, str) or not name:
            return self.fault(path, "must be the path of a file")
        try:
            # Opening a FIFO would wait for a writer, and `check` with it.
            with open(self._resolved(name), "rb", opener=_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return self.fault(path, f"{name} is not a regular file")
                text = file.read(_SECRET_LIMIT + 1).decode("utf-8").strip()
        except OSError as error:
            return self.fault(path, f"cannot read {name}: {error.strerror}")
        except ValueError:
            return self.fault(path, "must be the path of a text file")
        if not text or len(text) > _SECRET_LIMIT:
            return self.fault(path, f"{name} {'is larger than a secret can be' if text else 'is empty'}")
        return Secret(text, source=f"file:{name}")


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


_NAMES: dict[type, str] = {int: "a whole number", float: "a number"}


def _broken(meta: msgspec.Meta, value: Any) -> str | None:
    """What the value violates, as prose."""
    if meta.gt is not None and not value > meta.gt:
        return f"must be greater than {meta.gt}"
    if meta.ge is not None and not value >= meta.ge:
        return f"must be {meta.ge} or more"
    if meta.lt is not None and not value < meta.lt:
        return f"must be less than {meta.lt}"
    if meta.le is not None and not value <= meta.le:
        return f"must be {meta.le} or less"
    if meta.min_length is not None and len(value) < meta.min_length:
        return "must not be empty" if meta.min_length == 1 else f"must have a length of at least {meta.min_length}"
    if meta.max_length is not None and len(value) > meta.max_length:
        return f"must have a length of at most {meta.max_length}"
    if meta.pattern is not None and re.search(meta.pattern, value) is None:
        return f"must match {meta.pattern}"
    return None


def _shaped(option: Any, value: Any) -> bool:
    """Whether a value of this shape could be meant for that type."""
    origin = get_origin(option)
    if isinstance(value, Mapping):
        mapping = origin in (dict, get_origin(Mapping[str, Any]))
        return mapping or (isinstance(option, type) and issubclass(option, msgspec.Struct | Secret))
    if isinstance(value, list | tuple):
        return origin in (list, tuple, set, frozenset)
    return False


def _kind(value: Any) -> str:
    """What the value is, without the value: a credential may have been written in a place where none belongs."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return "text"
        case int() | float():
            return "a number"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _shown(value: Any) -> str:
    """The same, with the value: for places where a number or one of a few words is expected."""
    if isinstance(value, str):
        return f"the text {value[:40]!r}{'…' if len(value) > 40 else ''}"
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**64:
        return f"the number {value}"
    return _kind(value)
