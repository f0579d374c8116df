"""One engine's own names for metadata fields, and the gateway's names for them.

Everything in the gateway uses the gateway's names; an adapter knows only its engine's own. Between them stands
:func:`aliased`, so that neither sees the other's. Renaming is one step, both ways at once: two names may be swapped.
A field of the engine's own that has the gateway's name for another one cannot be told from it, and is not visible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, assert_never, cast

from msgspec.structs import replace

from gateway.filters import And, Condition, Constant, Filter, Not, Or, Pushdown
from gateway.model import PROVENANCE, UPSTREAM, Capabilities, Document, Hit, IndexAddResult, member, with_meta
from gateway.spi.call import Call
from gateway.spi.engine import Engine, EngineQuery, EngineReply
from gateway.spi.methods import Cutting, GraphQuery, GraphReply, MemoryRecall, MemoryReply
from gateway.spi.probe import Probe

__all__ = ["NO_ALIASES", "Aliases", "aliased"]

_RESERVED = frozenset({*PROVENANCE, UPSTREAM})


class Aliases:
    """The names of one engine, both ways: ``own`` by the gateway's name, ``told`` by the engine's own. Pure."""

    __slots__ = ("own", "told")

    def __init__(self, own: Mapping[str, str]) -> None:
        self.own: Mapping[str, str] = MappingProxyType(dict(own))
        self.told: Mapping[str, str] = MappingProxyType({engine: name for name, engine in own.items()})

    def __bool__(self) -> bool:
        return bool(self.own)

    def faults(self, declared: Collection[str]) -> Iterator[tuple[str, str]]:
        """What is wrong with them as a configuration: (the gateway's name, a sentence).

        ``declared`` are the fields that the engine is known to declare, by its own names.
        """
        taken: dict[str, str] = {}
        for name, own in self.own.items():
            if name in _RESERVED:
                yield name, "is where the gateway says where a hit comes from"
            if own == name:
                yield name, "is the engine's own name already"
            if own in taken:
                yield name, f"the engine's field {own!r} is called {taken[own]!r} already"
            taken.setdefault(own, name)
            if name in self._shadowed(declared):
                yield name, f"the engine has another field called {name!r}; give that one an alias too"

    def remarks(self, offered: Capabilities) -> Iterator[str]:
        """Where they do not fit what an open engine declares, as predicates of a sentence about it."""
        declared = offered.filter.fields if offered.filter is not None else {}
        for own in self.told:
            if own not in declared:
                yield f"declares no field {own!r}: its alias serves metadata only, and no filter"
        for own in self._shadowed(declared):
            yield f"has a field {own!r} that is hidden by the alias of that name"

    def _shadowed(self, declared: Iterable[str]) -> list[str]:
        """Those of the engine's own fields that have the gateway's name for another one."""
        return [own for own in declared if own in self.own and own not in self.told]

    def outward(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The engine's metadata under the gateway's names, in the same order."""
        told, own = self.told, self.own
        return {told.get(name, name): value for name, value in meta.items() if name in told or name not in own}

    def inward(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Metadata for the engine, under its own names, in the same order. What :meth:`hidden` tells is left out."""
        told, own = self.told, self.own
        return {own.get(name, name): value for name, value in meta.items() if name in own or name not in told}

    def hidden(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are the engine's own for a field with another name here."""
        return [name for name in names if name in self.told and name not in self.own]

    def hits(self, hits: Sequence[Hit]) -> Sequence[Hit]:
        """The engine's hits with the gateway's names; those without any of the names stay as they are, encoded too."""
        return [self._hit(hit) for hit in hits]

    def _hit(self, hit: Hit) -> Hit:
        meta = member(hit, "meta")
        if not isinstance(meta, Mapping) or (self.told.keys().isdisjoint(meta) and self.own.keys().isdisjoint(meta)):
            return hit
        return with_meta(hit, self.outward(meta))

    def capabilities(self, given: Capabilities) -> Capabilities:
        """What the engine offers, its filter fields under the gateway's names."""
        if not self or given.filter is None:
            return given
        return replace(given, filter=replace(given.filter, fields=self.outward(given.filter.fields)))

    def query(self, query: EngineQuery) -> EngineQuery:
        """The query for the engine. Its filter is native, and so has the engine's names already."""
        recency = query.recency
        if recency is not None and recency.field is not None:
            recency = replace(recency, field=self.own.get(recency.field, recency.field))
        fields = frozenset(self.own.get(name, name) for name in query.fields)
        return replace(query, fields=fields, recency=recency)

    def pushdown(self, engine: Engine, filter: Filter) -> Pushdown[Any]:
        """The engine's split of the filter: the native half in its own names, the residual in the gateway's."""
        pushed = engine.push_down(_renamed(filter, self.own))
        residual = None if pushed.residual is None else _renamed(pushed.residual, self.told)
        return Pushdown(pushed.native, residual)


NO_ALIASES = Aliases({})


def aliased(engine: Engine, aliases: Aliases) -> Engine:
    """The engine under the gateway's names; the engine itself where they are the same."""
    return cast(Engine, _Aliased(engine, aliases)) if aliases else engine


class _Aliased:
    """An engine whose metadata goes by the gateway's names. All that does not speak of metadata is the engine's own."""

    def __init__(self, engine: Engine, aliases: Aliases) -> None:
        self._engine = engine
        self._aliases = aliases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def capabilities(self) -> Capabilities:
        return self._aliases.capabilities(self._engine.capabilities())

    def push_down(self, filter: Filter) -> Pushdown[Any]:
        return self._aliases.pushdown(self._engine, filter)

    def probes(self, keyword: str | None, date: str | None) -> Sequence[Probe]:
        own = self._aliases.own
        return self._engine.probes(*(None if name is None else own.get(name, name) for name in (keyword, date)))

    async def retrieve(self, query: EngineQuery, call: Call) -> EngineReply:
        reply = await self._engine.retrieve(self._aliases.query(query), call)
        return replace(reply, hits=self._aliases.hits(reply.hits))

    async def graph(self, query: GraphQuery, call: Call) -> GraphReply:
        reply = await self._engine.graph(query, call)
        told = self._aliases.hits
        return replace(reply, hits=told(reply.hits), nodes=told(reply.nodes), communities=told(reply.communities))

    async def memory_recall(self, query: MemoryRecall, call: Call) -> MemoryReply:
        reply = await self._engine.memory_recall(query, call)
        return replace(reply, hits=self._aliases.hits(reply.hits))

    async def index_add(self, documents: Sequence[Document], call: Call) -> IndexAddResult:
        return await self._engine.index_add(self._own(documents), call)

    async def index_cut(self, documents: Sequence[Document], cutting: Cutting, call: Call) -> IndexAddResult:
        return await self._engine.index_cut(self._own(documents), cutting, call)

    def _own(self, documents: Sequence[Document]) -> list[Document]:
        inward = self._aliases.inward
        return [one if one.meta is None else replace(one, meta=inward(one.meta)) for one in documents]


def _renamed(filter: Filter, names: Mapping[str, str]) -> Filter:
    match filter:
        case And(parts):
            return And(tuple(_renamed(part, names) for part in parts))
        case Or(parts):
            return Or(tuple(_renamed(part, names) for part in parts))
        case Not(part):
            return Not(_renamed(part, names))
        case Condition(field, op, value, kind):
            return Condition(names[field], op, value, kind) if field in names else filter
        case Constant():
            return filter
        case _:
            assert_never(filter)
