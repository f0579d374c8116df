"""The facade over a real gateway and real HTTP: RAGRails' clients find what they know."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from anyio import fail_after
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.caller import ANONYMOUS
from gateway.errors import BackendUnavailable, ConfigError, RateLimited, RcpError
from gateway.model import hit
from gateway.spi import FacadeRequest
from gateway.transports.facades import _Door
from gateway_ragrails.facade import (
    CollectionSettings,
    RagrailsFacade,
    RagrailsFacadeKind,
    RagrailsFacadeSettings,
)
from gateway_ragrails.wire import PATH
from tests.engines import Script
from tests.facades import Served, served

pytestmark = pytest.mark.anyio

QUESTION = "How do I authenticate?"
BASIC: dict[str, Any] = {
    "query": QUESTION,
    "provider": "voyage",
    "model": "voyage-3",
    "vector_db": "qdrant",
    "collection": "docs",
    "url": "http://localhost:6333",
    "top_k": 10,
}
RERANKED = {
    **BASIC,
    "top_k": 20,
    "use_rerank": True,
    "reranker": "voyage",
    "reranker_model": "rerank-2-lite",
    "rerank_top_k": 5,
}
REWRITTEN = {**BASIC, "use_query_rewrite": True, "session_context": "User is asking about the onboarding flow."}
GUIDE = hit(
    "guide-3",
    0.87,
    text="To authenticate, create an API key in settings...",
    meta={"title": "Authentication", "source": "files/guide.pdf"},
)
DOCUMENTS = [
    {
        "id": f"guide-{number}",
        "text": text,
        "meta": {"title": f"Part {number}", "source": "files/guide.pdf", "lang": lang},
    }
    for number, (text, lang) in enumerate(
        [
            ("authenticate with a key", "en"),
            ("authenticate", "de"),
            ("how do i do that", "en"),
            ("nothing of the kind", "en"),
        ]
    )
]
MEMORY = {"id": "one", "kind": "memory", "with": {"documents": DOCUMENTS, "fields": {"lang": "keyword"}}}
DOCS = {"vector_db": "qdrant", "url": "http://localhost:6333"}


def scripted(**scripts: Script) -> Any:
    return served("ragrails", {"collections": {"docs": DOCS}, "default": "docs"}, scripts=scripts)


async def posted(gateway: Served, body: Any, status: int = 200) -> Any:
    with fail_after(10):
        response = await gateway.post(PATH, body)
    assert response.status_code == status, response.text
    return response.json()


# The reference's three examples.


async def test_the_references_plain_request_gets_its_response() -> None:
    async with scripted(one=Script(hits=[GUIDE])) as gateway:
        answer = await posted(gateway, BASIC)
    assert answer["items"][0].pop("score") > 0
    assert answer == {
        "query": QUESTION,
        "search_query": QUESTION,
        "retrieved": 1,
        "items": [
            {
                "id": "guide-3",
                "text": "To authenticate, create an API key in settings...",
                "metadata": {"title": "Authentication", "source": "files/guide.pdf"},
                "rerank_score": None,
            }
        ],
        "failed": 0,
        "errors": [],
    }


@pytest.mark.parametrize("reranker", ["voyage", "bm25"])
async def test_the_references_request_with_reranking_is_reranked_by_the_gateway(reranker: str) -> None:
    texts = [f"nothing of the kind {number}" for number in range(29)]
    texts.insert(15, "how do i authenticate")
    script = Script(hits=[hit(f"x{n}", 1 - n / 100, text=text) for n, text in enumerate(texts)])
    async with scripted(one=script) as gateway:
        answer = await posted(gateway, {**RERANKED, "reranker": reranker})
    assert (answer["retrieved"], len(answer["items"]), answer["failed"], answer["errors"]) == (5, 5, 0, [])
    first, *others = answer["items"]
    # The search's own score stays beside the reranker's.
    assert (first["id"], first["score"]) == ("x15", pytest.approx(1 / 76))
    assert all(one["rerank_score"] < first["rerank_score"] for one in others)
    assert script.queries[0].k == 20


async def test_a_reranker_that_fails_is_a_failure_beside_the_items() -> None:
    async def rerank(query: Any, call: Any) -> Any:
        raise BackendUnavailable("it is down")

    offers = {"retrieve": None, "rerank": {"methods": ["cross-encoder"]}}
    scripts = {"one": Script(hits=[GUIDE]), "two": Script(capabilities=offers, rerank=rerank)}
    async with scripted(**scripts) as gateway:
        answer = await posted(gateway, RERANKED)
    assert [one["id"] for one in answer["items"]] == ["guide-3"]
    assert [(one["stage"], one["isRetryable"]) for one in answer["errors"]] == [("rerank", True)]


async def test_rewriting_that_fails_may_be_tried_again_and_one_that_nobody_offers_may_not() -> None:
    async def transform(query: Any, call: Any) -> Any:
        raise BackendUnavailable("it is down")

    offers = {"retrieve": None, "transform": {"methods": ["rewrite"]}}
    told = []
    for others in ({"two": Script(capabilities=offers, transform=transform)}, {}):
        async with scripted(one=Script(hits=[GUIDE]), **others) as gateway:
            answer = await posted(gateway, REWRITTEN)
        told.append([(one["stage"], one["isRetryable"]) for one in answer["errors"]])
    assert told == [[("rewrite", True)], [("rewrite", False)]]


async def test_rewriting_that_an_engine_offers_is_done_and_told() -> None:
    offers = {"retrieve": None, "transform": {"methods": ["rewrite"]}}
    scripts = {"one": Script(hits=[GUIDE]), "two": Script(capabilities=offers)}
    async with scripted(**scripts) as gateway:
        answer = await posted(gateway, REWRITTEN)
    assert (answer["query"], answer["search_query"], answer["failed"]) == (QUESTION, QUESTION.upper(), 0)
    assert [query.text for query in scripts["one"].queries] == [QUESTION.upper()]


async def test_rewriting_that_nobody_does_is_a_failure_beside_the_items() -> None:
    async with scripted(one=Script(hits=[GUIDE])) as gateway:
        answer = await posted(gateway, REWRITTEN)
    assert (answer["retrieved"], answer["search_query"]) == (1, QUESTION)
    assert [(one["stage"], one["source_kind"]) for one in answer["errors"]] == [("rewrite", "query")]


# What is asked of the gateway.


class Asked:
    """The gateway's door: keeps what comes through it, and offers these capabilities."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = capabilities
        self.retrieves: list[dict[str, Any]] = []

    async def call(self, method: str, params: Any) -> dict[str, Any]:
        if method == "info":
            return {"capabilities": self.capabilities}
        assert method == "retrieve"
        self.retrieves.append(dict(params))
        return {"hits": [], "rewrittenQuery": "what was searched for"}


