"""The obligations checklist against the tests, both ways. The checklist stands where the schema does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manifest import LATER
from tests.schema import schema_path

TESTS = Path(__file__).parent


def checklist() -> set[int]:
    """The numbers of all items."""
    schema = schema_path()
    path = schema.with_name("CHECKLIST.md") if schema is not None else None
    if path is None or not path.is_file():
        pytest.skip("no checklist: set GATEWAY_SHARED to the folder that holds spec/CHECKLIST.md")
    return {int(number) for number in re.findall(r"^(\d+)\. \[", path.read_text("utf-8"), re.MULTILINE)}


def marks() -> Iterator[tuple[int, str]]:
    """Each ``@obligation`` number on a test, with its place."""
    for path in sorted(TESTS.rglob("test_*.py")):
        module = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(module):
            for decorator in getattr(node, "decorator_list", ()):
                if isinstance(decorator, ast.Call) and _name(decorator.func) == "obligation":
                    place = f"{path.relative_to(TESTS)}:{decorator.lineno}"
                    assert decorator.args, f"{place} names no item"
                    for argument in decorator.args:
                        assert isinstance(argument, ast.Constant), f"{place} must write its numbers out"
                        assert type(argument.value) is int, place
                        assert node.name.startswith("test_"), f"{place} is on no test"  # type: ignore[attr-defined]
                        yield argument.value, place


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_obligation_that_a_test_names_is_in_the_checklist() -> None:
    known = checklist()
    assert [f"{place}: {number}" for number, place in marks() if number not in known] == []


def test_every_item_of_the_checklist_is_proved_by_a_test_or_told_to_be_for_later() -> None:
    proved = {number for number, _ in marks()}
    assert sorted(checklist() - proved - LATER.keys()) == []


def test_nothing_that_is_for_later_is_proved_already_or_unknown() -> None:
    proved = {number: place for number, place in marks() if number in LATER}
    assert proved == {}
    assert sorted(LATER.keys() - checklist()) == []
    assert all(LATER.values())
