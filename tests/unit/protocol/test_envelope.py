from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import Code
from gateway.protocol import Limits
from gateway.protocol.envelope import Batch, Malformed, Request, id_key, parse
from tests.obligations import obligation
from tests.schema import check_batch, check_frame
from tests.unit.protocol.fakes import Client, ready

pytestmark = pytest.mark.anyio


def _code(answer: Any) -> tuple[int, Any]:
    return answer["error"]["code"], answer["id"]


@obligation(1, 2, 3)
async def test_an_answer_is_json_rpc_with_one_object_as_result() -> None:
    assert await Client().raw('{"jsonrpc":"2.0","id":1,"method":"shutdown"}') == b'{"jsonrpc":"2.0","id":1,"result":{}}'


@obligation(4)
async def test_an_error_has_an_integer_code_a_message_and_an_object_as_data() -> None:
    answer = await (await ready()).call("retrieve", {"query": "paris", "k": -1})
    assert answer["error"]["code"] == -32602
    assert answer["error"]["data"] == {"field": "k"}


@obligation(5)
@pytest.mark.parametrize(
    "id",
    ["1", "0", '"1"', '"0"', '""', "1.5", "1.50", "-1", "9007199254740991", "9007199254740993", "1e2", r'"\u00e9\n"'],
)
async def test_an_id_comes_back_digit_for_digit(id: str) -> None:
    answer = await Client().raw(f'{{"jsonrpc":"2.0","id": {id} ,"method":"ping"}}')
    assert answer == f'{{"jsonrpc":"2.0","id":{id},"result":{{}}}}'.encode()


@obligation(6, 7)
@pytest.mark.parametrize("id", ["null", "true", "false", "[1]", '{"a":1}', "1e400", '"' + "x" * 600 + '"'])
async def test_an_id_that_may_not_be_one_is_invalid_and_nothing_is_executed(id: str) -> None:
    client = await ready()
    answer = await client.raw(f'{{"jsonrpc":"2.0","id":{id},"method":"retrieve","params":{{"query":"x"}}}}')
    assert answer is not None
    assert _code(check_frame("retrieve", answer)) == (-32600, None)
    assert client.server.seen == []


@obligation(8)
@pytest.mark.parametrize("method", [7, None, True, ["ping"], {"a": 1}])
async def test_a_method_that_is_no_string_is_invalid_under_the_requests_id(method: Any) -> None:
    assert _code(await Client().send({"jsonrpc": "2.0", "id": 7, "method": method})) == (-32600, 7)


async def test_a_request_without_a_method_is_invalid() -> None:
    assert _code(await Client().send({"jsonrpc": "2.0", "id": 7})) == (-32600, 7)
    assert _code(await Client().send({})) == (-32600, None)


@obligation(9)
@pytest.mark.parametrize("params", [["paris", 3], [], "x", 5, True])
async def test_params_must_be_an_object(params: Any) -> None:
    code, data = await (await ready()).error("retrieve", params)
    assert (code, data["field"]) == (-32602, "params")


@obligation(10)
@pytest.mark.parametrize("params", ["", ',"params":null', ',"params":{}'])
async def test_params_may_be_absent(params: str) -> None:
    answer = await Client().raw('{"jsonrpc":"2.0","id":1,"method":"info"' + params + "}")
    assert answer is not None
    assert "result" in check_frame("info", answer)


@obligation(11)
@pytest.mark.parametrize("version", ["1.0", 2.0, None, "2", True])
async def test_another_jsonrpc_is_not_ours(version: Any) -> None:
    assert _code(await Client().send({"jsonrpc": version, "id": 3, "method": "ping"})) == (-32600, 3)


@obligation(12)
async def test_the_compact_envelope_is_taken_and_without_an_id_is_a_notification() -> None:
    client = Client()
    assert await client.send({"id": 1, "method": "ping"}) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert await client.send({"method": "ping", "params": {"nonce": 1}}) is None


@obligation(13)
@pytest.mark.parametrize("frame", ['{"jsonrpc":', "", "nul", "42x", '"abc', "{]", "[1,", "\x00", '{"id":01}'])
async def test_what_is_not_json_is_a_parse_error(frame: str) -> None:
    answer = await Client().raw(frame)
    assert answer is not None
    assert _code(check_frame("", answer)) == (-32700, None)


@obligation(14)
@pytest.mark.parametrize("frame", [42, "x", None, True, 1.5])
async def test_a_scalar_is_not_a_request(frame: Any) -> None:
    assert _code(await Client().send(frame)) == (-32600, None)


@obligation(15)
@pytest.mark.parametrize(
    "frame",
    [
        {"jsonrpc": "2.0", "method": "retrieve", "params": {"query": "x", "k": -1}},
        {"jsonrpc": "2.0", "method": "retrieve", "params": {"query": "x", "k": 1}},
        {"jsonrpc": "2.0", "method": "retrieve", "params": ["x"]},
        {"jsonrpc": "2.0", "method": "does/not/exist"},
        {"jsonrpc": "2.0", "method": "initialize", "params": {"protocolVersion": 0}},
        {"jsonrpc": "1.0", "method": "ping"},
    ],
)
async def test_without_an_id_nothing_is_answered_and_nothing_is_done(frame: Any) -> None:
    client = await ready()
    assert await client.send(frame) is None
    assert client.server.seen == []


