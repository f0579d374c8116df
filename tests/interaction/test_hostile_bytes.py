"""Bytes that belong to neither head nor body, and heads that come in pieces."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.transports.server import serve
from tests.interaction.bench import Bench
from tests.transports import Wire, request

pytestmark = pytest.mark.anyio

CHUNKED = b"POST /rcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_trailers_without_end_close_the_connection_instead_of_filling_the_memory() -> None:
    async with serve(Bench().app()) as address, Wire.to(address) as wire:
        await wire.send(CHUNKED + b"2\r\n{}\r\n0\r\n")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(10):
                for _ in range(10_000):
                    await wire.send(b"x-1: y\r\n" * 1000)


async def test_one_endless_trailer_closes_the_connection_too() -> None:
    async with serve(Bench().app()) as address, Wire.to(address) as wire:
        await wire.send(CHUNKED + b"2\r\n{}\r\n0\r\nx: ")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(10):
                for _ in range(10_000):
                    await wire.send(b"y" * 8000)


async def test_a_body_in_chunks_of_one_byte_is_read_as_ever() -> None:
    body = request("ping", {"nonce": "n" * 20_000})
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with serve(Bench().app()) as address, Wire.to(address) as wire:
        await wire.send(CHUNKED + chunks)
        response = await wire.response()
    assert json.loads(response.body)["result"] == {"nonce": "n" * 20_000}


async def test_a_head_in_two_pieces_with_a_large_body_behind_it_is_read_as_ever() -> None:
    body = request("ping", {"nonce": "n" * 200_000})
    async with serve(Bench().app()) as address, Wire.to(address) as wire:
        await wire.send(b"POST /rcp HTTP/1.1\r\nHost: localhost\r\n")
        await asyncio.sleep(0)
        await wire.send(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        response = await wire.response()
    assert response.status == 200
    assert len(json.loads(response.body)["result"]["nonce"]) == 200_000


H2C = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAMAAABkAARAAAAAAAIAAAAA"}


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.0"])
async def test_a_wish_for_another_protocol_is_ignored_and_the_request_answered(upgrade: str) -> None:
    async with asyncio.timeout(10), serve(Bench().app()) as address, Wire.to(address) as wire:
        for number in range(3):  # the connection goes on as it was
            await wire.post("/rcp/ping", request("ping", {"nonce": number}), **H2C | {"upgrade": upgrade})
            response = await wire.response()
            assert response.status == 200
            assert "upgrade" not in response.headers
            assert response.json["result"] == {"nonce": number}


async def test_a_wish_in_a_request_that_comes_byte_by_byte_in_chunks_and_pipelined_is_ignored_too() -> None:
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in H2C.items()).encode()
    body = request("ping", {"nonce": "n"})
    one = CHUNKED.removesuffix(b"\r\n") + fields + b"\r\n" + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with asyncio.timeout(10), serve(Bench().app()) as address, Wire.to(address) as wire:
        for byte in one:
            await wire.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await wire.response()).json["result"] == {"nonce": "n"}
        await wire.send(one * 100)
        for _ in range(100):
            assert (await wire.response()).json["result"] == {"nonce": "n"}


async def test_a_wish_cannot_smuggle_a_second_request_past_the_first() -> None:
    """The body belongs to the request that announced it, whatever that asked for."""
    inner = b"POST /rcp/ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    async with asyncio.timeout(10), serve(Bench().app()) as address, Wire.to(address) as wire:
        await wire.post("/rcp/ping", inner, **H2C)
        assert (await wire.response()).json["error"]["code"] == -32700
        await wire.post("/rcp/ping", request("ping", {"nonce": "next"}))
        assert (await wire.response()).json["result"] == {"nonce": "next"}


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "HEAD"])
async def test_a_wish_without_a_body_is_ignored_too(method: str) -> None:
    async with asyncio.timeout(10), serve(Bench().app()) as address, Wire.to(address) as wire:
        await wire.send(
            f"{method} /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n".encode()
        )
        assert (await wire.head()).status == (404 if method == "OPTIONS" else 200)
