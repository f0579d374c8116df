"""The HTTP side of a peer: RCP ``retrieve`` on uvicorn with uvloop, httptools and orjson, the fastest it can be given.

Runs in the peers' own environment: imports nothing of the gateway.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvicorn

__all__ = ["serve"]


def serve(retrieve: Callable[[str, int], Awaitable[list[dict[str, Any]]]]) -> None:
    """Serves ``retrieve(query, k)``, which returns fused hits, until it is terminated."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        asked = orjson.loads(body)
        hits = await retrieve(asked["params"]["query"], asked["params"]["k"])
        answer = orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"hits": hits}})
        length = str(len(answer)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"serving http://127.0.0.1:{sock.getsockname()[1]}/rcp", flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="error")
    uvicorn.Server(config).run(sockets=[sock])
