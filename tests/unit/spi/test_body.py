"""Bodies are read as services built on pydantic read theirs, faults included."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from gateway.spi import Faults, read_body


class Model(BaseModel):
    whole: int = 3
    flag: bool = False
    number: float | None = None


def ours(body: dict[str, Any]) -> Any:
    read = read_body(json.dumps(body).encode())
    found = {"whole": read.whole("whole", 3), "flag": read.flag("flag", default=False), "number": read.number("number")}
    try:
        read.done()
    except Faults as faults:
        return sorted((row["loc"][-1], row["type"]) for row in faults.rows)
    return found


def theirs(body: dict[str, Any]) -> Any:
    try:
        return Model.model_validate(body).model_dump()
    except ValidationError as error:
        return sorted((str(row["loc"][0]), row["type"]) for row in error.errors())


VALUES = (
    st.booleans()
    | st.integers(-100, 100)
    | st.floats(-100, 100)
    | st.sampled_from(
        ["yes", "NO", "t", "on", "1", "0", "true", "maybe", "", " 7 ", "7.0", "+7", "-7", "7.5", "1e2", "x"]
    )
    | st.lists(st.integers(), max_size=1)
    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=1)
)


@given(body=st.dictionaries(st.sampled_from(["whole", "flag", "number", "other"]), VALUES, max_size=3))
@example(body={"whole": True, "flag": 1.0, "number": False})
@example(body={"whole": None})
@example(body={"flag": None})
@example(body={"flag": 2})
def test_members_are_read_and_refused_as_pydantic_does(body: dict[str, Any]) -> None:
    assert ours(body) == theirs(body)


@pytest.mark.parametrize("text", ["9" * 5000, "1e999", "nan", "inf", "-Infinity", "0x10", "१"])
def test_a_number_that_is_none_is_refused_whatever_it_looks_like(text: str) -> None:
    with pytest.raises(Faults):
        body = read_body(json.dumps({"whole": text, "number": text}).encode())
        body.whole("whole")
        body.number("number")
        body.done()
