"""Diversity: at most so many passages of one document, and none that says what another has said."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.fusion.texts import word_set
from gateway.model import member
from gateway.model.vectors import numbers_of
from gateway.refine.candidate import Candidate, body, text
from gateway.refine.recency import minmax

__all__ = ["diversified", "document_of", "greedy", "limited"]

Likeness = Callable[[int, Sequence[int]], list[float]]
"""How alike the document at one place is to those at others; at most 1."""


def limited(found: Sequence[Candidate], most: int) -> list[Candidate]:
    """The first ``most`` passages of every document, in the order they came."""
    counts: Counter[str] = Counter()
    kept: list[Candidate] = []
    for one in found:
        document = document_of(one)
        if counts[document] < most:
            counts[document] += 1
            kept.append(one)
    return kept


def document_of(candidate: Candidate) -> str:
    """What the passage is a part of: its ``chunk.docId``, else ``citation.uri``, else its id before ``#``, else its id.

    A ``docId`` is one of its corpus, as an id is.
    """
    hit, fused = body(candidate), candidate.fused
    document = _text_in(member(hit, "chunk"), "docId")
    if document is not None:
        own = "/" + hit.id
        corpora = (id[: 1 - len(own)] for id in (fused.id, *fused.ids) if id.endswith(own))
        return next(corpora, "") + document
    uri = _text_in(member(hit, "citation"), "uri")
    return uri if uri is not None else fused.id.partition("#")[0] or fused.id


def diversified(
    found: Sequence[Candidate],
    weight: float,
    *,
    vectors_comparable: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> list[Candidate]:
    """Maximal marginal relevance (Carbonell and Goldstein 1998): each next is the most relevant and the least alike.

    ``weight`` is the lambda: 1 keeps the order, 0 looks at likeness only. Relevance is the score between the least and
    the greatest. Likeness is the cosine of the vectors, if ``vectors_comparable`` (they are of one embedder) and every
    document has one; else the share of words that two texts have in common, for all. What is unscored has no
    relevance and stays behind. Costs some 0.5 µs for each pair of texts, and 4 ns more for each dimension of vectors:
    once ``over``, those that are left follow in their order.
    """
    scored = [one for one in found if one.score is not None]
    if weight >= 1 or len(scored) < 2:
        return list(found)
    relevance = minmax([one.score for one in scored if one.score is not None])
    likeness = (_by_vectors(scored) if vectors_comparable else None) or _by_words(scored)
    order = greedy(relevance, likeness, weight, over)
    return [*(scored[place] for place in order), *(one for one in found if one.score is None)]


def greedy(
    relevance: Sequence[float], likeness: Likeness, weight: float, over: Callable[[], bool] = lambda: False
) -> list[int]:
    """Places by weight · relevance − (1 − weight) · likeness to the most alike of all chosen before; ties in order."""
    left = list(range(len(relevance)))
    gains = [weight * one for one in relevance]
    nearest = [-math.inf] * len(left)
    penalty = 1 - weight
    order: list[int] = []
    values = list(gains)
    while left:
        if over():
            return [*order, *left]
        chosen = max(left, key=values.__getitem__)  # the first of several that are equal
        left.remove(chosen)
        order.append(chosen)
        for place, alike in zip(left, likeness(chosen, left), strict=True):
            if alike > nearest[place]:
                nearest[place] = alike
                values[place] = gains[place] - penalty * alike
    return order


def _by_words(found: Sequence[Candidate]) -> Likeness:
    """Jaccard's share of common words. A set of words is a number with a bit for each, so that a pair costs 0.2 µs."""
    bits: dict[str, int] = {}
    sets = [word_set(text(one)) for one in found]
    for words in sets:
        for word in words:
            bits.setdefault(word, len(bits))
    marks = [_mark(words, bits) for words in sets]
    sizes = [len(words) for words in sets]

    def likeness(chosen: int, others: Sequence[int]) -> list[float]:
        mark, size = marks[chosen], sizes[chosen]
        shared = [(mark & marks[place]).bit_count() for place in others]
        return [
            common / (size + sizes[place] - common) if common else 0.0
            for common, place in zip(shared, others, strict=True)
        ]

    return likeness


def _mark(words: set[str], bits: Mapping[str, int]) -> int:
    mark = bytearray(len(bits) // 8 + 1)
    for word in words:
        bit = bits[word]
        mark[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(mark, "little")


def _by_vectors(found: Sequence[Candidate]) -> Likeness | None:
    """The cosine, if every document has a vector of one length and not zero; else ``None``."""
    units: list[tuple[float, ...]] = []
    for one in found:
        numbers = numbers_of(member(body(one), "vector"))
        length = math.hypot(*numbers) if numbers else 0.0
        if not numbers or not 0 < length < math.inf or (units and len(units[0]) != len(numbers)):
            return None
        units.append(tuple(number / length for number in numbers))

    def likeness(chosen: int, others: Sequence[int]) -> list[float]:
        # Of vectors of length 1; their distance is counted in C, their product would not be.
        unit = units[chosen]
        return [1 - math.dist(unit, units[place]) ** 2 / 2 for place in others]

    return likeness


def _text_in(value: Any, name: str) -> str | None:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) and found.strip() else None
