"""The facade over a real gateway and real HTTP: the protocol's clients find what they know."""

from __future__ import annotations

import json
import logging
from typing import Any

import llama_cloud
import msgspec
import pytest
from anyio import fail_after
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ConfigError, RateLimited, RcpError
from gateway.model import hit, member, meta_of
from gateway.secret import Secret
from gateway.spi import EngineQuery, EngineReply, FacadeRequest
from gateway_llamacloud.engine import LlamaCloudKind
from gateway_llamacloud.facade import IndexSettings, LlamaCloudFacade, LlamaCloudFacadeKind, LlamaCloudFacadeSettings
from gateway_llamacloud.settings import LlamaCloudConfig
from gateway_llamacloud.wire import PATH
from tests.engines import Script
from tests.facades import Served, call, context, served

pytestmark = pytest.mark.anyio

FINDINGS = "What are the key findings?"
SEED_REQUEST = {"index_id": "idx-abc123", "query": FINDINGS}
INDEXES = {"indexes": {"idx-abc123": {"engines": ["one"]}}}

DOCUMENTS = [
    {
        "id": f"{file}#{number}",
        "text": f"{text} finding number {number}",
        "meta": {
            "lang": lang,
            "year": year,
            "docId": file,
            "passage": number,
            "page": number + 1,
            "start": 10 * number,
            "end": 10 * number + 9,
            "source": f"{file}.pdf",
            "tags": [lang, "all"],
        },
    }
    for number, (file, text, lang, year) in enumerate(
        [
            ("a", "the key", "en", 1999),
            ("a", "key", "en", 2005),
            ("b", "the key key", "de", 2010),
            ("b", "nothing but a", "de", 2020),
            ("c", "the most important key key key", "fr", 2021),
        ]
    )
]
MEMORY = {
    "id": "one",
    "kind": "memory",
    "with": {"documents": DOCUMENTS, "fields": {"lang": "keyword", "year": "int", "docId": "keyword"}},
}


def on_memory(**index: Any) -> Any:
    return served("llamacloud", {"indexes": {"idx-abc123": {"file_field": "docId", **index}}}, engines=[MEMORY])


def scripted(script: Script, **index: Any) -> Any:
    return served("llamacloud", {"indexes": {"idx-abc123": index}}, scripts={"one": script})


async def posted(gateway: Served, **body: Any) -> Any:
    with fail_after(10):
        response = await gateway.post(PATH, {**SEED_REQUEST, **body})
    assert response.status_code == 200, response.text
    return response.json()["results"]


# What comes back.


async def test_the_references_request_gets_the_references_response() -> None:
    meta = {
        "foo": "string",
        "x-llamacloud": {
            "attachments": [{"attachment_name": "attachment_name", "source_id": "source_id", "type": "type"}],
            "chunk_token_count": 0,
            "page_range_end": 0,
        },
    }
    one = hit(
        "parsed_directory_file_id:0",
        0.0,
        text="content",
        meta=meta,
        citation={"source": "s", "start": 0, "end": 0, "page": 0},
        chunk={"docId": "parsed_directory_file_id", "index": 0},
        scores={"rerank": 0},
    )
    async with scripted(Script(hits=[one])) as gateway:
        (result,) = await posted(gateway)
    assert result.pop("score") > 0
    assert result == {
        "content": "content",
        "metadata": {"foo": "string"},
        "rerank_score": 0,
        "static_fields": {
            "attachments": [{"attachment_name": "attachment_name", "source_id": "source_id", "type": "type"}],
            "chunk_end_char": 0,
            "chunk_index": 0,
            "chunk_start_char": 0,
            "chunk_token_count": 0,
            "page_range_end": 0,
            "page_range_start": 0,
            "parsed_directory_file_id": "parsed_directory_file_id",
        },
    }


