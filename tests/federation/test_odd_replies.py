"""Engines whose answers are of any shape: what they give costs them the call, and never the gateway its own."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.model import Hit, IndexAddResult, hit
from gateway.spi import (
    Call,
    Clue,
    Edge,
    EmbedReply,
    GraphReply,
    MemoryBuilt,
    MemoryReply,
    RerankQuery,
    TransformReply,
)
from tests.engines import Running, Script, gateway_of, ids, notes

pytestmark = pytest.mark.anyio

DEEP: list[Any] = []
for _ in range(500):
    DEEP = [DEEP]
ODD: list[Any] = [
    None, 5, 10**400, float("nan"), float("-inf"), True, "x", "\ud800", "a/b", "x" * 200_000, b"b", {}, {"a": 1},
    {"a": None}, [], ["x"], [None], [float("nan")], [10**400], object(), DEEP,
]  # fmt: skip
OFFERS: dict[str, Any] = {
    "graph": {"ops": ["local", "global", "drift", "communities", "neighbors"]},
    "memory": {"scopes": ["global", "session"], "clues": True},
    "feedback": {},
    "transform": {"methods": ["hyde", "multi-query"]},
    "rerank": {"methods": ["llm"]},
    "embed": {"dimension": 2},
    "multiVector": {"dimension": 2},
    "index": {"writable": True},
}


class Oracle:
    """An engine that says whatever it is told to say, to every question."""

    def __init__(self) -> None:
        self.reply: Any = None

    async def __call__(self, *_: Any) -> Any:
        return self.reply

    def script(self) -> Script:
        methods = ("graph", "recall", "build", "feedback", "transform", "rerank", "embed", "multi", "add", "delete")
        return Script([hit("x", 1.0, text="t")], OFFERS, **dict.fromkeys(methods, self))  # type: ignore[arg-type]


async def ask(gateway: Running, called: str, **params: Any) -> None:
    """Asks, and holds the answer against the schema; a fault must have an engine to name."""
    for member in gateway.gateway.service._fleet.members.values():
        member.breaker.succeeded(probe=False)
    answer = await gateway.call(called, params)
    if "error" in answer:
        data = answer["error"].get("data", {})
        assert answer["error"]["code"] != -32603 or "engine" in data or "engines" in data, answer


def with_one(struct: type, value: Any, **rest: Any) -> list[Any]:
    """The struct with each of its members being the value, one after the other, and the value itself."""
    fields: tuple[str, ...] = struct.__struct_fields__  # type: ignore[attr-defined]
    return [value, *(struct(**{**rest, name: value}) for name in fields)]


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12].replace(" ", ""))
async def test_no_answer_of_an_engine_is_a_fault_of_the_gateway(value: Any) -> None:
    oracle = Oracle()
    odd_hits = with_one(Hit, value, id="i", score=1.0)
    odd_hits += [Hit("i", 1.0, None, {name: value}) for name in ("summary", "level", "meta", "text", "trust", "scores")]
    graphs = with_one(GraphReply, value)
    graphs += [GraphReply(edges=[one]) for one in with_one(Edge, value, src="a", dst="b")]
    graphs += [GraphReply(hits=[one], nodes=[one], communities=[one]) for one in odd_hits]
    memories = with_one(MemoryReply, value)
    memories += [MemoryReply(clues=[one]) for one in with_one(Clue, value, query="q")]
    memories += [MemoryReply(hits=[one]) for one in odd_hits]
    lists = [value, [value], [1.0, value], [1.0, value, 3.0]]
    async with gateway_of({"a": oracle.script()}, engines={"a": {"retry": {"attempts": 1}}}, writes="a") as gateway:
        for oracle.reply in graphs:
            for op in ("local", "neighbors", "communities"):
                await ask(gateway, "graph", op=op, query="q")
        for oracle.reply in memories:
            await ask(gateway, "memory/recall", query="q")
        for oracle.reply in with_one(MemoryBuilt, value, id="i"):
            await ask(gateway, "memory/build", documents=[{"text": "t"}])
        for oracle.reply in with_one(TransformReply, value, queries=("a",)):
            for method in ("hyde", "multi-query"):
                await ask(gateway, "query/transform", query="q", method=method)
                await ask(gateway, "retrieve", query="q", rewrite=method)
        for oracle.reply in lists:
            await ask(gateway, "rerank", query="q", passages=["a", "b"])
            await ask(gateway, "retrieve", query="q", rerank={})
        for oracle.reply in [*lists, *(EmbedReply(vectors=one) for one in (*lists, [value, value]))]:
            await ask(gateway, "embed", inputs=["a", "b"], encoding="f32-base64")
            await ask(gateway, "embed/multi", inputs=["a", "b"])
        for oracle.reply in [*with_one(IndexAddResult, value, ids=("1",)), [value]]:
            await ask(gateway, "index/add", documents=[{"id": "1", "text": "t"}])
        for chunk in (True, False):
            oracle.reply = value
            await ask(gateway, "index/add", documents=[{"id": "1", "text": "t"}], chunk=chunk)
        await ask(gateway, "index/delete", ids=["1"])
        await ask(gateway, "feedback", signals=[{"hitId": "x", "type": "click"}])


async def test_an_engine_that_always_counts_deletions_does_not_keep_the_gateway_looking_for_more() -> None:
    removed: list[int] = []

    async def delete(ids: Any, call: Call) -> int:
        removed.append(len(ids))
        return len(ids)

    script = Script(capabilities={"index": {"writable": True}}, delete=delete)
    async with gateway_of({"a": script}, writes="a") as gateway:
        answer = await gateway.call("index/add", {"documents": [{"id": "1", "text": "a text"}], "chunk": True})
        assert answer["result"] == {"ids": ["1"], "chunks": 1}
        assert (await gateway.call("index/delete", {"ids": ["1", "2"]}))["result"] == {"deleted": 2}
    assert sum(removed) < 300_000
    assert max(removed) <= 10_002


async def test_what_a_transformer_makes_is_bounded() -> None:
    made = TransformReply(queries=("x" * 10_000_000, *(f"q{n}" for n in range(100_000))), hypothetical="y" * 10_000_000)

    async def transform(query: Any, call: Call) -> TransformReply:
        return made

    scripts = {"a": Script([hit("x", 1.0)]), "t": Script(capabilities=OFFERS, transform=transform)}
    async with gateway_of(scripts) as gateway:
        result = await gateway.retrieve(rewrite="multi-query", _meta={"x-gateway": {"engines": ["a"]}})
        assert len(scripts["a"].queries) == 5
        assert max(len(query.text) for query in scripts["a"].queries) == 65_536
        assert len(result["rewrittenQuery"]) < 70_000
        own = (await gateway.call("query/transform", {"query": "q", "method": "hyde", "n": 2}))["result"]
    assert [len(one) for one in own["queries"]] == [65_536, 2]
    assert len(own["hypothetical"]) == 65_536


async def test_scores_of_one_batch_never_slip_to_the_passages_of_another() -> None:
    async def rerank(query: RerankQuery, call: Call) -> list[float]:
        return [float("best" in one) for one in query.passages][: -1 if len(query.passages) == 2 else None]

    judge = Script(capabilities={"retrieve": None, "rerank": {"maxCandidates": 2}}, rerank=rerank)
    texts = ["a", "b", "c", "the best"]
    found = [hit(str(place), 1 - place / 10, text=text) for place, text in enumerate(texts)]
    scripts = {"e": Script(found[:2]), "f": Script(found[2:]), "judge": judge}
    engines = {"e": {"corpus": "E"}, "f": {"corpus": "F"}, "judge": {"corpus": "J"}}
    async with gateway_of(scripts, engines=engines, fusion={"across": "rescore", "scorer": "judge"}) as gateway:
        result = await gateway.retrieve("best")
    assert ids(result)[0] == "F/3"  # by words: the engine's scores cannot be told apart
    assert "it gave 1 scores for 2 passages" in notes(result)
