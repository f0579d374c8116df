"""The laws of retrieve under all of its options at once, over engines that offer anything and answer anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable
from gateway.model import Hit
from gateway.refine.tokens import Estimate
from gateway.spi import Call, EmbedReply, EngineQuery, EngineReply, TransformReply, VectorNeed
from tests.engines import Running, Script, gateway_of
from tests.federation.test_laws import FILTERS, IDS, JSON, LANGS, ODD_HITS, YEARS, answered, plain, satisfied
from tests.obligations import obligation

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

WORDS = st.lists(st.sampled_from(["q", "whale", "sea", "of", "ship"]), max_size=6).map(" ".join)
DATES = st.sampled_from(["2024-01-01", "2026-11-01T00:00:00Z", "2999-01-01", "nonsense", "-9999-01-01", 1.7e9, -1e300])
VECTORS = st.lists(st.sampled_from([0.0, 1.0, -0.5]), min_size=2, max_size=2)
META = st.fixed_dictionaries({"lang": LANGS, "year": YEARS}, optional={"date": DATES})
MEMBERS = st.fixed_dictionaries(
    {"meta": META},
    optional={
        "text": WORDS,
        "vector": VECTORS,
        "chunk": st.fixed_dictionaries({"docId": st.sampled_from(["A", "B"])}),
        "citation": st.fixed_dictionaries({"uri": st.sampled_from(["http://x/a", "https://x/a/", "http://x/b"])}),
    },
)
HITS = st.lists(st.builds(Hit, IDS, st.floats(0, 1), st.none() | st.floats(0, 1), MEMBERS), max_size=12)

# What strangers give where a number, a text, a list or a vector is expected.
ODD: st.SearchStrategy[Any] = JSON | st.sampled_from(
    [float("nan"), float("-inf"), 10**400, "5", "", b"x", object, ["x" * 9], "x" * 100_000]
)


@dataclass(frozen=True)
class Maker:
    """An engine's offer, and what it answers, the same however often it is asked."""

    hits: Sequence[Hit] = ()
    retrieve: Mapping[str, Any] | None = None
    more: Mapping[str, Any] | None = None
    scores: Sequence[Any] | None = None
    queries: Any = ("a ship", "the sea")
    hypothetical: Any = "a whale of a passage"
    vectors: Any = None
    needs: bool = False
    fails: Sequence[str] = ()
    hangs: Sequence[str] = ()
    version: Any = None
    rewritten: Any = None
    complete: bool = True

    def script(self) -> Script:
        async def fate(method: str) -> None:
            if method in self.hangs:
                await asyncio.Event().wait()
            if method in self.fails:
                raise BackendUnavailable("down")

        async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
            await fate("retrieve")
            return EngineReply(
                hits=list(self.hits)[: query.k],
                exhausted=len(self.hits) <= query.k,
                index_version=self.version,
                rewritten_query=self.rewritten,
            )

        async def rerank(query: Any, call: Call) -> Any:
            await fate("rerank")
            return self.scores if self.scores is not None else [float(len(one) % 4) for one in query.passages]

        async def transform(query: Any, call: Call) -> TransformReply:
            await fate("transform")
            return TransformReply(queries=self.queries, hypothetical=self.hypothetical)

        async def embed(query: Any, call: Call) -> EmbedReply:
            await fate("embed")
            found = [(float(len(text)), 1.0) for text in query.inputs] if self.vectors is None else self.vectors
            return EmbedReply(vectors=found)

        return Script(
            retrieve=retrieve,
            rerank=rerank,
            transform=transform,
            embed=embed,
            need=VectorNeed("e0", 2) if self.needs else None,
            capabilities={"retrieve": {"maxK": 100, **(self.retrieve or {})}, "filter": _FILTER, **(self.more or {})},
            meta_complete=self.complete,
        )


