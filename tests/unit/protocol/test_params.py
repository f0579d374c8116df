"""What is refused, and read how, whatever the server offers (CHECKLIST F)."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import RcpError
from gateway.model import Capabilities, Content, EmbedRequest, IndexCapability
from gateway.protocol.methods import METHODS, decode, offered
from gateway.protocol.validate import MAX_INTEGER
from tests.obligations import obligation
from tests.unit.protocol.fakes import ready

pytestmark = pytest.mark.anyio


def _decode(method: str, params: str) -> Any:
    return decode(method, params.encode())


def _retrieve(options: str) -> Any:
    return _decode("retrieve", '{"query":"x",' + options + "}")


def _field(method: str, params: str) -> str:
    with pytest.raises(RcpError) as caught:
        _decode(method, params)
    assert caught.value.code == -32602
    field = caught.value.data["field"]
    assert isinstance(field, str)
    return field


@obligation(61, 130)
@pytest.mark.parametrize(
    "params", ["{}", '{"query":null}', '{"query":5}', '{"query":true}', '{"query":[]}', '{"query":["x"]}']
)
async def test_a_query_is_required(params: str) -> None:
    assert _field("retrieve", params) in ("query", "query[0]")
    code, data = await (await ready()).error("retrieve", {"k": 1})
    assert (code, data["field"]) == (-32602, "query")


@obligation(131)
def test_a_query_is_a_string_a_block_or_blocks() -> None:
    assert _decode("retrieve", '{"query":"x"}').query == "x"
    block = '{"type":"text","text":"x","unknown":1}'
    assert _decode("retrieve", f'{{"query":{block}}}').query == Content(type="text", text="x")
    assert _decode("retrieve", f'{{"query":[{block}]}}').query == [Content(type="text", text="x")]


@obligation(133, 134)
@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("{}", "type"),
        ('{"type":null}', "type"),
        ('{"type":"text"}', "text"),
        ('{"type":"text","text":5}', "text"),
        ('{"type":"image","data":"eA=="}', "mimeType"),
        ('{"type":"image","mimeType":"image/png"}', "data"),
        ('{"type":"image","mimeType":"image/png","data":"eA==","uri":"https://h/x"}', "uri"),
        ('{"type":"image","mimeType":"image/png","uri":"file:///etc/passwd"}', "uri"),
        ('{"type":"text","text":"x","uri":"https://h/x"}', "uri"),
    ],
)
def test_a_block_that_cannot_be_read_is_named(block: str, field: str) -> None:
    assert _field("retrieve", f'{{"query":{block}}}') == f"query.{field}"
    assert _field("retrieve", f'{{"query":[{block}]}}') == f"query[0].{field}"
    assert _field("embed", f'{{"inputs":["a",{block}]}}') == f"inputs[1].{field}"
    assert _field("rerank", f'{{"query":"x","passages":[{block}]}}') == f"passages[0].{field}"


def test_an_image_in_data_is_well_formed_whether_offered_or_not() -> None:
    block = _decode("retrieve", '{"query":{"type":"image","mimeType":"image/png","data":"eA=="}}').query
    assert block.type == "image"


@obligation(24, 25, 135)
@pytest.mark.parametrize("k", ["0", "-1", "2.5", '"3"', "true", "[1]", "{}", "1e30", "-1e30"])
def test_k_is_a_positive_integer(k: str) -> None:
    assert _field("retrieve", f'{{"query":"x","k":{k}}}') == "k"


@obligation(24)
@pytest.mark.parametrize(
    ("written", "read"), [("10.0", 10), ("1e2", 100), ("9007199254740993", MAX_INTEGER), ("1" + "0" * 30, MAX_INTEGER)]
)
def test_a_whole_number_is_an_integer_and_a_huge_one_is_clamped(written: str, read: int) -> None:
    k = _retrieve(f'"k":{written}').k
    assert k == read
    assert type(k) is int


def test_whole_numbers_are_read_in_every_integer_and_nowhere_else() -> None:
    request = _retrieve(
        '"candidateK":30.0,"rerank":{"topN":20.0},"fusion":{"rrfK":60.0,"weights":{"a":1,"b":null}},"seed":7.0,"level":0.0,'
        '"tokenBudget":5.0,"filter":{"value":10.0},"minScore":2,"_meta":{"progressToken":1.0,"big":9007199254740993}'
    )
    assert (request.candidate_k, request.rerank.top_n, request.fusion.rrf_k, request.seed) == (30, 20, 60, 7)
    assert type(request.filter["value"]) is float
    assert type(request.meta["progressToken"]) is float
    assert request.meta["big"] == 9007199254740993
    assert request.fusion.weights == {"a": 1.0}


@obligation(26)
def test_null_is_absent() -> None:
    names = (
        "k mode candidateK fusion rerank mmr rewrite filter minScore recency unit level tokenBudget cursor strict _meta"
    )
    request = _retrieve(",".join(f'"{name}":null' for name in names.split()))
    assert request == _decode("retrieve", '{"query":"x"}')
    assert _retrieve('"mmr":{"lambda":null},"fusion":{"rrfK":null,"weights":null}').mmr.lambda_ is None
    assert _decode("index/add", '{"documents":[{"text":"x","id":null,"meta":null}]}').documents[0].id is None


def test_k_may_be_absent() -> None:
    assert _decode("retrieve", '{"query":"x"}').k is None


@obligation(19, 20, 158)
async def test_unknown_members_are_ignored_at_every_level() -> None:
    request = _retrieve('"k":1,"fooBar":{},"mmr":{"lambda":0.5,"zz":[]},"rerank":{"zz":1},"_meta":{"zz":1}')
    assert request.k == 1
    assert request.meta == {"zz": 1}
    await (await ready()).result("retrieve", {"query": "x", "zzz": 1, "_meta": {"zz": {"deep": [1]}}})


def test_options_that_nobody_offers_are_the_planners_business() -> None:
    request = _retrieve(
        '"mode":"HYBRID","unit":"bogus","encoding":"bogus","rewrite":"bogus","fusion":{"method":"bogus"}'
    )
    assert (request.mode, request.unit, request.encoding, request.rewrite) == ("HYBRID", "bogus", "bogus", "bogus")


@obligation(139)
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ('"k":10,"candidateK":2', "candidateK"),
        ('"k":10,"rerank":{"topN":5}', "rerank.topN"),
        ('"candidateK":5,"rerank":{"topN":6}', "candidateK"),
        ('"k":5,"candidateK":20,"rerank":{"topN":30}', "candidateK"),
        ('"k":7,"candidateK":20,"rerank":{"topN":6}', "rerank.topN"),
    ],
)
def test_the_funnel_narrows(options: str, field: str) -> None:
    assert _field("retrieve", '{"query":"x",' + options + "}") == field


@obligation(140)
def test_the_funnel_is_checked_before_anything_is_clamped() -> None:
    assert _field("retrieve", '{"query":"x","k":500,"candidateK":100}') == "candidateK"
    assert _field("retrieve", '{"query":"x","k":9007199254740999,"candidateK":9007199254740995}') == "candidateK"


@obligation(142)
def test_a_funnel_that_narrows_is_taken_however_wide() -> None:
    assert _retrieve('"k":5,"candidateK":1000000000,"rerank":{"topN":5}').candidate_k == 10**9
    assert _retrieve('"candidateK":2').k is None
    assert _retrieve('"k":5,"rerank":false').rerank is False


@obligation(25, 146)
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ('"strict":"no"', "strict"),
        ('"includeText":0', "includeText"),
        ('"includeVectors":"true"', "includeVectors"),
        ('"minScore":"x"', "minScore"),
        ('"minScore":true', "minScore"),
        ('"cursor":5', "cursor"),
        ('"sessionId":5', "sessionId"),
        ('"indexVersion":5', "indexVersion"),
        ('"mode":5', "mode"),
        ('"unit":{}', "unit"),
        ('"encoding":1', "encoding"),
        ('"seed":"x"', "seed"),
        ('"seed":1.5', "seed"),
        ('"mmr":true', "mmr"),
        ('"rerank":true', "rerank"),
        ('"rerank":"llm"', "rerank"),
        ('"rewrite":true', "rewrite"),
        ('"rewrite":5', "rewrite"),
        ('"fusion":"rrf"', "fusion"),
        ('"fusion":{"method":5}', "fusion.method"),
        ('"recency":5', "recency"),
        ('"recency":{"field":5}', "recency.field"),
        ('"_meta":5', "_meta"),
        ('"rerank":{"topN":0}', "rerank.topN"),
        ('"rerank":{"topN":true}', "rerank.topN"),
        ('"candidateK":0', "candidateK"),
        ('"candidateK":"9"', "candidateK"),
        ('"level":-1', "level"),
        ('"recency":{"halfLifeDays":0}', "recency.halfLifeDays"),
        ('"recency":{"halfLifeDays":-1}', "recency.halfLifeDays"),
    ],
)
def test_a_wrong_type_or_value_is_named(options: str, field: str) -> None:
    assert _field("retrieve", '{"query":"x",' + options + "}") == field


@obligation(147)
@pytest.mark.parametrize("value", ["2", "-0.1", "true"])
def test_lambda_lies_between_0_and_1(value: str) -> None:
    assert _field("retrieve", '{"query":"x","mmr":{"lambda":' + value + "}}") == "mmr.lambda"


@obligation(148)
@pytest.mark.parametrize(
    ("fusion", "field"),
    [
        ('{"alpha":2}', "fusion.alpha"),
        ('{"alpha":-1}', "fusion.alpha"),
        ('{"rrfK":0}', "fusion.rrfK"),
        ('{"rrfK":1.5}', "fusion.rrfK"),
        ('{"weights":{"dense":-1}}', "fusion.weights.dense"),
        ('{"weights":{"dense":true}}', "fusion.weights[...]"),
        ('{"weights":{"dense":"1"}}', "fusion.weights[...]"),
        ('{"weights":[1]}', "fusion.weights"),
    ],
)
def test_fusion_options_lie_in_their_ranges(fusion: str, field: str) -> None:
    assert _field("retrieve", '{"query":"x","fusion":' + fusion + "}") == field


@obligation(151)
@pytest.mark.parametrize("value", ["-1", "0", '"9"', "1.5"])
def test_a_token_budget_is_a_positive_integer(value: str) -> None:
    assert _field("retrieve", '{"query":"x","tokenBudget":' + value + "}") == "tokenBudget"


@obligation(36)
async def test_an_error_names_the_path_and_holds_no_values() -> None:
    client = await ready()
    answer = await client.call("retrieve", {"query": "secret words", "fusion": {"rrfK": "secret words"}})
    assert answer["error"]["data"]["field"] == "fusion.rrfK"
    assert "secret" not in str(answer)


# Other methods.


@obligation(173, 174)
@pytest.mark.parametrize("method", ["embed", "embed/sparse", "embed/multi"])
def test_inputs_and_texts_are_one_parameter(method: str) -> None:
    wanted = EmbedRequest(inputs=["a", "b"])
    assert _decode(method, '{"texts":["a","b"]}') == wanted
    assert _decode(method, '{"inputs":["a","b"],"texts":null}') == wanted
    assert _decode(method, '{"inputs":["a","b"],"texts":["a","b"]}') == wanted
    assert _field(method, '{"inputs":["a"],"texts":["b"]}') == "texts"
    assert _field(method, "{}") == "inputs"
    assert _field(method, '{"inputs":"a"}') == "inputs"
    assert _field(method, '{"texts":["a",5]}') == "texts[1]"


@obligation(177)
def test_passages_and_documents_are_one_parameter() -> None:
    request = _decode("rerank", '{"query":"x","documents":["a"],"topN":1.0}')
    assert (request.passages, request.documents, request.top_n) == (["a"], None, 1)
    assert _decode("rerank", '{"query":"x","passages":["a"],"documents":["a"]}').passages == ["a"]
    assert _field("rerank", '{"query":"x","passages":["a"],"documents":["b"]}') == "documents"
    assert _field("rerank", '{"query":"x"}') == "passages"
    assert _field("rerank", '{"passages":["a"]}') == "query"
    assert _field("rerank", '{"query":"x","passages":["a"],"topN":0}') == "topN"


def test_documents_to_add_need_text_and_bring_no_vector() -> None:
    request = _decode("index/add", '{"documents":[{"text":"a","id":7,"vector":[1,2]},{"text":"b","id":"x"}]}')
    assert [(document.id, document.vector) for document in request.documents] == [(7, None), ("x", None)]
    assert _field("index/add", "{}") == "documents"
    assert _field("index/add", '{"documents":"x"}') == "documents"
    assert _field("index/add", '{"documents":[{"text":"a"},{"id":"x"}]}') == "documents[1].text"
    assert _field("index/add", '{"documents":[{"text":"a","id":true}]}') == "documents[0].id"
    assert _field("index/add", '{"documents":[{"text":"a","meta":[]}]}') == "documents[0].meta"


def test_ids_to_delete_are_text_or_numbers() -> None:
    assert _decode("index/delete", '{"ids":["a",7]}').ids == ["a", 7]
    assert _field("index/delete", "{}") == "ids"
    assert _field("index/delete", '{"ids":[true]}') == "ids[0]"
    assert _decode("index/delete", '{"filter":{"field":"a"}}').ids is None


def test_a_method_without_a_struct_gets_a_plain_object() -> None:
    assert _decode("catalog/list", '{"any":[1]}') == {"any": [1]}
    assert _decode("catalog/list", "") == {}
    assert _field("catalog/list", '{"_meta":5}') == "_meta"


def test_bad_utf8_in_a_plain_object_is_mended() -> None:
    assert decode("catalog/list", b'{"query":"\xff"}') == {"query": "\ufffd"}


@obligation(179)
def test_a_question_to_a_graph_names_its_operation_and_where_to_start() -> None:
    request = _decode("graph", '{"op":"neighbors","seedIds":["a",7],"k":3.0,"hops":2,"level":0}')
    assert (request.op, request.seed_ids, request.k, request.hops) == ("neighbors", ["a", 7], 3, 2)
    assert _decode("graph", '{"op":"neighbors","node":"a"}') == _decode("graph", '{"op":"neighbors","seedIds":["a"]}')
    for params, field in (
        ("{}", "op"),
        ('{"op":7}', "op"),
        ('{"op":"local","query":5}', "query"),
        ('{"op":"local","k":0}', "k"),
        ('{"op":"local","hops":0}', "hops"),
        ('{"op":"local","level":-1}', "level"),
        ('{"op":"local","seedIds":"a"}', "seedIds"),
        ('{"op":"local","seedIds":["a",true]}', "seedIds[1]"),
        ('{"op":"local","seedIds":["a",""]}', "seedIds[1]"),
        ('{"op":"local","seedIds":["a"],"node":"b"}', "node"),
        ('{"op":"local","_meta":5}', "_meta"),
    ):
        assert _field("graph", params) == field, params


@obligation(184)
def test_a_signal_names_its_hit() -> None:
    (signal,) = _decode("feedback", '{"signals":[{"hitId":7,"used":true,"reward":-1,"new":{}}]}').signals
    assert (signal.hit_id, signal.used, signal.reward, signal.helpful) == (7, True, -1, None)
    for params, field in (
        ("{}", "signals"),
        ('{"signals":{}}', "signals"),
        ('{"signals":[{"hitId":"a"},{"used":true}]}', "signals[1].hitId"),
        ('{"signals":[{"hitId":true}]}', "signals[0].hitId"),
        ('{"signals":[{"hitId":""}]}', "signals[0].hitId"),
        ('{"signals":[{"hitId":"a","reward":1.5}]}', "signals[0].reward"),
        ('{"signals":[{"hitId":"a","helpful":1}]}', "signals[0].helpful"),
        ('{"signals":[],"query":5}', "query"),
    ):
        assert _field("feedback", params) == field, params


@obligation(185)
def test_what_a_memory_is_asked() -> None:
    built = _decode("memory/build", '{"documents":[{"text":"a","id":7},{"text":"b"}],"scope":"session"}')
    assert [(one.id, one.text) for one in built.documents] == [(7, "a"), (None, "b")]
    assert _decode("memory/build", "{}").documents is None
    assert _decode("memory/recall", '{"query":"x","memoryId":"m","n":2}').n == 2
    for method, params, field in (
        ("memory/build", '{"documents":"x"}', "documents"),
        ("memory/build", '{"documents":[{"id":"a"}]}', "documents[0].text"),
        ("memory/build", '{"documents":[{"text":"a","id":""}]}', "documents[0].id"),
        ("memory/build", '{"memoryId":""}', "memoryId"),
        ("memory/build", '{"scope":1}', "scope"),
        ("memory/recall", "{}", "query"),
        ("memory/recall", '{"query":["x"]}', "query"),
        ("memory/recall", '{"query":"x","n":0}', "n"),
        ("memory/recall", '{"query":"x","memoryId":5}', "memoryId"),
    ):
        assert _field(method, params) == field, (method, params)


@obligation(59)
def test_every_method_of_the_protocol_is_known_and_gated_by_its_capability() -> None:
    ungated = {name for name in METHODS if offered(name, Capabilities())}
    assert ungated == {"initialize", "info", "ping", "shutdown"}
    assert len(METHODS) == 17
    read_only = Capabilities(index=IndexCapability(writable=False))
    assert not offered("index/add", read_only)
    assert offered("index/delete", read_only)