async def through(door: Asked, **body: Any) -> tuple[dict[str, Any], Any]:
    """The parameters of the retrieve, and the answer."""
    facade = RagrailsFacade(RagrailsFacadeSettings(collections={"docs": CollectionSettings(engines=("one",))}))
    sent = {"query": QUESTION, "collection": "docs", **body}
    answer = await facade.answer(FacadeRequest(method="POST", path=PATH, body=json.dumps(sent).encode()), door)
    return door.retrieves[-1], json.loads(answer.body)


async def test_a_plain_request_asks_for_neither_reranking_nor_rewriting() -> None:
    params, _ = await through(Asked())
    scope = {"x-gateway": {"engines": ["one"]}}
    assert params == {"query": QUESTION, "k": 10, "strict": False, "_meta": scope}


@pytest.mark.parametrize(
    ("body", "funnel"),
    [
        ({"top_k": 20}, (20, 20, 5)),
        ({"top_k": 20, "rerank_top_k": 7}, (20, 20, 7)),
        ({"top_k": 3, "rerank_top_k": 7}, (3, 3, 3)),
    ],
)
async def test_all_that_is_fetched_is_reranked_and_the_best_are_kept(body: Any, funnel: Any) -> None:
    params, _ = await through(Asked(), use_rerank=True, **body)
    assert (params["candidateK"], params["rerank"]["topN"], params["k"]) == funnel


