"""``docs/retrieve.md`` against the model, the schema and the tests it names."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import msgspec
import pytest

from gateway.model import FusionOptions, RetrieveRequest
from tests.schema import schema_path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "retrieve.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, each row from its member's name on."""
    text = PAGE.read_text("utf-8")
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| `" in line[:3]]


def named(heading: str) -> list[str]:
    return [row[0].strip("`") for row in rows(heading)]


def test_every_parameter_has_one_row() -> None:
    members = {field.encode_name for field in msgspec.structs.fields(RetrieveRequest)} - {"fusion"}
    members |= {f"fusion.{field.encode_name}" for field in msgspec.structs.fields(FusionOptions)}
    assert sorted(named("Parameters")) == sorted(members)


def test_every_member_that_the_schema_gives_a_hit_has_one_row() -> None:
    path = schema_path()
    if path is None:
        pytest.skip("no schema: set GATEWAY_SHARED to the folder that holds spec/rcp-1.0.schema.json")
    schema = json.loads(path.read_text("utf-8"))["$defs"]
    assert sorted(named("Members of a hit")) == sorted(schema["Hit"]["properties"])
    asked = set(schema["RetrieveParams"]["properties"]) - {"fusion"}
    assert asked <= set(named("Parameters"))


@pytest.mark.parametrize("row", [*rows("Parameters"), *rows("Members of a hit")], ids=lambda row: row[0].strip("`"))
def test_every_row_says_who_does_it_and_names_a_test_that_there_is(row: list[str]) -> None:
    name, engines, gateway, _, told = row
    assert engines, name
    assert gateway, name
    found = re.fullmatch(r"`([a-z_/]+\.py)::(test_\w+)`", told)
    assert found is not None, told
    module = ast.parse((ROOT / "tests" / found[1]).read_text("utf-8"))
    functions = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert found[2] in functions
