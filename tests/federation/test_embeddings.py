"""Embeddings that are kept and shared: equal to fresh ones, and nobody's to cancel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable, ConfigErrors
from gateway.federation.embeddings import Embeddings
from gateway.federation.loss import Failure
from gateway.federation.replies import sound_vectors
from gateway.federation.runner import Deadline
from gateway.model import EmbedCapability
from gateway.spi import Call, EmbedQuery, EmbedReply, Engine, EngineQuery, EngineReply, VectorNeed
from gateway.spi.call import Route
from tests.engines import Running, Script, gateway_of, hits, ids, notes

pytestmark = pytest.mark.anyio

EMBEDS: dict[str, Any] = {"retrieve": None, "embed": {"dimension": 2, "identity": "length", "batchLimit": 4}}
VECTORS = {"a": (0.1, -1e-300), "b": (1 / 3, 2.0), "c": (7.0, 5e-324)}


class Model:
    """Stands in for the embed of an engine; waits while ``gate`` is closed."""

    def __init__(self, engine: Engine) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.error: Exception | None = None
        engine.embed = self.embed  # type: ignore[method-assign]

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        self.asked.append(query.inputs)
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.error is not None:
            raise self.error
        return EmbedReply(vectors=tuple(VECTORS.get(text, (float(len(text)), 1.0)) for text in query.inputs))


@asynccontextmanager
async def running(embeds: dict[str, Any] = EMBEDS, **config: Any) -> AsyncIterator[tuple[Running, Model]]:
    need = VectorNeed(embedder="e")
    scripts = {"x": Script(hits("x"), need=need), "y": Script(hits("y")), "e": Script(capabilities=embeds)}
    async with gateway_of(scripts, **config) as gateway:
        engine = gateway.gateway.fleet.members["e"].engine
        assert engine is not None
        yield gateway, Model(engine)


async def embedded(gateway: Running, *texts: str, **params: Any) -> list[list[float]]:
    answer = await gateway.call("embed", {"inputs": list(texts), "kind": "query", **params})
    assert "result" in answer, answer
    vectors: list[list[float]] = answer["result"]["vectors"]
    return vectors


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_kept_vector_is_the_very_same_and_is_not_asked_for_again() -> None:
    async with running() as (gateway, model):
        first = await embedded(gateway, "a", "b")
        assert await embedded(gateway, "b", "c", "a", "b") == [[*VECTORS[one]] for one in "bcab"]
        assert first == [[*VECTORS["a"]], [*VECTORS["b"]]]
        assert model.asked == [("a", "b"), ("c",)]
        assert ids(await gateway.retrieve("a")) == ["x", "y"]
        assert gateway.scripts["x"].queries[-1].vector == VECTORS["a"]
    assert model.asked == [("a", "b"), ("c",)]


async def test_queries_and_documents_are_kept_apart() -> None:
    async with running() as (gateway, model):
        await embedded(gateway, "a")
        await embedded(gateway, "a", kind="document")
    assert len(model.asked) == 2


async def test_no_more_is_kept_than_the_settings_say_and_the_longest_unused_goes_first() -> None:
    async with running(limits={"embeddings": 2}) as (gateway, model):
        await embedded(gateway, "a", "b")
        await embedded(gateway, "a")
        await embedded(gateway, "c")
        await embedded(gateway, "a", "b")
    assert model.asked == [("a", "b"), ("c",), ("b",)]
    async with running(limits={"embeddings": 0}) as (gateway, model):
        await embedded(gateway, "a")
        await embedded(gateway, "a")
    assert model.asked == [("a",), ("a",)]


async def test_no_more_bytes_are_kept_than_the_bound() -> None:
    async with running() as (gateway, _model):
        member = gateway.gateway.fleet.members["e"]
        known = Embeddings(1000, size=1000)
        for number in range(50):
            deadline = Deadline.after(5, client=False, reserve=0)
            await known.vectors(member, (str(number),), "query", Route(), deadline)
        assert 0 < len(known) <= 3


async def test_without_an_identity_nothing_is_kept_but_calls_are_shared() -> None:
    async with running({"retrieve": None, "embed": {"dimension": 2}}) as (gateway, model):
        model.gate.clear()
        both = [asyncio.create_task(embedded(gateway, "a")) for _ in range(2)]
        await settled()
        model.gate.set()
        assert await asyncio.gather(*both) == [[[*VECTORS["a"]]]] * 2
        assert model.asked == [("a",)]
        await embedded(gateway, "a")
    assert model.asked == [("a",), ("a",)]


async def test_calls_at_the_same_time_share_what_they_have_in_common() -> None:
    async with running() as (gateway, model):
        model.gate.clear()
        first = asyncio.create_task(embedded(gateway, "a", "b"))
        await settled()
        second = asyncio.create_task(embedded(gateway, "c", "b", "c"))
        third = asyncio.create_task(gateway.retrieve("b"))
        await settled()
        model.gate.set()
        assert await first == [[*VECTORS["a"]], [*VECTORS["b"]]]
        assert await second == [[*VECTORS["c"]], [*VECTORS["b"]], [*VECTORS["c"]]]
        assert ids(await third) == ["x", "y"]
    assert model.asked == [("a", "b"), ("c",)]


async def test_a_caller_that_leaves_does_not_cancel_what_another_waits_for() -> None:
    async with running() as (gateway, model):
        model.gate.clear()
        leaving, staying = (asyncio.create_task(embedded(gateway, "a")) for _ in range(2))
        await settled()
        leaving.cancel()
        await settled()
        assert not model.cancelled.is_set()
        model.gate.set()
        assert await staying == [[*VECTORS["a"]]]
    assert model.asked == [("a",)]


async def test_the_last_caller_to_leave_ends_the_request_and_the_next_starts_anew() -> None:
    async with running() as (gateway, model):
        model.gate.clear()
        both = [asyncio.create_task(embedded(gateway, "a")) for _ in range(2)]
        await settled()
        for task in both:
            task.cancel()
        await asyncio.wait_for(model.cancelled.wait(), 5)
        model.gate.set()
        assert await embedded(gateway, "a") == [[*VECTORS["a"]]]
    assert model.asked == [("a",), ("a",)]


async def test_a_caller_in_a_hurry_does_not_fail_the_others() -> None:
    async with running() as (gateway, model):
        model.gate.clear()
        hurried = asyncio.create_task(gateway.call("embed", {"inputs": ["a"], "kind": "query",
                                                             "_meta": {"deadlineMs": 50}}))  # fmt: skip
        patient = asyncio.create_task(embedded(gateway, "a"))
        error = (await asyncio.wait_for(hurried, 5))["error"]
        assert error["code"] == -32014
        assert not model.cancelled.is_set()
        model.gate.set()
        assert await patient == [[*VECTORS["a"]]]
        assert gateway.gateway.fleet.members["e"].breaker.state == "closed"
    assert model.asked == [("a",)]


async def test_a_failure_is_shared_and_not_kept() -> None:
    async with running(engines={"e": {"retry": {"attempts": 1}}}) as (gateway, model):
        model.error = BackendUnavailable("out of order")
        model.gate.clear()
        both = [asyncio.create_task(gateway.call("embed", {"inputs": ["a"], "kind": "query"})) for _ in range(2)]
        await settled()
        model.gate.set()
        for answer in await asyncio.gather(*both):
            assert answer["error"]["code"] == -32010
            assert "out of order" in answer["error"]["message"]
        model.error = None
        assert await embedded(gateway, "a") == [[*VECTORS["a"]]]
    assert model.asked == [("a",), ("a",)]


async def test_vectors_that_cannot_be_right_cost_only_the_legs_that_need_them() -> None:
    async with running() as (gateway, _model):
        VECTORS["wide"] = (1.0, 2.0, 3.0)  # type: ignore[assignment]
        try:
            result = await gateway.retrieve("wide")
        finally:
            del VECTORS["wide"]
        assert ids(result) == ["y"]
        assert "its embedder e failed: it gave vectors of 3 numbers and offers 2" in notes(result)


def test_unsound_vectors_are_named() -> None:
    offered = EmbedCapability(dimension=2)
    assert sound_vectors([(1.0, 2.0)], 1, offered) == [(1.0, 2.0)]
    for wrong, count in (([], 1), ([()], 1), ([(1.0,), (1.0, 2.0)], 2), ([(1.0, float("nan"))], 1)):
        with pytest.raises(BackendUnavailable):
            sound_vectors(wrong, count)


async def test_an_embedder_that_is_not_open_is_a_failure() -> None:
    async with running() as (gateway, _model):
        member = gateway.gateway.fleet.members["e"]
        member.engine = None
        found = await Embeddings(1).vectors(
            member, ("a",), "query", Route(), Deadline.after(5, client=False, reserve=0)
        )
        assert isinstance(found, Failure)


async def test_an_embedder_of_another_dimension_stops_the_start_and_both_are_named() -> None:
    scripts = {"x": Script(need=VectorNeed(embedder="e", dimension=3)), "e": Script(capabilities=EMBEDS)}
    with pytest.raises(ConfigErrors, match="engine x: needs vectors of 3 numbers; engine e gives 2"):
        async with gateway_of(scripts):
            pass


async def test_an_embedder_that_does_not_embed_stops_the_start() -> None:
    scripts = {"x": Script(need=VectorNeed(embedder="y")), "y": Script()}
    with pytest.raises(ConfigErrors, match="engine x: takes its vectors from 'y', which does not embed"):
        async with gateway_of(scripts):
            pass


@settings(max_examples=20, deadline=None)
@given(
    queries=st.lists(st.sampled_from(["four", "other", "a longer one"]), min_size=1, max_size=5),
    options=st.fixed_dictionaries(
        {}, optional={"rerank": st.just({}), "mmr": st.just({"lambda": 0.4}), "k": st.integers(1, 12)}
    ),
)
async def test_an_answer_from_known_vectors_has_the_bytes_of_one_from_fresh_ones(
    queries: list[str], options: dict[str, Any]
) -> None:
    """Whatever is remembered changes how long an answer takes, and nothing in it."""

    async def near(query: EngineQuery, call: Call) -> EngineReply:
        assert query.vector is not None
        return EngineReply(hits=hits(*(f"d{n}-{query.vector[0]:g}" for n in range(12))))

    async def answers(kept: int) -> tuple[list[str], int]:
        scripts = {
            "a": Script(retrieve=near, need=VectorNeed("e", 2)),
            "e": Script(capabilities={"retrieve": None, "embed": {"dimension": 2, "identity": "length"}}),
            "r": Script(capabilities={"retrieve": None, "rerank": {"methods": ["cross-encoder"]}}),
        }
        found = []
        async with gateway_of(scripts, limits={"embeddings": kept}) as gateway:
            for query in queries:
                result = await gateway.retrieve(query, **options)
                result.pop("nextCursor", None)
                del result["usage"]["latencyMs"]
                found.append(json.dumps(result))
        return found, len(scripts["e"].embedded)

    fresh, asked = await answers(0)
    known, less = await answers(100)
    assert known == fresh
    assert (asked, less) == (len(queries), len(set(queries)))