async def test_reranking_is_done_by_the_gateway_and_told_beside_the_searchs_score() -> None:
    found = [hit("a", 0.9, text="nothing of the kind"), hit("b", 0.8, text="the key findings are these")]
    async with scripted(Script(hits=found)) as gateway:
        first, second = await posted(gateway)
        plain = await posted(gateway, rerank={"enabled": False})
    assert [one["static_fields"]["parsed_directory_file_id"] for one in (first, second)] == ["b", "a"]
    assert first["rerank_score"] > second["rerank_score"]
    assert (first["score"], second["score"]) == (pytest.approx(1 / 62), pytest.approx(1 / 61))
    assert [(one["content"], one["rerank_score"]) for one in plain] == [
        ("nothing of the kind", None),
        ("the key findings are these", None),
    ]


async def test_a_hit_that_is_no_part_of_a_document_is_one_itself() -> None:
    odd = hit("x", 1.0, meta={"deep": {"a": 1}, "mixed": [1, "a"], "nothing": None, "yes": True})
    async with scripted(Script(hits=[odd])) as gateway:
        (result,) = await posted(gateway)
    assert result["static_fields"]["parsed_directory_file_id"] == "x"
    assert (result["content"], result["static_fields"]["chunk_index"]) == ("", None)
    assert result["metadata"] == {"deep": '{"a":1}', "mixed": '[1,"a"]', "nothing": None, "yes": True}


async def test_the_official_client_is_answered_in_its_own_types() -> None:
    async with on_memory() as gateway, client(gateway) as cloud:
        answer = await cloud.retrieval.retrieve(
            index_id="idx-abc123",
            query=FINDINGS,
            custom_filters={
                "lang": {"operator": "in", "value": ["en", "de"]},
                "year": [{"operator": "gte", "value": 2000}, {"operator": "lt", "value": 2020}],
            },
            static_filters={"parsed_directory_file_id": {"operator": "ne", "value": "c"}},
            full_text_pipeline_weight=0.3,
            vector_pipeline_weight=0.7,
            num_candidates=100,
            rerank={"enabled": True, "top_n": 5},
            top_k=10,
        )
    # Strictly, as the client itself does not.
    strict = type(answer).model_validate(answer.model_dump())
    assert [one.static_fields.parsed_directory_file_id for one in strict.results if one.static_fields] == ["b", "a"]
    first = strict.results[0]
    assert first.static_fields is not None
    assert (first.static_fields.page_range_start, first.static_fields.chunk_index) == (3, 2)
    assert (first.static_fields.chunk_start_char, first.static_fields.chunk_end_char) == (20, 29)
    assert first.metadata is not None
    assert (first.metadata["lang"], first.metadata["tags"]) == ("de", ["de", "all"])
    assert not {"engine", "engines", "fusedScore"} & set(first.metadata)


async def test_the_official_client_knows_the_errors() -> None:
    async with on_memory() as gateway, client(gateway) as cloud:
        with pytest.raises(llama_cloud.NotFoundError) as missing:
            await cloud.retrieval.retrieve(index_id="other", query="q")
        assert missing.value.body == {"detail": "Index not found"}
        with pytest.raises(llama_cloud.UnprocessableEntityError) as wrong:
            await cloud.retrieval.retrieve(
                index_id="idx-abc123", query="q", custom_filters={"colour": {"operator": "eq", "value": "red"}}
            )
        assert wrong.value.body["detail"][0]["loc"] == ["body", "custom_filters", "colour"]  # type: ignore[index]


def client(gateway: Served) -> llama_cloud.AsyncLlamaCloud:
    return llama_cloud.AsyncLlamaCloud(api_key="llx-theirs", base_url=gateway.url, max_retries=0, timeout=10)


# What is asked of the gateway.


async def asked(body: dict[str, Any], capabilities: dict[str, Any] | None = None, **index: Any) -> EngineQuery:
    script = Script(capabilities=capabilities or {}, hits=[hit("x", 1.0)])
    async with scripted(script, **index) as gateway:
        await posted(gateway, **body)
    return script.queries[0]


BOTH = {"retrieve": {"maxK": 1000, "modes": ["dense", "sparse", "hybrid"], "fusion": ["rrf"]}}