@obligation(16)
async def test_an_unknown_notification_is_ignored() -> None:
    assert await Client().send({"jsonrpc": "2.0", "method": "notifications/brand-new"}) is None


@obligation(17)
@pytest.mark.parametrize("method", ["notifications/cancel", "notifications/brand-new"])
async def test_a_notification_with_an_id_is_malformed(method: str) -> None:
    frame = {"jsonrpc": "2.0", "id": 5, "method": method, "params": {"id": 5}}
    assert _code(await (await ready()).send(frame)) == (-32600, 5)
    assert _code(await Client().send(frame)) == (-32600, 5)


@obligation(18)
@pytest.mark.parametrize(
    "frame",
    [{"id": 77, "result": {}}, {"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": ""}}, {"result": 1}],
)
async def test_a_response_is_no_request(frame: Any) -> None:
    client = Client()
    assert await client.send(frame) is None
    assert await client.result("ping") == {}


@obligation(21)
@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("place", ['"minScore":{}', '"_meta":{{"x":[{}]}}', '"unknown":{}'])
async def test_nan_and_infinity_are_not_json(token: str, place: str) -> None:
    client = await ready()
    params = '{"query":"x",' + place.format(token) + "}"
    answer = await client.raw('{"jsonrpc":"2.0","id":1,"method":"retrieve","params":' + params + "}")
    assert answer is not None
    assert _code(check_frame("retrieve", answer)) == (-32700, None)
    assert client.server.seen == []


@obligation(23)
@pytest.mark.parametrize("place", ['"minScore":1e400', '"filter":{"value":1e400}', '"_meta":{"x":-1e400}', '"k":1e400'])
async def test_a_number_that_overflows_goes_nowhere(place: str) -> None:
    client = await ready()
    answer = await client.raw('{"jsonrpc":"2.0","id":1,"method":"retrieve","params":{"query":"x",' + place + "}}")
    assert answer is not None
    assert check_frame("retrieve", answer)["error"]["code"] == -32602
    assert client.server.seen == []


@obligation(29)
async def test_all_of_unicode_is_a_query() -> None:
    client = await ready()
    await client.result("retrieve", {"query": "東京 🗼\u0000\u2028"})
    assert client.server.last.query == "東京 🗼\u0000\u2028"


@obligation(30)
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rb'"a\ud800b"', "a\ufffdb"),
        (rb'"a\udc00"', "a\ufffd"),
        (rb'"\ud800\ud83d\ude00"', "\ufffd\U0001f600"),
        (b'"a\xffb"', "a\ufffdb"),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
    ],
)
async def test_a_lone_surrogate_is_mended_before_anybody_sees_it(body: bytes, text: str) -> None:
    client = await ready()
    answer = await client.raw(b'{"jsonrpc":"2.0","id":1,"method":"retrieve","params":{"query":' + body + b"}}")
    assert answer is not None
    assert "result" in check_frame("retrieve", answer, id=1)
    assert client.server.last.query == text


async def test_an_id_with_a_lone_surrogate_or_bad_utf8_comes_back_as_utf8() -> None:
    client = Client()
    for id in (rb'"\ud800"', b'"\xff"'):
        answer = await client.raw(b'{"jsonrpc":"2.0","id":' + id + b',"method":"ping"}')
        assert answer is not None
        check_frame("ping", answer, id="\ufffd")


async def test_a_byte_order_mark_is_forgiven() -> None:
    answer = await Client().raw(b'\xef\xbb\xbf{"id":1,"method":"ping"}')
    assert answer == b'{"jsonrpc":"2.0","id":1,"result":{}}'


@obligation(31)
@pytest.mark.parametrize("depth", [5_000, 100_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}"), ('[{"a":[],"b":', "}]")])
async def test_deep_nesting_is_refused_before_it_is_parsed(depth: int, brackets: tuple[str, str]) -> None:
    client = await ready()
    opening, closing = brackets
    deep = opening * depth + "1" + closing * depth
    answer = await client.raw(
        '{"jsonrpc":"2.0","id":1,"method":"retrieve","params":{"query":"x","_meta":{"d":' + deep + "}}}"
    )
    assert answer is not None
    assert _code(check_frame("retrieve", answer)) == (-32700, None)
    assert await client.result("ping") == {}


async def test_nesting_is_counted_outside_strings_only_and_up_to_the_limit() -> None:
    def frame(value: str) -> bytes:
        return b'{"id":1,"method":"ping","params":{"v":' + value.encode() + b"}}"

    limits = Limits(depth=10)
    assert isinstance(parse(frame("[" * 8 + "]" * 8), limits), Request)
    assert isinstance(parse(frame("[" * 9 + "]" * 9), limits), Malformed)
    assert isinstance(parse(frame("[" + "[]," * 500 + "[]]"), limits), Request)
    assert isinstance(parse(frame(json.dumps('[{"\\' * 100)), limits), Request)
    assert isinstance(parse(frame("[" + "[[[[[[[[]]]]]]]]," * 2 + "1]"), limits), Malformed)


