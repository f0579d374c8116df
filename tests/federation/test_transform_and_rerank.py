"""``query/transform`` goes to one engine; ``rerank`` goes to one, or is done by words here."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ConfigErrors, PluginError
from gateway.federation.fleet import check_overridden
from gateway.model import read_capabilities
from gateway.refine.lexical import lexical_scores
from gateway.spi import Call, Engine, TransformQuery, TransformReply
from tests.engines import Running, Script, gateway_of, hits
from tests.obligations import obligation

pytestmark = pytest.mark.anyio


def offering(*methods: str) -> Script:
    return Script(capabilities={"retrieve": None, "transform": {"methods": list(methods)}})


class Transformer:
    def __init__(self, gateway: Running, id: str) -> None:
        self.asked: list[TransformQuery] = []
        self.reply = TransformReply(queries=(f"{id} 1", " ", f"{id} 2", f"{id} 3\ud800"))
        engine: Any = gateway.gateway.fleet.members[id].engine
        engine.transform = self.transform

    async def transform(self, query: TransformQuery, call: Call) -> TransformReply:
        self.asked.append(query)
        return self.reply


@pytest.fixture(autouse=True)
def transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted engines that override it, as the fleet demands of those that offer it."""
    from tests.engines import ScriptedEngine

    async def transform(self: Any, query: TransformQuery, call: Call) -> TransformReply:
        raise NotImplementedError

    monkeypatch.setattr(ScriptedEngine, "transform", transform)


@obligation(180)
async def test_each_method_goes_to_the_first_engine_that_offers_it() -> None:
    scripts = {"a": offering("hyde", "x-own"), "b": offering("rewrite", "hyde"), "r": Script(hits("x"))}
    async with gateway_of(scripts) as gateway:
        a, b = Transformer(gateway, "a"), Transformer(gateway, "b")
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["transform"] == {"methods": ["rewrite", "hyde"]}
        rewritten = (await gateway.call("query/transform", {"query": "q", "method": "rewrite"}))["result"]
        assert rewritten == {"queries": ["b 1", "b 2", "b 3\ufffd"]}
        a.reply = TransformReply(queries=("q",), hypothetical="a passage")
        hyde = (await gateway.call("query/transform", {"query": "q", "method": "hyde", "n": 1}))["result"]
        assert hyde == {"queries": ["q"], "hypothetical": "a passage"}
    assert [len(a.asked), len(b.asked)] == [1, 1]


async def test_the_configuration_may_name_the_engine() -> None:
    scripts = {"a": offering("hyde"), "b": offering("rewrite")}
    async with gateway_of(scripts, transform="b") as gateway:
        Transformer(gateway, "b")
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["transform"] == {"methods": ["rewrite"]}
        refused = (await gateway.call("query/transform", {"query": "q", "method": "hyde"}))["error"]
        assert (refused["code"], refused["data"]) == (-32005, {"option": "hyde", "field": "method"})
    for named in ("nobody", "r"):
        with pytest.raises(ConfigErrors, match="transform"):
            async with gateway_of({**scripts, "r": Script()}, transform=named):
                pass


@obligation(180)
async def test_what_cannot_be_transformed_is_refused_precisely() -> None:
    async with gateway_of({"a": offering("rewrite")}) as gateway:
        model = Transformer(gateway, "a")

        async def error(**params: Any) -> tuple[int, str]:
            told = (await gateway.call("query/transform", params))["error"]
            return told["code"], told["data"]["field"]

        assert await error(query="q") == (-32602, "method")
        assert await error(method="rewrite") == (-32602, "query")
        assert await error(query="q", method=7) == (-32602, "method")
        assert await error(query="q", method="rewrite", n=0) == (-32602, "n")
        assert await error(query="q", method="rewrite", n="3") == (-32602, "n")
        assert await error(query="q", method="telepathy") == (-32005, "method")
        assert model.asked == []
        await gateway.call("query/transform", {"query": "q", "method": "rewrite", "n": 10**6})
        await gateway.call("query/transform", {"query": "q", "method": "rewrite", "n": None})
    assert [one.n for one in model.asked] == [16, 3]
    async with gateway_of({"r": Script(hits("x"))}) as gateway:
        assert (await gateway.call("query/transform", {"query": "q", "method": "rewrite"}))["error"]["code"] == -32003


