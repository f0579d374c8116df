"""Who may import whom: the table of docs/architecture.md, checked against the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ALLOWED: dict[str, set[str]] = {
    "__init__": {"inprocess"},  # lazily, for `from gateway import Gateway`
    "errors": set(),
    "_json": {"errors"},
    "secret": {"errors"},
    "caller": {"errors"},
    "model": {"errors", "_json"},
    "filters": {"errors"},
    "fusion": {"errors", "model"},
    "config": {"errors", "secret", "filters"},
    "spi": {"errors", "_json", "model", "filters", "fusion", "secret", "caller"},
    "protocol": {"errors", "_json", "model", "caller", "spi.call"},
    "state": {"errors", "_json", "config", "secret"},
    "telemetry": {"errors", "model", "config", "caller"},
    "federation": {"errors", "model", "filters", "fusion", "spi", "state", "caller", "secret"},
    "refine": {"errors", "_json", "model", "filters.dates", "fusion", "spi.call", "state"},  # dates are read in one way
    "service": {
        "errors",
        "_json",
        "model",
        "filters",
        "federation",
        "refine",
        "fusion",
        "spi",
        "state",
        "caller",
        "cutting",  # `index/add` cuts documents up as `add` does files
    },
    "plugins": {"errors", "spi", "config", "fusion", "model"},
    "frontmatter": {"errors", "config", "filters"},
    "cutting": set(),
    "passages": {"cutting", "frontmatter", "spi", "model"},
    "transports": {"errors", "_json", "model", "protocol", "spi.facade", "access", "telemetry", "caller"},
    "evaluate": {"errors"},
    "testing": {"errors", "model", "filters", "spi"},
}
"""Package → what of ``gateway`` it may import; a package may always import itself. The rest may import everything
that is below it."""

ABOVE = {"profiles", "engines", "settings", "app", "inprocess", "cli"}
"""Composition: may import all the others, and nothing imports these (``cli`` may import ``app``)."""

PLUGINS: dict[str, set[str]] = {"gateway_rcp": {"protocol"}}
PLUGIN_SURFACE = {"spi", "model", "filters", "errors", "secret"}


def modules(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if "__pycache__" not in path.parts)


def gateway_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import of ``gateway.…`` in a file, wherever it stands, as (line, dotted path below gateway)."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            names = [f"gateway.{alias.name}" for alias in node.names] if module == "gateway" else [module]
        else:
            continue
        for name in names:
            if name == "gateway" or name.startswith("gateway."):
                yield node.lineno, name.removeprefix("gateway").removeprefix(".")


def room(path: Path) -> str:
    """The top-level package or module of a file below ``gateway/``."""
    return path.relative_to(ROOT / "gateway").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", list(modules(ROOT / "gateway")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    own = room(path)
    if own in ABOVE:
        return
    assert own in ALLOWED, f"{own} is a new room: say in this table what it may import"
    for line, name in gateway_imports(path):
        top = name.split(".")[0]
        fits = (
            top == own or top in ALLOWED[own] or any(name == one or name.startswith(one + ".") for one in ALLOWED[own])
        )
        assert fits or name in ("", "__version__"), f"{path}:{line}: {own} must not import gateway.{name}"


@pytest.mark.parametrize("path", list(modules(ROOT / "plugins")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_plugin_imports_only_the_public_surface(path: Path) -> None:
    own = path.relative_to(ROOT / "plugins").parts[0]
    allowed = PLUGIN_SURFACE | PLUGINS.get(own, set())
    for line, name in gateway_imports(path):
        assert name.split(".")[0] in allowed, f"{path}:{line}: a plugin must not import gateway.{name}"


@pytest.mark.parametrize("path", list(modules(ROOT / "gateway")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_the_command_line_or_the_test_kit(path: Path) -> None:
    for line, name in gateway_imports(path):
        top = name.split(".")[0]
        assert top != "cli" or room(path) == "cli", f"{path}:{line}"
        assert top != "testing" or room(path) == "testing", f"{path}:{line}"


LIBRARIES: dict[str, set[str]] = {
    "aiohttp": {"gateway/spi/http"},
    "httpx": {"gateway/spi/http"},
    "uvicorn": {"gateway/transports"},
    "orjson": {"gateway/_json.py"},
    "pluggy": {"gateway/plugins.py", "gateway/spi/hooks.py"},
    "click": {"gateway/cli"},
    "rich": {"gateway/cli"},
    "ruamel": {"gateway/config/yaml.py"},
    "redis": {"gateway/state/redis.py"},
}
"""A library → the only places that know it, so that changing it is changing one room."""


def test_each_library_is_known_in_one_room_only() -> None:
    for path in modules(ROOT / "gateway"):
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                rooms = LIBRARIES.get(name.split(".")[0])
                assert rooms is None or any(where.startswith(one) for one in rooms), f"{where}: imports {name}"


def test_every_plugin_package_is_listed_by_name_in_the_wheel() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    there = {f"plugins/{path.parent.name}" for path in (ROOT / "plugins").glob("*/__init__.py")}
    assert listed == {"gateway"} | there
    modules_named = {value.split(".")[0] for value in project["project"]["entry-points"]["rcp_gateway"].values()}
    assert modules_named == {one.removeprefix("plugins/") for one in there}


BOUNDARIES = {
    "gateway/protocol/dispatch.py",
    "gateway/federation/runner.py",
    "gateway/federation/leg.py",
    "gateway/federation/fleet.py",
    "gateway/federation/context.py",  # hands it to the task that waits for the thread
    "gateway/plugins.py",  # a stranger's import, and what a kind says of its settings
    "gateway/cli/main.py",
}
"""Where the gateway calls strangers' code and must survive whatever it raises."""


def test_exceptions_of_any_kind_end_only_at_the_boundaries() -> None:
    for path in [*modules(ROOT / "gateway"), *modules(ROOT / "plugins")]:
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = (
                {one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)} if node.type else {"Exception"}
            )
            goes_on = any(isinstance(one, ast.Raise) for one in ast.walk(node))
            if caught & {"Exception", "BaseException"} and not goes_on:
                assert where in BOUNDARIES, f"{where}:{node.lineno} swallows everything"
