"""The published client of the protocol against both transports."""

from __future__ import annotations

import asyncio
import functools
import sys
from pathlib import Path

import pytest
import rcp
from anyio import fail_after, to_thread

from gateway.transports.http import Mode
from gateway.transports.server import serve
from tests.interaction.bench import Bench
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


def session(connect: functools.partial[rcp.Client]) -> None:
    client = connect()
    assert client.server["name"]
    assert client.call("ping", {"nonce": 7}) == {"nonce": 7}
    assert client.call("retrieve", {"query": "paris", "k": 1})["hits"][0]["id"] == "d1"
    with pytest.raises(rcp.RcpError) as caught:
        client.call("retrieve", {"query": "paris", "k": -1})
    assert caught.value.code == -32602
    client.shutdown()


@obligation(109)
@pytest.mark.parametrize("mode", ["stateless", "peer"])
async def test_two_published_clients_at_once_over_http(mode: Mode) -> None:
    with fail_after(20):
        async with serve(Bench().app(mode=mode)) as address:
            run = functools.partial(session, functools.partial(rcp.connect_http, address.url + "/rcp"))
            await asyncio.gather(to_thread.run_sync(run), to_thread.run_sync(run))


async def test_the_published_client_over_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    argv = [sys.executable, "-m", "tests.interaction.stdio_child"]
    with fail_after(20):
        await to_thread.run_sync(session, functools.partial(rcp.connect_stdio, argv))
