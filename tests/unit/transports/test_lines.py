from __future__ import annotations

import itertools
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from gateway.transports.lines import Lines
from tests.obligations import obligation


def split(data: bytes, cuts: list[int], limit: int = 1 << 20) -> list[bytes | None]:
    lines = Lines(limit)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found: list[bytes | None] = []
    for start, end in itertools.pairwise(edges):
        found += lines.feed(data[start:end])
    return found + lines.end()


@obligation(75)
@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b""))), st.lists(st.integers(0, 10_000)))
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    assert split(data, cuts) == split(data, [])


@obligation(74)
def test_blank_lines_carriage_returns_and_a_leading_mark_are_no_part_of_a_frame() -> None:
    assert split(b'\xef\xbb\xbf{"a":1}\r\n\r\n \t\n\n{"b":2}\n{"c":3}', []) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']


def test_only_a_newline_ends_a_line() -> None:
    text = '{"a":"\u2028\u0085\x0b\x0c"}'.encode()
    assert split(text + b"\r" + text + b"\n", []) == [text + b"\r" + text]


@obligation(83)
@given(st.integers(0, 40), st.lists(st.integers(0, 200)), st.sampled_from([b"\n", b"\r\n"]))
def test_a_line_over_the_limit_is_reported_once_and_the_next_one_is_whole(
    extra: int, cuts: list[int], end: bytes
) -> None:
    limit = 20
    found = split(b"x" * (limit + extra) + end + b"next" + end, cuts, limit)
    assert found == [b"x" * limit if extra == 0 else None, b"next"]


def test_an_endless_line_is_reported_before_it_ends() -> None:
    assert Lines(10).feed(b"x" * 12) == [None]


@obligation(83)
def test_a_gigabyte_without_a_newline_takes_no_memory() -> None:
    lines, chunk, found = Lines(1 << 20), b"x" * (1 << 20), []
    tracemalloc.start()
    try:
        for _ in range(1024):
            found += lines.feed(chunk)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert found == [None]
    assert lines.feed(b"\n{}\n") == [b"{}"]
