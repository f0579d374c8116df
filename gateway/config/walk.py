"""Plain values into typed structs, reporting every fault with its path.

msgspec stops at the first error; somebody who edits a configuration wants all of them at once, with the nearest key for
a misspelt one. So the loader walks the types itself.
"""

from __future__ import annotations

import difflib
import math
import os
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from gateway.errors import ConfigError
from gateway.secret import Secret

__all__ = ["FAULT", "Walker", "nearest"]

FAULT: Any = object()
"""What :meth:`Walker.read` returns in place of a value it could not read; the error has been noted."""


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


class Walker:
    """Reads values and gathers ``errors``. ``base_dir`` is where relative paths and secret files start."""

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
        if origin in (Union, types.UnionType):
            return self._union(get_args(type_), value, path)
        if origin is Literal:
            return self._literal(get_args(type_), value, path)
        if origin in (list, tuple, frozenset, set):
            return self._items(origin, get_args(type_), value, path)
        if origin in (dict, Mapping) or origin is typing.get_origin(Mapping[str, Any]):
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
                self.fault(_join(path, str(key)), f"unknown key{hint}")
        arguments: dict[str, Any] = {}
        whole = True
        for name, field in fields.items():
            if name in value:
                arguments[field.name] = self.read(field.type, value[name], _join(path, name))
                whole = whole and arguments[field.name] is not FAULT
            elif field.required:
                self.fault(_join(path, name), "is required")
                whole = False
        if not whole:
            return FAULT
        try:
            return type_(**arguments)
        except ConfigError as error:
            return self.fault(_join(path, error.path) if error.path else path, error.message)

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
        if isinstance(value, Mapping):
            shaped = [
                option for option in rest if isinstance(option, type) and issubclass(option, msgspec.Struct | Secret)
            ]
            if len(shaped) == 1:
                return self.read(shaped[0], value, path)
        return self.fault(path, f"{_kind(value)} is not allowed here")

    def _literal(self, choices: tuple[Any, ...], value: Any, path: str) -> Any:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return choice
        return self.fault(
            path, f"must be one of {', '.join(map(str, choices))}{nearest(str(value), map(str, choices))}"
        )

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
            self.read(key_type, key, _join(path, str(key))): self.read(item_type, item, _join(path, str(key)))
            for key, item in value.items()
        }
        return FAULT if FAULT in pairs or any(item is FAULT for item in pairs.values()) else pairs

    def _scalar(self, type_: Any, value: Any, path: str) -> Any:
        if type_ is Secret:
            return self._secret(value, path)
        if type_ is Path:
            if not isinstance(value, str) or not value:
                return self.fault(path, f"must be a path, not {_kind(value)}")
            return (self.base_dir / Path(value).expanduser()).absolute()
        if isinstance(type_, type) and issubclass(type_, StrEnum):
            chosen = self._literal(tuple(map(str, type_)), value, path)
            return FAULT if chosen is FAULT else type_(chosen)
        if type_ is bool or type_ is str:
            return (
                value if isinstance(value, type_) else self.fault(path, f"must be {_NAMES[type_]}, not {_kind(value)}")
            )
        if type_ is int or type_ is float:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return self.fault(path, f"must be {_NAMES[type_]}, not {_kind(value)}")
            if not math.isfinite(value):
                return self.fault(path, "must be a finite number")
            if type_ is int and value != int(value):
                return self.fault(path, f"must be a whole number, not {value}")
            return type_(value)
        raise TypeError(f"settings of type {type_!r} are not supported ({path})")

    def _secret(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in ("env", "file"):
            return self.fault(path, "a secret is given by reference: {env: NAME} or {file: path}")
        source, name = next(iter(value.items()))
        if not isinstance(name, str) or not name:
            return self.fault(f"{path}.{source}", "must be a name")
        if source == "env":
            found = os.environ.get(name)
            if not found:
                return self.fault(f"{path}.env", f"the environment variable {name} is not set")
            return Secret(found, source=f"env:{name}")
        try:
            text = (self.base_dir / name).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            return self.fault(f"{path}.file", f"cannot read {name}: {reason}")
        return Secret(text, source=f"file:{name}") if text else self.fault(f"{path}.file", f"{name} is empty")


_NAMES: dict[type, str] = {bool: "true or false", str: "text", int: "a whole number", float: "a number"}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _kind(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"{str(value).lower()}"
        case str():
            return f"the text {value[:40]!r}"
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
