"""Test collections in TREC's formats. Pure: the files' texts come in."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["Judgements", "read_documents", "read_qrels", "read_topics"]

Judgements = Mapping[str, Mapping[str, int]]
"""Query → document → grade, 0 being not relevant."""

_DOCUMENT = re.compile(r"<DOC>\s*<DOCNO>\s*(\S+?)\s*</DOCNO>(.*?)</DOC>", re.DOTALL)
_TOPIC = re.compile(
    r"<num>\s*(?:Number:)?\s*(\S+?)\s*(?:</num>)?\s*<title>\s*(.*?)\s*(?:</title>|<desc>|</top>)", re.DOTALL
)


def read_qrels(text: str) -> dict[str, dict[str, int]]:
    """Lines of query, iteration, document, grade. Raises ``ValueError`` that names the line."""
    found: dict[str, dict[str, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        try:
            query, _, document, grade = parts
            found.setdefault(query, {})[document] = int(grade)
        except ValueError:
            raise ValueError(f"line {number} is no judgement: query, iteration, document, grade") from None
    return found


def read_documents(text: str) -> dict[str, str]:
    """``<DOC><DOCNO>id</DOCNO>text</DOC>``, by id."""
    return {match[1]: match[2].strip() for match in _DOCUMENT.finditer(text)}


def read_topics(text: str) -> dict[str, str]:
    """The titles of ``<top>`` entries by their numbers."""
    return {match[1]: " ".join(match[2].split()) for match in _TOPIC.finditer(text)}
