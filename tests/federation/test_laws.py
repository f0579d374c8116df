"""The laws of retrieve, over engines and requests that nobody thought of."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable, RateLimited, Timeout, UpstreamError
from gateway.model import Hit
from gateway.spi import Call, EngineQuery, EngineReply
from tests.engines import Running, Script, gateway_of
from tests.obligations import obligation
from tests.schema import check_frame

quick = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])

# What engines return: few ids, so that they meet; few languages, so that filters cut.
IDS = st.sampled_from([f"d{n}" for n in range(8)])
ODD_IDS: st.SearchStrategy[Any] = IDS | st.sampled_from([7, 7.0, "7", "", None, True, "a\ud800", "a\ufffd", ["x"]])
LANGS = st.sampled_from(["en", "fr", "de"])
YEARS = st.integers(1990, 1993)
SCORES: st.SearchStrategy[Any] = st.floats(0, 1) | st.floats() | st.none() | st.integers() | st.just("0.5")
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
METAS: st.SearchStrategy[Any] = (
    st.fixed_dictionaries({"lang": LANGS, "year": YEARS})
    | st.fixed_dictionaries({}, optional={"lang": LANGS | JSON, "engine": JSON, "x": JSON})
    | JSON
)
MEMBERS = st.fixed_dictionaries({}, optional={"meta": METAS, "text": JSON | st.text(), "trust": JSON, "citation": JSON})
GOOD_MEMBERS = st.fixed_dictionaries(
    {"meta": st.fixed_dictionaries({"lang": LANGS, "year": YEARS}), "text": st.text(max_size=9)}
)
GOOD_HITS = st.lists(st.builds(Hit, IDS, st.floats(0, 1), st.floats(0, 1), GOOD_MEMBERS), max_size=10)
ODD_HITS: st.SearchStrategy[Any] = st.lists(st.builds(Hit, ODD_IDS, SCORES, SCORES, MEMBERS), max_size=8)

ERRORS: st.SearchStrategy[Exception] = st.sampled_from(
    [
        BackendUnavailable("down"),
        RateLimited("busy", retry_after_ms=9_000_000),
        Timeout("late"),
        UpstreamError("no", code=-32602, retryable=False),
        UpstreamError("odd\ud800\n", code=-32099, data={"n": float("nan")}),
        RuntimeError("a bug"),
        TimeoutError(),
    ]
)


@dataclass(frozen=True)
class Behaviour:
    """One engine: what it returns, and how it goes wrong, if it does."""

    hits: Sequence[Hit]
    modes: tuple[str, ...] = ()
    fields: bool = True
    complete: bool = True
    pushes: bool = False
    error: Exception | None = None
    hangs: bool = False
    cancels: bool = False
    too_many: bool = False
    most: int = 100
    exhausted: bool = False

    def script(self) -> Script:
        async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
            if self.hangs:
                await asyncio.Event().wait()
            if self.cancels:
                raise asyncio.CancelledError
            if self.error is not None:
                raise self.error
            found = list(self.hits) if self.too_many else list(self.hits)[: query.k]
            return EngineReply(hits=found, exhausted=self.exhausted, notes=("a\nnote",))

        capabilities: dict[str, Any] = {"retrieve": {"maxK": self.most, "modes": list(self.modes), "confidence": True}}
        if self.fields:
            capabilities["filter"] = {"fields": {"lang": "keyword", "year": "int"}, "operators": ["eq"]}
        return Script(retrieve=retrieve, capabilities=capabilities, meta_complete=self.complete)


MODES = st.sampled_from([(), ("dense",), ("sparse",), ("dense", "sparse", "hybrid")])
GOOD = st.builds(Behaviour, GOOD_HITS, modes=MODES)
ODD = st.builds(
    Behaviour,
    ODD_HITS | GOOD_HITS,
    modes=MODES,
    fields=st.booleans(),
    complete=st.booleans(),
    error=st.none() | ERRORS,
    hangs=st.sampled_from([False, False, False, True]),
    cancels=st.sampled_from([False, False, False, True]),
    too_many=st.booleans(),
    most=st.sampled_from([0, 1, 3, 100]),
    exhausted=st.booleans(),
)

LEAVES = st.one_of(
    st.fixed_dictionaries({"field": st.just("lang"), "op": st.sampled_from(["eq", "ne"]), "value": LANGS}),
    st.fixed_dictionaries({"field": st.just("year"), "op": st.sampled_from(["gt", "lte"]), "value": YEARS}),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=3,
)
METHODS = st.sampled_from(["rrf", "weighted", "convex", "confidence"])
FUSIONS = st.fixed_dictionaries({"method": METHODS})
REQUESTS = st.fixed_dictionaries({}, optional={"k": st.integers(1, 12), "filter": FILTERS, "fusion": FUSIONS})
WEIGHTS = st.dictionaries(st.sampled_from(["e0", "e1", "dense", "typo"]), st.floats(-1, 3), max_size=2)
ROUTES = st.fixed_dictionaries({"depth": st.integers(-2, 5), "path": st.lists(st.text(), max_size=2)})
ODD_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(-1, 12) | st.just(10**9) | JSON,
        "candidateK": st.integers(0, 30),
        "mode": st.sampled_from(["dense", "sparse", "hybrid", "bogus"]),
        "strict": st.booleans(),
        "filter": FILTERS | JSON | st.just({"field": "zzz", "op": "eq", "value": 1}),
        "minScore": st.floats(-1, 1),
        "fusion": st.fixed_dictionaries(
            {},
            optional={
                "method": METHODS | st.just("magic"),
                "weights": st.dictionaries(
                    st.sampled_from(["e0", "e1", "dense", "typo"]), st.floats(-1, 3), max_size=2
                ),
                "rrfK": st.integers(0, 100),
                "alpha": st.floats(0, 1),
            },
        ),
        "rerank": st.sampled_from([False, {"method": "llm"}]),
        "unit": st.just("page"),
        "level": st.integers(-1, 2),
        "tokenBudget": st.integers(-1, 5),
        "includeText": st.booleans(),
        "includeVectors": st.booleans(),
        "cursor": st.just("c"),
        "seed": st.integers(),
        "encoding": st.sampled_from(["json", "f16"]),
        "indexVersion": st.just("v"),
    },
)
ODD_META = st.fixed_dictionaries(
    {},
    optional={
        "federation": JSON
        | st.fixed_dictionaries({"depth": st.integers(-2, 5), "path": st.lists(st.text(), max_size=2)}),
        "x-gateway": JSON
        | st.fixed_dictionaries(
            {}, optional={"engines": st.lists(st.sampled_from(["e0", "e1", "zz"])), "select": st.just("priority")}
        ),
    },
)
SETTINGS = st.fixed_dictionaries(
    {}, optional={"weight": st.sampled_from([0.5, 1.0, 3.0]), "priority": st.integers(0, 2), "required": st.booleans(),
                  "undeclared": st.sampled_from(["skip", "check", "absent"]), "min_score": st.just(0.5),
                  "trust": st.sampled_from(["trusted", "untrusted"])}
)  # fmt: skip


def plain(value: Any) -> Any:
    """The value as a client can write it: JSON has no NaN."""
    return json.loads(json.dumps(value).replace("NaN", "1").replace("-Infinity", "1").replace("Infinity", "1"))


async def answered(gateway: Running, params: Mapping[str, Any]) -> dict[str, Any]:
    """The answer, held against the schema."""
    answer = await gateway.call("retrieve", {"query": "q", **params})
    return check_frame("retrieve", json.dumps(answer).encode(), id=1)


def satisfied(filter: Any, meta: Mapping[str, Any]) -> Any:
    """What a filter means on complete, plain metadata, told in other words than the gateway's."""
    if "not" in filter:
        return not satisfied(filter["not"], meta)
    if "and" in filter:
        return all(satisfied(part, meta) for part in filter["and"])
    if "or" in filter:
        return any(satisfied(part, meta) for part in filter["or"])
    value, wanted = meta[filter["field"]], filter["value"]
    return {"eq": value == wanted, "ne": value != wanted, "gt": value > wanted, "lte": value <= wanted}[filter["op"]]


