"""The documentation against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from gateway.config import load_text
from gateway.config.schema import Section, Sections
from gateway.errors import Code

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "plugins").glob("*/README.md")])


def keys(struct: type[msgspec.Struct]) -> set[str]:
    """Every key of a configuration section and of those below it."""
    found = set()
    for field in msgspec.structs.fields(struct):
        found.add(field.encode_name)
        inner: Any = get_args(field.type)[0] if get_origin(field.type) is tuple else field.type
        if isinstance(inner, type) and issubclass(inner, Section):
            found |= keys(inner)
    return found


def test_every_configuration_key_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    documented = {part.split(".")[-1] for cell in cells for part in re.findall(r"`([a-z_.]+)`", cell)}
    assert documented | {"retry"} == keys(Sections)


def test_every_error_code_is_documented() -> None:
    text = (ROOT / "docs" / "transports.md").read_text("utf-8")
    cells = re.findall(r"^\| (-3[-\d, ]+) \|", text, re.MULTILINE)
    assert {int(code) for cell in cells for code in cell.split(",")} == set(Code)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text("utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path}: {target}"


def test_the_readmes_configuration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.app import engine_specs
    from gateway.plugins import load_plugins

    monkeypatch.setenv("QDRANT_API_KEY", "k")
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert [spec.settings.id for spec in engine_specs(load_text(block, base_dir=ROOT), load_plugins())] == [
        "papers",
        "wiki",
        "embedder",
    ]


def test_the_readmes_kinds_are_the_built_in_kinds() -> None:
    from gateway.plugins import load_plugins

    text = (ROOT / "README.md").read_text("utf-8")
    # A stranger's plugin may be installed in the same environment.
    ours = {kind for one in load_plugins().found if one.distribution == "rcp-gateway" for kind in one.kinds}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == ours


def test_the_table_of_filters_says_what_the_compilers_do() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("filter_table", ROOT / "scripts" / "filter_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.DOCUMENT.read_text("utf-8")
    assert module.written(text) == text, "run: python scripts/filter_table.py --write"