@pytest.mark.parametrize(
    ("weights", "mode", "given"),
    [
        ({"vector_pipeline_weight": 1, "full_text_pipeline_weight": 0}, "dense", None),
        ({"full_text_pipeline_weight": 0}, "dense", None),
        ({"vector_pipeline_weight": 0, "full_text_pipeline_weight": 1}, "sparse", None),
        (
            {"vector_pipeline_weight": 0.7, "full_text_pipeline_weight": 0.3},
            None,
            {"dense": 0.7, "sparse": 0.3},
        ),
        ({"vector_pipeline_weight": 0, "full_text_pipeline_weight": 0}, None, None),
        ({}, None, None),
    ],
)
async def test_weights_are_a_mode_or_weights(weights: Any, mode: Any, given: Any) -> None:
    query = await asked(weights, BOTH)
    assert (query.mode, query.fusion.weights if query.fusion else None) == (mode, given)


class Asked:
    """The gateway's door: keeps what comes through it, and offers a retrieve like this."""

    def __init__(self, **retrieve: Any) -> None:
        self.offered = retrieve
        self.retrieves: list[dict[str, Any]] = []

    async def call(self, method: str, params: Any) -> dict[str, Any]:
        if method == "info":
            return {"capabilities": {"retrieve": self.offered}}
        assert method == "retrieve"
        self.retrieves.append(dict(params))
        return {"hits": []}


async def through(door: Asked, body: dict[str, Any], **index: Any) -> dict[str, Any]:
    """The parameters of the retrieve that the facade makes of a body."""
    settings = msgspec.convert({"indexes": {"idx-abc123": index}}, LlamaCloudFacadeSettings)
    sent = json.dumps({**SEED_REQUEST, **body}).encode()
    answer = await LlamaCloudFacade(settings).answer(FacadeRequest(method="POST", path=PATH, body=sent), door)
    assert answer.status == 200
    return door.retrieves[-1]


RERANKS = {"rerankBuiltin": True}


@pytest.mark.parametrize(
    ("body", "index", "offered", "rerank"),
    [
        # On by default in this protocol, off where request or configuration say so, and silent where there is none.
        ({}, {}, RERANKS, {}),
        ({}, {}, {}, None),
        ({"rerank": {"enabled": False}}, {}, RERANKS, None),
        ({}, {"defaults": {"rerank": False}}, RERANKS, None),
        ({"rerank": {"enabled": True}}, {"defaults": {"rerank": False}}, RERANKS, {}),
        ({"rerank": {"top_n": 4}, "top_k": 20}, {}, RERANKS, {"topN": 20}),
        ({"rerank": {"top_n": 4}}, {}, RERANKS, {"topN": 4}),
        ({"top_k": 20}, {}, RERANKS, {"topN": 20}),
    ],
)
async def test_reranking_is_asked_for_as_the_protocol_has_it(body: Any, index: Any, offered: Any, rerank: Any) -> None:
    assert (await through(Asked(**offered), body, **index)).get("rerank") == rerank


async def test_candidates_rerankings_and_results_are_one_funnel() -> None:
    params = await through(Asked(**RERANKS), {"rerank": {"top_n": 4}, "top_k": 20, "num_candidates": 100})
    assert (params["candidateK"], params["rerank"], params["k"]) == (100, {"topN": 20}, 4)
    params = await through(Asked(**RERANKS), {"rerank": {"top_n": 40}, "top_k": 20})
    assert (params["candidateK"], params["rerank"], params["k"]) == (40, {"topN": 40}, 20)


async def test_what_no_engine_can_do_is_left_out() -> None:
    query = await asked({"vector_pipeline_weight": 1, "full_text_pipeline_weight": 0, "rerank": {"enabled": True}})
    assert (query.mode, query.rerank) == (None, None)


async def test_the_number_of_results_is_capped_and_candidates_are_the_window() -> None:
    script = Script(capabilities=BOTH, hits=[hit(f"x{n}", 1.0) for n in range(600)])
    async with scripted(script) as gateway:
        assert len(await posted(gateway, top_k=10_000)) == 500
        assert len(await posted(gateway, top_k=3, num_candidates=700)) == 3
        assert len(await posted(gateway, top_k=20, rerank={"top_n": 4})) == 4
        assert len(await posted(gateway, top_k=2, rerank={"top_n": 4})) == 2
        assert len(await posted(gateway, top_k=20, rerank={"enabled": False, "top_n": 4})) == 20
    assert [query.k for query in script.queries][1] == 700


