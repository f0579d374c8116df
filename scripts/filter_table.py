"""Prints the table of docs/filters.md: what each engine does with each condition, read off the compilers.

    python scripts/filter_table.py            prints it
    python scripts/filter_table.py --write    puts it into docs/filters.md

A test fails if the document and the compilers differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.filters import FALSE, FieldType, Filter, Op, Pushdown, nnf, parse
from gateway_memory.engine import MemoryEngine
from gateway_pinecone.filters import PineconeFilters
from gateway_pinecone.settings import FieldSettings as PineconeField
from gateway_qdrant.collection import Binding
from gateway_qdrant.collection import Collection as QdrantCollection
from gateway_qdrant.filters import QdrantFilters
from gateway_rcp.pushdown import WireFilters
from gateway_weaviate.filters import WeaviateFilters
from gateway_weaviate.schema import Collection as WeaviateCollection
from gateway_weaviate.schema import Property

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "filters.md"
BEGIN, END = "<!-- table: python scripts/filter_table.py --write -->", "<!-- end of table -->"

PushDown = Callable[[Filter], Pushdown[Any]]

FIELDS = {kind.value: kind for kind in FieldType}
LITERALS: Mapping[str, Any] = {
    "keyword": "en", "text": "words", "int": 3, "float": 2.5, "bool": True, "date": "2024-01-01T00:00:00Z",
}  # fmt: skip
ROWS: tuple[tuple[Op, tuple[str, ...]], ...] = (
    (Op.EQ, ("keyword", "text", "int", "float", "bool", "date")),
    (Op.IN, ("keyword", "text", "int", "float", "bool", "date")),
    (Op.GT, ("int", "float", "date")),
    (Op.CONTAINS, ("keyword", "text")),
    (Op.EXISTS, ("keyword", "text", "int", "bool", "date", "geo")),
)
NAMES = {Op.EQ: ("`eq`", "`ne`"), Op.IN: ("`in`", "`nin`"), Op.GT: ("`gt gte lt lte`", "`not` of these"),
         Op.CONTAINS: ("`contains`", "`not contains`"), Op.EXISTS: ("`exists`", "`exists: false`")}  # fmt: skip


def engines() -> dict[str, PushDown]:
    """Each engine's push-down under settings that suit it best, as its README recommends."""
    types = [kind.value for kind in FieldType]
    qdrant = QdrantFilters(
        {name: Binding(type=name, key=f"meta.{name}", clean=True) for name in types},  # type: ignore[arg-type]
        QdrantCollection(dense={}, sparse={}),
    )
    embedded = QdrantFilters(
        {name: Binding(type=name, key=f"meta.{name}", clean=True) for name in types},  # type: ignore[arg-type]
        QdrantCollection(dense={}, sparse={}, booleans=False),
    )
    pinecone = {name: PineconeField(type=name, dates="epoch_ms") for name in types}  # type: ignore[arg-type]
    bases = {"keyword": "text", "text": "text", "int": "int", "float": "number", "bool": "boolean", "date": "date",
             "geo": "geoCoordinates"}  # fmt: skip
    weaviate = WeaviateFilters(
        WeaviateCollection(
            name="Documents",
            version=(1, 33, 0),
            properties={
                name: Property(
                    name,
                    base,
                    multi=False,
                    type=FIELDS[name],
                    tokenization={"keyword": "field", "text": "word"}.get(name),
                )
                for name, base in bases.items()
            },
            vectors=(),
            tenants=False,
            tenants_appear=False,
            null_index=True,
            null_index_complete=True,
            stopwords=frozenset(),
        )
    )
    rcp = WireFilters(FIELDS, [op.value for op in Op])
    return {
        "Qdrant": qdrant.push_down,
        "Qdrant, embedded": embedded.push_down,
        "Pinecone": PineconeFilters(pinecone.get).push_down,
        "Weaviate ≥ 1.33": weaviate.push_down,
        "RCP server": rcp.push_down,
        "SQLite, memory": lambda filter: MemoryEngine.push_down(_unbound(), filter),
    }


def _unbound() -> Any:
    """An engine whose push-down looks at nothing but the filter needs no state."""
    return object.__new__(MemoryEngine)


def verdict(push_down: PushDown, filter: Filter) -> str:
    """What becomes of one condition."""
    if nnf(filter) is FALSE:
        return "nothing matches"
    pushed = push_down(filter)
    if pushed.residual is None:
        return "exact"
    return "checked here" if pushed.native is None else "superset, checked here"


def rows() -> Iterator[list[str]]:
    pushes = engines()
    for op, kinds in ROWS:
        for negated in (False, True):
            for kind in kinds:
                yield [NAMES[op][negated], kind, *(_cell(push, op, kind, negated=negated) for push in pushes.values())]


def _cell(push_down: PushDown, op: Op, kind: str, *, negated: bool) -> str:
    literal = True if op is Op.EXISTS else LITERALS[kind]
    wire: dict[str, Any] = {"field": kind, "op": op.value, "value": [literal] if op is Op.IN else literal}
    filter = parse({"not": wire} if negated else wire, FIELDS)
    assert filter is not None
    return verdict(push_down, filter)


def table() -> str:
    """The table in Markdown; types that fare alike share a row."""
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, kind, *cells in rows():
        merged.setdefault((name, tuple(cells)), []).append(kind)
    lines = ["| condition | on | " + " | ".join(engines()) + " |", "| --- | --- |" + " --- |" * len(engines())]
    lines += [f"| {name} | {', '.join(kinds)} | {' | '.join(cells)} |" for (name, cells), kinds in merged.items()]
    return "\n".join(lines)


def written(text: str) -> str:
    """The document's text with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8")), "utf-8")
    else:
        print(table())  # noqa: T201
