"""BM25 over a list of words, and how a text becomes such a list. Nothing here knows of the gateway."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter

__all__ = ["Index", "words"]

# Scripts that put no space between words. Korean does, but glues endings on, so it is searched the same way.
_UNSPACED = re.compile(
    "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3\U00020000-\U0003ffff]+"
)
_ASCII_WORD = re.compile("[0-9a-z]+")


def words(text: str, *, query: bool = False) -> list[str]:
    """The words of a text, compatibility forms and letter case levelled.

    A run of a script without spaces becomes its pairs of neighbouring letters; a document's also its single letters,
    so that a query of one letter finds something.
    """
    if text.isascii():  # a fifth of the time
        return _ASCII_WORD.findall(text.lower())
    level = unicodedata.normalize("NFKC", text).casefold()
    spaced = "".join(char if char.isalnum() or unicodedata.category(char)[0] == "M" else " " for char in level)
    found: list[str] = []
    for word in _UNSPACED.sub(lambda run: f" {run[0]} ", spaced).split():
        if not _UNSPACED.match(word):
            found.append(word)
            continue
        found += [word[at : at + 2] for at in range(len(word) - 1)]
        if len(word) == 1 or not query:
            found += word
    return found


class Index:
    """An inverted index that can be changed. Robertson's BM25 with the idf of Lucene, which is never negative."""

    k1 = 1.2
    b = 0.75

    def __init__(self) -> None:
        self._postings: dict[str, dict[str, int]] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._length = 0

    def put(self, id: str, text: str) -> None:
        """Adds a document; one of the same id is replaced."""
        self.drop(id)
        counts = Counter(words(text))
        self._counts[id] = counts
        self._length += counts.total()
        for word, count in counts.items():
            self._postings.setdefault(word, {})[id] = count

    def drop(self, id: str) -> None:
        counts = self._counts.pop(id, Counter())
        self._length -= counts.total()
        for word in counts:
            postings = self._postings[word]
            del postings[id]
            if not postings:
                del self._postings[word]

    def scores(self, query: str) -> dict[str, float]:
        """The score of every document that holds some word of the query, 0 being the least there can be."""
        scores: dict[str, float] = {}
        total = len(self._counts)
        for word in sorted(set(words(query, query=True))):  # sums of floats depend on their order; sets have none
            postings = self._postings.get(word, {})
            idf = math.log(1 + (total - len(postings) + 0.5) / (len(postings) + 0.5))
            for id, count in postings.items():
                length = self._counts[id].total() * total / self._length
                norm = self.k1 * (1 - self.b + self.b * length)
                scores[id] = scores.get(id, 0.0) + idf * count * (self.k1 + 1) / (count + norm)
        return scores
