"""The front matter of a Markdown file: what its author says of it above the text, in YAML or TOML.

Only what a passage can use is read: ``title``, ``date`` and ``tags``. Anything else in it, and front matter that cannot
be read at all, is passed over in silence, as every Markdown reader does.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from gateway.config.yaml import parse
from gateway.errors import ConfigErrors
from gateway.filters import stored_micros

__all__ = ["read_front_matter"]

_LENGTH = 16 * 1024
_TEXT, _TAGS = 200, 50
"""Characters of a title or a tag, and how many tags are kept: a file may hold anything."""
_ZONELESS = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d(?:\.\d+)?)?)?")


def read_front_matter(block: str) -> dict[str, Any]:
    """``title`` (text), ``date`` (RFC 3339, UTC where the file names no zone) and ``tags`` (texts) of those there are.

    ``block`` is the whole of it, with the lines ``---`` (YAML) or ``+++`` (TOML) around it.
    """
    lines = block.strip().splitlines()
    text = "\n".join(lines[1:-1])
    if not text or len(text) > _LENGTH:
        return {}
    try:
        value: Any = tomllib.loads(text) if lines[0].startswith("+") else parse(text)[0]
    except (ConfigErrors, ValueError, RecursionError):
        return {}
    if not isinstance(value, Mapping):
        return {}
    read = {"title": _text(value.get("title")), "date": _date(value.get("date")), "tags": _tags(value.get("tags"))}
    return {name: one for name, one in read.items() if one}


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return " ".join(str(value).split())[:_TEXT] or None


def _date(value: Any) -> str | None:
    if isinstance(value, datetime.date):  # TOML has dates; a datetime is one too
        value = value.isoformat()
    if not isinstance(value, str):
        return None
    plain = _ZONELESS.fullmatch(value.strip())
    if plain is not None:
        value = f"{plain[1]}T{plain[2] or '00:00'}{plain[3] or ':00'}Z"
    return value if stored_micros(value) is not None else None


def _tags(value: Any) -> list[str]:
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return list(dict.fromkeys(text for one in given[:_TAGS] if (text := _text(one))))
