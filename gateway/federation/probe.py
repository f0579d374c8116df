"""Finding out how a live engine really filters: its own questions, and the push-down law on scratch documents."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway.errors import BackendUnavailable, CallerError, RcpError, Unsupported
from gateway.federation.capability import Snapshot, fields_of
from gateway.federation.ids import emitted_id
from gateway.federation.runner import Deadline
from gateway.federation.single import Single, embed
from gateway.federation.writes import index_add, index_delete
from gateway.filters import FieldType, Filter, Op, compiled, parse
from gateway.model import Capabilities, Document, Hit, meta_of
from gateway.spi.engine import Engine, EngineQuery
from gateway.spi.probe import Probe, scratch_metadata

__all__ = ["Found", "probe"]

T = TypeVar("T")

_TEXT: Final = "rcp gateway probe scratch document"
_WINDOW: Final = 50
_MEANT: Final[Mapping[str | None, str]] = {
    None: "yes",
    "text": "yes, of dates stored as RFC 3339",
    "milliseconds": "yes, of dates stored as milliseconds",
}
_CLEANING_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one question. ``ok`` is false for an answer nobody expected and for a law that does not hold."""

    question: str
    answer: str
    setting: str = ""
    ok: bool = True


async def probe(single: Single, snapshot: Snapshot, *, patience: float = 10.0) -> list[Found]:
    """Writes scratch documents into the engine, asks, and removes them again, whatever happens between.

    A store may show a write only after a moment: for ``patience`` seconds after the last one, an answer that is not as
    expected is asked for again. Raises :class:`~gateway.errors.RcpError` if the engine is not open or read-only.
    """
    engine = single.member.engine
    view = snapshot.view(single.member.settings.id)
    if engine is None:
        raise single.member.fault or CallerError("the engine is not open")
    if view is None:
        raise CallerError("there is no such engine")
    if view.capabilities.index is None or not view.capabilities.index.writable:
        raise Unsupported(
            f"engine {view.id} is read-only, and its answers can be told apart only on scratch documents: make it "
            "writable for this, or point it at a collection that it may write to"
        )
    scratch = _Scratch(single, snapshot)
    try:
        found = await scratch.write()
        asker = _Asker(single, snapshot, scratch, patience)
        await asker.prepare()
        found += await asker.look()
        found += [await _own(asker, one) for one in engine.probes(scratch.keyword, scratch.date)]
        for question, filter in _laws(scratch.keyword, scratch.date):
            found.append(await _law(asker, question, filter))
    except BaseException as error:
        left = await scratch.remove()
        if left is not None:
            error.add_note(left)
        raise
    left = await scratch.remove()
    return found if left is None else [*found, Found("are the scratch documents gone?", left, ok=False)]


