"""How fast gateway_sqlite is on top of SQLite itself, and how well it finds.

    python benchmarks/sqlite_engine.py [folder with shared/data]

Speed: 20,000 synthetic documents of 60 words (Zipf over 5,000 words), queries of 4 words, 50 hits. ``sqlite`` is the
bare ranking statement, ``store`` adds metadata, texts, the order of ties and the filter, ``engine`` a thread and hits.
Quality: NPL (nDCG@10) and XQuAD (MRR of the paragraph a question belongs to) where the data is there.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from gateway.federation.context import HostContext  # noqa: E402
from gateway.filters import FieldType, parse  # noqa: E402
from gateway.spi.call import Call  # noqa: E402
from gateway.spi.engine import EngineQuery  # noqa: E402
from gateway.spi.http import HttpSettings  # noqa: E402
from gateway_sqlite.engine import SqliteEngine, SqliteKind  # noqa: E402
from gateway_sqlite.store import Row, Store  # noqa: E402
from gateway_sqlite.text import match_expression, terms  # noqa: E402

CALL = cast(Call, SimpleNamespace())
RANKING = "SELECT rowid, rank FROM words WHERE words MATCH ? ORDER BY rank LIMIT 50"


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1000


def shown(name: str, samples: list[float]) -> None:
    print(f"  {name:<34} p50 {statistics.median(samples):7.2f} ms   max {max(samples):7.2f} ms")


async def speed(path: Path | None) -> None:
    chance = random.Random(1)
    vocabulary = [f"w{n}x" for n in range(5000)]
    weights = [1 / (n + 1) for n in range(5000)]
    rows = [
        Row(f"d{n}", " ".join(chance.choices(vocabulary, weights, k=60)), f'{{"year": {1990 + n % 30}}}')
        for n in range(20_000)
    ]
    store = Store(path)
    print(f"{'file' if path else 'memory'}: 20,000 documents stored in", end=" ")
    print(f"{sum(timed(lambda at=at: store.put(rows[at : at + 1000])) for at in range(0, 20_000, 1000)):.0f} ms")
    config = SqliteKind.config(path=str(path or ":memory:"), fields={"year": FieldType.INT})
    context = HostContext("bench", ROOT, http=HttpSettings())
    engine = SqliteEngine(config, store, context)
    year = parse({"field": "year", "op": "eq", "value": 1999}, {"year": FieldType.INT})
    kinds = {
        "rare words": [" ".join(chance.choices(vocabulary[50:], k=4)) for _ in range(200)],
        "common words": [" ".join(chance.choices(vocabulary, weights, k=4)) for _ in range(30)],
    }
    for kind, queries in kinds.items():
        bare, stored, whole, filtered = [], [], [], []
        for query in queries:
            expression = match_expression(terms(query), "any")
            with store._reading() as connection:
                bare.append(timed(lambda c=connection, e=expression: c.execute(RANKING, (e,)).fetchall()))
            stored.append(timed(lambda e=expression: store.search(e, 50)))
            for samples, filter in ((whole, None), (filtered, year)):
                start = time.perf_counter()
                await engine.retrieve(EngineQuery(text=query, k=50, filter=filter), CALL)
                samples.append((time.perf_counter() - start) * 1000)
        print(f" {kind}")
        for name, samples in (
            ("sqlite", bare),
            ("store", stored),
            ("engine", whole),
            ("engine, filter for 1 in 30", filtered),
        ):
            shown(name, samples)
    start = time.perf_counter()
    await asyncio.gather(*(engine.retrieve(EngineQuery(text=query, k=50), CALL) for query in kinds["rare words"]))
    print(f" 200 at once: {200 / (time.perf_counter() - start):.0f} queries a second")
    store.close()


def ranked(store: Store, query: str, k: int) -> list[str]:
    found = terms(query)
    return [row.id for row in store.search(match_expression(found, "any"), k)[0]] if found else []


def npl(data: Path, stem: bool) -> float:
    def parts(name: str) -> list[tuple[str, str]]:
        text = (data / name).read_text("utf-8", "replace")
        found = re.findall(
            r"<(?:DOCNO|NUM)>\s*(?:Number:)?\s*(\d+)\s*</?\w+>(.*?)(?=</DOC>|</TOP>|\Z)",
            text,
            re.DOTALL | re.IGNORECASE,
        )
        return [(number, re.sub(r"<[^>]+>|Description:", " ", body)) for number, body in found]

    store = Store(None, stem=stem)
    store.put([Row(number, body, "{}") for number, body in parts("doc-text.trec")])
    relevant: dict[str, set[str]] = {}
    for line in (data / "qrels").read_text().splitlines():
        query, _, document, grade = line.split()
        if int(grade) > 0:
            relevant.setdefault(query, set()).add(document)
    scores = []
    for number, body in parts("query-text.trec"):
        wanted = relevant.get(number, set())
        gained = sum(1 / math.log2(n + 2) for n, id in enumerate(ranked(store, body, 10)) if id in wanted)
        ideal = sum(1 / math.log2(n + 2) for n in range(min(10, len(wanted))))
        scores.append(gained / ideal if ideal else 0.0)
    store.close()
    return statistics.mean(scores)


def xquad(data: Path, stem: bool) -> float:
    paragraphs = [p for article in json.loads(data.read_text("utf-8"))["data"] for p in article["paragraphs"]]
    store = Store(None, stem=stem)
    store.put([Row(str(n), paragraph["context"], "{}") for n, paragraph in enumerate(paragraphs)])
    reciprocal = []
    for n, paragraph in enumerate(paragraphs):
        for question in paragraph["qas"]:
            found = ranked(store, question["question"], 10)
            reciprocal.append(1 / (found.index(str(n)) + 1) if str(n) in found else 0.0)
    store.close()
    return statistics.mean(reciprocal)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path in (None, Path(folder, "bench.db")):
            asyncio.run(speed(path))
    data = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT.parent / "shared") / "data"
    if not data.is_dir():
        print(f"no quality figures: {data} is not there")
        return
    for stem in (True, False):
        print(f"stem: {stem}  NPL nDCG@10 {npl(data / 'npl', stem):.3f}", end="")
        for language in ("en", "de", "zh", "ar", "hi"):
            print(f"  {language} {xquad(data / 'xquad' / f'xquad.{language}.json', stem):.3f}", end="")
        print()


if __name__ == "__main__":
    main()