_FILTER = {"fields": {"lang": "keyword", "year": "int"}, "operators": ["eq", "ne", "gt", "lte"]}
RETRIEVES = st.fixed_dictionaries(
    {},
    optional={
        "modes": st.sampled_from([["dense"], ["sparse"], ["dense", "sparse"], ["dense", "sparse", "hybrid"]]),
        "rerankBuiltin": st.booleans(),
        "mmr": st.booleans(),
        "confidence": st.booleans(),
        "deterministic": st.booleans(),
        "snapshots": st.booleans(),
        "scoreFloor": st.just(0.0),
        "rewrite": st.just(["hyde"]),
        "units": st.just(["chunk", "page"]),
        "levels": st.just(2),
        "fusion": st.just(["rrf"]),
    },
)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "rerank": st.sampled_from([{"methods": ["cross-encoder"]}, {"maxCandidates": 2}, {"models": ["m"]}]),
        "transform": st.just({"methods": ["multi-query", "decompose", "hyde", "rewrite"]}),
        "embed": st.just({"dimension": 2, "identity": "length"}),
    },
)
GOOD = st.builds(
    Maker, HITS, RETRIEVES, MORE, needs=st.booleans(), complete=st.booleans(), version=st.sampled_from([None, "v1"])
)
FATES = st.just(()) | st.lists(st.sampled_from(["retrieve", "rerank", "transform", "embed"]), max_size=2)
HOSTILE = st.builds(
    Maker,
    HITS | ODD_HITS,
    RETRIEVES,
    MORE,
    scores=st.none() | st.lists(ODD, max_size=30) | ODD,
    queries=st.lists(ODD, max_size=9) | ODD | st.just(("a",) * 100_000),
    hypothetical=ODD,
    vectors=st.none() | st.lists(st.lists(ODD, max_size=3), max_size=3) | ODD,
    needs=st.sampled_from([False, False, True]),
    fails=FATES,
    hangs=st.sampled_from([(), (), ("retrieve",), ("rerank",), ("transform",), ("embed",)]),
    version=ODD,
    rewritten=ODD,
    complete=st.booleans(),
)

RERANKS = st.fixed_dictionaries(
    {}, optional={"topN": st.integers(1, 60), "method": st.sampled_from(["bm25", "cross-encoder"])}
)
REFINEMENTS = {
    "fusion": st.fixed_dictionaries({"method": st.sampled_from(["rrf", "weighted", "convex", "confidence"])}),
    "rerank": RERANKS | st.just(False),
    "mmr": st.fixed_dictionaries({}, optional={"lambda": st.sampled_from([0, 0.3, 0.7, 1])}),
    "recency": st.fixed_dictionaries({"field": st.just("date"), "halfLifeDays": st.sampled_from([1e-300, 30])}),
    "rewrite": st.sampled_from(["multi-query", "decompose", "hyde", "rewrite", False]),
    "filter": FILTERS,
    "minScore": st.sampled_from([-1e308, 0, 0.01, 0.5]),
    "mode": st.sampled_from(["dense", "sparse", "hybrid"]),
    "unit": st.just("page"),
    "level": st.integers(0, 3),
    "includeText": st.booleans(),
    "includeVectors": st.booleans(),
    "encoding": st.sampled_from(["json", "f32-base64"]),
    "seed": st.integers(-5, 5),
}
PER_DOCUMENT = st.none() | st.integers(1, 2)
WALKS = st.fixed_dictionaries({"candidateK": st.integers(20, 40)}, optional=REFINEMENTS)
ASKED = st.fixed_dictionaries(
    {},
    optional={
        **REFINEMENTS,
        "k": st.integers(1, 12),
        "candidateK": st.integers(1, 30),
        "tokenBudget": st.integers(1, 12),
        "sessionId": st.sampled_from(["s", "t", "", "\u2028"]),
    },
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "fusion": st.fixed_dictionaries(
            {},
            optional={
                "across": st.sampled_from(["rrf", "rescore"]),
                "identity": st.sampled_from(["id", "uri", "content", "id+content"]),
            },
        )
    },
)
SETTINGS = st.fixed_dictionaries(
    {}, optional={"weight": st.sampled_from([0.5, 3.0]), "trust": st.sampled_from(["trusted", "untrusted"])}
)


def scripts_of(makers: Sequence[Maker]) -> dict[str, Script]:
    """The first engine embeds for all that need it."""
    first = replace(makers[0], more={**(makers[0].more or {}), "embed": {"dimension": 2, "identity": "length"}})
    return {f"e{n}": one.script() for n, one in enumerate([first, *makers[1:]])}


def engines_of(each: Sequence[Mapping[str, Any]], corpora: bool) -> dict[str, dict[str, Any]]:
    own = {"retry": {"attempts": 1}}
    return {f"e{n}": {**own, **one, **({"corpus": f"c{n % 2}"} if corpora else {})} for n, one in enumerate(each)}