@pytest.mark.parametrize(
    ("reranker", "offered", "method"),
    [("bm25", ["bm25"], "bm25"), ("bm25", [], None), ("voyage", ["bm25"], None), ("other", ["bm25"], None)],
)
async def test_the_reranker_by_words_is_asked_for_by_name_where_the_gateway_has_it(
    reranker: str, offered: list[str], method: str | None
) -> None:
    door = Asked(**{"x-gateway": {"rerank": {"methods": offered}}})
    params, _ = await through(door, use_rerank=True, reranker=reranker, reranker_model="very-expensive")
    assert params["rerank"].get("method") == method
    assert "model" not in params["rerank"]


async def test_rewriting_is_asked_for_and_what_was_searched_for_is_told() -> None:
    params, answer = await through(Asked(), use_query_rewrite=True, session_context="onboarding")
    assert params["rewrite"] == "rewrite"
    assert (answer["query"], answer["search_query"]) == (QUESTION, "what was searched for")


# Collections.


async def test_what_a_request_names_is_looked_up_and_never_dialled() -> None:
    async with scripted(one=Script(hits=[GUIDE])) as gateway:
        for named in ({"collection": "other"}, {"url": "http://169.254.169.254"}, {"vector_db": "pinecone"}):
            answer = await posted(gateway, {**BASIC, **named})
            assert (answer["items"], answer["failed"]) == ([], 1)
            assert answer["errors"][0]["error"] == "the collection does not exist"
        for left in ("collection", "url", "vector_db"):
            body = {name: value for name, value in BASIC.items() if name != left}
            assert (await posted(gateway, body))["retrieved"] == 1


async def test_a_collection_asks_its_engines_only() -> None:
    scripts = {"one": Script(hits=[hit("x", 1.0)]), "two": Script(hits=[hit("y", 1.0)])}
    collections = {"docs": {"engines": ["two"]}}
    async with served("ragrails", {"collections": collections}, scripts=scripts) as gateway:
        answer = await posted(gateway, {"query": "q", "collection": "docs"})
        assert [one["id"] for one in answer["items"]] == ["y"]
        # An engine that was not selected is no loss.
        assert answer["failed"] == 0
        assert (await posted(gateway, {"query": "q"}))["failed"] == 1


@pytest.mark.parametrize("name", ["options", "embedder_options", "reranker_options"])
async def test_options_are_refused_and_never_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="gateway"):
        async with scripted(one=Script(hits=[GUIDE])) as gateway:
            answer = await posted(gateway, {**BASIC, name: {"api_key": "qd-theirs"}}, 400)
            assert (await posted(gateway, {**BASIC, name: {}}))["retrieved"] == 1
    assert answer == {"error": {"type": "ValueError", "message": f"{name} is not accepted here: it is configured"}}
    assert "qd-theirs" not in caplog.text


# Losses.


def _raising(error: RcpError) -> Script:
    async def retrieve(query: Any, call: Any) -> Any:
        raise error

    return Script(retrieve=retrieve)


async def test_an_engine_that_fails_beside_one_that_answers_is_counted() -> None:
    async with scripted(one=Script(hits=[GUIDE]), two=_raising(BackendUnavailable("it is down"))) as gateway:
        answer = await posted(gateway, BASIC)
    assert (answer["retrieved"], answer["failed"]) == (1, 1)
    assert answer["errors"] == [
        {
            "source": QUESTION,
            "source_kind": "query",
            "stage": "retrieve",
            "error": "it is down",
            "isRetryable": True,
            "attempts": 1,
        }
    ]


@pytest.mark.parametrize("retryable", [True, False])
async def test_when_every_engine_fails_the_answer_is_200_with_failures(retryable: bool) -> None:
    async with scripted(one=_raising(BackendUnavailable("it is down", retryable=retryable))) as gateway:
        answer = await posted(gateway, BASIC)
    assert (answer["items"], answer["retrieved"], answer["failed"]) == ([], 0, 1)
    assert [(one["error"], one["isRetryable"]) for one in answer["errors"]] == [("it is down", retryable)]


# Loopback.


