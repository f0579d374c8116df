"""Graphs, feedback, memories, matrices and a vendor's own methods, of peers that answer well and of others."""

import pytest

from gateway.errors import BackendUnavailable, RcpError
from gateway.model import Document, MemoryText, Signal
from gateway.spi import (
    Clue,
    Cutting,
    Edge,
    EmbedQuery,
    FeedbackQuery,
    GraphQuery,
    MemoryRecall,
    MemoryWrite,
    TransformQuery,
)
from tests.obligations import obligation
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio

GRAPH = GraphQuery(op="local", text="q")
RECALL = MemoryRecall(text="q")
SIGNALS = FeedbackQuery(signals=(Signal(hit_id="a", used=True),))
TEXT = EmbedQuery(inputs=("a b",))


@obligation(186)
async def test_what_an_upstream_advertises_beside_searching_is_offered(over):
    async with over("more") as engine:
        offered = engine.capabilities()
    assert offered.graph.ops == ("local", "neighbors", "communities", "own")
    assert offered.feedback is not None
    assert offered.memory.scopes == ("global", "odd")
    assert offered.multi_vector.dimension == 2
    assert (offered.index.chunking, offered.index.contextual) == (True, True)
    assert offered.vendor == {"x-acme": {"dances": ["waltz"]}}


@obligation(210, 223)
async def test_what_is_sent_are_checked_values_under_the_names_of_the_spec(over, reports):
    graph = GraphQuery(op="neighbors", text="q\ud800", k=3, seed_ids=("a", "b"), hops=2, level=0, session="s")
    signal = Signal(hit_id="a", used=True, cited=False, helpful=True, reward=-0.5, poison_suspected=True)
    build = MemoryWrite(documents=(MemoryText(text="t", id=7), MemoryText(text="u")), id="m", scope="global")
    async with over("more") as engine:
        await engine.graph(graph, FakeCall())
        await engine.graph(GraphQuery(op="communities", seed_ids=("a",)), FakeCall())
        await engine.feedback(FeedbackQuery(signals=(signal,), text="q", session="s"), FakeCall())
        await engine.memory_build(build, FakeCall())
        await engine.memory_build(MemoryWrite(), FakeCall())
        await engine.memory_recall(MemoryRecall(text="q", id="m", session="s", n=3), FakeCall())
        await engine.vendor("x-acme/dance", {"to": ["x\ud800", {"y": None}], "_meta": {"mine": 1}}, FakeCall())
        await engine.transform(TransformQuery(text="q", method="rewrite", n=2), FakeCall())

    def sent(method):
        return [{name: value for name, value in frame["params"].items() if name != "_meta"}
                for frame in reports.frames(method)]  # fmt: skip

    assert sent("graph") == [
        {"op": "neighbors", "query": "q\ufffd", "k": 3, "seedIds": ["a", "b"], "hops": 2, "level": 0, "sessionId": "s"},
        {"op": "communities", "seedIds": ["a"], "node": "a"},
    ]
    said = {"hitId": "a", "used": True, "cited": False, "helpful": True, "reward": -0.5, "poisonSuspected": True}
    assert sent("feedback") == [{"signals": [said], "query": "q", "sessionId": "s"}]
    documents = [{"text": "t", "id": "7"}, {"text": "u"}]
    assert sent("memory/build") == [{"documents": documents, "memoryId": "m", "scope": "global"}, {}]
    assert sent("memory/recall") == [{"query": "q", "memoryId": "m", "sessionId": "s", "n": 3}]
    assert sent("x-acme/dance") == [{"to": ["x\ufffd", {"y": None}]}]
    assert sent("query/transform") == [{"query": "q", "method": "rewrite", "n": 2}]
    for frame in reports.frames("x-acme/dance"):
        assert set(frame["params"]["_meta"]) == {"federation", "deadlineMs"}


@obligation(221)
async def test_of_an_odd_graph_what_can_be_used_is_used(over):
    async with over("more,odd") as engine:
        reply = await engine.graph(GRAPH, FakeCall())
    assert [(hit.id, hit.score, hit.members) for hit in reply.hits] == [("7", None, {"text": "\ufffd"})]
    assert [(node.id, node.score, node.members) for node in reply.nodes] == [("n", None, {"label": "L"})]
    assert (reply.communities, reply.summary, reply.followups, reply.notes) == ([], None, ("x",), ("odd",))
    assert reply.edges == [Edge(src="1", dst="n", members={"label": "e"})]


@obligation(221)
async def test_an_odd_memory_and_odd_counts(over):
    async with over("more,odd") as engine:
        assert await engine.feedback(SIGNALS, FakeCall()) == 0
        reply = await engine.memory_recall(RECALL, FakeCall())
        with pytest.raises(BackendUnavailable, match="did not name"):
            await engine.memory_build(MemoryWrite(), FakeCall())
    assert reply.clues == [Clue(query="why"), Clue(seed_ids=("1", "b")), Clue(query="who", weight=0.5)]
    assert [(hit.id, hit.score) for hit in reply.hits] == [("h", None)]


