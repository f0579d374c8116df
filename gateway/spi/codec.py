"""What adapters need of JSON, and how a foreign hit is read."""

from __future__ import annotations

from gateway._json import (
    DecodeError,
    Raw,
    ValidationError,
    decode,
    dumps,
    encode,
    finite,
    finite_float,
    loads,
    mend,
    salvage,
    sound,
)

__all__ = [
    "DecodeError",
    "Raw",
    "ValidationError",
    "decode",
    "dumps",
    "encode",
    "finite",
    "finite_float",
    "loads",
    "mend",
    "salvage",
    "sound",
]
