"""Configurations and what becomes of them. To add a test, add a file to ``golden`` and run with ``GOLDEN=write``.

Beside ``x.yaml`` (or ``x.json``, a registry) stands either ``x.errors``, what a person is told, or ``x.config``, what
differs from the defaults once it is read, with every engine's own settings as its kind has them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app import engine_specs, read_config
from gateway.errors import ConfigErrors
from gateway.plugins import Plugins, load_plugins
from gateway.secret import Secret
from tests.obligations import obligation

GOLDEN = Path(__file__).parent / "golden"
INPUTS = sorted(path for path in GOLDEN.iterdir() if path.suffix in (".yaml", ".json"))


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOLDEN_TOKEN", "the-secret-value")
    monkeypatch.setenv("GOLDEN_EMPTY", "")
    monkeypatch.delenv("GOLDEN_MISSING", raising=False)


def plain(value: Any) -> Any:
    """What differs from the defaults, as JSON has it."""
    match value:
        case msgspec.Struct():
            return {
                field.encode_name: plain(getattr(value, field.name))
                for field in msgspec.structs.fields(type(value))
                if getattr(value, field.name) != default(field) and field.name not in ("base_dir", "source", "lines")
            }
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case Path():
            return f"<folder>/{os.path.relpath(value, GOLDEN)}" if value.is_relative_to(GOLDEN.parent) else str(value)
        case Secret():
            return repr(value)
        case _:
            return value


def default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def outcome(path: Path, plugins: Plugins) -> tuple[str, str]:
    """The suffix of the expectation's file, and what it must hold."""
    try:
        config = read_config(path, plugins)
        specs = engine_specs(config, plugins)
    except ConfigErrors as error:
        kinds = ", ".join(sorted(plugins.kinds))  # what there is changes with every plugin
        return ".errors", f"{error}\n".replace(f"{GOLDEN}/", "").replace(kinds, "<kinds>")
    read = plain(config)
    for engine, spec in zip(read["engines"], specs, strict=True):
        engine["with"] = plain(spec.config)
    return ".config", json.dumps(read, indent=2, ensure_ascii=False) + "\n"


@obligation(227, 228)
@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.name)
def test_a_configuration_is_read_or_refused_as_its_golden_file_says(path: Path, plugins: Plugins) -> None:
    suffix, told = outcome(path, plugins)
    if os.environ.get("GOLDEN") == "write":
        for each in (".errors", ".config"):
            path.with_suffix(each).unlink(missing_ok=True)
        path.with_suffix(suffix).write_text(told, "utf-8")
    assert "the-secret-value" not in told
    assert path.with_suffix(suffix).exists(), told
    assert told == path.with_suffix(suffix).read_text("utf-8")


def test_every_golden_file_belongs_to_an_input() -> None:
    there = {path.stem for path in GOLDEN.iterdir() if path.suffix in (".errors", ".config")}
    assert there == {path.stem for path in INPUTS}