async def test_nothing_usable_is_the_query_itself_and_notes_are_handed_on() -> None:
    async with gateway_of({"a": offering("rewrite")}) as gateway:
        Transformer(gateway, "a").reply = TransformReply(queries=(" ",), notes=("as it was",))
        result = (await gateway.call("query/transform", {"query": "q", "method": "rewrite"}))["result"]
    assert result == {"queries": ["q"], "_meta": {"x-gateway": {"notes": ["as it was"]}}}


def test_a_declared_transform_must_be_there() -> None:
    class Idle(Engine):
        def capabilities(self) -> Any:
            return None

    with pytest.raises(PluginError, match="transform"):
        check_overridden(Idle(), read_capabilities({"transform": {"methods": ["hyde"]}}))


PASSAGES = ["a dog sleeps", "the red fox", "", "a fox and another fox"]


@pytest.mark.parametrize("method", [None, "bm25"])
async def test_without_a_reranker_passages_are_ranked_by_words(method: str | None) -> None:
    async with gateway_of({"a": Script(hits("x"))}) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["rerank"] == {"maxCandidates": 1000}
        assert told["x-gateway"]["rerank"] == {"methods": ["bm25"], "maxCandidates": 1000}
        result = (
            await gateway.call("rerank", {"query": "red FOX", "passages": PASSAGES, "method": method, "topN": 2})
        )["result"]
        assert result["order"] == [1, 3]
        assert result["scores"][0] == result["scores"][2] == 0.0
        assert result["_meta"] == {"x-gateway": {"method": "bm25"}}
        refused = (await gateway.call("rerank", {"query": "q", "passages": ["p"], "method": "cross-encoder"}))["error"]
        assert refused["code"] == -32005
        long = (await gateway.call("rerank", {"query": "fox", "passages": ["dog " * 5000, "fox"]}))["result"]
        assert long["order"] == [1, 0]
        assert (await gateway.call("rerank", {"query": "q", "passages": []}))["result"]["scores"] == []
        many = (await gateway.call("rerank", {"query": "q", "passages": ["p"] * 1001}))["error"]
        assert many["data"]["field"] == "passages"


async def test_methods_that_the_schema_cannot_name_are_told_beside_it_and_served() -> None:
    async with gateway_of({"r": Script(capabilities={"rerank": {"methods": ["llm", "own"]}})}) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]
        assert told["rerank"] == {"methods": ["llm"]}
        assert told["x-gateway"]["rerank"]["methods"] == ["bm25", "own"]
        answer = await gateway.call("rerank", {"query": "q", "passages": ["a", "bb"], "method": "own"})
    assert answer["result"]["order"] == [1, 0]


async def test_with_a_reranker_words_are_used_only_where_they_are_asked_for() -> None:
    scripts = {"r": Script(capabilities={"rerank": {"methods": ["cross-encoder"], "models": ["m"]}})}
    async with gateway_of(scripts) as gateway:
        by_engine = (await gateway.call("rerank", {"query": "fox", "passages": PASSAGES}))["result"]
        assert by_engine["scores"] == [float(len(one)) for one in PASSAGES]
        assert "_meta" not in by_engine
        by_words = (await gateway.call("rerank", {"query": "fox", "passages": PASSAGES, "method": "bm25"}))["result"]
        assert by_words["scores"] == list(lexical_scores("fox", PASSAGES))
        other = (await gateway.call("rerank", {"query": "q", "passages": ["p"], "model": "dear"}))["error"]
        assert (other["code"], other["data"]["field"]) == (-32005, "model")