async def test_queries_made_of_a_query(over):
    async with over("more") as engine:
        reply = await engine.transform(TransformQuery(text="q", method="rewrite"), FakeCall())
    assert (reply.queries, reply.hypothetical) == (("one", "two"), "h")


@obligation(176)
@pytest.mark.parametrize("behaviour", ["multi", "multiwhole"])
async def test_matrices_in_base64_are_read_unasked(over, reports, behaviour):
    async with over(f"more,{behaviour}") as engine:
        assert await engine.embed_multi(TEXT, FakeCall()) == [((1.0, 2.0), (3.0, 4.0))]
    (frame,) = reports.frames("embed/multi")
    assert (frame["params"]["inputs"], frame["params"]["kind"]) == (["a b"], "query")
    assert "encoding" not in frame["params"]


@obligation(176, 221)
@pytest.mark.parametrize("behaviour", ["multiblind", "multicut", "multishort", "multinan"])
async def test_matrices_that_are_none_are_refused(over, behaviour):
    async with over(f"more,{behaviour}") as engine:
        with pytest.raises(BackendUnavailable):
            await engine.embed_multi(TEXT, FakeCall())


@obligation(221)
@pytest.mark.parametrize(
    ("behaviour", "ask"),
    [
        ("graphnothing", lambda engine: engine.graph(GRAPH, FakeCall())),
        ("recallnothing", lambda engine: engine.memory_recall(RECALL, FakeCall())),
        ("vendorarray", lambda engine: engine.vendor("x-acme/dance", {}, FakeCall())),
    ],
)
async def test_an_answer_that_is_none_is_refused(over, behaviour, ask):
    async with over(f"more,{behaviour}") as engine:
        with pytest.raises(BackendUnavailable):
            await ask(engine)


async def test_a_vendors_answer_is_read_as_far_as_it_is_json(over):
    async with over("more,vendornan") as engine:
        answer = await engine.vendor("x-acme/dance", {}, FakeCall())
    assert answer == {"a": None, "b": "\ufffd"}


@obligation(33)
@pytest.mark.parametrize("behaviour", ["refused", "unavailable", "unknowncode"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda engine: engine.graph(GRAPH, FakeCall()),
        lambda engine: engine.feedback(SIGNALS, FakeCall()),
        lambda engine: engine.memory_build(MemoryWrite(), FakeCall()),
        lambda engine: engine.memory_recall(RECALL, FakeCall()),
        lambda engine: engine.embed_multi(TEXT, FakeCall()),
        lambda engine: engine.vendor("x-acme/dance", {}, FakeCall()),
    ],
    ids=["graph", "feedback", "build", "recall", "multi", "vendor"],
)
async def test_errors_are_the_engines_and_quote_nothing(upstreams, behaviour, ask):
    async with upstreams.stdio(f"more,{behaviour}") as engine:
        with pytest.raises(RcpError) as caught:
            await ask(engine)
    assert caught.value.code == -32010
    assert "secret" not in caught.value.message


async def test_how_to_cut_up_is_told_to_an_upstream_that_can(over, reports):
    async with over("more") as engine:
        result = await engine.index_cut([Document(text="a", id="x")], Cutting(chunk=True), FakeCall())
        await engine.index_cut([Document(text="a", id="x")], Cutting(chunk=True, contextual=True), FakeCall())
    assert result.ids == ("x",)
    first, second = ({**frame["params"]} for frame in reports.frames("index/add"))
    assert (first.get("chunk"), first.get("contextual")) == (True, None)
    assert (second.get("chunk"), second.get("contextual")) == (True, True)


class Hearing(FakeCall):
    def __init__(self, level):
        super().__init__()
        self.log_level = level
        self.heard = []

    def log(self, level, message, data=None):
        self.heard.append((level, message))


@obligation(70, 200)
async def test_what_an_upstream_logs_of_a_request_is_heard_by_whoever_asked_for_it(over, reports, request):
    call = Hearing("info")
    async with over("more,logs") as engine:
        await engine.vendor("x-acme/dance", {}, call)
        await engine.graph(GRAPH, FakeCall())
    heard = [message for _, message in call.heard]
    first, second = reports.frames("x-acme/dance")[0], reports.frames("graph")[0]
    assert first["params"]["_meta"]["logLevel"] == "info"
    assert "logLevel" not in second["params"]["_meta"]
    if "stdio" in request.node.name:
        # On a connection that others use too, only what names the request is its own.
        assert heard == ["of True"]
    elif "sse" in request.node.name:
        assert heard == ["of True", "of False", "of False"]
    else:
        assert heard == []


async def test_an_upstream_without_logs_is_asked_for_none(over, reports):
    async with over("ok") as engine:
        await engine.ping(Hearing("info"))
    assert "progressToken" not in reports.frames("ping")[0]["params"]["_meta"]
