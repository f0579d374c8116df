"""The one module that calls orjson and msgspec.json.

RCP messages go through msgspec, whose structs they are; JSON that is not ours goes through orjson.
What both refuse but real peers send gets one salvage pass (:func:`salvage`) through the standard library.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = [
    "DecodeError",
    "Raw",
    "ValidationError",
    "canonical",
    "decode",
    "decode_any",
    "dumps",
    "encode",
    "encode_sound",
    "finite",
    "finite_float",
    "loads",
    "mend",
    "salvage",
    "sound",
]

Raw = msgspec.Raw
DecodeError = msgspec.DecodeError
ValidationError = msgspec.ValidationError

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")
_NULL = re.compile(rb"[:,\[]null")
_PLAIN_ONLY = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_encoder = msgspec.json.Encoder()
_sorted_encoder = msgspec.json.Encoder(order="sorted")


def encode(value: Any) -> bytes:
    """An RCP message as compact JSON. Structs, plain values and ``Raw`` members may be mixed."""
    return _encoder.encode(value)


def canonical(value: Any) -> bytes:
    """The same with all members sorted, so that equal values have equal bytes: to be hashed, not to be sent."""
    try:
        return _sorted_encoder.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which a caller in this process may hand over
        return json.dumps(msgspec.to_builtins(value), sort_keys=True).encode("ascii")


def encode_sound(value: Any) -> bytes | None:
    """The value as compact JSON if it is sound all through, else ``None``: the price of a check is that of encoding.

    Sound are strings without lone surrogates, finite numbers of 64 bits, and lists and string-keyed dicts of them. A
    null is not, since NaN is written as one; nor is, rarely, a string that looks like one.
    """
    try:
        encoded = orjson.dumps(value, option=_PLAIN_ONLY)
    except TypeError:
        return None
    return None if b"null" in encoded and _NULL.search(encoded) else encoded


@cache
def _decoder(type: Hashable) -> msgspec.json.Decoder[Any]:
    """Made once for a type: looking a type over costs as much as reading a small message."""
    return msgspec.json.Decoder(type)


def decode(data: bytes | Raw, type: type[T]) -> T:
    """JSON bytes as ``type``.

    Raises :class:`ValidationError` for a wrong shape, :class:`DecodeError` (its base) for malformed JSON and
    ``RecursionError`` never: depth is limited before parsing (``protocol.envelope``).
    """
    decoded: T = _decoder(cast("Hashable", type)).decode(data)
    return decoded


decode_any: Callable[[bytes | Raw], Any] = msgspec.json.Decoder().decode
""":func:`decode` as plain values."""


def loads(data: bytes | str) -> Any:
    """Foreign JSON as plain values. Raises ``ValueError``."""
    return orjson.loads(data)


def dumps(value: Any) -> bytes:
    """Plain values as foreign JSON. NaN and infinities become null, as orjson has it. Raises ``TypeError``."""
    return orjson.dumps(value)


def mend(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def salvage(data: bytes, *, allow_nan: bool) -> Any:
    """A second reading of what the strict parsers refused: lone surrogates are mended, bad UTF-8 likewise.

    With ``allow_nan`` the tokens NaN and Infinity, and numbers that overflow, come back as ``None``; otherwise, and
    for any other fault, ``ValueError`` is raised.
    """

    def constant(token: str) -> None:
        if not allow_nan:
            raise ValueError(f"{token} is not JSON")

    def number(token: str) -> float | None:
        value = float(token)
        if math.isinf(value):
            constant(token)
            return None
        return value

    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    return _mended(json.loads(text, parse_constant=constant, parse_float=number))


def _mended(value: Any) -> Any:
    match value:
        case str():
            return mend(value)
        case list():
            return [_mended(item) for item in value]
        case dict():
            return {mend(key): _mended(item) for key, item in value.items()}
        case _:
            return value


def finite(value: Any) -> bool:
    """True if no number inside the value is NaN or infinite."""
    match value:
        case float():
            return math.isfinite(value)
        case list() | tuple():
            return all(finite(item) for item in value)
        case dict():
            return all(finite(item) for item in value.values())
        case _:
            return True


def finite_float(value: Any) -> float | None:
    """The value as a float; ``None`` for what is no number, and for one that a float cannot hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def sound(value: Any, depth: int) -> Any:
    """The value as plain JSON, its strings mended and what JSON does not have as text.

    Raises ``ValueError`` for a number that is none, and for what nests deeper than ``depth``.
    """
    match value:
        case None | bool():
            return value
        case str():
            return mend(str(value))
        case int() if finite_float(value) is None:
            raise ValueError("not a finite number")  # as most readers of JSON see it
        case int():
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
        case float():
            raise ValueError("not a finite number")
        case list() | tuple() | Mapping() if depth == 0:
            raise ValueError("too deep")
        case list() | tuple():
            return [sound(item, depth - 1) for item in value]
        case Mapping():
            return {mend(str(key)): sound(item, depth - 1) for key, item in value.items()}
        case _:
            # An adapter put something into its metadata that JSON does not have; dates and ids read well as text.
            return mend(str(value))
