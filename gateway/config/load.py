"""Reading ``gateway.yaml``, and RCP's ``rcp.json`` registry as a source of engines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.schema import EngineSettings, GatewayConfig
from gateway.config.walk import FAULT, Walker
from gateway.errors import ConfigError, ConfigErrors

__all__ = ["load", "load_text"]

_SIZE_LIMIT = 4 * 1024 * 1024


def load(path: Path) -> GatewayConfig:
    """Reads a configuration file: YAML 1.2, or an ``rcp.json`` engine registry (RCP section 16.1).

    Raises :class:`~gateway.errors.ConfigErrors` with everything that is wrong with it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigErrors([ConfigError(f"cannot read {path}: {error.strerror}")]) from error
    if len(data) > _SIZE_LIMIT:
        raise ConfigErrors([ConfigError(f"{path} is larger than {_SIZE_LIMIT} bytes")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigErrors([ConfigError(f"{path} is not UTF-8 text")]) from error
    config = load_text(text, base_dir=path.absolute().parent, registry=path.suffix == ".json")
    return msgspec.structs.replace(config, source=path)


def load_text(text: str, *, base_dir: Path, registry: bool = False) -> GatewayConfig:
    """The same from text; ``registry`` reads it as ``rcp.json``."""
    value = _parse_json(text) if registry else _parse_yaml(text)
    if not isinstance(value, Mapping):
        raise ConfigErrors([ConfigError("the file must hold a mapping with the key 'engines'")])
    for key in ("base_dir", "source"):
        if key in value:
            raise ConfigErrors([ConfigError("unknown key", path=key)])
    if registry:
        value = _from_registry(value)
    walker = Walker(base_dir)
    config = walker.struct(GatewayConfig, value, "")
    walker.errors.extend(_relations(value))
    if walker.errors or config is FAULT:
        raise ConfigErrors(walker.errors)
    if not isinstance(config, GatewayConfig):
        raise TypeError("the walker returned something else than it was asked for")
    return msgspec.structs.replace(config, base_dir=base_dir)


def _parse_yaml(text: str) -> Any:
    # Imported here: the parser is a tenth of the time `rcp-gateway --version` may take.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigErrors([ConfigError(f"{where}{str(error.problem).splitlines()[0]}")]) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigErrors([ConfigError(f"not YAML: {str(error).splitlines()[0]}")]) from error


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigErrors([ConfigError(f"not JSON: {error}")]) from error


_REGISTRY_HOST_KEYS = ("id", "weight", "required", "priority")


def _from_registry(value: Mapping[str, Any]) -> dict[str, Any]:
    """A registry's engines are RCP servers; its unknown keys are ignored, as the spec asks (DECISIONS D45)."""
    engines = value.get("engines")
    if not isinstance(engines, list):
        raise ConfigErrors([ConfigError("a registry holds a list 'engines'", path="engines")])
    converted = []
    for index, entry in enumerate(engines):
        if not isinstance(entry, Mapping):
            raise ConfigErrors([ConfigError("must be a mapping", path=f"engines[{index}]")])
        command = entry.get("command", entry.get("argv"))
        transport = entry.get("transport") or ("http" if entry.get("url") else "stdio")
        settings = {"url": entry.get("url")} if transport == "http" else {"command": command}
        host = {key: entry[key] for key in _REGISTRY_HOST_KEYS if key in entry}
        converted.append({**host, "kind": "rcp", "with": {k: v for k, v in settings.items() if v is not None}})
    name = value.get("name")
    return {"engines": converted, **({"name": name} if isinstance(name, str) else {})}


def _relations(value: Mapping[str, Any]) -> list[ConfigError]:
    """Faults between keys; read from the raw values, so that they are reported beside the others."""
    errors: list[ConfigError] = []
    raw = value.get("engines")
    engines = [(i, e) for i, e in enumerate(raw) if isinstance(e, Mapping)] if isinstance(raw, list) else []
    if not engines:
        errors.append(ConfigError("name at least one engine", path="engines"))
    ids = [engine.get("id") for _, engine in engines]
    counts = Counter(str(id) for id in ids if id is not None)
    for index, engine in engines:
        id = engine.get("id")
        if id is not None and counts[str(id)] > 1 and ids.index(id) != index:
            errors.append(ConfigError(f"the id {id!r} is already taken", path=f"engines[{index}].id"))
    for key in ("writes", "embed"):
        target = value.get(key)
        if isinstance(target, str) and target not in counts:
            errors.append(ConfigError(f"there is no engine {target!r}", path=key))
    with_corpus = [engine.get("corpus") is not None for _, engine in engines if engine.get("weight") != 0]
    if any(with_corpus) and not all(with_corpus):
        for index, engine in engines:
            if engine.get("corpus") is None and engine.get("weight") != 0:
                message = "once one engine names a corpus, all must: otherwise ids of unrelated documents could meet"
                errors.append(ConfigError(message, path=f"engines[{index}].corpus"))
    if engines and all(engine.get("weight") == 0 for _, engine in engines):
        errors.append(ConfigError("every engine has the weight 0, so none would be asked", path="engines"))
    return errors


def settings_of(config: GatewayConfig, id: str) -> EngineSettings:
    """The settings of one engine. Raises ``KeyError``."""
    for engine in config.engines:
        if engine.id == id:
            return engine
    raise KeyError(id)