@obligation(187, 188, 2)
@quick
@given(st.lists(ODD, min_size=1, max_size=4), ODD_REQUESTS, ODD_META, st.lists(SETTINGS, min_size=4, max_size=4))
def test_whatever_comes_the_answer_is_valid_in_time_and_leaves_no_task(
    engines: list[Behaviour], params: dict[str, Any], meta: dict[str, Any], each: list[dict[str, Any]]
) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        scripts = {f"e{n}": engine.script() for n, engine in enumerate(engines)}
        own = {id: {**setting, "retry": {"base": 0.001}} for id, setting in zip(scripts, each, strict=False)}
        async with gateway_of(scripts, engines=own) as gateway:
            inside = asyncio.all_tasks()
            began = time.perf_counter()
            answer = await answered(gateway, {**plain(params), "_meta": {**plain(meta), "deadlineMs": 60}})
            assert time.perf_counter() - began < 1.5
            assert asyncio.all_tasks() == inside
        assert asyncio.all_tasks() == before
        if "error" in answer:
            assert answer["error"]["code"] in (-32602, -32005, -32010, -32011, -32014, -32015, -32603)
            # A fault of ours has no engine to name.
            assert answer["error"]["code"] != -32603 or "engine" in answer["error"]["data"]
            return
        hits = answer["result"]["hits"]
        ids, scores = [one["id"] for one in hits], [one["score"] for one in hits]
        assert len(set(ids)) == len(ids)
        assert scores == sorted(scores, reverse=True)
        k = plain(params).get("k")
        assert len(ids) <= (int(k) if k is not None else 10)
        told = answer["result"]["_meta"]["x-gateway"]
        silent = set(scripts) - set(told.get("engines", [])) - {loss.get("engine") for loss in told.get("losses", [])}
        assert not silent, "an engine that gave nothing is not told of"
        failed = {one["engine"] for one in told.get("losses", []) if one["kind"] in ("failed", "timeout")}
        assert set(answer["result"]["_meta"].get("degraded", [])) == failed

    asyncio.run(run())


