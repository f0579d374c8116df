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
