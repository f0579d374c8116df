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
_PIPED_WIDTH = 160
_HEADINGS = re.compile(r"\A(?:\s*#{1,6} [^\n]*\n)+")


def clean(text: object) -> str:
    """The text on one line, without control characters: what engines return is not trusted."""
    return " ".join(_CONTROL.sub(" ", str(text)).split())


def console() -> Console:
    from rich.console import Console

    made = Console(file=sys.stdout, highlight=False, soft_wrap=False)
    if not made.is_terminal:
        made.width = _PIPED_WIDTH  # a pipe has no edge that a line could be cut at
    return made


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


def hits_table(hits: Sequence[Any], title: str | None = None, *, own_score: bool = False) -> Table:
    """Hits as a person wants to read them, a line each: rank, score, engines, title, snippet.

    With ``own_score`` the score is the engine's own instead of the fused one.
    """
    rows = [_row(rank, _mapping(hit), own_score=own_score) for rank, hit in enumerate(hits, 1)]
    made = table(title, ("#", "score", "engines", "title", "snippet"), rows)
    for column, style in zip(made.columns, ("dim", "green", "cyan", "bold", ""), strict=True):
        column.style = style
    # The snippet gets what the others leave; a title or a list of engines takes no more than a quarter of the line.
    whole = console().width
    heads = [len(str(column.header)) for column in made.columns]
    widths = [min(whole // 4, max([head, *(len(row[at]) for row in rows)])) for at, head in enumerate(heads[:-1])]
    widths.append(max(heads[-1], whole - sum(widths) - 2 * len(widths) - 1))
    for column, width in zip(made.columns, widths, strict=True):
        column.no_wrap, column.overflow, column.width = True, "ellipsis", width
    for column in made.columns[:2]:
        column.justify = "right"
    return made


def _row(rank: int, hit: Mapping[str, Any], *, own_score: bool) -> tuple[str, ...]:
    meta, citation = _mapping(hit.get("meta")), _mapping(hit.get("citation"))
    engines = meta.get("engines")
    score = meta.get("engineScore") if own_score else hit.get("score")
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
    # The title column says what the headings above the text say.
    flat = clean(_HEADINGS.sub("", text)[: 10 * _SNIPPET])
    return flat if len(flat) <= _SNIPPET else flat[: _SNIPPET - 1].rsplit(" ", 1)[0] + "…"


def print_hits(result: Mapping[str, Any], *, paged: bool) -> None:
    """The answer of ``retrieve``: the table to stdout, the notes to stderr.

    ``paged`` says that a cursor outlives the command, so that it is of use to who reads it.
    """
    hits = result.get("hits") or []
    if hits:
        console().print(hits_table(hits))
    else:
        say("no hits")
    for note in _mapping(result.get("usage")).get("notes") or []:
        say(f"note: {note}")
    if paged and result.get("nextCursor"):
        say(f"more: --cursor {result['nextCursor']}")
