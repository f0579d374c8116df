from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.caller import ANONYMOUS, Caller
from gateway.model import PeerInfo
from gateway.protocol import Dispatcher, Session, Sessions, State
from gateway.protocol.session import TABLE, Event
from tests.obligations import obligation
from tests.schema import check_frame
from tests.unit.protocol.fakes import OFFER, Client, Server, ready

pytestmark = pytest.mark.anyio


@obligation(37, 38, 39)
async def test_info_ping_and_shutdown_answer_before_initialize() -> None:
    client = Client()
    assert (await client.result("info"))["capabilities"] == OFFER
    assert await client.result("ping") == {}
    assert await client.result("shutdown") == {}


@obligation(40)
@pytest.mark.parametrize("method", ["retrieve", "memory/build", "does/not/exist", "x-acme/dance"])
async def test_everything_else_waits_for_initialize(method: str) -> None:
    client = Client()
    assert await client.error(method, {"query": "x"}) == (-32001, {})
    assert await client.error(method, {"k": -1}) == (-32001, {})
    assert client.server.seen == []


@obligation(41)
@pytest.mark.parametrize("version", [1, 7, 1.0, 10**30])
async def test_the_lower_version_is_negotiated(version: Any) -> None:
    assert (await Client().initialize(protocolVersion=version))["protocolVersion"] == 1


@obligation(42, 43, 44)
@pytest.mark.parametrize("version", [0, -1])
async def test_without_a_common_version_the_session_stays_locked_and_may_try_again(version: int) -> None:
    client = Client()
    assert await client.error("initialize", {"protocolVersion": version}) == (-32002, {})
    told = (await client.call("initialize", {"protocolVersion": version}))["error"]["message"]
    assert told == f"no protocol version in common: the client asks for {version}, this server speaks 1"
    assert await client.error("retrieve", {"query": "x"}) == (-32001, {})
    await client.initialize()
    await client.result("retrieve", {"query": "x"})


@obligation(45)
async def test_a_second_initialize_is_refused() -> None:
    client = await ready()
    assert await client.error("initialize", {"protocolVersion": 1}) == (-32600, {})
    assert await client.error("initialize", {"protocolVersion": "x"}, id="again") == (-32600, {})
    await client.result("retrieve", {"query": "x"})


@obligation(46)
@pytest.mark.parametrize("version", ["1", True, 1.5, [1], {}])
async def test_a_version_of_another_type_is_refused(version: Any) -> None:
    client = Client()
    code, data = await client.error("initialize", {"protocolVersion": version})
    assert (code, data["field"]) == (-32602, "protocolVersion")
    assert not client.session.initialized


@obligation(47)
@pytest.mark.parametrize("params", [{}, None, {"protocolVersion": None}, {"client": None, "capabilities": None}])
async def test_nothing_about_the_client_is_required(params: Any) -> None:
    assert (await Client().result("initialize", params))["protocolVersion"] == 1


@obligation(35)
async def test_unknown_client_capabilities_are_ignored() -> None:
    await Client().initialize(capabilities={"x-foo": {}, "log": {"zz": 1}, "retrieve": 5})


@obligation(48, 56)
async def test_initialize_states_who_we_are_what_we_offer_and_our_level() -> None:
    expected = {
        "protocolVersion": 1,
        "server": {"name": "fake", "version": "1"},
        "capabilities": OFFER,
        "_meta": {"conformance": "L1"},
    }
    client = Client()
    assert await client.result("info") == expected
    assert await client.initialize() == expected


@obligation(50, 52)
async def test_a_session_keeps_what_it_was_told() -> None:
    client = await ready()
    client.server.offer = {"embed": {}}
    assert (await client.result("info"))["capabilities"] == OFFER
    await client.result("retrieve", {"query": "x"})
    assert client.server.seen[-1][2].snapshot is client.session.snapshot


@obligation(53, 54)
async def test_a_new_session_is_told_the_present() -> None:
    client = Client()
    await client.result("info")
    client.server.offer = {"embed": {"dimension": 2}}
    assert (await client.initialize())["capabilities"] == client.server.offer
    assert (await client.error("retrieve", {"query": "x"}))[0] == -32003


@obligation(58, 186)
@pytest.mark.parametrize("method", ["does/not/exist", "x-other/dance", "x-acme", "x-acme/sing", "", "rpc.discover"])
async def test_a_method_nobody_knows_is_unknown(method: str) -> None:
    assert await (await ready()).error(method) == (-32004, {})


async def test_a_vendor_method_goes_by_its_capability() -> None:
    assert await (await ready()).result("x-acme/dance") == {"danced": True}


