"""The client's half of a connection, without I/O."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable, RcpError
from gateway.protocol.handshake import Handshake, State
from gateway.protocol.peer import Answer, Log, Noise, Peer, PeerError, Progress, failure
from tests.obligations import obligation


def _raw(text):
    return msgspec.Raw(text.encode())


def result(id, value="{}"):
    return f'{{"jsonrpc":"2.0","id":{id},"result":{value}}}'.encode()


def error(id, code=-32603):
    return json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "m"}}).encode()


@obligation(206, 211)
def test_requests_are_full_json_rpc_with_ids_that_are_never_used_twice():
    peer = Peer()
    frames = [json.loads(peer.request("ping", {"nonce": n}).data) for n in range(3)]
    assert [frame["id"] for frame in frames] == [1, 2, 3]
    assert frames[2] == {"jsonrpc": "2.0", "id": 3, "method": "ping", "params": {"nonce": 2}}
    peer.abandon()
    assert peer.request("ping", {}).id == 4


def test_a_progress_token_is_our_own_and_leaves_the_rest_of_meta_alone():
    frame = json.loads(Peer().request("retrieve", {"_meta": {"deadlineMs": 5}}, progress=True).data)
    assert frame["params"]["_meta"] == {"deadlineMs": 5, "progressToken": 1}


@obligation(212)
def test_an_answer_is_taken_once():
    peer = Peer()
    request = peer.request("ping", {})
    assert isinstance(peer.receive(result(request.id)), Answer)
    assert isinstance(peer.receive(result(request.id)), Noise)
    assert peer.in_flight == 0


@obligation(212)
@pytest.mark.parametrize("id", ["2", '"1"', "true", "[1]", "null", "1.5"])
def test_an_answer_with_another_id_is_noise(id):
    peer = Peer()
    peer.request("ping", {})
    assert isinstance(peer.receive(result(id)), Noise)
    assert peer.in_flight == 1


def test_an_id_that_came_back_as_a_float_is_ours():
    peer = Peer()
    peer.request("ping", {})
    assert peer.receive(result("1.0")) == Answer(1, _raw("{}"))


@obligation(213)
def test_an_error_without_an_id_is_the_answer_only_on_a_serial_connection():
    parallel, serial = Peer(), Peer(serial=True)
    for peer in (parallel, serial):
        peer.request("ping", {})
    assert isinstance(parallel.receive(error(None)), Noise)
    assert serial.receive(error(None)) == Answer(1, _raw(""), PeerError(-32603, "m"))
    assert isinstance(serial.receive(error(None)), Noise)


@obligation(213)
def test_an_error_without_an_id_belongs_to_the_oldest_request_even_if_nobody_waits_for_it():
    peer = Peer(serial=True)
    first, second = peer.request("ping", {}), peer.request("ping", {})
    peer.cancel(first.id)
    assert isinstance(peer.receive(error(None)), Noise)
    answer = peer.receive(error(None))
    assert isinstance(answer, Answer)
    assert answer.id == second.id


@obligation(225)
def test_cancelling_names_our_id_and_the_answer_that_still_comes_is_dropped():
    peer = Peer()
    request = peer.request("ping", {})
    frame = peer.cancel(request.id)
    assert json.loads(frame or b"") == {"jsonrpc": "2.0", "method": "notifications/cancel", "params": {"id": 1}}
    assert isinstance(peer.receive(result(1)), Noise)
    assert peer.cancel(request.id) is None


def test_a_peer_that_never_answers_what_was_cancelled_does_not_fill_the_memory():
    peer = Peer()
    for _ in range(3000):
        peer.cancel(peer.request("ping", {}).id)
    waiting = peer.request("ping", {})
    assert len(peer._waiting) < 1100
    assert isinstance(peer.receive(result(waiting.id)), Answer)


@obligation(214)
@pytest.mark.parametrize(
    "frame",
    [b"", b"  \r\n", b"Loading...", b"{", b"[]", b"null", b"42", b"[1,2]", b"\xff\xfe", b'{"id":1}{"id":1}', b"{}"],
)
def test_noise_is_noise(frame):
    peer = Peer()
    peer.request("ping", {})
    assert isinstance(peer.receive(frame), Noise)
    assert peer.in_flight == 1


@obligation(214)
def test_a_byte_order_mark_and_blanks_around_a_frame_are_passed_over():
    peer = Peer()
    peer.request("ping", {})
    assert isinstance(peer.receive(b"\xef\xbb\xbf " + result(1) + b"\r"), Answer)


@pytest.mark.parametrize("value", ['{"x":NaN}', '{"x":-Infinity}', '{"x":"\\ud800"}', '{"x":"\xff"}'])
def test_what_strict_json_refuses_is_mended(value):
    peer = Peer()
    peer.request("ping", {})
    answer = peer.receive(result(1, value).decode("utf-8").encode("latin-1"))
    assert isinstance(answer, Answer)
    assert json.loads(bytes(answer.object())) in ({"x": None}, {"x": "\N{REPLACEMENT CHARACTER}"})


@obligation(214, 224)
def test_a_frame_nested_beyond_reason_is_an_answer_nobody_can_read():
    peer = Peer()
    peer.request("ping", {})
    answer = peer.receive(result(1, "[" * 200_000 + "]" * 200_000))
    assert isinstance(answer, Answer)
    with pytest.raises(BackendUnavailable):
        answer.object()


BROKEN = [
    (b'{"jsonrpc":"2.0","id":2,"result":{"hits":[', 2),
    (b'{ "jsonrpc" : "2.0" , "id" : 2 , "error" : {', 2),
    (b'{"jsonrpc":"2.0","id":2,"result"', 2),
    (b'{"jsonrpc":"2.0","id":7,"result":{', None),  # to no request of ours
    (b'{"jsonrpc":"2.0","id":22222222222222222,"result":{', None),
    (b'{"jsonrpc":"2.0","id":2,"method":"sampling/ask","params":{', None),
    (b'{"jsonrpc":"2.0","method":"notifications/progress","params":{', None),
    (b'{"jsonrpc":"2.0","result":{"hits":[', None),  # nobody knows whose
    (b'{"jsonrpc":"2.0","id":2', None),  # the id may have gone on
    (b'12:00 sent {"jsonrpc":"2.0","id":2,"result":{', None),
]


@obligation(212, 214)
@pytest.mark.parametrize(("frame", "id"), BROKEN)
def test_a_broken_answer_ends_the_request_whose_id_it_began_with(frame, id):
    peer = Peer()
    for _ in range(3):
        peer.request("ping", {})
    event = peer.receive(frame)
    assert (event.id if isinstance(event, Answer) else None) == id
    assert peer.in_flight == (3 if id is None else 2)


@obligation(212, 214)
def test_a_broken_answer_without_an_id_ends_the_only_request_there_is():
    broken = b'{"jsonrpc":"2.0","result":{"hits":['
    peer = Peer()
    assert isinstance(peer.receive(broken), Noise)
    peer.cancel(peer.request("ping", {}).id)
    second = peer.request("ping", {})
    assert isinstance(peer.receive(broken), Noise)  # it may be the cancelled one's
    assert isinstance(peer.receive(result(1)), Noise)
    event = peer.receive(broken)
    assert isinstance(event, Answer)
    assert event.id == second.id


def test_a_broken_frame_of_a_stream_that_belongs_to_one_request_is_left_to_the_transport():
    peer = Peer()
    peer.request("ping", {})
    assert isinstance(peer.receive(b'{"jsonrpc":"2.0","id":1,"result":{', only=1), Noise)


def progress(token, value, **members):
    params = {"progressToken": token, "progress": value, **members}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode()


def test_progress_finds_its_request_and_is_kept_within_bounds():
    peer = Peer()
    request = peer.request("retrieve", {}, progress=True)
    assert peer.receive(progress(1, 0.5, stage="fuse\n", partial={"hits": [1]})) == Progress(1, 0.5, "fuse ")
    assert peer.receive(progress(1, 5)) == Progress(1, 1.0)
    assert peer.receive(progress(1, -1, stage=7)) == Progress(1, 0.0)
    for stray in (progress("1", 0.5), progress(True, 0.5), progress(2, 0.5), progress(1, "x"), progress(1, True)):
        assert isinstance(peer.receive(stray), Noise)
    peer.cancel(request.id)
    assert isinstance(peer.receive(progress(1, 0.5)), Noise)


def test_logs_are_for_the_operator():
    frame = b'{"method":"notifications/log","params":{"level":"info","message":"a\\u0007b"}}'
    assert Peer().receive(frame) == Log("info", "a b")


@pytest.mark.parametrize(
    "frame", [b'{"method":"x"}', b'{"method":"sampling","id":1,"params":{}}', b'{"method":7,"params":{}}']
)
def test_requests_of_a_server_are_not_answered(frame):
    peer = Peer()
    peer.request("ping", {})
    assert isinstance(peer.receive(frame), Noise)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
members = st.dictionaries(st.sampled_from(["id", "result", "error", "method", "params", "jsonrpc"]), json_values)


@given(st.binary(max_size=60) | st.one_of(members, json_values).map(lambda value: json.dumps(value).encode()))
def test_no_frame_whatsoever_raises(frame):
    peer = Peer(serial=True)
    peer.request("ping", {})
    event = peer.receive(frame)
    if isinstance(event, Answer) and event.error is not None:
        assert isinstance(failure(event.error), RcpError)


def shaken(**result_members):
    handshake = Handshake(name="me", version="1")
    assert handshake.step() is not None
    value = {"protocolVersion": 1, "capabilities": {}, **result_members}
    handshake.advance(Answer(1, _raw(json.dumps(value))))
    return handshake


@obligation(205)
def test_a_handshake_is_one_request_and_then_ready():
    handshake = Handshake(name="me", version="1")
    method, params = handshake.step() or ("", {})
    assert method == "initialize"
    assert params["protocolVersion"] == 1
    assert params["client"] == {"name": "me", "version": "1"}
    handshake.advance(Answer(1, _raw('{"protocolVersion":1,"capabilities":{"retrieve":{}},"server":{"name":"s"}}')))
    assert handshake.state is State.READY
    assert handshake.step() is None
    assert (handshake.capabilities, handshake.server, handshake.generation) == ({"retrieve": {}}, "s", 1)


@obligation(207)
@pytest.mark.parametrize("version", [0, -1, "1", None, 1.5, True])
def test_a_version_below_ours_ends_the_handshake(version):
    handshake = Handshake(name="me", version="1")
    handshake.step()
    with pytest.raises(BackendUnavailable) as caught:
        handshake.advance(Answer(1, _raw(json.dumps({"protocolVersion": version, "capabilities": {}}))))
    assert not caught.value.retryable
    shown = "unknown" if version is None else version
    assert caught.value.message == f"the engine speaks version {shown} of RCP, the gateway version 1"
    assert handshake.state is State.FRESH


@obligation(208)
def test_a_taken_session_leads_to_info_and_info_refused_to_the_beginning():
    handshake = Handshake(name="me", version="1")
    handshake.step()
    handshake.advance(Answer(1, _raw(""), PeerError(-32600)))
    assert handshake.step() == ("info", {})
    with pytest.raises(RcpError):
        handshake.advance(Answer(2, _raw(""), PeerError(-32600)))
    assert handshake.state is State.FRESH


@obligation(209)
@pytest.mark.parametrize(
    ("token", "kept"), [("abc", "abc"), ("a\r\nX: y", None), ("", None), (7, None), ("x" * 2000, None), ("é", None)]
)
def test_a_session_token_is_kept_if_it_can_be_a_header(token, kept):
    assert shaken(_meta={"session": token}).session == kept


@obligation(209)
def test_an_old_generation_cannot_end_a_newer_session():
    handshake = shaken()
    handshake.lapse(0)
    assert handshake.state is State.READY
    handshake.lapse(1)
    assert handshake.state is State.FRESH
    assert handshake.session is None
