"""Server-sent events, the reading side: bytes in, the data of events out, no I/O.

After WHATWG HTML, section 9.2.6. Lines end at CR, LF or CRLF and nowhere else: U+2028 is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.errors import UpstreamError

__all__ = ["SseDecoder"]

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class SseDecoder:
    """Feed it chunks as they arrive, cut anywhere; it yields each event's data when the blank line behind it is there.

    Comments and all fields but ``data`` are ignored; an event that was not ended is never yielded. Bad UTF-8 becomes
    U+FFFD. ``limit`` bounds one event, and so any line, in bytes.
    """

    def __init__(self, *, limit: int = 32 * 1024 * 1024) -> None:
        self._limit = limit
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The events that end in this chunk. To be exhausted before the next call.

        Raises ``UpstreamError`` once an event is over the limit; the decoder cannot go on then.
        """
        start = 0
        if chunk and self._after_cr:
            start = 1 if chunk[0] == 0x0A else 0
            self._after_cr = False
        for end in _LINE_END.finditer(chunk, start):
            self._line += chunk[start : end.start()]
            start = end.end()
            line = bytes(self._line)
            self._line.clear()
            data = self._ended(line)
            if data is not None:
                yield data
        if start and start == len(chunk):
            self._after_cr = chunk.endswith(b"\r")
        self._line += chunk[start:]
        self._check(len(self._line))

    def _ended(self, line: bytes) -> str | None:
        """Take one whole line; the event's data if it was the blank one behind an event."""
        self._check(len(line))
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(line)
            return None
        if not self._data:
            return None
        data = b"\n".join(self._data).decode("utf-8", "replace")
        self._data, self._size = [], 0
        return data

    def _check(self, length: int) -> None:
        if self._size + length > self._limit:
            raise UpstreamError(f"an event of the engine's stream is over the limit of {self._limit} bytes")
