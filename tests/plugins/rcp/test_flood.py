"""A server that streams without end costs its own call and no more."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.errors import BackendUnavailable
from gateway.spi import EngineQuery
from tests.facades import call, context

pytestmark = pytest.mark.anyio

CAPABILITIES = {"retrieve": {"maxK": 10}, "streaming": {}}


async def _flooding(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers the handshake, and every retrieve with frames that say nothing, as fast as they are taken."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            frame = json.loads(await reader.readexactly(length))
            if frame["method"] == "retrieve":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
                while True:
                    writer.write(b"data: {}\n\n" * 500)
                    await writer.drain()
            result = {"protocolVersion": 1, "server": {"name": "flood"}, "capabilities": CAPABILITIES}
            body = json.dumps({"jsonrpc": "2.0", "id": frame.get("id"), "result": result}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
            writer.write(body)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def test_a_stream_of_frames_that_say_nothing_is_given_up() -> None:
    from gateway_rcp.kind import RcpKind
    from gateway_rcp.settings import RcpConfig

    server = await asyncio.start_server(_flooding, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rcp"
    async with server, RcpKind().open(RcpConfig(url=url), context("flood")) as engine:
        with pytest.raises(BackendUnavailable, match="more frames than any answer needs"):
            async with asyncio.timeout(30):
                await engine.retrieve(EngineQuery(text="q", k=1), call(30))
