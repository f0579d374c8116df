"""One token for the versions of several engines."""

from __future__ import annotations

import base64
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable
from gateway.federation.version import LONGEST, composite, parse
from tests.obligations import obligation

VERSIONS = st.dictionaries(st.text(max_size=8), st.text(max_size=12), min_size=1, max_size=6)
SOUND = st.characters(exclude_categories=["Cs"])


def token_of(value: object) -> str:
    return "1." + base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


@given(st.dictionaries(st.text(SOUND, max_size=8), st.text(SOUND, max_size=12), min_size=1, max_size=6))
def test_what_is_put_in_comes_out(versions: dict[str, str]) -> None:
    token = composite(versions)
    assert token is not None
    assert parse(token) == versions
    assert re.fullmatch(r"[A-Za-z0-9._-]+", token)
    assert composite(dict(reversed(versions.items()))) == token


@given(VERSIONS, VERSIONS)
def test_equal_tokens_mean_equal_versions(one: dict[str, str], other: dict[str, str]) -> None:
    first, second = composite(one), composite(other)
    assert first is not None
    assert (first == second) == (parse(first) == parse(second or ""))


def test_lone_surrogates_cost_the_pin_and_no_more() -> None:
    token = composite({"a": "\ud800"})
    assert token is not None
    assert parse(token) == {"a": "\N{REPLACEMENT CHARACTER}"}


def test_no_versions_and_too_many_make_no_token() -> None:
    assert composite({}) is None
    assert composite({"a": "v" * LONGEST}) is None
    many = composite({f"engine-{n}": "v" * 40 for n in range(40)})
    assert many is not None
    assert len(many) <= LONGEST


@obligation(153)
@pytest.mark.parametrize(
    "token",
    [
        "",
        "v7",
        "1.",
        "1.!!!",
        "1.AAAA",
        "2." + token_of([["a", "1"]])[2:],
        token_of([]),
        token_of({}),
        token_of({"a": "1"}),
        token_of([["a"]]),
        token_of([["a", 1]]),
        token_of([["a", "1", "2"]]),
        token_of([["b", "1"], ["a", "1"]]),
        token_of([["a", "1"], ["a", "2"]]),
        token_of([["a", "1"]]) + "=",
        token_of([["a", "1"]]) + " ",
        "1." + base64.urlsafe_b64encode(b'[["a", "1"]]').decode().rstrip("="),
        token_of([["a", "v" * LONGEST]]),
        "1." + base64.urlsafe_b64encode(b"[" * 3000).decode(),
        "1.é",
    ],
)
def test_what_no_gateway_made_is_a_version_that_is_gone(token: str) -> None:
    with pytest.raises(BackendUnavailable) as raised:
        parse(token)
    assert raised.value.to_wire() == {
        "code": -32010,
        "message": "the pinned index version is gone",
        "data": {"retryable": False},
    }


@given(st.one_of(st.text(), st.text(max_size=60).map(lambda text: "1." + text)))
@example("1.W10")
def test_any_text_is_read_or_refused(token: str) -> None:
    try:
        versions = parse(token)
    except BackendUnavailable:
        return
    assert composite(versions) == token
