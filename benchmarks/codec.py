"""Decode, fuse and encode 8 answers of 100 hits into 10 hits: the gateway's way against all of it with orjson.

Ours does more: an upstream's values are checked one by one, the winners are sealed, given provenance and trust. The
orjson side is a plain rank fusion over dicts that keeps the richer copy and says where it came from.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from benchmarks.processes import ROOT
from benchmarks.table import show
from gateway import _json
from gateway.cli.serve import settle
from gateway.fusion import Ranking, Rrf, fuse
from gateway.model import RetrieveResult, Usage
from gateway.protocol.envelope import success
from gateway.protocol.peer import Answer, Peer
from gateway.refine.candidate import candidates
from gateway.refine.pack import sealed

sys.path.insert(0, str(ROOT / "plugins"))
from gateway_rcp import replies

ENGINES, DEPTH, K = 8, 100, 10
STRATEGY = Rrf()


def bodies() -> list[bytes]:
    """What eight engines answered; they agree on part of it."""
    draw = random.Random(7)
    answers = []
    for _ in range(ENGINES):
        found = [
            {
                "id": f"doc-{number}",
                "score": round(1 / (rank + 1), 6),
                "text": f"passage {number} " + "word " * 80,
                "meta": {"lang": "en", "n": number, "path": f"docs/{number}.md", "tags": ["a", "b"]},
            }
            for rank, number in enumerate(draw.sample(range(400), DEPTH))
        ]
        answers.append(orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"hits": found}}))
    return answers


def ours(answers: list[bytes]) -> bytes:
    rankings = []
    for order, body in enumerate(answers):
        peer = Peer()
        request = peer.request("retrieve", {})
        answer = peer.receive(body, only=request.id)
        assert isinstance(answer, Answer)
        rankings.append(Ranking(engine=f"e{order}", hits=replies.hits(answer, k=DEPTH).hits, order=order))
    fused, _ = fuse(rankings, STRATEGY, limit=K)
    result = RetrieveResult(
        hits=sealed(candidates(fused), include_text=True, include_vectors=False),
        usage=Usage(candidates=800, latency_ms=1.0),
    )
    return success(b"1", _json.encode(result))


def theirs(answers: list[bytes]) -> bytes:
    scores: dict[str, float] = {}
    best: dict[str, dict[str, Any]] = {}
    seen: dict[str, list[str]] = {}
    for order, body in enumerate(answers):
        engine = f"e{order}"
        for rank, hit in enumerate(orjson.loads(body)["result"]["hits"], 1):
            id = str(hit["id"])
            if id in scores:
                scores[id] += 1 / (60 + rank)
                seen[id].append(engine)
                if len(hit["text"]) > len(best[id]["text"]):
                    best[id] = hit
            else:
                scores[id], best[id], seen[id] = 1 / (60 + rank), hit, [engine]
    ids = sorted(scores, key=lambda id: (-scores[id], id))[:K]
    hits = [{**best[id], "score": scores[id], "meta": {**best[id]["meta"], "engines": seen[id]}} for id in ids]
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"hits": hits, "usage": {"candidates": 800}}})


def medians(rounds: int, *functions: Callable[[], object]) -> list[float]:
    """Microseconds of CPU each; they take turns, so that a busy machine slows all."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, own in zip(functions, times, strict=True):
            began = time.thread_time()
            function()
            own.append(time.thread_time() - began)
    return [statistics.median(own) * 1e6 for own in times]


def main(quick: bool = False) -> None:
    settle()
    answers = bodies()
    mine, plain = (orjson.loads(make(answers))["result"]["hits"] for make in (ours, theirs))
    assert [hit["id"] for hit in mine] == [hit["id"] for hit in plain], "they do not agree on the answer"
    own, other = medians(100 if quick else 500, lambda: ours(answers), lambda: theirs(answers))
    show(
        f"Decode, fuse, encode: {ENGINES} × {DEPTH} hits → {K}",
        ("", "µs", "× orjson"),
        [("rcp-gateway", f"{own:.0f}", f"{own / other:.2f}"), ("orjson", f"{other:.0f}", "1.00")],
    )


if __name__ == "__main__":
    main()