async def test_defaults_of_an_index_stand_in_for_what_is_left_out() -> None:
    script = Script(capabilities=BOTH, hits=[hit(f"x{n}", 1.0) for n in range(50)])
    async with scripted(script, defaults={"top_k": 3, "vector_pipeline_weight": 0.0}) as gateway:
        assert len(await posted(gateway)) == 3
        assert len(await posted(gateway, top_k=5, full_text_pipeline_weight=0)) == 5
    assert [query.mode for query in script.queries] == ["sparse", "dense"]


async def test_a_threshold_is_read_on_the_scale_of_the_scores_that_are_given() -> None:
    async with on_memory() as gateway:
        off = {"enabled": False}
        scores = [one["score"] for one in await posted(gateway, rerank=off)]
        assert len(await posted(gateway, rerank=off, score_threshold=scores[1])) == 2
        # After reranking that is the reranker's.
        scores = [one["rerank_score"] for one in await posted(gateway)]
        assert len(await posted(gateway, score_threshold=scores[1])) == 2


async def test_an_index_asks_its_engines_only_and_its_project_must_be_the_one_named() -> None:
    scripts = {"one": Script(hits=[hit("x", 1.0)]), "two": Script(hits=[hit("y", 1.0)])}
    indexes = {"idx-abc123": {"engines": ["two"], "project_id": "p"}, "all": {}}
    async with served("llamacloud", {"indexes": indexes}, scripts=scripts) as gateway:
        (result,) = await posted(gateway)
        assert result["static_fields"]["parsed_directory_file_id"] == "y"
        assert len(await posted(gateway, index_id="all")) == 2
        assert (await gateway.post(f"{PATH}?project_id=p", SEED_REQUEST)).status_code == 200
        assert (await gateway.post(f"{PATH}?project_id=q", SEED_REQUEST)).status_code == 404


# Loopback.


@pytest.mark.parametrize(
    "filter",
    [
        None,
        {"field": "lang", "op": "eq", "value": "en"},
        {"and": [{"field": "year", "op": "gte", "value": 2000}, {"field": "year", "op": "lt", "value": 2021}]},
        {"or": [{"field": "lang", "op": "eq", "value": "fr"}, {"field": "year", "op": "lt", "value": 2000}]},
        {"not": {"field": "lang", "op": "in", "value": ["de", "fr"]}},
    ],
)
async def test_our_engine_on_our_facade_gives_what_the_engine_behind_gives(filter: Any) -> None:
    async with on_memory() as gateway:
        cloud = {
            "id": "cloud",
            "kind": "llamacloud",
            "with": {
                "index_id": "idx-abc123",
                "base_url": gateway.url,
                "api_key": {"env": "LLAMA_KEY"},
                "fields": {"lang": {"type": "keyword", "clean": True}, "year": {"type": "int", "clean": True}},
                "meta_complete": True,
            },
        }
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("LLAMA_KEY", "llx-loop")
            async with served("llamacloud", {"indexes": {}}, engines=[cloud]) as over:
                far = await over.http.post("/rcp/retrieve", json=frame(filter))
        near = await gateway.http.post("/rcp/retrieve", json=frame(filter))
    told = [[shape(one) for one in answer.json()["result"]["hits"]] for answer in (far, near)]
    assert told[0] == told[1]
    assert told[0]
    ids = [one["id"].replace("#", ":") for one in near.json()["result"]["hits"]]
    assert [one["id"] for one in far.json()["result"]["hits"]] == ids