@obligation(171)
@quick
@given(st.lists(GOOD, min_size=1, max_size=3), FILTERS, st.lists(st.booleans(), min_size=3, max_size=3))
def test_no_hit_ever_contradicts_the_filter_and_none_that_satisfies_it_is_lost(
    engines: list[Behaviour], filter: Any, complete: list[bool]
) -> None:
    async def run() -> dict[str, Any]:
        scripts = {f"e{n}": engine.script() for n, engine in enumerate(engines)}
        for script, one in zip(scripts.values(), complete, strict=False):
            script.meta_complete = one
        async with gateway_of(scripts) as gateway:
            return (await answered(gateway, {"filter": filter, "k": 50}))["result"]  # type: ignore[no-any-return]

    result = asyncio.run(run())
    for one in result["hits"]:
        assert satisfied(filter, one["meta"])
    wanted = {hit.id for engine in engines for hit in engine.hits if satisfied(filter, hit.members["meta"])}
    assert {one["id"] for one in result["hits"]} == wanted


@obligation(247)
@quick
@given(st.lists(GOOD, min_size=2, max_size=4), REQUESTS, st.randoms(use_true_random=False))
def test_the_order_in_which_engines_answer_is_in_no_byte(engines: list[Behaviour], params: Any, random: Any) -> None:
    async def run(order: Sequence[int]) -> str:
        scripts = {f"e{n}": engine.script() for n, engine in enumerate(engines)}
        turns = [asyncio.Event() for _ in engines]
        turns[order[0]].set()

        def waiting(n: int, script: Script) -> Script:
            inner = script.retrieve
            assert inner is not None

            async def retrieve(query: EngineQuery, call: Call) -> EngineReply:
                await turns[n].wait()
                reply = await inner(query, call)
                place = order.index(n)
                if place + 1 < len(order):
                    turns[order[place + 1]].set()
                return reply

            script.retrieve = retrieve
            return script

        async with gateway_of({id: waiting(n, one) for n, (id, one) in enumerate(scripts.items())}) as gateway:
            result = (await answered(gateway, params))["result"]
        del result["usage"]["latencyMs"]
        result.pop("nextCursor", None)  # a fresh one each time, as it should be
        return json.dumps(result)

    order = list(range(len(engines)))
    first = asyncio.run(run(order))
    random.shuffle(order)
    assert asyncio.run(run(order)) == first


