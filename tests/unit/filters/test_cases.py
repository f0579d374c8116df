"""The shared cases: one corpus, one filter, the ids expected or the code of the error."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import RcpError
from gateway.filters import FieldType, compiled, nnf, parse


def _load() -> dict[str, Any]:
    beside = Path(__file__).resolve().parents[3].parent / "shared"
    file = Path(os.environ.get("GATEWAY_SHARED", beside)) / "filters" / "cases.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {"corpora": {}, "cases": []}


SHARED = _load()
ABSENT = [pytest.param(None, marks=pytest.mark.skip(reason="no shared cases: set GATEWAY_SHARED to their folder"))]


@pytest.mark.parametrize("case", SHARED["cases"] or ABSENT, ids=lambda case: case["id"] if case else "absent")
def test_a_shared_case_gives_the_expected_documents_or_error(case: dict[str, Any]) -> None:
    corpus = SHARED["corpora"][case["corpus"]]
    fields = {name: FieldType(kind) for name, kind in corpus["fields"].items()}
    if "expect_error" in case:
        error = case["expect_error"]
        with pytest.raises(RcpError) as raised:
            parse(case["filter"], fields)
        assert raised.value.code in (error["code"], *error.get("also_acceptable", ()))
        assert error.get("field_mentions", "") in raised.value.data["field"]
        return
    tree = parse(case["filter"], fields)
    for form in (tree, None if tree is None else nnf(tree)):
        found = {name for name, document in corpus["documents"].items() if form is None or compiled(form)(document)}
        assert found == set(case["expect"])
