"""RRF over 5 rankings of 100 hits: ours against ``rcp.rrf_fuse``, in one run.

The two take turns, so that a busy machine slows both. Ours reads structs with encoded members, as they come off the
wire; theirs reads the dicts it wants. Neither time holds the decoding. ``rcp`` does not merge metadata, count an
engine's duplicates once, or choose a body by trust.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import rcp

from benchmarks.codec import medians
from benchmarks.table import show
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


def main(quick: bool = False) -> None:
    rows = []
    for pool, same_text in ((150, True), (250, True), (250, False), (500, True), (10_000, True)):
        given = lists(pool, same_text=same_text)
        ours = rankings(given)
        strategy = Rrf()
        documents = len(fuse(ours, strategy)[0])
        whole, window, few, theirs = medians(
            200 if quick else 1000,
            lambda ours=ours, strategy=strategy: fuse(ours, strategy),
            lambda ours=ours, strategy=strategy: fuse(ours, strategy, limit=50),
            lambda ours=ours, strategy=strategy: fuse(ours, strategy, limit=10),
            lambda given=given: rcp.rrf_fuse(given),
        )
        ratios = [f"{own / theirs:.2f}" for own in (few, window, whole)]
        rows.append((f"{documents} documents, texts {'equal' if same_text else 'differ'}", f"{theirs:.0f}", *ratios))
    show(
        f"Rank fusion, {ENGINES} × {DEPTH} hits, time as a share of rcp.rrf_fuse's",
        ("", "rcp µs", "limit=10", "limit=50", "all"),
        rows,
    )


if __name__ == "__main__":
    main()
