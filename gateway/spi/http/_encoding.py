"""Content encodings, undone in bounded pieces: a megabyte that unfolds to a gigabyte is never held."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

__all__ = ["Inflate", "inflate_for"]

_PIECE = 64 * 1024
_GZIP_OR_ZLIB = 47
_RAW = -15


class Inflate:
    """gzip (several members too) and deflate, with a zlib header or, as some servers have it, without."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._fresh = True

    @property
    def complete(self) -> bool:
        """False if the data broke off inside a member."""
        return self._inner.eof or self._fresh

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes, at most 64 KiB a piece. To be exhausted before the next call. Raises ``zlib.error``."""
        while data:
            if self._inner.eof:
                self._inner, self._fresh = zlib.decompressobj(_GZIP_OR_ZLIB), True
            try:
                piece = self._inner.decompress(data, _PIECE)
            except zlib.error:
                if not self._fresh:
                    raise
                self._inner = zlib.decompressobj(_RAW)
                piece = self._inner.decompress(data, _PIECE)
            self._fresh = False
            data = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail
            if piece:
                yield piece
        while not self._inner.eof and not self._fresh:
            piece = self._inner.decompress(b"", _PIECE)  # what zlib still holds once its input is used up
            if not piece:
                return
            yield piece


def inflate_for(encoding: str) -> Inflate | None:
    """The decoder for a ``Content-Encoding``, ``None`` for identity. Raises ``ValueError`` for an unknown one."""
    match encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip" | "deflate":
            return Inflate()
        case _:
            raise ValueError("unknown content encoding")
