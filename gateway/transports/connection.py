"""One HTTP connection: uvicorn's, with limits on how long a client may take to speak and to listen."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import TimerHandle
from collections.abc import Callable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["Connection"]

_HEADER_BYTES = 64 << 10
_CHUNK_OVERHEAD = 8
"""Bytes of framing that a byte of a chunked body may cost: chunks of one byte cost six."""
_LOOKS = 8
"""How often within the write time-out a reader is looked at; it is cut off at most one look late."""
_PIPELINED = 32
"""Requests that may wait behind the one being answered before the connection is read no further."""


class Connection(HttpToolsProtocol):
    """uvicorn's connection with a limit on how long and how large the head of a request may be, and on not reading.

    Whenever data came and no request is being worked on, a timer runs: it ends a head that trickles in, the silence
    before the first request, and the rest of a body that was refused. uvicorn's own keep-alive timer covers only the
    time in which nothing comes at all.

    While something is written and not yet taken, another one runs: a client that takes no byte for ``write_timeout``
    seconds is cut off. That ends its call, whether it still runs or its answer waits in the buffer.
    """

    header_timeout: float = 10.0
    write_timeout: float = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._overhead = 0
        self._out: _Metered | None = None
        self._write_timer: TimerHandle | None = None
        self._taken = 0
        self._idle_looks = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._out = _Metered(transport, self._wrote)
        super().connection_made(cast(asyncio.Transport, self._out))
        self.flow = _Flow(self.transport, self._crowded)
        self._head_timer = self.loop.call_later(self.header_timeout, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        self._out = None
        super().connection_lost(exc)

    # What comes in.

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._overhead += len(data)
        self._feed(data)
        if self._in_head and self._head_bytes > _HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("Request header too large.")
        elif self._overhead > _HEADER_BYTES + _CHUNK_OVERHEAD * self._body_bytes:
            # Neither head nor body: chunk extensions or trailers without end.
            self.transport.close()
            return
        if self._head_timer is None and self._idle() and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.header_timeout, self._give_up)

    def _feed(self, data: bytes) -> None:
        """Gives data to the parser, which stops at a request to change the protocol: it takes the body for the new one.

        Clients ask for ``h2c`` with their first request (Java's does by default) and go on in HTTP/1.1 where the
        server ignores it (RFC 9110, section 7.8). So the request is read again without its wish.
        """
        self._unset_keepalive_if_required()
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as wish:
                    if not self._wishes():
                        raise
                    data = self._head_without_wish() + data[wish.args[0] :]
                    self.parser = httptools.HttpRequestParser(self)
                    with contextlib.suppress(AttributeError):  # httptools before 0.6.3
                        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _head_without_wish(self) -> bytes:
        lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in (b"upgrade", b"http2-settings"))
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = self._body_bytes = self._overhead = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes after the body is a trailer; nobody here reads those
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._overhead -= len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        if not self._wishes():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._wishes():
            super().on_message_complete()

    def _wishes(self) -> bool:
        """Whether the request asks for another protocol, and so is read a second time without that."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # whatever its annotation says
        return cycle is None or cycle.response_complete

    def _give_up(self) -> None:
        self._head_timer = None
        if self._idle() and not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _crowded(self) -> bool:
        return len(self.pipeline) >= _PIPELINED

    # What goes out.

    def _wrote(self) -> None:
        if self._write_timer is None and self._out is not None:
            self._taken, self._idle_looks = self._out.taken(), 0
            self._write_timer = self.loop.call_later(self.write_timeout / _LOOKS, self._look)

    def _look(self) -> None:
        self._write_timer = None
        out = self._out
        if out is None or not out.get_write_buffer_size():
            return
        taken = out.taken()
        self._idle_looks = 0 if taken > self._taken else self._idle_looks + 1
        self._taken = taken
        if self._idle_looks < _LOOKS:
            self._write_timer = self.loop.call_later(self.write_timeout / _LOOKS, self._look)
        else:
            out.abort()  # closing would wait until all that is buffered has been taken


class _Metered:
    """A transport that counts what it is given: a reader that is slow is told from one that has stopped."""

    def __init__(self, transport: asyncio.Transport, wrote: Callable[[], None]) -> None:
        self._transport = transport
        self._wrote = wrote
        self._given = 0

    def write(self, data: bytes) -> None:
        self._given += len(data)
        self._transport.write(data)
        self._wrote()

    def taken(self) -> int:
        """Bytes that the system has taken over so far."""
        return self._given - self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Flow(FlowControl):
    """uvicorn resumes reading with every request it works on, whatever already waits behind that one."""

    def __init__(self, transport: asyncio.Transport, crowded: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._crowded = crowded

    def resume_reading(self) -> None:
        if not self._crowded():
            super().resume_reading()
