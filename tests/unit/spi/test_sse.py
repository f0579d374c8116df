import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import UpstreamError
from gateway.spi.sse import SseDecoder

LINE_ENDS = st.sampled_from(["\n", "\r", "\r\n"])
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def decoded(*chunks: bytes, limit: int = 1_000_000) -> list[str]:
    decoder = SseDecoder(limit=limit)
    return [data for chunk in chunks for data in decoder.feed(chunk)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata:b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata:  b\r\r", ["a", " b"]),
        (b"data: a\ndata: b\ndata:c\n\n", ["a\nb\nc"]),
        (b": a comment\n\n:\ndata: a\n: another\nevent: x\nid: 1\nretry: 2\ndatax: no\n\n", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),
        (b"data\n\ndata:\ndata\n\n", ["", "\n"]),
        (b"\n\n\n", []),
        (b"data: never ended", []),
        (b"data: never ended\n", []),
        (b"data: \xff\n\n", ["\N{REPLACEMENT CHARACTER}"]),
        (b'data: {"a":"b:c"}\n\n', ['{"a":"b:c"}']),
    ],
)
def test_streams_are_read_as_the_standard_says(stream, events):
    assert decoded(stream) == events
    assert decoded(*(bytes([byte]) for byte in stream)) == events


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_only_cr_and_lf_end_a_line(separator):
    text = f'{{"t":"a{separator}b"}}'
    assert decoded(f"data: {text}\n\n".encode()) == [text]


def test_an_event_is_yielded_with_its_last_carriage_return_before_the_line_feed_comes():
    decoder = SseDecoder()
    assert list(decoder.feed(b"data: a\r\n\r")) == ["a"]
    assert list(decoder.feed(b"")) == []
    assert list(decoder.feed(b"\ndata: b\r\n\r\n")) == ["b"]


@given(
    events=st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=4),
    end=LINE_ENDS,
    comment=TEXT,
    bom=st.booleans(),
    places=st.lists(st.integers(0, 10_000), max_size=12),
)
@example(events=[["é\u2028", ""], ["x"]], end="\r\n", comment="", bom=True, places=list(range(60)))
def test_what_was_written_is_read_however_it_is_cut(events, end, comment, bom, places):
    lines = [line for event in events for line in [f":{comment}", *(f"data: {text}" for text in event), ""]]
    stream = ("\ufeff" * bom + "".join(line + end for line in lines)).encode()
    assert decoded(*cut(stream, places)) == ["\n".join(event) for event in events]


@given(
    stream=st.lists(st.sampled_from([b"\r", b"\n", b"data", b":", b" ", b"\xef\xbb\xbf", "é😀".encode(), b"x"])),
    places=st.lists(st.integers(0, 1_000)),
    limit=st.integers(4, 40),
)
def test_any_bytes_give_the_same_events_and_the_same_refusal_however_they_are_cut(stream, places, limit):
    def outcome(chunks):
        decoder, events = SseDecoder(limit=limit), []
        try:
            for chunk in chunks:
                for data in decoder.feed(chunk):
                    events.append(data)  # noqa: PERF402
        except UpstreamError:
            events.append(None)
        return events

    data = b"".join(stream)
    assert outcome(cut(data, places)) == outcome([data])


@pytest.mark.parametrize(
    "chunks", [[b"data: " + b"x" * 200], [b"data: xxxxxxxx\n"] * 20, [b"x"] * 200, [b":" + b"x" * 200 + b"\n"]]
)
def test_an_event_over_the_limit_is_refused(chunks):
    with pytest.raises(UpstreamError, match="limit of 100 bytes"):
        decoded(*chunks, limit=100)


def test_the_limit_is_for_one_event_not_for_the_stream():
    assert len(decoded(*[b"data: xxxxxxxxxxxxxxxxxxxxxxxx\n\n"] * 100, limit=40)) == 100


def test_many_small_chunks_of_one_long_line_are_read_in_linear_time():
    text = json.dumps("x" * 1_000_000)
    stream = f"data: {text}\n\n".encode()
    assert decoded(*(stream[at : at + 16] for at in range(0, len(stream), 16)), limit=2_000_000) == [text]


def test_the_module_does_no_io():
    import gateway.spi.sse as module

    source = Path(module.__file__).read_text()
    assert "async " not in source
    assert "import asyncio" not in source