@pytest.mark.parametrize("filter", [None, {"field": "lang", "op": "eq", "value": "en"}])
async def test_our_engine_on_our_facade_gives_what_the_engine_behind_gives(filter: Any) -> None:
    params = {"query": QUESTION, "k": 3, **({"filter": filter} if filter else {})}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": params}
    async with served("ragrails", {"collections": {"docs": {}}}, engines=[MEMORY]) as gateway:
        rails = {
            "id": "rails",
            "kind": "ragrails",
            "with": {"url": gateway.url, "collection": "docs", "fields": {"lang": "keyword"}, "meta_complete": True},
        }
        async with served("ragrails", {"collections": {}}, engines=[rails]) as over:
            far = (await over.http.post("/rcp/retrieve", json=frame)).json()["result"]
        near = (await gateway.http.post("/rcp/retrieve", json=frame)).json()["result"]

    def shape(one: dict[str, Any]) -> Any:
        return (
            one["id"],
            one["text"],
            {name: one["meta"][name] for name in ("title", "source", "lang")},
            one["citation"],
        )

    assert [shape(one) for one in far["hits"]] == [shape(one) for one in near["hits"]]
    assert far["hits"]
    assert far["usage"].get("notes") == near["usage"].get("notes")


@pytest.mark.parametrize(
    "options",
    [{"rerank": {}}, {"rerank": {"topN": 20}, "candidateK": 20, "k": 2}, {"rewrite": "rewrite"}],
    ids=["rerank", "funnel", "rewrite"],
)
async def test_reranking_and_rewriting_are_the_same_through_engine_and_facade(options: dict[str, Any]) -> None:
    """The engine, asked alone, hands both on; the gateway behind the facade does them."""
    frame = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": QUESTION, **options}}
    writer = Script(capabilities={"retrieve": None, "transform": {"methods": ["rewrite"]}})
    near = served("ragrails", {"collections": {"docs": {}}}, engines=[MEMORY], scripts={"writer": writer})
    async with near as gateway:
        settings = {"url": gateway.url, "collection": "docs", "rerank": {}, "rewrite": {}, "meta_complete": True}
        rails = {"id": "rails", "kind": "ragrails", "with": settings}
        async with served("ragrails", {"collections": {}}, engines=[rails]) as over:
            far_result = (await over.http.post("/rcp/retrieve", json=frame)).json()["result"]
        near_result = (await gateway.http.post("/rcp/retrieve", json=frame)).json()["result"]
    assert [one["id"] for one in far_result["hits"]] == [one["id"] for one in near_result["hits"]]
    assert far_result["hits"]
    assert far_result.get("rewrittenQuery") == near_result.get("rewrittenQuery")
    assert ("rewrittenQuery" in far_result) == ("rewrite" in options)
    assert far_result["usage"].get("notes") is None
    if "rerank" in options:
        scores = [[one["scores"]["rerank"] for one in result["hits"]] for result in (far_result, near_result)]
        assert scores[0] == scores[1]


async def test_a_failure_behind_the_facade_arrives_as_one_at_our_engine() -> None:
    frame = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": QUESTION}}
    async with scripted(one=_raising(BackendUnavailable("it is down"))) as gateway:
        rails = {"id": "rails", "kind": "ragrails", "with": {"url": gateway.url, "collection": "docs"}}
        async with served("ragrails", {"collections": {}}, engines=[rails]) as over:
            answer = (await over.http.post("/rcp/retrieve", json=frame)).json()
    assert (answer["error"]["code"], answer["error"]["data"]["retryable"]) == (-32010, True)


# What cannot be answered.


