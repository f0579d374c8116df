"""What a language model answered, read as queries. Pure; whatever cannot be queries is not taken for any."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.spi.codec import loads

__all__ = ["MAX_PASSAGE", "MAX_QUERY", "passage_in", "queries_in"]

MAX_QUERY = 500
"""Characters. What is longer is an essay, not a query, and left out."""
MAX_PASSAGE = 4000

_THOUGHT = re.compile(r"\A\s*<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)
_FENCE = re.compile(r"\A```[a-zA-Z]*\s*\n(.*?)\n?```\Z", re.DOTALL)
_BULLET = re.compile(r"\A(?:[-*•–]\s+|\(?\d{1,2}[.):]\s+)")
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "«": "»", "`": "`"}
_LINES = 40


def queries_in(answer: str, *, without: str, n: int) -> tuple[str, ...]:
    """At most ``n`` different queries, none of them ``without``; empty if the answer holds nothing that could be one.

    A JSON array of strings, or an object with one such array in it; else one query to a line, with or without bullets.
    """
    text = _bare(answer)
    found: dict[str, str] = {}
    for one in _listed(text):
        query = _plain(one)
        key = query.casefold()
        if query and len(query) <= MAX_QUERY and key != _plain(without).casefold():
            found.setdefault(key, query)
    return tuple(found.values())[:n]


def passage_in(answer: str) -> str | None:
    """The answer as a passage, cut to :data:`MAX_PASSAGE`; ``None`` if there is none."""
    text = _bare(answer)
    lines = [_plain(line) for line in text.splitlines()]
    whole = "\n".join(line for line in lines if line)[:MAX_PASSAGE].strip()
    return whole or None


def _bare(answer: str) -> str:
    """Without the reasoning that some models put in front, and without a fence around all of it."""
    text = _THOUGHT.sub("", answer).strip()
    fenced = _FENCE.match(text)
    return (fenced[1] if fenced else text).strip()


def _listed(text: str) -> Iterator[str]:
    if text.startswith(("[", "{", '"')):
        yield from _strings(text)
        return
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > _LINES:
        return
    for line in lines:
        if not line.endswith(":"):  # "Here are some queries:"
            yield _unquoted(_BULLET.sub("", line))


def _strings(text: str) -> Sequence[str]:
    """The strings of a JSON text. Something that only looks like JSON gives none."""
    try:
        value: Any = loads(text)
    except ValueError:
        return ()
    if isinstance(value, dict):
        lists = [one for one in value.values() if isinstance(one, list)]
        value = lists[0] if len(lists) == 1 else ()
    if isinstance(value, str):
        value = [value]
    return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else ()


def _plain(text: str) -> str:
    """On one line, without control and formatting characters."""
    kept = "".join(" " if char.isspace() else char for char in text if char.isspace() or not _hidden(char))
    return " ".join(kept.split())


def _hidden(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn")


def _unquoted(text: str) -> str:
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        return text[1:-1]
    return text
