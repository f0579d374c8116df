from __future__ import annotations

import pytest

from gateway.filters import Instant, literal_instant, read_rfc3339, stored_micros

NEW_YEAR = 1_704_067_200_000_000


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01T00:00:00Z",
        "2024-01-01t00:00:00z",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00:00",
        "2024-01-01 00:00:00",
        "2024-01-01",
        "2024-01-01T00:00:00.0Z",
        "2024-01-01T00:00:00.000000999999Z",
        "2024-01-01T00:00:00+00:00",
        "2024-01-01T00:00:00-00:00",
        "2024-01-01T01:00:00+01:00",
        "2023-12-31T16:00:00-08:00",
        "2024-01-01T05:45:00+05:45",
        "2024-01-01T23:59:00+23:59",
    ],
)
def test_every_spelling_of_an_instant_is_that_instant(text: str) -> None:
    assert read_rfc3339(text) == NEW_YEAR


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "soon",
            "2024",
            "2024-01",
            "20240101",
            "2024-1-1",
            "2024-13-01",
            "2024-00-10",
            "2023-02-29",
            "2024-01-32",
        ),
        *("2024-01-01T", "2024-01-01T00", "2024-01-01T00:00", "2024-01-01T24:00:00Z", "2024-01-01T00:60:00Z"),
        *("2016-12-31T23:59:60Z", "2024-01-01T00:00:00.Z", "2024-01-01T00:00:00,5Z", "2024-01-01T00:00:00+0100"),
        *("2024-01-01T00:00:00+24:00", "2024-01-01T00:00:00+01:60", "2024-01-01T00:00:00 Z", " 2024-01-01"),
        *("2024-01-01\n", "2024-01-01T00:00:00Z\n", "2024-01-01Z", "0000-01-01", "+2024-01-01", "-2024-01-01"),
        *("２０２４-01-01", "2024-01-01T00:00:00ℤ", "2024-01-01T00:00:00\u2212" + "01:00", "1704067200000"),
    ],
)
def test_what_is_not_rfc3339_or_is_a_leap_second_is_not_read(text: str) -> None:
    assert read_rfc3339(text) is None
    assert literal_instant(text) is None


def test_digits_beyond_the_microsecond_are_floored_on_both_sides_of_1970() -> None:
    assert read_rfc3339("1970-01-01T00:00:00.0000019Z") == 1
    assert read_rfc3339("1969-12-31T23:59:59.9999999Z") == -1
    assert stored_micros(0.0019) == 1
    assert stored_micros(-0.0001) == -1


def test_numbers_are_milliseconds_also_as_doubles() -> None:
    assert stored_micros(1_704_067_200_000) == NEW_YEAR
    assert stored_micros(1_704_067_200_000.0) == NEW_YEAR
    assert literal_instant(1_704_067_200_000.0) == Instant(NEW_YEAR)
    assert literal_instant(0.5) is None


@pytest.mark.parametrize("value", [True, False, None, [], {}, float("nan"), float("inf"), b"2024-01-01", "x"])
def test_an_unreadable_stored_value_is_no_date(value: object) -> None:
    assert stored_micros(value) is None
    assert literal_instant(value) is None


def test_an_offset_may_lead_out_of_the_calendar_without_breaking_the_order() -> None:
    first, before = read_rfc3339("0001-01-01T00:00:00Z"), read_rfc3339("0001-01-01T00:00:00+01:00")
    last, after = read_rfc3339("9999-12-31T23:59:59.999999Z"), read_rfc3339("9999-12-31T23:59:59.999999-01:00")
    assert first is not None
    assert before is not None
    assert last is not None
    assert after is not None
    assert before < first < last < after
    assert literal_instant("0001-01-01T00:00:00Z") == Instant(first)
    assert literal_instant("0001-01-01T00:00:00+01:00") is None
    assert literal_instant("9999-12-31T23:59:59.999999-01:00") is None
    assert literal_instant(2**53 - 1) is None


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (NEW_YEAR, "2024-01-01T00:00:00Z"),
        (NEW_YEAR + 1, "2024-01-01T00:00:00.000001Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (-62_135_596_800_000_000, "0001-01-01T00:00:00Z"),
    ],
)
def test_an_instant_is_written_in_utc_and_reads_back(micros: int, text: str) -> None:
    assert Instant(micros).rfc3339() == text
    assert read_rfc3339(text) == micros


def test_an_instant_has_milliseconds_only_if_they_are_whole() -> None:
    assert Instant(-5000).epoch_ms() == -5
    assert Instant(-5001).epoch_ms() is None