async def test_an_unterminated_string_full_of_quotes_is_scanned_once() -> None:
    frame = b'{"a":' + b"[" * 200 + b'"' + b'\\"' * 500_000
    assert isinstance(parse(frame, Limits()), Malformed)


@obligation(32)
async def test_of_a_duplicated_key_the_last_is_validated_and_forwarded() -> None:
    client = await ready()
    answer = await client.raw('{"id":1,"id":2,"method":"retrieve","params":{"query":"x","k":-1,"k":2}}')
    assert answer is not None
    check_frame("retrieve", answer, id=2)
    assert client.server.last.k == 2
    answer = await client.raw('{"id":1,"method":"retrieve","params":{"query":"x","k":2,"k":-1}}')
    assert answer is not None
    assert check_frame("retrieve", answer)["error"]["code"] == -32602
    assert len(client.server.seen) == 1


@obligation(83, 117)
async def test_a_frame_over_the_limit_is_refused_and_the_session_lives() -> None:
    client = await ready(limits=Limits(frame_bytes=200))
    answer = await client.raw(b'{"id":1,"method":"retrieve","params":{"query":"' + b"x" * 200 + b'"}}')
    assert answer is not None
    assert _code(check_frame("retrieve", answer)) == (-32013, None)
    assert await client.result("ping") == {}


@obligation(88)
async def test_the_method_in_the_path_must_be_the_one_in_the_body() -> None:
    client = await ready()
    assert (await client.error("ping", path_method="retrieve"))[0] == Code.INVALID_REQUEST
    assert await client.result("ping", path_method="ping") == {}
    assert await client.result("ping", path_method="") == {}
    notification = {"jsonrpc": "2.0", "method": "ping"}
    assert await client.send(notification, path_method="retrieve") is None


# Batches.


def _ping(id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": "ping"}


@obligation(121)
async def test_a_batch_is_answered_by_a_batch() -> None:
    answer = await Client().raw(json.dumps([_ping(1), _ping("1"), _ping(2.5)]))
    assert answer is not None
    assert [(entry["id"], "result" in entry) for entry in check_batch(answer)] == [(1, True), ("1", True), (2.5, True)]


@obligation(122)
async def test_a_notification_in_a_batch_has_no_entry() -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": 9}}
    assert len(await Client().send([_ping(1), cancel])) == 1


@obligation(97)
async def test_a_batch_of_notifications_is_not_answered() -> None:
    assert await Client().send([{"jsonrpc": "2.0", "method": "ping"}, {"method": "notifications/x"}]) is None


@obligation(123)
@pytest.mark.parametrize("frame", ["[]", " [ ] "])
async def test_an_empty_batch_is_one_invalid_request(frame: str) -> None:
    answer = await Client().raw(frame)
    assert answer is not None
    assert _code(check_frame("", answer)) == (-32600, None)


@obligation(124, 125)
@pytest.mark.parametrize("member", [5, None, "x", [], [_ping(3)], {}, {"method": 1}])
async def test_a_malformed_member_has_its_own_entry_and_the_others_run(member: Any) -> None:
    answers = await Client().send([member, _ping(1)])
    assert [_code(answers[0]), answers[1]["result"]] == [(-32600, None), {}]


async def test_one_and_an_empty_object_are_two_malformed_members() -> None:
    assert [_code(answer) for answer in await Client().send([1, {}])] == [(-32600, None)] * 2


@obligation(126)
async def test_gating_and_validation_work_per_member() -> None:
    client = await ready()
    batch = [
        {"id": 1, "method": "memory/build", "params": {"documents": "x"}},
        {"id": 2, "method": "retrieve", "params": {"query": "x", "k": -1}},
    ]
    assert [_code(answer) for answer in await client.send(batch)] == [(-32003, 1), (-32602, 2)]


@obligation(127)
@pytest.mark.parametrize("members", [101, 5_000])
async def test_an_oversized_batch_is_refused_as_a_whole(members: int) -> None:
    answer = await Client().send([_ping(n) for n in range(members)])
    assert _code(answer) == (-32602, None)
    assert answer["error"]["data"]["field"] == "batch"


async def test_a_full_batch_is_answered() -> None:
    members = [{"id": n, "method": "ping", "params": {"a": [1, 2], "b": "x,y"}} for n in range(100)]
    assert len(await Client().send(members)) == 100
    assert isinstance(parse(json.dumps(members).encode(), Limits()), Batch)


async def test_a_batch_posted_under_a_method_must_hold_that_method_only() -> None:
    client = await ready()
    answers = await client.send([_ping(1), {"id": 2, "method": "info"}], path_method="ping")
    assert "result" in answers[0]
    assert _code(answers[1]) == (-32600, 2)


@obligation(204)
def test_ids_are_told_apart_by_type_and_by_value_only() -> None:
    assert id_key(b"1") == id_key(b"1.0")
    assert id_key(b'"a"') == id_key(rb'"\u0061"')
    assert id_key(b'"1"') != id_key(b"1")