@pytest.mark.parametrize(
    ("body", "loc", "type"),
    [
        (b"", ["body"], "json_invalid"),
        (b"[]", ["body"], "model_attributes_type"),
        ({}, ["body", "query"], "missing"),
        ({"query": 1}, ["body", "query"], "string_type"),
        ({"query": "q", "top_k": None}, ["body", "top_k"], "int_type"),
        ({"query": "q", "use_rerank": "perhaps"}, ["body", "use_rerank"], "bool_parsing"),
        ({"query": "q", "vector_db": "faiss"}, ["body", "vector_db"], "literal_error"),
        ({"query": "q", "options": []}, ["body", "options"], "dict_type"),
        ({"query": "q", "model": None}, ["body", "model"], "string_type"),
    ],
)
async def test_bad_requests_are_told_where_the_fault_is(body: Any, loc: Any, type: str) -> None:
    async with scripted(one=Script()) as gateway:
        answer = await posted(gateway, body, 422)
    assert {"loc": loc, "type": type}.items() <= answer["detail"][0].items()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"query": " "}, "query must be a non-empty string"),
        ({"top_k": 0}, "top_k must be greater than 0"),
        ({"rerank_top_k": -1}, "rerank_top_k must be greater than 0"),
    ],
)
async def test_what_the_server_itself_would_refuse_is_refused_in_its_words(more: Any, told: str) -> None:
    async with scripted(one=Script()) as gateway:
        answer = await posted(gateway, {**BASIC, **more}, 400)
    assert answer == {"error": {"type": "ValueError", "message": told}}


async def test_health_and_errors_have_the_protocols_own_shape() -> None:
    async with scripted(one=Script()) as gateway:
        assert (await gateway.http.get("/v1/health")).json() == {"status": "ok", "service": "ragrails"}
    facade = RagrailsFacade(RagrailsFacadeSettings(collections={}))
    assert facade.failure(RateLimited("slow down", retry_after_ms=1500)).headers == {"retry-after": "2"}
    for code, status in ((-32012, 401), (-32013, 413), (-32603, 500), (-32005, 400), (-32602, 400), (-1, 500)):
        answer = facade.failure(RcpError("words", code=code))
        assert answer.status == status
        assert list(json.loads(answer.body)["error"]) == ["type", "message"]
    assert facade.failure(RcpError("no", code=-32012, data={"authenticated": True})).status == 403


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
BODIES = st.one_of(
    JSON,
    st.builds(
        lambda base, more: {**base, **more},
        st.sampled_from([BASIC, RERANKED, REWRITTEN]),
        st.dictionaries(st.sampled_from([*RERANKED, *REWRITTEN, "options", "rewrite_context"]), JSON, max_size=3),
    ),
)


async def test_any_body_gets_an_answer_in_the_protocols_own_shape() -> None:
    bodies: list[bytes] = []

    @settings(max_examples=60)
    @given(body=BODIES)
    def gather(body: Any) -> None:
        bodies.append(json.dumps(body).encode())

    gather()
    async with scripted(one=Script(hits=[GUIDE])) as gateway:
        (facade,) = gateway.gateway.facades
        door = _Door(gateway.gateway.dispatcher, ANONYMOUS)
        for body in [*bodies, b"\xff", b"nul", b'{"query":"\\ud800"}', b"[" * 5000]:
            try:
                response = await facade.answer(FacadeRequest(method="POST", path=PATH, body=body), door)
            except RcpError as error:
                response = facade.failure(error)
            answer = json.loads(response.body)
            assert response.status in (200, 400, 422), (body, response)
            assert ({200: "items", 400: "error", 422: "detail"}[response.status]) in answer


def test_settings_that_cannot_work_are_configuration_errors() -> None:
    config = RagrailsFacadeSettings(collections={"c": CollectionSettings(engines=("none",))})
    with pytest.raises(ConfigError) as caught:
        RagrailsFacadeKind().make(config, ["one"])
    assert caught.value.path == "collections.c.engines[0]"
    for make in (
        lambda: CollectionSettings(engines=()),
        lambda: CollectionSettings(vector_db="faiss"),
        lambda: RagrailsFacadeSettings(collections={}, default="docs"),
    ):
        with pytest.raises(ConfigError):
            make()


async def test_a_body_no_search_needs_is_answered_before_it_is_read() -> None:
    async with served("ragrails", {"collections": {"docs": {"engines": ["a"]}}}, scripts={"a": Script()}) as gateway:
        response = await gateway.post("/v1/retrieve", b'{"query":"' + b"x" * 2_000_000 + b'"}')
        assert response.status_code == 413
        assert response.headers["connection"] == "close"
        assert (await gateway.post("/v1/retrieve", {"query": "q", "collection": "docs"})).status_code == 200