@obligation(59)
@pytest.mark.parametrize(
    "method", ["memory/build", "memory/recall", "graph", "feedback", "query/transform", "embed/multi"]
)
async def test_what_is_not_offered_is_refused_before_its_params_are_read(method: str) -> None:
    assert await (await ready()).error(method, {"documents": "x", "_meta": 5}) == (-32003, {})
    assert await (await ready()).error(method, [1]) == (-32003, {})


async def test_what_is_offered_without_a_handler_is_not_offered() -> None:
    client = await ready(offer={**OFFER, "graph": {}})
    assert await client.error("graph") == (-32003, {})


@obligation(63)
@pytest.mark.parametrize("nonce", [777, "", "x", 1.5, 9007199254740993, "☃"])
async def test_ping_echoes_a_nonce(nonce: Any) -> None:
    assert await Client().result("ping", {"nonce": nonce}) == {"nonce": nonce}


@obligation(64)
@pytest.mark.parametrize("params", [None, {}, {"nonce": None}, {"nonce": True}, {"nonce": [1]}, {"nonce": {}}])
async def test_ping_without_a_nonce_returns_none(params: Any) -> None:
    assert await Client().result("ping", params) == {}


@obligation(68, 69)
async def test_nothing_is_processed_after_shutdown() -> None:
    client = await ready()
    assert await client.result("shutdown") == {}
    for method in ("ping", "retrieve", "initialize", "shutdown"):
        assert await client.send({"id": 1, "method": method, "params": {"query": "x"}}) is None
    assert client.server.seen == []


async def test_all_members_of_a_batch_with_shutdown_are_answered() -> None:
    client = await ready()
    answers = await client.send([{"id": n, "method": m} for n, m in enumerate(["shutdown", "ping", "retrieve"])])
    assert [answer.get("error", {}).get("code", 0) for answer in answers] == [0, 0, -32001]


@obligation(128)
async def test_initialize_in_a_batch_takes_effect_in_order() -> None:
    def retrieve(id: int) -> dict[str, Any]:
        return {"id": id, "method": "retrieve", "params": {"query": "x"}}

    answers = await Client().send([retrieve(1), {"id": 2, "method": "initialize"}, retrieve(3)])
    assert [answer.get("error", {}).get("code", 0) for answer in answers] == [-32001, 0, 0]


# Stateless HTTP.


@obligation(107)
async def test_an_implicit_session_is_initialised_and_stays_so() -> None:
    client = Client(kind="implicit")
    await client.result("retrieve", {"query": "x"})
    first = await client.initialize()
    assert await client.initialize() == first == await client.result("info")
    assert await client.error("memory/build") == (-32003, {})
    assert await client.error("initialize", {"protocolVersion": 0}) == (-32002, {})
    assert await client.result("shutdown") == {}
    await client.result("retrieve", {"query": "x"})


# Tokens.


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def _call(dispatcher: Dispatcher, session: Session, method: str, id: Any = 1, **params: Any) -> dict[str, Any]:
    frame = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    answer = await dispatcher.answer(json.dumps(frame).encode(), session)
    assert answer is not None
    return check_frame(method, answer, id=id)


@obligation(108)
@pytest.mark.parametrize("kind", ["strict", "implicit"])
async def test_a_token_leads_to_a_session_that_is_initialised_once(kind: Any) -> None:
    server, sessions = Server(), Sessions()
    dispatcher = Dispatcher(server)
    opened = Session(kind, ANONYMOUS, issue=sessions.issue)
    token = (await _call(dispatcher, opened, "initialize"))["result"]["_meta"]["session"]
    session = sessions.find(token, ANONYMOUS)
    assert session is not None
    assert session.kind == "strict"
    server.offer = {"embed": {}}
    assert "result" in await _call(dispatcher, session, "retrieve", query="x")
    assert (await _call(dispatcher, session, "initialize"))["error"]["code"] == -32600
    assert (await _call(dispatcher, session, "info"))["result"]["_meta"] == {"conformance": "L1"}


async def test_a_failed_initialize_issues_no_token() -> None:
    sessions = Sessions()
    opened = Session("strict", ANONYMOUS, issue=lambda session: pytest.fail("a token for nothing"))
    await _call(Dispatcher(Server()), opened, "initialize", protocolVersion=0)
    assert sessions.find("") is None


