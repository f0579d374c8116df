"""Finding out how a live engine really filters: its own questions, and the push-down law on scratch documents."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import CallerError, RcpError
from gateway.federation.capability import Snapshot, View
from gateway.federation.single import Single, embed, index_add, index_delete
from gateway.filters import FieldType, Filter, Op, compiled, parse
from gateway.model import Document
from gateway.spi.engine import Engine, EngineQuery
from gateway.spi.probe import Probe, scratch_metadata

__all__ = ["Found", "probe"]

_TEXT = "rcp gateway probe scratch document"


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one question. ``ok`` is false for an answer nobody expected and for a law that does not hold."""

    question: str
    answer: str
    setting: str = ""
    ok: bool = True


async def probe(single: Single, snapshot: Snapshot) -> list[Found]:
    """Writes scratch documents into the engine, asks, and removes them again, whatever happens between.

    Raises :class:`~gateway.errors.RcpError` if the engine is not open or refuses the documents.
    """
    member = single.member
    engine = member.engine
    if engine is None:
        raise member.fault or CallerError("the engine is not open")
    view = snapshot.view(member.settings.id)
    if view is None:
        raise CallerError("there is no such engine")
    keyword, date = _field(view, FieldType.KEYWORD), _field(view, FieldType.DATE)
    run = uuid.uuid4().hex[:8]
    metadata = scratch_metadata(keyword, date)
    ids = {name: f"rcp-probe-{run}-{name}" for name in metadata}
    found: list[Found] = []
    stored: dict[str, Mapping[str, Any]] = {}
    try:
        for name, meta in metadata.items():
            try:
                await index_add(single, [Document(id=ids[name], text=_TEXT, meta=dict(meta))], snapshot)
                stored[name] = meta
            except RcpError as error:
                found.append(Found(f"does it store a document with {name} metadata?", f"no: {error.message}"))
        asker = _Asker(single, snapshot, {id: name for name, id in ids.items()})
        await asker.prepare()
        found += [await _own(asker, one, stored) for one in engine.probes(keyword, date)]
        found += [await _law(asker, engine, question, filter, stored) for question, filter in _laws(keyword, date)]
    finally:
        await index_delete(single, list(ids.values()), snapshot)
    return found


def _field(view: View, kind: FieldType) -> str | None:
    return next((name for name, type_ in sorted(view.fields.items()) if type_ is kind), None)


class _Asker:
    """Asks the engine with a native filter and says which scratch documents came back."""

    def __init__(self, single: Single, snapshot: Snapshot, names: Mapping[str, str]) -> None:
        self._single = single
        self._snapshot = snapshot
        self._names = names
        self._vector: tuple[float, ...] | None = None

    async def prepare(self) -> None:
        engine = self._single.member.engine
        need = engine.vector_need(None) if engine is not None else None
        embedder = self._snapshot.embedder(need.embedder) if need is not None else None
        if embedder is not None:
            (self._vector,) = await embed(self._single.of(embedder), [_TEXT], "query")

    async def matches(self, native: Any) -> frozenset[str]:
        query = EngineQuery(text=_TEXT, k=50, vector=self._vector, filter=native)
        reply = await self._single.ask(lambda engine, call: engine.retrieve(query, call))
        return frozenset(self._names[hit.id] for hit in reply.hits if hit.id in self._names)


async def _own(asker: _Asker, one: Probe, stored: Mapping[str, Any]) -> Found:
    among = one.among & stored.keys()
    try:
        matched = await asker.matches(one.native) & among
    except RcpError as error:
        return Found(one.question, f"it refuses to say: {error.message}", ok=False)
    for finding in one.findings:
        if finding.matches & among == matched:
            return Found(one.question, finding.meaning, finding.setting)
    told = ", ".join(sorted(matched)) or "nothing"
    return Found(one.question, f"unexpected: it matched {told}; do not rely on it", ok=False)


def _laws(keyword: str | None, date: str | None) -> Iterator[tuple[str, Filter]]:
    """Filters on which engines differ; each must mean here what it means everywhere."""
    wire: list[dict[str, Any]] = []
    fields: dict[str, FieldType] = {}
    if keyword is not None:
        fields[keyword] = FieldType.KEYWORD
        wire += [
            {"field": keyword, "op": op.value, "value": value}
            for op, value in (
                (Op.EQ, "a"), (Op.NE, "a"), (Op.IN, ["a"]), (Op.NIN, ["a"]), (Op.EXISTS, True), (Op.EXISTS, False),
            )
        ]  # fmt: skip
    if date is not None:
        fields[date] = FieldType.DATE
        wire += [
            {"field": date, "op": "lt", "value": "2025-01-01T00:00:00Z"},
            {"not": {"field": date, "op": "gte", "value": "2025-01-01T00:00:00Z"}},
        ]
    for one in wire:
        filter = parse(one, fields)
        if filter is not None:
            yield f"does {_told(one)} mean what it means everywhere?", filter


def _told(wire: Mapping[str, Any]) -> str:
    return f"not {_told(wire['not'])}" if "not" in wire else f"{wire['field']} {wire['op']} {wire['value']!r}"


async def _law(
    asker: _Asker, engine: Engine, question: str, filter: Filter, stored: Mapping[str, Mapping[str, Any]]
) -> Found:
    pushed = engine.push_down(filter)
    wanted = {name for name, meta in stored.items() if compiled(filter)(meta)}
    try:
        matched = await asker.matches(pushed.native)
    except RcpError as error:
        return Found(question, f"it refuses to say: {error.message}", ok=False)
    if pushed.residual is not None:
        holds = compiled(pushed.residual)
        matched = frozenset(name for name in matched if holds(stored[name]))
    lost, wrong = wanted - matched, matched - wanted
    parts: Sequence[str] = [
        f"{what} {', '.join(sorted(names))}" for what, names in (("loses", lost), ("wrongly returns", wrong)) if names
    ]
    return Found(question, "; ".join(parts) or "yes", ok=not parts)
