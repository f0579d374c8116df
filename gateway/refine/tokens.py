"""How many tokens a text is, for packing it into a budget."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from gateway._json import mend
from gateway.errors import ConfigError

__all__ = ["Estimate", "Tokens", "exact"]

# Runs of letters of the Latin kind; a digit; any other character that is seen. Blanks cost nothing of their own.
_PIECE = re.compile(r"[A-Za-z]+|\d|[^\W\dA-Za-z_]|[^\w\s]|_")
_LETTERS = 4


class Tokens(Protocol):
    """Something that counts tokens."""

    def count(self, text: str) -> int: ...


class Estimate:
    """Counts without a vocabulary.

    A word costs a token for every four letters it begins; a digit, a sign, and every letter outside ASCII one each.
    """

    def count(self, text: str) -> int:
        total = 0
        for piece in _PIECE.findall(text):
            total += (len(piece) + _LETTERS - 1) // _LETTERS
        return total


class _Exact:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(mend(text), add_special_tokens=False).ids)


def exact(path: Path) -> Tokens:
    """A tokenizer from a ``tokenizer.json`` on disk; nothing is downloaded.

    Raises ``ConfigError`` if the file cannot be read or the package ``tokenizers`` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError('an exact tokenizer needs tokenizers: pip install "rcp-gateway[local]"') from None
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  # the library raises bare Exceptions
        raise ConfigError(f"{path} is not a tokenizer that can be read ({type(error).__name__})") from None
    tokenizer.no_truncation()  # else every long text would have the length the file cuts to
    tokenizer.no_padding()
    return _Exact(tokenizer)