@obligation(108, 110)
async def test_a_token_is_forgotten_when_unknown_idle_shut_down_or_anothers() -> None:
    clock = Clock()
    sessions = Sessions(idle_seconds=10, clock=clock)
    ann = Caller(id="ann")
    token = sessions.issue(Session("strict", ann))
    assert sessions.find("x" + token) is None
    assert sessions.find(token, Caller(id="bob")) is None
    assert sessions.find(token, Caller(id="ann", writable=False)) is None
    for _ in range(3):
        clock.now += 9
        assert sessions.find(token, ann) is not None
    assert sessions.find(token, Caller(id="bob")) is None
    clock.now += 11
    assert sessions.find(token, ann) is None

    closed = Session("strict", ann)
    token = sessions.issue(closed)
    await _call(Dispatcher(Server()), closed, "shutdown")
    assert closed.state is State.CLOSED
    assert sessions.find(token, ann) is None


def test_tokens_are_bounded_and_those_never_used_go_first() -> None:
    sessions = Sessions(capacity=2)
    used = sessions.issue(Session("strict", ANONYMOUS))
    assert sessions.find(used) is not None
    unused = [sessions.issue(Session("strict", ANONYMOUS)) for _ in range(3)]
    assert sessions.find(used) is not None
    assert sessions.find(unused[0]) is None
    assert sessions.find(unused[2]) is not None


# Peers.


class Peer:
    """Tokenless requests from one address."""

    def __init__(self, sessions: Sessions | None = None) -> None:
        self.dispatcher = Dispatcher(Server())
        self.sessions = sessions or Sessions()

    async def code(self, method: str, id: Any = 1, **params: Any) -> int:
        session = self.sessions.peer("127.0.0.1", ANONYMOUS)
        answer = await _call(self.dispatcher, session, method, id, **params)
        code: int = answer.get("error", {}).get("code", 0)
        return code

    async def initialize(self, name: str, id: Any = 1, version: int = 1) -> int:
        return await self.code("initialize", id, protocolVersion=version, client={"name": name, "version": "1"})


@obligation(109)
async def test_a_peer_passes_the_public_suite_any_number_of_times() -> None:
    peer = Peer()
    for _ in range(3):
        assert await peer.code("retrieve", query="x") == -32001
        assert await peer.initialize("conf", id=200, version=0) == -32002
        assert await peer.code("retrieve", 201, query="x") == -32001
        assert await peer.initialize("conf", id=2) == 0
        assert await peer.initialize("conf", id="reinit") == -32600
        assert await peer.code("retrieve", 5, query="x") == 0
        assert await peer.code("shutdown", 99) == 0


@obligation(109)
async def test_clients_of_one_peer_come_and_go_without_locking_each_other_out() -> None:
    peer = Peer()
    assert [await peer.initialize(name) for name in ("python", "node", "python")] == [0, 0, 0]
    for _ in range(2):
        await peer.code("shutdown")
        assert await peer.code("retrieve", query="x") == 0
    await peer.code("shutdown")
    assert await peer.code("retrieve", query="x") == -32001
    assert await peer.code("shutdown") == 0
    assert await peer.initialize("python") == 0


async def test_peers_do_not_share_and_are_forgotten_when_idle() -> None:
    clock = Clock()
    sessions = Sessions(idle_seconds=10, clock=clock)
    peer = Peer(sessions)
    await peer.initialize("python")
    assert not sessions.peer("10.0.0.1", ANONYMOUS).initialized
    assert not sessions.peer("127.0.0.1", Caller(id="other")).initialized
    await peer.initialize("python")
    clock.now += 11
    assert await peer.code("retrieve", query="x") == -32001


@obligation(110)
async def test_a_peer_gets_no_logs_because_another_client_wanted_them() -> None:
    session = Session("peer", ANONYMOUS)
    await _call(Dispatcher(Server()), session, "initialize", capabilities={"log": {}})
    assert session.client_log_level is None


def test_the_table_covers_every_event_and_never_leaves_closed() -> None:
    assert TABLE["strict"][State.CLOSED] == {}
    for states in TABLE.values():
        for state, ways in states.items():
            assert state is State.CLOSED or {Event.SHUTDOWN, Event.LAST_SHUTDOWN} <= set(ways)
            assert set(ways.values()) <= set(states)


def test_what_is_remembered_of_a_peers_clients_is_bounded() -> None:
    session = Sessions().peer("here", ANONYMOUS)
    for n in range(3000):
        client = PeerInfo(name=f"{n}" + "x" * 10_000)
        session.initialize(None, version=1, client=client, request_id=("int", 1), log_level=None)  # type: ignore[arg-type]
    assert len(session._clients) <= 1000
    assert max(len(name[0]) for name in session._clients if name) <= 200
