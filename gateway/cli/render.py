"""What the command line prints. Colours only on a terminal; everything said beside the answer goes to stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["clean", "console", "hits_table", "print_hits", "print_json", "say", "table"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What could move the cursor, change colours or turn text around."""
_SNIPPET = 160


def clean(text: object) -> str:
    """The text on one line, without control characters: what engines return is not trusted."""
    return " ".join(_CONTROL.sub(" ", str(text)).split())


def console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=False)


def say(text: str) -> None:
    """One line to stderr."""
    print(_CONTROL.sub(" ", text), file=sys.stderr)  # noqa: T201


def print_json(value: Any) -> None:
    """JSON to stdout; with letters beyond ASCII as they are where the encoding has them."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    print(json.dumps(value, ensure_ascii=ascii_only, indent=2))  # noqa: T201


def table(title: str | None, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """A plain table of text cells."""
    from rich.table import Table
    from rich.text import Text

    heading = Text(clean(title), style="bold") if title is not None else None
    made = Table(title=heading, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(clean(cell)) for cell in row))
    return made


def hits_table(hits: Sequence[Any], title: str | None = None) -> Table:
    """Hits as a person wants to read them: rank, score, engines, title, snippet."""
    rows = [_row(rank, _mapping(hit)) for rank, hit in enumerate(hits, 1)]
    made = table(title, ("#", "score", "engines", "title", "snippet"), rows)
    for column, style in zip(made.columns, ("dim", "green", "cyan", "bold", ""), strict=True):
        column.style = style
    for column in made.columns[:2]:
        column.justify = "right"
        column.no_wrap = True
    return made


def _row(rank: int, hit: Mapping[str, Any]) -> tuple[str, ...]:
    meta, citation = _mapping(hit.get("meta")), _mapping(hit.get("citation"))
    engines = meta.get("engines")
    score = hit.get("score")
    return (
        str(rank),
        f"{score:.4f}" if isinstance(score, int | float) else "",
        ", ".join(map(str, engines if isinstance(engines, list) else [meta.get("engine", "")])),
        str(citation.get("title") or meta.get("title") or hit.get("id", "")),
        _snippet(str(hit.get("text") or "")),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    """The answer of another server may hold anything anywhere."""
    return value if isinstance(value, Mapping) else {}


def _snippet(text: str) -> str:
    flat = clean(text[: 10 * _SNIPPET])
    return flat if len(flat) <= _SNIPPET else flat[: _SNIPPET - 1].rsplit(" ", 1)[0] + "…"


def print_hits(result: Mapping[str, Any]) -> None:
    """The answer of ``retrieve``: the table to stdout, the notes to stderr."""
    hits = result.get("hits") or []
    if hits:
        console().print(hits_table(hits))
    else:
        say("no hits")
    for note in _mapping(result.get("usage")).get("notes") or []:
        say(f"note: {note}")
