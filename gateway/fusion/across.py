"""Between corpora that share no document, ranks say nothing: every list begins with a first place, however poor.

What engines of different corpora returned is therefore scored again, together. The fusion method's own score stays in,
with the smaller share: it knows what the passages do not show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from gateway.fusion.bm25 import words
from gateway.fusion.ranking import Fused, twelve_digits
from gateway.model import text_of_hit

__all__ = ["MIX", "passage_of", "relevance", "rescored", "rescored_by"]

MIX = 0.7
"""The share of the passages' own score; measured, see docs/federation.md."""

_K1, _B = 1.2, 0.75
_BEYOND = 10
"""How much larger than the passages returned the corpora are taken to be. All that came back was chosen for the words
of the query, so among them these words are common, and counting them there alone would turn the weights round."""
_LETTERS = 4_096
_ALL_LETTERS = 2_000_000
_FEW_LETTERS = 256
# What Lucene leaves out of English.
# fmt: off
_STOP = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})
# fmt: on


def rescored(query: str, fused: Sequence[Fused], *, mix: float = MIX) -> list[Fused]:
    """The same documents by mix · b / max b + (1 − mix) · f / max f, where f is the fused score, b that of the passage.

    b is :func:`relevance` within these passages, 0 without text. Order as in fusion: score, summed weight, id. The
    whole window must be given, not its first k: maxima and frequencies are those of all that was returned.
    """
    passages = [passage_of(one) for one in fused]
    return _mixed(_to_one(relevance(query, passages)), fused, mix)


def rescored_by(scores: Sequence[float | None], fused: Sequence[Fused], *, mix: float = MIX) -> list[Fused]:
    """The same with a reranker's scores, aligned with ``fused``, on any scale: min-max'd, 1 each if all are equal.

    One that is missing or not finite counts 0. Raises ``ValueError`` if there is not one entry per document.
    """
    if len(scores) != len(fused):
        raise ValueError(f"{len(scores)} scores for {len(fused)} documents")
    return _mixed(_stretched(scores), fused, mix)


def passage_of(fused: Fused) -> str | None:
    """The text that the document will be shown with, ``None`` if it has none."""
    return text_of_hit(fused.copies[fused.body].hit) or None


def relevance(query: str, passages: Sequence[str | None]) -> list[float]:
    """BM25 of every passage, 0 or more; 0 for ``None``. English stop words and plurals are levelled.

    The beginning of a passage is read, 4,096 letters and of very many passages fewer, which bounds the time to some
    tenths of a second.
    """
    wanted = _wanted(query)
    limit = min(_LETTERS, max(_FEW_LETTERS, _ALL_LETTERS // max(1, len(passages))))
    level: dict[str, str] = {}
    lengths: list[int] = []
    counts: list[Counter[str]] = []
    for passage in passages:
        found = words(passage[:limit]) if passage else []
        lengths.append(len(found))
        counts.append(_counted(found, wanted, level))
    there = sum(map(bool, lengths))
    mean = sum(lengths) / there if there else 1.0
    scores = [0.0] * len(passages)
    for word in wanted:
        holding = sum(word in count for count in counts)
        idf = math.log(1 + (_BEYOND * there - holding + 0.5) / (holding + 0.5))
        for place, count in enumerate(counts):
            if often := count.get(word):
                norm = _K1 * (1 - _B + _B * lengths[place] / mean)
                scores[place] += idf * often * (_K1 + 1) / (often + norm)
    return scores


def _wanted(query: str) -> list[str]:
    """The distinct words of the query, sorted, since sums of floats depend on their order."""
    found = set(words(query, query=True))
    return sorted({_singular(word) for word in found - _STOP or found})


def _counted(found: Sequence[str], wanted: Sequence[str], level: dict[str, str]) -> Counter[str]:
    """How often each wanted word occurs. ``level`` remembers what words were levelled to."""
    known = frozenset(wanted)
    counts: Counter[str] = Counter()
    for word, often in Counter(found).items():
        one = level.get(word)
        if one is None:
            one = level[word] = _singular(word)
        if one in known:
            counts[one] += often
    return counts


def _singular(word: str) -> str:
    """Without an English plural ending (Harman 1991, the S stemmer); words of other scripts stay as they are."""
    if len(word) < 4 or word[-1] != "s" or not word.isascii():
        return word
    if word.endswith("ies"):
        return word if word[-4] in "ae" else word[:-3] + "y"
    if word.endswith("es"):
        return word if word[-3] in "aeo" else word[:-1]
    return word if word[-2] in "us" else word[:-1]


def _mixed(shares: Sequence[float], fused: Sequence[Fused], mix: float) -> list[Fused]:
    again = [
        msgspec.structs.replace(one, score=twelve_digits(mix * share + (1 - mix) * rank) + 0.0)  # never −0.0
        for one, share, rank in zip(fused, shares, _to_one([one.score for one in fused]), strict=True)
    ]
    again.sort(key=lambda one: (-one.score, -one.weight, one.id))
    return again


def _to_one(values: Sequence[float]) -> list[float]:
    """Divided by the largest; 0 each if that is 0. Below 0, where only a plugin's method goes, by min-max."""
    high = max(values, default=0.0)
    if high > 0:
        return [value / high for value in values]
    return _stretched(values) if any(values) else [0.0] * len(values)


def _stretched(values: Sequence[float | None]) -> list[float]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high / 2 - low / 2  # halved, since the span of two finite numbers may not be finite
    return [
        0.0 if value is None or not math.isfinite(value) else 1.0 if span == 0 else (value / 2 - low / 2) / span
        for value in values
    ]
