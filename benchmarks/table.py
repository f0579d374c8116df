"""Small tables on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["show"]


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """The first column is flush left, the others flush right."""
    cells = [list(map(str, columns)), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        first, *rest = (
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  " + "  ".join([first, *rest]).rstrip())
        if not number:
            print("  " + "  ".join("-" * width for width in widths))