class _Scratch:
    """The scratch documents. ``stored`` are those that the engine took, by name; all are removed in the end."""

    def __init__(self, single: Single, snapshot: Snapshot) -> None:
        self._single = single
        self._snapshot = snapshot
        self._run = uuid.uuid4().hex[:8]
        self._written: list[str] = []
        self.names: dict[str, str] = {}
        self.stored: dict[str, Mapping[str, Any]] = {}
        self.keyword: str | None = None
        self.date: str | None = None

    async def write(self) -> list[Found]:
        """Stores what can be stored; what is refused is told."""
        capabilities = self._single.member.capabilities
        self.keyword = await self._taking(_fields(capabilities, FieldType.KEYWORD), "same", "keyword")
        self.date = await self._taking(_fields(capabilities, FieldType.DATE), "early", "date")
        found: list[Found] = []
        for name, meta in scratch_metadata(self.keyword, self.date).items():
            if name in self.stored:
                continue
            refusal = await self._write(name, meta)
            if refusal is not None:
                found.append(Found(f"does it store a document with {name} metadata?", f"no: {refusal.message}"))
        if not self.stored:
            id = self._single.member.settings.id
            raise Unsupported(f"engine {id} took none of the scratch documents: {found[-1].answer}")
        return found

    async def _taking(self, fields: Sequence[str], name: str, kind: str) -> str | None:
        """The first field that holds a plain value of its kind; a list or a UUID may be called a keyword too."""
        for field in fields:
            metadata = scratch_metadata(*((field, None) if kind == "keyword" else (None, field)))
            if await self._write(name, metadata[name]) is None:
                return field
        return next(iter(fields), None)

    async def _write(self, name: str, meta: Mapping[str, Any]) -> RcpError | None:
        id = f"rcp-probe-{self._run}-{name}"
        # Before it is known whether it was stored: an answer may get lost on the way.
        self._written.append(id)
        try:
            result = await index_add(self._single, [Document(id=id, text=_TEXT, meta=dict(meta))], self._snapshot)
        except RcpError as error:
            if error.retryable:
                raise
            return error
        # An engine may have ids of its own.
        corpus = self._single.member.settings.corpus
        given = [one if corpus is None else one.removeprefix(f"{corpus}/") for one in result.ids]
        self._written += [one for one in given if one != id]
        self.names |= dict.fromkeys((id, *given), name)
        self.stored[name] = meta
        return None

    async def remove(self) -> str | None:
        """Removes all, trying for a while; what is left and why. It has its own time: the probe may have had none."""
        deadline = Deadline.after(_CLEANING_SECONDS, client=False, reserve=0.0)
        single = Single(self._single.member, deadline, self._single.route, cycle=False)
        pause = 0.25
        while True:
            try:
                ids = [emitted_id(single.member, id) for id in dict.fromkeys(self._written)]
                await index_delete(single, ids, self._snapshot)
                return None
            except RcpError as error:
                if deadline.remaining() <= pause or not error.retryable:
                    return f"no, remove those whose id starts with rcp-probe-{self._run}: {error.message}"
            # What went wrong before may have opened the breaker.
            await asyncio.sleep(pause)
            pause *= 2


def _fields(capabilities: Capabilities, kind: FieldType) -> list[str]:
    return [name for name, type_ in sorted(fields_of(capabilities).items()) if type_ is kind]


class _Asker:
    """Asks the engine with a native filter and says which scratch documents came back."""

    def __init__(self, single: Single, snapshot: Snapshot, scratch: _Scratch, patience: float) -> None:
        self._single = single
        self._snapshot = snapshot
        self._names = scratch.names
        self._until = asyncio.get_running_loop().time() + patience
        self._fields = frozenset(name for name in (scratch.keyword, scratch.date) if name is not None)
        self._vector: tuple[float, ...] | None = None
        retrieve = single.member.capabilities.retrieve
        self._k = min(_WINDOW, (retrieve.max_k if retrieve is not None else None) or _WINDOW)
        self.stored = scratch.stored

    @property
    def engine(self) -> Engine:
        engine = self._single.member.engine
        if engine is None:
            raise BackendUnavailable(f"engine {self._single.member.settings.id} has been closed")
        return engine

    async def prepare(self) -> None:
        need = self.engine.vector_need(None)
        embedder = self._snapshot.embedder(need.embedder) if need is not None else None
        if embedder is not None:
            (self._vector,) = await embed(self._single.of(embedder), [_TEXT], "query")

    async def look(self) -> list[Found]:
        """Waits until all that was stored is seen. What is not seen in time counts no more."""
        wanted = set(self.stored)

        async def missing() -> set[str]:
            return wanted - await self.matches(None)

        lost = await self.patiently(missing, lambda lost: not lost)
        self.stored = {name: meta for name, meta in self.stored.items() if name not in lost}
        if not lost:
            return []
        seen = f"{len(wanted) - len(lost)} of {len(wanted)} are, in {self._k} hits without a filter"
        return [Found("are the scratch documents found?", f"{seen}: not {', '.join(sorted(lost))}", ok=False)]

    async def hits(self, native: Any) -> dict[str, Hit]:
        query = EngineQuery(text=_TEXT, k=self._k, vector=self._vector, filter=native, fields=self._fields)
        reply = await self._single.ask(lambda engine, call: engine.retrieve(query, call))
        return {self._names[hit.id]: hit for hit in reply.hits if hit.id in self._names}

    async def matches(self, native: Any) -> frozenset[str]:
        return frozenset(await self.hits(native))

    async def complete(self, native: Any) -> frozenset[str]:
        """Those that came with all their metadata."""
        return frozenset(
            name
            for name, hit in (await self.hits(native)).items()
            if all(
                meta_of(hit).get(key) == value
                for key, value in self.stored.get(name, {}).items()
                if value not in (None, [])
            )
        )

    async def patiently(self, ask: Callable[[], Awaitable[T]], settled: Callable[[T], bool]) -> T:
        """Asks again, with growing pauses, while the answer is not settled and a write may still be on its way."""
        pause = 0.1
        while True:
            answer = await ask()
            left = self._until - asyncio.get_running_loop().time()
            if settled(answer) or left <= 0:
                return answer
            await asyncio.sleep(min(pause, left))
            pause *= 2


