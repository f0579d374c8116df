"""Reading ``gateway.yaml``, and RCP's ``rcp.json`` registry as a source of engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.schema import FusionSettings, GatewayConfig, Sections
from gateway.config.walk import FAULT, Walker, nearest
from gateway.config.yaml import line_of, parse
from gateway.errors import ConfigError, ConfigErrors

__all__ = ["Check", "load", "load_text", "load_value", "located"]

_SIZE_LIMIT = 4 * 1024 * 1024

Check = Callable[[Walker, Mapping[str, Any]], None]
"""Further checks of a file's raw content, for what this package cannot know: kinds of engines and their settings."""


def load(path: Path, *, check: Check | None = None) -> GatewayConfig:
    """Reads a configuration file: YAML 1.2, or an ``rcp.json`` engine registry (RCP section 16.1).

    Raises :class:`~gateway.errors.ConfigErrors` with everything that is wrong with it, in file order.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_SIZE_LIMIT + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigErrors([ConfigError(f"cannot read {path}: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigErrors([ConfigError(f"{path} is not UTF-8 text")]) from error
    if len(data) > _SIZE_LIMIT:
        raise ConfigErrors([ConfigError(f"{path} is larger than {_SIZE_LIMIT} bytes")])
    registry = path.suffix == ".json"
    return load_text(text, base_dir=path.absolute().parent, registry=registry, source=path, check=check)


def load_text(
    text: str, *, base_dir: Path, registry: bool = False, source: Path | None = None, check: Check | None = None
) -> GatewayConfig:
    """The same from text; ``registry`` reads it as ``rcp.json``. ``source`` is the file's name, for error messages."""
    walker = Walker(base_dir)
    lines: Mapping[str, int] = {}
    try:
        if registry:
            value, lines = _from_registry(_parse_json(text), walker), _lines_of_json(text)
        else:
            value, lines = parse(text)
    except ConfigErrors as error:
        raise located([*walker.errors, *error.errors], source, lines) from error
    return _read(value, walker, source=source, lines=lines, check=check)


def load_value(value: Mapping[str, Any], *, base_dir: Path, check: Check | None = None) -> GatewayConfig:
    """The same from plain values, for a program that makes its configuration itself."""
    return _read(value, Walker(base_dir), source=None, lines={}, check=check)


def _read(
    value: Any, walker: Walker, *, source: Path | None, lines: Mapping[str, int], check: Check | None
) -> GatewayConfig:
    sections: Any = FAULT
    try:
        if isinstance(value, Mapping):
            value = _inherited(value, walker.base_dir)
            sections = walker.struct(Sections, value, "")
            walker.errors.extend(_relations(value))
            if check is not None:
                check(walker, value)
        else:
            walker.fault("", "the file must hold a mapping with the key 'engines'")
    except ConfigErrors as error:
        walker.errors.extend(error.errors)
    if walker.errors or sections is FAULT:
        raise located(walker.errors, source, lines)
    return GatewayConfig(**msgspec.structs.asdict(sections), base_dir=walker.base_dir, source=source, lines=lines)


def _inherited(value: Mapping[str, Any], base_dir: Path) -> Mapping[str, Any]:
    """The sections with each profile's ``fusion`` completed by the gateway's own, unless that has faults itself."""
    profiles, fusion = value.get("profiles"), value.get("fusion")
    trial = Walker(base_dir)
    trial.struct(FusionSettings, fusion, "fusion")
    if not isinstance(profiles, list | tuple) or not isinstance(fusion, Mapping) or trial.errors:
        return value
    own = [one.get("fusion") if isinstance(one, Mapping) else None for one in profiles]
    completed = [
        {**one, "fusion": {**fusion, **given}} if isinstance(given, Mapping) else one
        for one, given in zip(profiles, own, strict=True)
    ]
    return {**value, "profiles": completed}


def located(errors: Sequence[ConfigError], source: Path | None, lines: Mapping[str, int]) -> ConfigErrors:
    """The errors with their places in the file, in file order. Those that have no place come last."""
    for error in errors:
        error.source = error.source or (str(source) if source is not None else "")
        if error.line is None and error.path:
            error.line = line_of(error.path, lines)
    return ConfigErrors(sorted(errors, key=lambda error: error.line or len(lines) + 1_000_000))


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        fault = ConfigError(f"not JSON: {error.msg}, column {error.colno}")
        fault.line = error.lineno
        raise ConfigErrors([fault]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigErrors([ConfigError(f"not JSON: {error}")]) from error


def _lines_of_json(text: str) -> Mapping[str, int]:
    """JSON is YAML, near enough to find lines with; where it is not, errors go without them."""
    try:
        return parse(text)[1]
    except ConfigErrors:
        return {}


_REGISTRY_HOST_KEYS = ("id", "weight", "required", "priority")


def _from_registry(value: Any, walker: Walker) -> dict[str, Any]:
    """A registry's engines are RCP servers; its unknown keys are ignored, as the spec asks (DECISIONS D45)."""
    engines = value.get("engines") if isinstance(value, Mapping) else None
    if not isinstance(engines, list):
        raise ConfigErrors([ConfigError("a registry holds a list 'engines'", path="engines")])
    name = value.get("name")
    named = {"name": name} if isinstance(name, str) else {}
    return {**named, "engines": [_from_entry(entry, walker, f"engines[{i}]") for i, entry in enumerate(engines)]}


def _from_entry(entry: Any, walker: Walker, path: str) -> Any:
    if not isinstance(entry, Mapping):
        return entry  # an error, and reported as one with the others
    given = {key: item for key, item in entry.items() if item is not None}
    transport = given.get("transport", "http" if "url" in given else "stdio")
    if transport not in ("http", "stdio"):
        walker.fault(f"{path}.transport", "must be stdio or http")
    if transport == "http":
        settings = {"url": given.get("url")}
    else:
        settings = {"command": given.get("command", given.get("argv"))}
    return {**{key: given[key] for key in _REGISTRY_HOST_KEYS if key in given}, "kind": "rcp", "with": settings}


def _relations(value: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Faults between keys; read from the raw values, so that they are reported beside the others."""
    raw = value.get("engines")
    engines = {i: e for i, e in enumerate(raw) if isinstance(e, Mapping)} if isinstance(raw, list) else {}
    if not engines:
        yield ConfigError("name at least one engine", path="engines")
    ids: set[str] = set()
    for index, engine in engines.items():
        id = engine.get("id")
        if isinstance(id, str):
            if id in ids:
                yield ConfigError(f"the id {id!r} is already taken", path=f"engines[{index}].id")
            ids.add(id)
    for key in ("writes", "embed", "transform"):
        target = value.get(key)
        if isinstance(target, str) and target not in ids:
            yield ConfigError(f"there is no engine {target!r}{nearest(target, ids)}", path=key)
    if engines and all(engine.get("weight") == 0 for engine in engines.values()):
        yield ConfigError("every engine has the weight 0, so none would be asked", path="engines")
