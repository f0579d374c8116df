"""Bytes to lines, for a stream whose other end is not trusted with our memory."""

from __future__ import annotations

__all__ = ["Lines"]

_BOM = b"\xef\xbb\xbf"


class Lines:
    """Splits a stream into frames (RCP section 5.1): ``\\n`` ends a line, ``\\r\\n`` too; blank lines are nothing.

    A line longer than ``limit`` bytes is reported once, as ``None``, as soon as it is too long; its remaining bytes are
    thrown away as they come, and the next line is read as if nothing had been. Never holds more than ``limit`` bytes
    and one chunk.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._discarding = False
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """The lines that this chunk completes."""
        lines: list[bytes | None] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._grow(chunk[start:end], lines)
            self._finish(lines)
            start = end + 1
        if start < len(chunk):
            self._grow(chunk[start:], lines)
        return lines

    def end(self) -> list[bytes | None]:
        """What is left when the stream ends: a last line may lack its newline."""
        lines: list[bytes | None] = []
        self._finish(lines)
        return lines

    def _grow(self, piece: bytes, lines: list[bytes | None]) -> None:
        if self._discarding:
            return
        self._size += len(piece)
        if self._size > self._limit + 1:  # one more than the limit: the \r of \r\n is not part of the line
            self._discarding = True
            self._parts.clear()
            lines.append(None)
        else:
            self._parts.append(piece)

    def _finish(self, lines: list[bytes | None]) -> None:
        line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        discarded = self._discarding
        self._parts, self._size, self._discarding = [], 0, False
        if discarded:
            return
        line = line.removesuffix(b"\r")
        if self._first:
            line = line.removeprefix(_BOM)
            self._first = False
        if len(line) > self._limit:
            lines.append(None)
        elif line and not line.isspace():
            lines.append(line)
