"""RCP over HTTP, section 5.2, at the level of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anyio import fail_after

from gateway.caller import Caller
from gateway.errors import Code, RcpError
from gateway.transports.guard import Guard
from gateway.transports.server import Address, serve
from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import HANDSHAKE, Wire, exchange, head, notification, request

pytestmark = pytest.mark.anyio

PING = request("ping", {"nonce": 1})


@contextlib.asynccontextmanager
async def running(bench: Bench | None = None, **options: Any) -> AsyncIterator[Address]:
    with fail_after(15):
        async with serve((bench or Bench()).app(**options)) as address:
            yield address


@obligation(115)
async def test_the_default_address_is_loopback_with_a_port_of_the_systems_choice() -> None:
    async with running() as address:
        assert address.host == "127.0.0.1"
        assert address.port > 0
        assert address.url == f"http://127.0.0.1:{address.port}"


@obligation(86, 90, 106)
async def test_a_buffered_answer_is_plain_json_with_its_length() -> None:
    async with running() as address, Wire.to(address) as wire:
        await wire.post("/rcp/ping", PING)
        response = await wire.response()
        assert response.status == 200
        assert response.headers["content-type"] == "application/json"
        assert int(response.headers["content-length"]) == len(response.body)
        assert "transfer-encoding" not in response.headers
        await wire.post("/rcp/ping", PING)  # and the connection stays
        assert (await wire.response()).status == 200


@obligation(106)
async def test_connection_close_is_honoured() -> None:
    async with running() as address, Wire.to(address) as wire:
        await wire.post("/rcp/ping", PING, connection="close")
        raw = await wire.closed()
    fields, _, body = raw.partition(b"\r\n\r\n")
    assert b"connection: close" in fields
    assert json.loads(body)["result"] == {"nonce": 1}


@obligation(87, 92, 88, 89)
@pytest.mark.parametrize(
    ("path", "method", "status", "code"),
    [
        ("/rcp/query/transform", "query/transform", 200, None),
        ("/rcp/query%2Ftransform", "query/transform", 200, None),
        ("/rcp/retrieve", "ping", 200, -32600),
        ("/rcp/ping/", "ping", 200, -32600),
        ("/rcp", "ping", 200, "result"),
        ("/rcp/", "ping", 200, "result"),
        ("/rcp/ping?x=1", "ping", 200, "result"),
        ("/nope/ping", "ping", 404, None),
        ("/rcpx/ping", "ping", 404, None),
        ("/", "ping", 404, None),
    ],
)
async def test_the_path_names_the_method(path: str, method: str, status: int, code: Any) -> None:
    async with running() as address:
        response = await exchange(address, path, request(method, id=3))
    assert response.status == status
    if status == 200:
        assert response.json["id"] == 3
        if code == "result":
            assert "result" in response.json
        elif code is not None:
            assert response.json["error"]["code"] == code
        else:
            assert response.json.get("error", {}).get("code") != -32600


@pytest.mark.parametrize(("base", "path"), [("", "/ping"), ("/", "/ping"), ("api/v1/", "/api/v1/ping")])
async def test_the_base_path_is_a_setting(base: str, path: str) -> None:
    async with running(base=base) as address:
        assert "result" in (await exchange(address, path, PING)).json
        assert (await exchange(address, "/healthz", method="GET")).status == 200


@obligation(119)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
async def test_other_verbs_execute_nothing(method: str) -> None:
    bench = Bench()
    async with running(bench) as address, Wire.to(address) as wire:
        await wire.post("/rcp/retrieve", request("retrieve", {"query": "hold"}), method=method)
        response = await wire.head()
    assert response.status == 405
    assert response.headers["allow"] == "POST, OPTIONS"
    assert bench.running == 0


@obligation(96, 97)
@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
@pytest.mark.parametrize(
    "body", [notification("notifications/x"), b"[" + notification("x") + b"]", b'{"id":7,"result":{}}']
)
async def test_what_needs_no_answer_gets_no_body(body: bytes, accept: str) -> None:
    async with running() as address, Wire.to(address) as wire:
        await wire.post("/rcp", body, accept=accept)
        response = await wire.head()
        assert response.status == 204
        assert "content-length" not in response.headers
        assert "transfer-encoding" not in response.headers
        await wire.post("/rcp/ping", PING)  # nothing stands between the two answers
        assert (await wire.response()).status == 200


@obligation(117)
async def test_a_body_that_says_it_is_too_large_is_refused_unread() -> None:
    async with running(body_limit=1000) as address, Wire.to(address) as wire:
        await wire.send(head("/rcp/ping", content_length="100000000"))
        response = await wire.response()  # though not one byte of the body was sent
        assert response.status == 413
        assert response.json["id"] is None
        assert response.json["error"]["code"] == -32013
        assert response.headers["connection"] == "close"


@obligation(117)
async def test_a_client_that_reads_only_after_it_wrote_still_gets_the_refusal() -> None:
    async with running(body_limit=1000) as address, Wire.to(address) as wire:
        await wire.post("/rcp/ping", b"x" * (8 << 20))
        assert (await wire.response()).status == 413
        assert await wire.closed() == b""


@obligation(117)
async def test_a_body_of_unknown_length_is_cut_at_the_limit() -> None:
    async with running(body_limit=1000) as address, Wire.to(address) as wire:
        await wire.send(head("/rcp/ping", transfer_encoding="chunked"))
        await wire.send(b"258\r\n" + b"x" * 600 + b"\r\n")
        await wire.send(b"258\r\n" + b"x" * 600 + b"\r\n")  # and no end
        response = await wire.response()
        assert response.status == 200
        assert response.json["error"]["code"] == -32013


async def test_a_body_in_pieces_is_put_together() -> None:
    async with running() as address, Wire.to(address) as wire:
        await wire.send(head("/rcp/ping", transfer_encoding="chunked"))
        for byte in PING:
            await wire.send(b"1\r\n%c\r\n" % byte)
        await wire.send(b"0\r\n\r\n")
        assert (await wire.response()).json["result"] == {"nonce": 1}


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on() -> None:
    async with running() as address, Wire.to(address) as wire:
        await wire.send(head("/rcp/ping", content_length=str(len(PING)), expect="100-continue"))
        assert (await wire.head()).status == 100
        await wire.send(PING)
        assert (await wire.response()).status == 200


@obligation(118)
async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with running(body_timeout=0.05) as address, Wire.to(address) as wire:
        await wire.send(head("/rcp/ping", content_length="100") + b"{")
        response = await wire.response()
        assert response.status == 408
        assert response.json["error"]["code"] == -32014


@obligation(118)
@pytest.mark.parametrize("start", [b"", b"POST /rcp/ping HTTP/1.1\r\nHost: loc", b"\r\n"])
async def test_a_request_head_that_does_not_come_closes_the_connection(start: bytes) -> None:
    with fail_after(5):
        async with serve(Bench().app(), header_timeout=0.1) as address, Wire.to(address) as wire:
            await wire.send(start)
            assert await wire.closed() == b""


@obligation(118)
async def test_a_head_that_trickles_in_behind_a_first_request_closes_the_connection_too() -> None:
    with fail_after(5):
        async with serve(Bench().app(), header_timeout=0.1) as address, Wire.to(address) as wire:
            await wire.post("/rcp/ping", PING)
            assert (await wire.response()).status == 200
            await wire.send(b"POST /rcp/ping HT")
            assert await wire.closed() == b""


async def test_a_call_may_take_longer_than_a_request_head() -> None:
    bench = Bench()
    with fail_after(5):
        async with serve(bench.app(), header_timeout=0.05) as address, Wire.to(address) as wire:
            await wire.post("/rcp/retrieve", request("retrieve", {"query": "hold"}))
            await bench.started.wait()
            await asyncio.sleep(0.15)  # three times what a head may take; time itself is the point here
            bench.release.set()
            assert (await wire.response()).status == 200


async def test_an_endless_head_is_not_kept() -> None:
    async with running() as address, Wire.to(address) as wire:
        with contextlib.suppress(ConnectionError):
            await wire.send(b"POST /rcp/ping HTTP/1.1\r\n")
            for _ in range(64):
                await wire.send(b"X-A: " + b"a" * 16384 + b"\r\n")
        answer = await wire.closed()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")


@obligation(116)
async def test_a_page_of_another_site_is_refused_and_nothing_runs() -> None:
    bench = Bench()
    async with running(bench) as address:
        response = await exchange(
            address, "/rcp/retrieve", request("retrieve", {"query": "hold"}), origin="https://evil.example"
        )
        assert (response.status, response.json["error"]["code"]) == (403, -32012)
        response = await exchange(address, "/rcp/ping", PING, host="evil.example")
        assert (response.status, response.json["error"]["code"]) == (403, -32012)
    assert bench.running == 0


@obligation(116)
async def test_a_listed_page_may_ask_first_and_then_call() -> None:
    async with running(guard=Guard(origins=frozenset({"https://app.example"}))) as address:
        response = await exchange(address, "/rcp/retrieve", method="OPTIONS", origin="https://app.example")
        assert response.status == 204
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert "POST" in response.headers["access-control-allow-methods"]
        allowed = response.headers["access-control-allow-headers"].lower()
        assert all(name in allowed for name in ("authorization", "content-type", "rcp-session"))
        response = await exchange(address, "/rcp/ping", PING, origin="https://app.example")
        assert response.status == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        response = await exchange(address, "/rcp/ping", PING)
        assert "access-control-allow-origin" not in response.headers


def bearer(headers: Any, peer: str) -> Caller:
    match headers.get(b"authorization"):
        case b"Bearer good":
            return Caller("good")
        case b"Bearer limited":
            raise RcpError("slow down", code=Code.RATE_LIMITED, data={"retryAfterMs": 500})
        case b"Bearer other":
            raise RcpError("not for you", code=Code.UNAUTHORIZED, data={"authenticated": True})
        case _:
            raise RcpError("a bearer token is needed", code=Code.UNAUTHORIZED)


async def test_a_stranger_gets_an_answer_that_proxies_and_clients_both_understand() -> None:
    async with running(authenticate=bearer) as address:
        for body in (request("initialize", HANDSHAKE), request("ping", {"token": "good"}), b"[]", b"{"):
            response = await exchange(address, "/rcp", body)
            assert response.status == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json["error"]["code"] == -32012
        response = await exchange(address, "/rcp/ping", PING, authorization="Bearer other")
        assert (response.status, response.json["error"]["code"]) == (403, -32012)
        response = await exchange(address, "/rcp/ping", PING, authorization="Bearer good")
        assert (response.status, response.json["result"]) == (200, {"nonce": 1})


@obligation(94, 118)
async def test_a_rate_limit_is_an_answer_that_says_when_to_come_back() -> None:
    async with running(authenticate=bearer) as address:
        response = await exchange(address, "/rcp/ping", PING, authorization="Bearer limited")
    assert response.status == 200
    assert response.json["error"]["code"] == -32011
    assert response.json["error"]["data"]["retryAfterMs"] == 500


async def test_the_probes_stand_outside_the_protocol() -> None:
    bench, state = Bench(), [True]
    app = bench.app(ready=lambda: state[0])
    with fail_after(5):
        async with serve(app) as address:
            assert (await exchange(address, "/healthz", method="GET", host="10.0.0.9:80")).status == 200
            assert (await exchange(address, "/readyz", method="GET")).status == 200
            state[0] = False
            assert (await exchange(address, "/readyz", method="GET")).status == 503
            state[0] = True
            await app.drain(1)
            assert (await exchange(address, "/readyz", method="GET")).status == 503
            assert (await exchange(address, "/healthz", method="GET")).status == 200


async def test_an_address_in_use_is_an_error_and_not_an_exit() -> None:
    async with running() as address:
        with pytest.raises(OSError, match="in use"):
            async with serve(Bench().app(), port=address.port):
                pass


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as address, Wire.to(address) as wire:
        for id in range(5):
            await wire.post("/rcp/ping", request("ping", id=id))
        assert [(await wire.response()).json["id"] for _ in range(5)] == [0, 1, 2, 3, 4]
