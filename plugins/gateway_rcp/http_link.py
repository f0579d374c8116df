"""RCP over HTTP: ``POST <url>/<method>``, answered with JSON or with a stream of events (RCP section 5.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from gateway.errors import BackendUnavailable, Code, RateLimited, RcpError
from gateway.protocol.peer import Answer, Log, Peer, PeerError, Progress, Request, failure
from gateway.secret import Secret
from gateway.spi.call import Call
from gateway.spi.http import HttpClient, HttpStream, retry_after_ms
from gateway.spi.sse import SseDecoder
from gateway_rcp.link import CANCEL_SECONDS, Tasks, call_meta, note

__all__ = ["HttpLink"]

_JSON = {"Content-Type": "application/json", "Accept": "application/json"}
_STREAM = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}


_FRAMES = 10_000
"""Frames of one stream that are looked at before the answer."""


class HttpLink:
    """One upstream over HTTP. There is always a server to try, so it is always ``up``."""

    def __init__(self, client: HttpClient, tasks: Tasks, logger: logging.Logger) -> None:
        self.peer = Peer()
        self.up = True
        self._client = client
        self._tasks = tasks
        self._logger = logger

    async def exchange(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        call: Call | None = None,
        progress: bool = False,
        session: str | None = None,
    ) -> Answer:
        if call is not None:
            params = {**params, "_meta": call_meta(call)}
        request = self.peer.request(method, params, progress=progress)
        headers: dict[str, str | Secret] = dict(_STREAM if progress else _JSON)
        if session is not None:
            headers["RCP-Session"] = Secret(session)
        try:
            async with self._client.stream("POST", method, content=request.data, headers=headers) as response:
                if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                    return await self._events(request, response, call)
                return await self._body(request, response)
        except asyncio.CancelledError:
            # Closing the connection is the cancel. Ids of different clients may collide on one server, so an id is
            # only worth something together with a session of our own.
            frame = self.peer.cancel(request.id)
            if session is not None and frame is not None:
                self._tasks.start(self._say(frame, headers))
            raise
        finally:
            self.peer.forget(request.id)

    async def _events(self, request: Request, response: HttpStream, call: Call | None) -> Answer:
        decoder = SseDecoder()
        frames = 0
        async for chunk in response.chunks():
            # Chunks that are there already are read without waiting: a flood must not keep others from their turn.
            await asyncio.sleep(0)
            for data in decoder.feed(chunk):
                frames += 1
                if frames > _FRAMES:
                    raise BackendUnavailable("the engine's stream holds more frames than any answer needs")
                match self.peer.receive(data.encode(), only=request.id):
                    case Answer() as answer:
                        return answer
                    case Progress(_, fraction, stage):
                        if call is not None:
                            call.progress(fraction, stage)
                    case event:
                        if isinstance(event, Log) and call is not None:
                            # Whatever comes in the stream of a request belongs to it.
                            call.log(event.level, event.message)
                        note(self._logger, event)
        raise BackendUnavailable("the engine's stream ended without an answer")

    async def _body(self, request: Request, response: HttpStream) -> Answer:
        whole = await response.read()
        event = self.peer.receive(whole.body, only=request.id)
        if isinstance(event, Answer):
            # A JSON-RPC answer says more than the status it came with.
            return event
        raise _fault(whole.status, whole.headers.get("retry-after"))

    async def _say(self, frame: bytes, headers: Mapping[str, str | Secret]) -> None:
        method = "notifications/cancel"
        await self._client.request("POST", method, content=frame, headers=headers, timeout=CANCEL_SECONDS)


def _fault(status: int, retry_after: str | None) -> RcpError:
    """What a response without a JSON-RPC answer means (RCP section 5.2)."""
    data: dict[str, Any] = {"upstreamStatus": status}
    wait = retry_after_ms(retry_after)
    if wait is not None:
        data["retryAfterMs"] = wait
    if status == 429:
        return RateLimited(
            "the engine limits our rate (HTTP 429)", data={**data, "upstreamCode": Code.RATE_LIMITED.value}
        )
    if status in (401, 403):
        refused = failure(PeerError(Code.UNAUTHORIZED))
        refused.message = f"the engine does not accept the gateway's credentials (HTTP {status})"
        refused.data.update(data)
        return refused
    if 200 <= status < 300:
        return BackendUnavailable("the engine's answer is no JSON-RPC answer to the request", data=data)
    if 300 <= status < 400:
        return BackendUnavailable(
            f"the engine redirects elsewhere, which is not followed (HTTP {status})", retryable=False, data=data
        )
    if 400 <= status < 500 and status not in (408, 425):
        return BackendUnavailable(
            f"there is no RCP endpoint at the engine's address (HTTP {status})", retryable=False, data=data
        )
    return BackendUnavailable(f"the engine failed (HTTP {status})", data=data)
