"""Four engines over four disjoint quarters of a public collection, against one index over all of it.

Measured with ``python -m pytest tests/evaluate/test_disjoint_corpora.py -rP``; the figures are in docs/federation.md.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

from gateway.app import open_gateway
from gateway.config import load_text
from gateway.evaluate import ndcg, paired_p, read_documents, read_qrels, read_topics
from gateway.federation.runner import EngineCall
from gateway.model import Document
from gateway.plugins import load_plugins
from gateway.spi.call import Route
from gateway_memory import plugin as memory
from gateway_sqlite import plugin as sqlite
from tests.engines import Running

DEPTH = 100


def collection(name: str) -> Path | None:
    """A collection's folder, beside the checkout or where ``GATEWAY_SHARED`` says."""
    parents = Path(__file__).resolve().parents
    places = [os.environ.get("GATEWAY_SHARED"), *(parents[up].parent / "shared" for up in (2, 3) if up < len(parents))]
    found = [Path(place) / "data" / name for place in places if place]
    return next((folder for folder in found if folder.is_dir()), None)


NPL, XQUAD = collection("npl"), collection("xquad")
pytestmark = pytest.mark.timeout(600)  # minutes where many share the machine, seconds where not
needs_npl = pytest.mark.skipif(NPL is None, reason="no NPL collection: set GATEWAY_SHARED to the shared folder")


def in_turn(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[part::4] for part in range(4)]


def in_blocks(ids: Sequence[str]) -> list[Sequence[str]]:
    size = math.ceil(len(ids) / 4)
    return [ids[size * part : size * (part + 1)] for part in range(4)]


SPLITS = {"in turn": in_turn, "in blocks": in_blocks}


@asynccontextmanager
async def over(kind: str, documents: Mapping[str, str], parts: Sequence[Sequence[str]]) -> AsyncIterator[Running]:
    """A real gateway with one engine for each part, each a corpus of its own."""
    settings = {"path": ":memory:"} if kind == "sqlite" else {}
    ids = [f"q{number}" for number in range(1, len(parts) + 1)]
    engines = [{"id": id, "kind": kind, "corpus": id, "timeout": 60, "with": settings} for id in ids]
    config = load_text(json.dumps({"name": "npl", "engines": engines, "limits": {"deadline": 60}}), base_dir=Path.cwd())
    async with open_gateway(config, load_plugins([memory, sqlite], found=[])) as gateway:
        for member, part in zip(gateway.fleet.members.values(), parts, strict=True):
            assert member.engine is not None
            stored = [Document(id=id, text=documents[id]) for id in part]
            await member.engine.index_add(stored, EngineCall(Route()))
        yield Running(gateway, {})


class Collection:
    """NPL. ``measure`` gives nDCG@10 for every query, in order."""

    def __init__(self, folder: Path) -> None:
        self.documents = read_documents((folder / "doc-text.trec").read_text("utf-8"))
        self.topics = read_topics((folder / "query-text.trec").read_text("utf-8"))
        self.qrels = read_qrels((folder / "qrels").read_text("utf-8"))

    async def measure(self, running: Running, across: str = "rrf") -> list[float]:
        values = []
        for number, query in self.topics.items():
            meta = {"x-gateway": {"across": across}}
            result = await running.retrieve(query, k=10, candidateK=DEPTH, includeText=False, _meta=meta)
            value = ndcg([hit["id"].partition("/")[2] for hit in result["hits"]], self.qrels[number])
            assert value is not None
            values.append(value)
        return values


@dataclass(frozen=True)
class Measured:
    one: list[float]
    by_rank: dict[str, list[float]]
    rescored: dict[str, list[float]]


async def measured(kind: str) -> Measured:
    assert NPL is not None
    npl = Collection(NPL)
    async with over(kind, npl.documents, [list(npl.documents)]) as running:
        found = Measured(await npl.measure(running), {}, {})
    for name, split in SPLITS.items():
        async with over(kind, npl.documents, split(list(npl.documents))) as running:
            found.by_rank[name] = await npl.measure(running)
            found.rescored[name] = await npl.measure(running, "rescore")
    return found


@pytest.fixture(scope="module", params=["sqlite", pytest.param("memory", marks=pytest.mark.nightly)])
def npl_figures(request: pytest.FixtureRequest) -> tuple[str, Measured]:
    return request.param, asyncio.run(measured(request.param))


@needs_npl
@pytest.mark.parametrize("split", SPLITS)
def test_over_four_quarters_the_union_scored_again_beats_rank_fusion(
    npl_figures: tuple[str, Measured], split: str
) -> None:
    kind, figures = npl_figures
    by_rank, again, one = fmean(figures.by_rank[split]), fmean(figures.rescored[split]), fmean(figures.one)
    p = paired_p(figures.by_rank[split], figures.rescored[split])
    print(f"{kind}, {split}: rrf {by_rank:.4f}, rescore {again:.4f} (p {p:.4f}), one index {one:.4f}")
    assert len(figures.one) == 93
    assert again >= 0.365
    assert again > by_rank


def questions(language: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Paragraphs by number, and every sixth question with the number of the paragraph that answers it."""
    assert XQUAD is not None
    articles = json.loads((XQUAD / f"xquad.{language}.json").read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(one["question"], str(place)) for place, paragraph in enumerate(paragraphs) for one in paragraph["qas"]]
    return {str(place): paragraph["context"] for place, paragraph in enumerate(paragraphs)}, asked[::6]


async def reciprocal_ranks(language: str) -> dict[str, float]:
    """The mean of 1 / place of the one right paragraph among the first ten, four engines over four quarters."""
    documents, asked = questions(language)
    found: dict[str, list[float]] = {"rrf": [], "rescore": []}
    async with over("sqlite", documents, in_blocks(list(documents))) as running:
        for across, values in found.items():
            for question, right in asked:
                result = await running.retrieve(question, k=10, _meta={"x-gateway": {"across": across}})
                places = [hit["id"].partition("/")[2] for hit in result["hits"]]
                values.append(1 / (places.index(right) + 1) if right in places else 0.0)
    return {across: fmean(values) for across, values in found.items()}


@pytest.mark.nightly
@pytest.mark.skipif(XQUAD is None, reason="no XQuAD collection: set GATEWAY_SHARED to the shared folder")
@pytest.mark.parametrize("language", ["en", "de", "zh"])
def test_the_one_right_passage_is_found_first_whatever_the_language(language: str) -> None:
    figures = asyncio.run(reciprocal_ranks(language))
    print(f"XQuAD {language}: rrf {figures['rrf']:.3f}, rescore {figures['rescore']:.3f}")
    assert figures["rescore"] > 0.85
    assert figures["rescore"] > figures["rrf"] + 0.2
