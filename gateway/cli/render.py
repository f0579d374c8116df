"""What the command line prints. Colours only on a terminal; everything said beside the answer goes to stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["console", "hits_table", "print_hits", "say", "table"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SNIPPET = 160


def console() -> Console:
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=False)


def say(text: str) -> None:
    """One line to stderr."""
    print(_CONTROL.sub(" ", text), file=sys.stderr)  # noqa: T201


def table(title: str | None, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """A plain table of text cells."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(_CONTROL.sub(" ", cell)) for cell in row))
    return made


def hits_table(hits: Sequence[Mapping[str, Any]], title: str | None = None) -> Table:
    """Hits as a person wants to read them: rank, score, engines, title, snippet."""
    from rich.text import Text

    made = table(title, ("#", "score", "engines", "title", "snippet"), ())
    made.columns[0].justify = made.columns[1].justify = "right"
    made.columns[0].no_wrap = made.columns[1].no_wrap = True
    for rank, hit in enumerate(hits, 1):
        meta = hit.get("meta") or {}
        engines = meta.get("engines") or [meta.get("engine", "")]
        made.add_row(
            str(rank),
            f"{hit.get('score', 0):.4f}",
            Text(", ".join(map(str, engines))),
            Text(_title(hit, meta)),
            Text(_snippet(hit.get("text") or "")),
        )
    return made


def _title(hit: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    citation = hit.get("citation") or {}
    return _CONTROL.sub(" ", str(citation.get("title") or meta.get("title") or hit.get("id", "")))


def _snippet(text: str) -> str:
    flat = " ".join(_CONTROL.sub(" ", text).split())
    return flat if len(flat) <= _SNIPPET else flat[: _SNIPPET - 1].rsplit(" ", 1)[0] + "…"


def print_hits(result: Mapping[str, Any]) -> None:
    """The answer of ``retrieve``: the table to stdout, the notes to stderr."""
    hits = result.get("hits") or []
    if hits:
        console().print(hits_table(hits))
    else:
        say("no hits")
    for note in (result.get("usage") or {}).get("notes") or []:
        say(f"note: {note}")
