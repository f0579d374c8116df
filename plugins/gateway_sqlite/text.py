"""What FTS5 gets to see of a text, and what it is asked.

FTS5's tokenizer cuts words at spaces and punctuation, so a sentence in a script that writes no spaces would be one
word, found by nobody. Runs of such scripts are therefore written as their overlapping pairs of letters, in documents
and in queries alike. Everything else is left to the tokenizer.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from gateway.spi.codec import mend

__all__ = ["TERM_LIMIT", "indexed", "match_expression", "terms"]

TERM_LIMIT = 256
"""Distinct terms of a query that are searched for; the time a query takes grows with them."""

# Lao and Thai, Myanmar, Khmer, kana, Han; Hangul too, whose words are spaced but carry glued-on endings.
_UNSPACED = re.compile(
    "[\u0e01-\u0e4e\u0e81-\u0edf\u1000-\u104f\u1780-\u17d3\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+"
)
# Marks that Arabic and Hebrew writers put in or leave out at will, and the stretching of a line.
_OPTIONAL = re.compile("[\u0591-\u05bd\u05bf\u05c1\u05c2\u0640\u064b-\u0652\u0670]")
# FTS5 knows Unicode as of 2012 and takes some younger signs for letters. What Python takes for neither a letter nor a
# space becomes a space, but for the usual punctuation, about which both agree.
_SIGN = re.compile("[^\\w\\s\u0000-\u00ff\u2000-\u205f\u3000-\u303f]")


def indexed(text: str) -> str:
    """The text as it is given to FTS5; the same string if nothing about it has to change."""
    if text.isascii():
        return text
    return _UNSPACED.sub(_document_pairs, _levelled(text))


def terms(text: str) -> list[str]:
    """The distinct terms of a query, in order; a term that ends in ``*`` stands for all that begin with it.

    Made of letters, digits and marks only, so nothing in it can be an operator, a quote or a NUL.
    """
    level = _levelled(text).lower()  # FTS5 folds case itself; this is for "distinct"
    spaced = "".join(char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in level)
    return list(dict.fromkeys(_UNSPACED.sub(_query_pairs, spaced).split()))


def match_expression(found: list[str], match: Literal["any", "all"]) -> str:
    """The terms as an FTS5 query. Every term is quoted: unquoted, ``AND`` and ``NEAR`` would be operators."""
    joint = " AND " if match == "all" else " OR "
    return joint.join(f'"{term[:-1]}"*' if term.endswith("*") else f'"{term}"' for term in found)


def _levelled(text: str) -> str:
    # Full-width letters, ligatures and the like are the letters they stand for.
    level = _OPTIONAL.sub("", unicodedata.normalize("NFKC", mend(text)).replace("ß", "ss"))
    return _SIGN.sub(lambda sign: sign[0] if unicodedata.category(sign[0])[0] == "M" else " ", level)


def _document_pairs(run: re.Match[str]) -> str:
    letters = run[0]
    # The last letter stands alone as well: so every letter begins a term, and a query of one letter finds it.
    return f" {' '.join(letters[at : at + 2] for at in range(len(letters)))} "


def _query_pairs(run: re.Match[str]) -> str:
    letters = run[0]
    if len(letters) == 1:
        return f" {letters}* "
    return f" {' '.join(letters[at : at + 2] for at in range(len(letters) - 1))} "