@pytest.mark.parametrize("options", [{}, {"rerank": {}}, {"rerank": {"topN": 20}, "candidateK": 20, "k": 2}])
async def test_reranking_is_the_same_through_engine_and_facade_and_off_unless_asked_for(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_KEY", "llx-loop")
    asked = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": FINDINGS, **options}}
    async with on_memory() as gateway:
        settings = {"index_id": "idx-abc123", "base_url": gateway.url, "api_key": {"env": "LLAMA_KEY"}}
        cloud = {"id": "cloud", "kind": "llamacloud", "with": settings}
        async with served("llamacloud", {"indexes": {}}, engines=[cloud]) as over:
            far = (await over.http.post("/rcp/retrieve", json=asked)).json()["result"]["hits"]
        near = (await gateway.http.post("/rcp/retrieve", json=asked)).json()["result"]["hits"]
    assert [one["id"].replace(":", "#") for one in far] == [one["id"] for one in near]
    reranked = [[(one.get("scores") or {}).get("rerank") for one in hits] for hits in (far, near)]
    assert reranked[0] == reranked[1]
    assert all((score is None) == (not options) for score in reranked[0])
    assert far


def frame(filter: Any) -> dict[str, Any]:
    params = {"query": FINDINGS, "k": 10, **({"filter": filter} if filter else {})}
    return {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": params}


def shape(one: dict[str, Any]) -> Any:
    meta = {name: one["meta"][name] for name in DOCUMENTS[0]["meta"]}  # type: ignore[attr-defined]
    return one["text"], meta, one["citation"], one["chunk"]


async def test_two_gateways_in_a_row_lose_nothing_of_a_chunk() -> None:
    meta = {"foo": "bar", "x-llamacloud": {"chunk_token_count": 7, "page_range_end": 4}}
    given = hit("f:3", 1.0, text="t", meta=meta, citation={"source": "s", "page": 2}, chunk={"docId": "f", "index": 3})
    async with scripted(Script(hits=[given])) as gateway:
        config = LlamaCloudConfig(index_id="idx-abc123", api_key=Secret("k"), base_url=gateway.url)
        async with LlamaCloudKind().open(config, context()) as engine:
            reply: EngineReply = await engine.retrieve(EngineQuery(text="q", k=5), call())
    (back,) = reply.hits
    assert (back.id, member(back, "chunk"), member(back, "citation")["page"]) == ("f:3", {"docId": "f", "index": 3}, 2)
    assert meta_of(back) == {**meta, "parsed_directory_file_id": "f"}


# What cannot be answered.


@pytest.mark.parametrize(
    ("body", "loc", "type"),
    [
        (b"", ["body"], "json_invalid"),
        (b"{", ["body"], "json_invalid"),
        (b"[]", ["body"], "model_attributes_type"),
        ({"query": "q"}, ["body", "index_id"], "missing"),
        ({"index_id": 1, "query": "q"}, ["body", "index_id"], "string_type"),
        ({**SEED_REQUEST, "top_k": "ten"}, ["body", "top_k"], "int_parsing"),
        ({**SEED_REQUEST, "top_k": 0}, ["body", "top_k"], "greater_than_equal"),
        ({**SEED_REQUEST, "vector_pipeline_weight": 2}, ["body", "vector_pipeline_weight"], "less_than_equal"),
        ({**SEED_REQUEST, "rerank": {"enabled": []}}, ["body", "rerank", "enabled"], "bool_type"),
        (
            {**SEED_REQUEST, "custom_filters": {"a": {"operator": "like", "value": 1}}},
            ["body", "custom_filters", "a", "operator"],
            "literal_error",
        ),
        (
            {**SEED_REQUEST, "custom_filters": {"a": [{"operator": "gt", "value": "1"}]}},
            ["body", "custom_filters", "a", 0, "value"],
            "number_type",
        ),
        (
            {**SEED_REQUEST, "custom_filters": {"lang": {"operator": "gt", "value": "x"}}},
            ["body", "custom_filters", "lang"],
            "value_error",
        ),
        (
            {**SEED_REQUEST, "static_filters": {"parsed_directory_file_id": {"operator": "in", "value": [1]}}},
            ["body", "static_filters", "parsed_directory_file_id", "value", 0],
            "string_type",
        ),
    ],
)
async def test_bad_requests_are_told_where_the_fault_is(body: Any, loc: Any, type: str) -> None:
    async with on_memory() as gateway:
        response = await gateway.post(PATH, body)
    assert response.status_code == 422, response.text
    assert {"loc": loc, "type": type}.items() <= response.json()["detail"][0].items()


async def test_every_fault_of_a_request_is_told_at_once() -> None:
    async with on_memory() as gateway:
        response = await gateway.post(PATH, {"top_k": "x", "rerank": 1, "query": "secret words"})
    assert [row["loc"][-1] for row in response.json()["detail"]] == ["rerank", "index_id", "top_k"]
    assert "secret words" not in response.text


def _raising(error: RcpError) -> Script:
    async def retrieve(query: Any, call: Any) -> Any:
        raise error

    return Script(retrieve=retrieve)


async def test_failures_behind_are_the_servers_and_name_no_engine_address() -> None:
    async with scripted(_raising(RcpError("down", code=-32010))) as gateway:
        response = await gateway.post(PATH, SEED_REQUEST)
        assert (response.status_code, list(response.json())) == (503, ["detail"])
    facade = LlamaCloudFacade(LlamaCloudFacadeSettings(indexes={}))
    busy = facade.failure(RateLimited("slow down", retry_after_ms=1500))
    assert (busy.status, busy.headers) == (429, {"retry-after": "2"})
    for code, status in ((-32012, 401), (-32013, 413), (-32014, 504), (-32603, 500), (-32005, 400), (-1, 500)):
        answer = facade.failure(RcpError("words", code=code))
        assert answer.status == status
        assert list(json.loads(answer.body)) == ["detail"]
    assert facade.failure(RcpError("no", code=-32012, data={"authenticated": True})).status == 403


async def test_a_key_in_a_request_reaches_no_log_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="gateway"):
        async with on_memory() as gateway, client(gateway) as cloud:
            with pytest.raises(llama_cloud.APIStatusError) as caught:
                await cloud.retrieval.retrieve(index_id="llx-theirs", query="llx-theirs")
    assert "llx-theirs" not in caplog.text
    assert "llx-theirs" not in caught.value.response.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.sampled_from(
    (
        *("custom_filters", "static_filters", "rerank", "top_k", "num_candidates", "score_threshold"),
        *("query", "index_id", "vector_pipeline_weight", "full_text_pipeline_weight"),
    )
)
FILTERS = st.dictionaries(
    st.sampled_from(["lang", "year", "other", ""]),
    st.fixed_dictionaries({"operator": st.sampled_from(["eq", "in", "nin", "gt", "lte", "x"]), "value": JSON}) | JSON,
    max_size=2,
)
BODIES = st.one_of(
    JSON,
    st.builds(lambda more: {**SEED_REQUEST, **more}, st.dictionaries(MEMBERS, JSON, max_size=4)),
    st.builds(lambda filters: {**SEED_REQUEST, "custom_filters": filters}, FILTERS),
)


class _Direct:
    """The gateway's door, without the socket."""

    def __init__(self, gateway: Any) -> None:
        from gateway.caller import ANONYMOUS
        from gateway.transports.facades import _Door

        self.door = _Door(gateway.dispatcher, ANONYMOUS)

    async def call(self, method: str, params: Any) -> Any:
        return await self.door.call(method, params)


async def test_any_body_gets_an_answer_in_the_protocols_own_shape() -> None:
    async with on_memory() as gateway:
        (facade,) = gateway.gateway.facades
        bodies: list[bytes] = []

        @settings(max_examples=60)
        @given(body=BODIES)
        def gather(body: Any) -> None:
            bodies.append(json.dumps(body).encode())

        gather()
        direct = _Direct(gateway.gateway)
        for body in [*bodies, b"\xff", b"nul", b'"\\ud800"', b"[" * 5000, b'{"query":"\\ud800","index_id":"i"}']:
            request = FacadeRequest(method="POST", path=PATH, body=body)
            try:
                response = await facade.answer(request, direct)
            except RcpError as error:
                response = facade.failure(error)
            answer = json.loads(response.body)
            assert response.status in (200, 404, 422), (body, response)
            assert list(answer) == (["results"] if response.status == 200 else ["detail"])


def test_an_index_of_an_engine_that_is_not_there_is_a_configuration_error() -> None:
    for engines, path in ((("none",), "indexes.i.engines[0]"), ((), "indexes.i.engines")):
        config = LlamaCloudFacadeSettings(indexes={"i": IndexSettings(engines=engines)})
        with pytest.raises(ConfigError) as caught:
            LlamaCloudFacadeKind().make(config, ["one"])
        assert caught.value.path == path
