"""Vectors as they go over the wire: numbers, or base64 of little-endian 32-bit floats (RCP section 7.3.1)."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["ENCODINGS", "F32_BASE64", "numbers_of", "packed_floats"]

F32_BASE64 = "f32-base64"
ENCODINGS = ("json", F32_BASE64)
_MOST = 3.4028234663852886e38


def packed_floats(vector: Sequence[float]) -> str:
    """A vector as base64 text; a number beyond the range of 32 bits becomes the largest of them."""
    clamped = (max(-_MOST, min(number, _MOST)) for number in vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *clamped)).decode("ascii")


def numbers_of(value: Any) -> list[float] | None:
    """An engine's vector, in either encoding, as finite numbers; ``None`` if it is no such thing."""
    if isinstance(value, str):
        return _unpacked(value)
    if not isinstance(value, list | tuple):
        return None
    if any(issubclass(kind, bool) or not issubclass(kind, int | float) for kind in set(map(type, value))):
        return None
    try:
        numbers = list(map(float, value))
    except OverflowError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def _unpacked(text: str) -> list[float] | None:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not data or len(data) % 4:
        return None
    numbers = list(struct.unpack(f"<{len(data) // 4}f", data))
    return numbers if all(map(math.isfinite, numbers)) else None