async def _own(asker: _Asker, one: Probe) -> Found:
    unstored = one.among - asker.stored.keys()
    if unstored:
        return Found(one.question, f"not asked: it needs {', '.join(sorted(unstored))} among the scratch documents")

    async def ask() -> frozenset[str]:
        return await (asker.complete if one.looks_at == "metadata" else asker.matches)(one.native) & one.among

    meant = {finding.matches & one.among: finding for finding in one.findings}
    try:
        matched = await asker.patiently(ask, lambda matched: matched in meant)
    except RcpError as error:
        if one.refused is None or error.retryable:
            return Found(one.question, f"it refuses to say: {error.message}", ok=False)
        return Found(one.question, one.refused.meaning, one.refused.setting, one.refused.ok)
    if matched in meant:
        return Found(one.question, meant[matched].meaning, meant[matched].setting, meant[matched].ok)
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
                (Op.EQ, "alpha"), (Op.NE, "alpha"), (Op.IN, ["alpha"]), (Op.NIN, ["alpha"]),
                (Op.EXISTS, True), (Op.EXISTS, False),
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


async def _law(asker: _Asker, question: str, filter: Filter) -> Found:
    pushed = asker.engine.push_down(filter)
    wanted = frozenset(name for name, meta in asker.stored.items() if compiled(filter)(meta))
    holds = compiled(pushed.residual) if pushed.residual is not None else None

    async def ask() -> frozenset[str]:
        if pushed.nothing:
            return frozenset()
        matched = await asker.matches(pushed.native)
        return frozenset(
            name for name, meta in asker.stored.items() if name in matched and (holds is None or holds(meta))
        )

    # A store holds its dates as text or as milliseconds, and need not find the others.
    worlds = {_MEANT[one]: _worlds(asker.stored, one) for one in (None, "text", "milliseconds")}

    def holding(matched: frozenset[str]) -> str | None:
        return next((told for told, among in worlds.items() if matched & among == wanted & among), None)

    try:
        matched = await asker.patiently(ask, lambda matched: holding(matched) is not None)
    except RcpError as error:
        return Found(question, f"it refuses to say: {error.message}", ok=False)
    told = holding(matched)
    if told is not None:
        return Found(question, told)
    lost, wrong = wanted - matched, matched - wanted
    parts: Sequence[str] = [
        f"{what} {', '.join(sorted(names))}" for what, names in (("loses", lost), ("wrongly returns", wrong)) if names
    ]
    return Found(question, "; ".join(parts), ok=False)


def _worlds(stored: Mapping[str, Any], dates: str | None) -> frozenset[str]:
    """The documents that count where dates are stored in this way."""
    other = {"text": frozenset({"early-ms", "late-ms"}), "milliseconds": frozenset({"early", "late"})}
    return frozenset(stored) - other.get(dates or "", frozenset())
