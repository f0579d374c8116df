"""RRF over 5 rankings of 100 hits: ours against ``rcp.rrf_fuse``, in one run. Prints the ratio of medians.

    python benchmarks/fusion.py [rounds]

The two take turns, so that a busy machine slows both. Ours reads structs with encoded members, as they come off the
wire; theirs reads the dicts it wants. Neither time holds the decoding. ``rcp`` does not merge metadata, count an
engine's duplicates once, or choose a body by trust.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import rcp

from gateway.fusion import Ranking, Rrf, fuse
from gateway.model import Hit

ENGINES, DEPTH = 5, 100


def lists(pool: int, *, same_text: bool) -> dict[str, list[dict[str, Any]]]:
    """Engines draw from one pool: the smaller it is, the more they agree."""
    draw = random.Random(7)
    return {
        f"engine-{engine}": [
            {
                "id": f"doc-{number}",
                "score": 1 / (rank + 1),
                "text": f"passage {number} " + "word " * (60 if same_text else 55 + engine),
                "meta": {"lang": "en", "n": number},
            }
            for rank, number in enumerate(draw.sample(range(pool), DEPTH))
        ]
        for engine in range(ENGINES)
    }


def rankings(given: dict[str, list[dict[str, Any]]]) -> list[Ranking]:
    return [
        Ranking(
            engine=engine,
            order=order,
            hits=[
                Hit(
                    row["id"],
                    row["score"],
                    None,
                    {name: msgspec.Raw(msgspec.json.encode(row[name])) for name in ("text", "meta")},
                )
                for row in rows
            ],
        )
        for order, (engine, rows) in enumerate(given.items())
    ]


def medians(rounds: int, *functions: Callable[[], object]) -> list[float]:
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            own.append(time.perf_counter() - start)
    return [statistics.median(own) * 1e6 for own in times]


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print(f"{ENGINES} x {DEPTH} hits, medians of {rounds} rounds, µs")
    for pool, same_text in ((150, True), (250, True), (250, False), (500, True), (10_000, True)):
        given = lists(pool, same_text=same_text)
        ours = rankings(given)
        strategy = Rrf()
        documents = len(fuse(ours, strategy)[0])
        all_of_it, window, few, theirs = medians(
            rounds,
            lambda ours=ours, strategy=strategy: fuse(ours, strategy),
            lambda ours=ours, strategy=strategy: fuse(ours, strategy, limit=50),
            lambda ours=ours, strategy=strategy: fuse(ours, strategy, limit=10),
            lambda given=given: rcp.rrf_fuse(given),
        )
        print(
            f"{documents:4} documents, texts {'equal' if same_text else 'differ'}: rcp {theirs:6.0f}"
            f"   fuse {all_of_it:6.0f} = {all_of_it / theirs:.2f}"
            f"   fuse(limit=50) {window:6.0f} = {window / theirs:.2f}"
            f"   fuse(limit=10) {few:6.0f} = {few / theirs:.2f}"
        )


if __name__ == "__main__":
    main()