@quick
@given(st.lists(GOOD, min_size=1, max_size=3), METHODS, st.integers(1, 12), st.none() | FILTERS)
def test_within_the_window_fewer_hits_are_the_beginning_of_more(
    engines: list[Behaviour], method: str, k: int, filter: Any
) -> None:
    async def run() -> list[list[Any]]:
        scripts = {f"e{n}": engine.script() for n, engine in enumerate(engines)}
        asked = {"fusion": {"method": method}, **({"filter": filter} if filter else {})}
        async with gateway_of(scripts) as gateway:
            return [(await answered(gateway, {**asked, "k": n}))["result"]["hits"] for n in (k, k + 1)]

    fewer, more = asyncio.run(run())
    assert more[: len(fewer)] == fewer
    assert len(fewer) == min(k, len(more))


STAGES = st.fixed_dictionaries(
    {},
    optional={
        "rerank": st.fixed_dictionaries({}, optional={"topN": st.integers(12, 30)}),
        "mmr": st.fixed_dictionaries({"lambda": st.sampled_from([0, 0.3, 1])}),
        "minScore": st.sampled_from([0.0, 0.02, 0.5]),
        "filter": FILTERS,
        "_meta": st.just({"x-gateway": {"perDocument": 1}}),
    },
)


@obligation(156)
@quick
@given(st.lists(GOOD, min_size=1, max_size=3), METHODS, STAGES, st.lists(st.integers(1, 5), min_size=1))
def test_pages_of_any_lengths_are_one_answer_of_the_same_depth(
    engines: list[Behaviour], method: str, stages: Any, lengths: list[int]
) -> None:
    async def run() -> tuple[list[Any], list[Any]]:
        asked = {"fusion": {"method": method}, "candidateK": 30, **stages}
        walked: list[Any] = []
        async with gateway_of({f"e{n}": engine.script() for n, engine in enumerate(engines)}) as gateway:
            whole = (await answered(gateway, {**asked, "k": 12}))["result"]["hits"]
            for k in itertools.cycle(lengths):
                result = (await answered(gateway, {**asked, "k": k}))["result"]
                walked += result["hits"]
                if "nextCursor" not in result:
                    return walked, whole
                assert len(result["hits"]) == k, "only the last page is short"
                asked["cursor"] = result["nextCursor"]
        raise AssertionError

    walked, whole = asyncio.run(run())
    assert walked == whole


@obligation(246, 245)
@quick
@given(st.lists(GOOD, min_size=1, max_size=3))
def test_an_engine_votes_once_for_a_document_at_its_best_rank(engines: list[Behaviour]) -> None:
    async def run() -> list[dict[str, Any]]:
        async with gateway_of({f"e{n}": engine.script() for n, engine in enumerate(engines)}) as gateway:
            return (await answered(gateway, {"k": 50}))["result"]["hits"]  # type: ignore[no-any-return]

    expected: dict[str, float] = {}
    for engine in engines:
        for rank, id in enumerate(dict.fromkeys(hit.id for hit in engine.hits), start=1):
            expected[id] = expected.get(id, 0.0) + 1 / (60 + rank)
    assert {one["id"]: one["score"] for one in asyncio.run(run())} == pytest.approx(expected)
