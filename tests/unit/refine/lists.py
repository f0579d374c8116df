"""Fused lists as fusion hands them over, and what may be asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.fusion import Copy, Fused
from gateway.model import Hit, hit
from gateway.refine.candidate import Candidate, text
from gateway.refine.line import Refined, Refinements, refine
from gateway.refine.pack import Fit, fit
from gateway.refine.recency import Recency
from gateway.refine.rerank import Rerank
from gateway.refine.tokens import Estimate

__all__ = [
    "DAY",
    "LISTS",
    "NOW",
    "WANTED",
    "answering",
    "document",
    "documents",
    "ids",
    "page",
    "refined",
]

NOW = 1_750_000_000.0
DAY = 86_400.0

Score = Callable[[str, Sequence[str]], Awaitable[Sequence[float | None]]]


def document(one: Hit, score: float, rank: int = 1) -> Fused:
    copy = Copy(engine="a", rank=rank, hit=one, weight=1.0, order=0, trust="community")
    return Fused(id=one.id, score=score, weight=1.0, copies=(copy,))


def documents(*hits: Hit) -> list[Fused]:
    """Their fused scores are 1, 1/2, 1/3 and so on."""
    return [document(one, 1 / rank, rank) for rank, one in enumerate(hits, 1)]


def ids(found: Sequence[Candidate]) -> list[str]:
    return [one.fused.id for one in found]


def page(found: Sequence[Candidate], k: int, budget: int | None) -> tuple[list[Candidate], Fit]:
    """The hits that fit, their texts measured by the estimate."""
    fits = fit([Estimate().count(text(one)) for one in found], k, budget)
    return [found[place] for place in fits.places], fits


def answering(*scores: Any) -> Score:
    """A reranker that gives these scores, whatever it is asked."""

    async def score(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        return scores

    return score


def refined(fused: Sequence[Fused], wanted: Refinements, **given: Any) -> Refined:
    """Refined by a reranker to which the longer passage is the better one, unless another is given."""

    async def longest(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        return [float(len(passage)) for passage in passages]

    return asyncio.run(refine(fused, wanted, **{"query": "q", "scale": "rrf", "now": NOW, "score": longest} | given))


_WORDS = st.lists(st.sampled_from(["red", "green", "blue", "été", "東京", "1"]), max_size=4).map(" ".join)
_DATES: st.SearchStrategy[Any] = st.sampled_from(
    ["2024-01-01", "2025-06-15T12:00:00+02:00", "soon", 1_700_000_000_000, 9.9e300, 10**400, None, True, ["2020-01-01"]]
)
_VECTORS = st.lists(st.floats(-2, 2), min_size=2, max_size=2)


@st.composite
def _lists(draw: st.DrawFn) -> list[Fused]:
    names = draw(st.lists(st.sampled_from([f"d{n}#{m}" for n in range(4) for m in range(4)]), unique=True, max_size=12))
    scores = sorted((draw(st.floats(0.001, 3)) for _ in names), reverse=True)
    return [
        document(
            hit(
                name,
                draw(st.floats(0, 1)),
                text=draw(_WORDS | st.none()),
                meta={"date": draw(_DATES)},
                vector=draw(_VECTORS),
                chunk=draw(st.sampled_from([None, {"docId": "d1"}, {"index": 3}])),
            ),
            score,
            rank,
        )
        for rank, (name, score) in enumerate(zip(names, scores, strict=True), 1)
    ]


LISTS = _lists()
WANTED = st.builds(
    Refinements,
    rerank=st.none() | st.builds(Rerank, top_n=st.integers(1, 14), logit=st.booleans()),
    recency=st.none() | st.builds(Recency, field=st.just("date"), half_life_days=st.floats(0.1, 1000)),
    min_score=st.none() | st.floats(-1, 3),
    per_document=st.none() | st.integers(1, 3),
    mmr=st.none() | st.floats(0, 1),
)
