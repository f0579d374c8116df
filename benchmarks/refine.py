"""Refining 50 fused hits: each stage alone, and all of them.

The passages are of 80 words, drawn so that some words are common and most are rare. The reranker answers at once, so
that its time is not counted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from benchmarks.codec import medians
from benchmarks.table import show
from gateway.fusion import Fused, Ranking, Rrf, fuse
from gateway.model import hit
from gateway.refine.line import Refined, Refinements, refine
from gateway.refine.recency import Recency
from gateway.refine.rerank import Rerank

WINDOW, WORDS, VOCABULARY = 50, 80, 3000
RERANK = Rerank(top_n=WINDOW)
RECENCY = Recency(field="date", half_life_days=30)
STAGES = {
    "rerank": Refinements(rerank=RERANK),
    "recency": Refinements(recency=RECENCY),
    "two of a document": Refinements(per_document=2),
    "mmr by text": Refinements(mmr=0.5),
    "all of them": Refinements(rerank=RERANK, recency=RECENCY, per_document=2, mmr=0.5),
}


def window() -> list[Fused]:
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(VOCABULARY)]

    def passage() -> str:
        return " ".join(words[min(int(draw.paretovariate(0.6)), VOCABULARY - 1)] for _ in range(WORDS))

    hits = [
        hit(
            f"doc-{n}#{n % 2}", 1 / (n + 1), text=passage(), meta={"date": f"2024-01-{n % 28 + 1:02}T00:00:00Z", "n": n}
        )
        for n in range(WINDOW)
    ]
    return fuse([Ranking(engine="a", hits=hits)], Rrf())[0]


def main(quick: bool = False) -> None:
    fused = window()

    async def score(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        return [float(len(passage)) for passage in passages]

    def once(wanted: Refinements) -> Refined:
        work = refine(fused, wanted, query="q", scale="rrf", score=score, now=1.75e9)
        try:
            work.send(None)  # without a loop: nothing in it waits
        except StopIteration as done:
            result: Refined = done.value
            return result
        raise AssertionError("a stage waited")

    assert asyncio.run(refine(fused, STAGES["mmr by text"], query="q", scale="rrf", now=1.75e9)) == once(
        STAGES["mmr by text"]
    )
    times = medians(20 if quick else 100, *(lambda wanted=wanted: once(wanted) for wanted in STAGES.values()))
    show(
        f"Refine {WINDOW} hits of {WORDS} words",
        ("stage", "µs"),
        [(name, f"{time:.0f}") for name, time in zip(STAGES, times, strict=True)],
    )


if __name__ == "__main__":
    main()
