"""Who shares a session with whom over HTTP (DECISIONS D1)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anyio import fail_after

from gateway.transports.http import Mode
from gateway.transports.server import Address, serve
from tests.interaction.bench import Bench
from tests.obligations import obligation
from tests.transports import HANDSHAKE, exchange, request

pytestmark = pytest.mark.anyio

RETRIEVE = request("retrieve", {"query": "x"})


@contextlib.asynccontextmanager
async def running(mode: Mode) -> AsyncIterator[Address]:
    with fail_after(10):
        async with serve(Bench().app(mode=mode)) as address:
            yield address


async def ask(address: Address, body: bytes, **headers: str) -> Any:
    response = await exchange(address, "/rcp", body, **headers)
    assert response.status == 200
    return response.json


def code(frame: Any) -> int | None:
    found: int | None = frame.get("error", {}).get("code")
    return found


def hello(id: Any = 1, name: str = "test") -> bytes:
    return request("initialize", {**HANDSHAKE, "client": {"name": name, "version": "1"}}, id)


@obligation(107)
async def test_without_sessions_every_request_is_initialised_by_nature() -> None:
    async with running("stateless") as address:
        assert code(await ask(address, RETRIEVE)) is None
        for _ in range(2):
            assert code(await ask(address, hello())) is None


@obligation(108)
@pytest.mark.parametrize("mode", ["stateless", "token", "peer"])
async def test_a_token_is_issued_and_runs_the_strict_session_in_every_mode(mode: Mode) -> None:
    async with running(mode) as address:
        token = (await ask(address, hello()))["result"]["_meta"]["session"]
        assert code(await ask(address, RETRIEVE, rcp_session=token)) is None
        assert code(await ask(address, hello(), rcp_session=token)) == -32600


@obligation(108)
@pytest.mark.parametrize("mode", ["stateless", "token", "peer"])
async def test_an_unknown_token_is_not_initialised_and_may_start_anew(mode: Mode) -> None:
    async with running(mode) as address:
        assert code(await ask(address, RETRIEVE, rcp_session="unknown")) == -32001
        assert code(await ask(address, request("ping"), rcp_session="unknown")) is None
        frame = await ask(address, hello(), rcp_session="unknown")
        token = frame["result"]["_meta"]["session"]
        assert token != "unknown"
        assert code(await ask(address, RETRIEVE, rcp_session=token)) is None


@obligation(108)
async def test_where_tokens_are_required_a_request_without_one_is_not_initialised() -> None:
    async with running("token") as address:
        await ask(address, hello())
        assert code(await ask(address, RETRIEVE)) == -32001
        assert code(await ask(address, request("info"))) is None


@obligation(109)
async def test_clients_of_one_peer_that_know_no_tokens_share_a_handshake() -> None:
    async with running("peer") as address:
        assert code(await ask(address, RETRIEVE)) == -32001
        assert code(await ask(address, hello())) is None
        assert code(await ask(address, RETRIEVE)) is None
        assert code(await ask(address, hello())) is None  # a second client of the same SDK: same id
        assert code(await ask(address, RETRIEVE)) is None


@obligation(110)
async def test_other_credentials_are_another_peer() -> None:
    async with running("peer") as address:
        assert code(await ask(address, hello(), authorization="Bearer a")) is None
        assert code(await ask(address, RETRIEVE, authorization="Bearer b")) == -32001