def lawful(params: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """What holds of every answer."""
    hits = result["hits"]
    ids, scores = [one["id"] for one in hits], [one["score"] for one in hits]
    assert len(set(ids)) == len(ids)
    assert scores == sorted(scores, reverse=True)
    k = params.get("k") or (100 if "tokenBudget" in params else 10)
    assert len(ids) <= k
    if "filter" in params:
        assert all(satisfied(params["filter"], one["meta"]) for one in hits)
    if "tokenBudget" in params:
        assert result["usage"]["tokens"] <= params["tokenBudget"]


async def walked(gateway: Running, k: int, params: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[int]]:
    """All pages' hits, and how many each had."""
    hits: list[dict[str, Any]] = []
    lengths: list[int] = []
    cursor: dict[str, Any] = {}
    while len(lengths) < 60:
        answer = await answered(gateway, {**params, "k": k, **cursor})
        assert "result" in answer, answer
        lawful({**params, "k": k}, answer["result"])
        hits += answer["result"]["hits"]
        lengths.append(len(answer["result"]["hits"]))
        if "nextCursor" not in answer["result"]:
            return hits, lengths
        cursor = {"cursor": answer["result"]["nextCursor"]}
    raise AssertionError("the walk does not end")


@contextmanager
def one_moment() -> Iterator[None]:
    """Recency counts from the same moment for every request in here."""
    frozen = SimpleNamespace(time=lambda: 1.79e9, perf_counter=time.perf_counter)
    with patch("gateway.service.retrieval.time", frozen):
        yield


def asked_of(scripts: Mapping[str, Script]) -> list[int]:
    return [len(script.queries) for script in scripts.values()]


@obligation(187, 2)
@quick
@given(
    st.lists(HOSTILE, min_size=1, max_size=3),
    st.lists(ASKED, min_size=1, max_size=3),
    st.lists(SETTINGS, min_size=3, max_size=3),
    CONFIGS,
    st.booleans(),
    PER_DOCUMENT,
)
def test_whatever_engines_answer_no_fault_is_the_gateways(
    makers: list[Maker], asked: list[dict[str, Any]], each: list[Any], config: Any, corpora: bool, most: int | None
) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        scripts = scripts_of(makers)
        async with gateway_of(scripts, engines=engines_of(each, corpora), **config) as gateway:
            inside = asyncio.all_tasks()
            for params in asked:
                meta = {"deadlineMs": 80, **({"x-gateway": {"perDocument": most}} if most else {})}
                answer = await answered(gateway, {**plain(params), "strict": False, "_meta": meta})
                for _ in range(3):
                    await asyncio.sleep(0)  # an embedding that nobody waits for any more ends a step later
                assert asyncio.all_tasks() == inside
                if "error" in answer:
                    code, data = answer["error"]["code"], answer["error"].get("data", {})
                    assert code in (-32602, -32005, -32010, -32014, -32603)
                    # A fault of ours has no engine to name.
                    assert code != -32603 or "engine" in data, answer
                    event(f"error {code}")
                else:
                    event("answered")
                    lawful({name: value for name, value in params.items() if name != "filter"}, answer["result"])
        assert asyncio.all_tasks() == before

    asyncio.run(run())


@obligation(156, 260)
@quick
@given(
    st.lists(GOOD, min_size=1, max_size=3),
    st.integers(1, 7),
    WALKS,
    st.lists(SETTINGS, min_size=3, max_size=3),
    CONFIGS,
    st.booleans(),
    PER_DOCUMENT,
)
def test_a_walk_under_any_options_equals_one_request_and_asks_nobody_twice(
    makers: list[Maker], k: int, params: dict[str, Any], each: list[Any], config: Any, corpora: bool, most: int | None
) -> None:
    async def run() -> None:
        scripts = scripts_of(makers)
        asked: dict[str, Any] = {**params, "strict": False}
        if most:
            asked["_meta"] = {"x-gateway": {"perDocument": most}}
        if isinstance(params.get("rerank"), dict):
            asked["rerank"] = {**params["rerank"], "topN": max(k, min(params["rerank"].get("topN", 9), 20))}
        async with gateway_of(scripts, engines=engines_of(each, corpora), **config) as gateway:
            first = await answered(gateway, {**asked, "k": k})
            if "error" in first:
                event(f"error {first['error']['code']}")
                return
            once = asked_of(scripts)
            hits, lengths = await walked(gateway, k, asked)
            assert [b - a for a, b in zip(once, asked_of(scripts), strict=True)] == once
            most_k = asked["rerank"]["topN"] if isinstance(asked.get("rerank"), dict) else params["candidateK"]
            whole = (await answered(gateway, {**asked, "k": most_k}))["result"]["hits"]
            assert all(length == k for length in lengths[:-1])
            event(f"pages {min(len(lengths), 4)}")
        assert hits[: len(whole)] == whole
        assert len(whole) == min(most_k, len(hits))

    with one_moment():
        asyncio.run(run())


@obligation(247)
@quick
@given(
    st.lists(GOOD, min_size=2, max_size=3),
    WALKS,
    st.lists(SETTINGS, min_size=3, max_size=3),
    CONFIGS,
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_under_any_options_the_order_of_arrival_is_in_no_byte(
    makers: list[Maker], params: dict[str, Any], each: list[Any], config: Any, corpora: bool, random: Any
) -> None:
    async def run(order: Sequence[int]) -> str:
        scripts = scripts_of(makers)
        for n, script in enumerate(scripts.values()):
            inner = script.retrieve
            assert inner is not None

            async def retrieve(query: EngineQuery, call: Call, n: int = n, inner: Any = inner) -> EngineReply:
                for _ in range(order.index(n) * 25):
                    await asyncio.sleep(0)
                found: EngineReply = await inner(query, call)
                return found

            script.retrieve = retrieve
        async with gateway_of(scripts, engines=engines_of(each, corpora), **config) as gateway:
            answer = await answered(gateway, {**params, "strict": False, "k": 9})
        result = answer.get("result", answer)
        result.pop("nextCursor", None)
        result.get("usage", {}).pop("latencyMs", None)
        event("answered" if "hits" in result else f"error {result['error']['code']}")
        return json.dumps(result)

    order = list(range(len(makers)))
    with one_moment():
        first = asyncio.run(run(order))
        random.shuffle(order)
        assert asyncio.run(run(order)) == first


@quick
@given(
    st.lists(GOOD, min_size=1, max_size=3),
    st.integers(1, 5),
    WALKS,
    st.lists(SETTINGS, min_size=3, max_size=3),
    CONFIGS,
    st.booleans(),
    PER_DOCUMENT,
)
def test_a_session_is_given_nothing_twice_and_the_same_question_repeats_its_answer(
    makers: list[Maker], k: int, params: dict[str, Any], each: list[Any], config: Any, corpora: bool, most: int | None
) -> None:
    params.pop("rerank", None)  # its funnel is another matter

    async def run() -> None:
        asked: dict[str, Any] = {**params, "strict": False, "k": k, "sessionId": "s"}
        if most:
            asked["_meta"] = {"x-gateway": {"perDocument": most}}
        async with gateway_of(scripts_of(makers), engines=engines_of(each, corpora), **config) as gateway:
            answers = [await answered(gateway, {**asked, "query": query}) for query in ("q", "p", "r", "q")]
        if any("error" in answer for answer in answers):
            return
        found = [answer["result"]["hits"] for answer in answers]
        given_ids = [one["id"] for hits in found[:3] for one in hits]
        assert len(set(given_ids)) == len(given_ids)
        event(f"{len(given_ids)} given")
        # What others have brought meanwhile is left out; of what it had itself nothing is missing. Stages that look at
        # all there is to choose from may choose otherwise once some of it is gone.
        if not {"recency", "mmr"} & params.keys() and most is None:
            assert [one["id"] for one in found[3]][: len(found[0])] == [one["id"] for one in found[0]]

    with one_moment():
        asyncio.run(run())


@quick
@given(
    st.lists(GOOD, min_size=1, max_size=3),
    st.integers(1, 9),
    st.none() | st.integers(1, 5),
    WALKS,
    st.lists(SETTINGS, min_size=3, max_size=3),
    CONFIGS,
    st.booleans(),
)
def test_pages_of_a_budget_bring_all_that_fits_into_it_at_all(
    makers: list[Maker],
    budget: int,
    k: int | None,
    params: dict[str, Any],
    each: list[Any],
    config: Any,
    corpora: bool,
) -> None:
    params.pop("rerank", None)

    async def run() -> None:
        asked: dict[str, Any] = {**params, "strict": False, "includeText": True}
        packed = {**asked, "tokenBudget": budget, **({"k": k} if k is not None else {})}
        async with gateway_of(scripts_of(makers), engines=engines_of(each, corpora), **config) as gateway:
            whole = await answered(gateway, {**asked, "k": params["candidateK"]})
            if "error" in whole:
                return
            hits: list[dict[str, Any]] = []
            cursor: dict[str, Any] = {}
            pages = 0
            while True:
                answer = await answered(gateway, {**packed, **cursor})
                lawful(packed, answer["result"])
                hits += answer["result"]["hits"]
                pages += 1
                if "nextCursor" not in answer["result"]:
                    break
                cursor = {"cursor": answer["result"]["nextCursor"]}
                assert answer["result"]["hits"], "a page that brings nothing, and more to come"
        event(f"pages {min(pages, 4)}")
        tokens = Estimate()
        assert hits == [one for one in whole["result"]["hits"] if tokens.count(one.get("text", "")) <= budget]

    with one_moment():
        asyncio.run(run())
