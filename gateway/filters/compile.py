"""Splitting a filter into what an engine applies and what is checked on its answers.

The law, for every engine (``docs/filters.md``):

1. *sound*: every document that satisfies the filter satisfies ``native``; what an engine hides is lost for good;
2. *complete*: ``native`` and ``residual`` together are the filter; nothing is dropped.

An adapter says only what one condition becomes. The algebra is here, once, for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, assert_never

from gateway.filters.normal import Folded, conjunction, nnf
from gateway.filters.tree import FALSE, TRUE, And, Condition, Constant, Filter, Not, Or, fields_of

__all__ = ["Bound", "Exact", "FilterCompiler", "Loose", "Pushdown", "push_folded"]

N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class Exact(Generic[N]):
    """A native filter that selects the same documents as the condition: no more, no fewer."""

    native: N


@dataclass(frozen=True, slots=True)
class Loose(Generic[N]):
    """A native filter that selects at least the documents that satisfy the condition. Never one that may miss some."""

    native: N


Bound: TypeAlias = Exact[N] | Loose[N] | None
"""What a condition becomes; ``None`` where nothing can be pushed."""


@dataclass(frozen=True, slots=True)
class Pushdown(Generic[N]):
    """The two halves of a filter.

    ``native`` goes to the engine, ``None`` is "everything". ``residual`` is checked on every hit that comes back,
    ``None`` is "nothing left to check". "No document at all" is ``residual`` FALSE (see :attr:`nothing`), so that a
    caller who does not look still returns nothing rather than everything.
    """

    native: N | None
    residual: Filter | None

    @property
    def exact(self) -> bool:
        """Whether the engine applies the whole filter, so that a limit may be pushed with it."""
        return self.residual is None

    @property
    def nothing(self) -> bool:
        """Whether no document can satisfy the filter: the engine need not be asked."""
        return self.residual is FALSE

    @property
    def needs(self) -> frozenset[str]:
        """The fields that the engine must return for the residual to be checked."""
        return frozenset() if self.residual is None else fields_of(self.residual)

    @classmethod
    def unpushed(cls, filter: Filter) -> Pushdown[N]:
        """All residual: right for every engine that returns its metadata."""
        folded = nnf(filter)
        return cls(None, None if folded is TRUE else folded)


class FilterCompiler(ABC, Generic[N]):
    """Derive from this and say what one condition becomes; ``N`` is the engine's own filter.

    Conditions that arrive are positive: ``eq gt gte lt lte in contains``, and ``exists`` with ``True``.
    """

    @abstractmethod
    def satisfying(self, c: Condition) -> Exact[N] | Loose[N] | None:
        """The native filter for documents that satisfy ``c``; ``None`` if it cannot be pushed.

        Unknown field, type, operator or value: ``None``. It is always right; a filter that may miss documents never is.
        """

    def violating(self, c: Condition) -> Exact[N] | Loose[N] | None:
        """The native filter for documents that do **not** satisfy ``c``, those without the field among them.

        Do not negate a loose filter: the complement of a superset misses documents.
        """
        return None

    @abstractmethod
    def all_of(self, parts: Sequence[N]) -> N:
        """The conjunction; called with two or more parts."""

    @abstractmethod
    def any_of(self, parts: Sequence[N]) -> N:
        """The disjunction; called with two or more parts: an empty one selects everything on some engines."""

    def push_down(self, filter: Filter) -> Pushdown[N]:
        """Split the filter; the result obeys the law above if the conditions do."""
        return self._split(nnf(filter))

    def _split(self, node: Filter) -> Pushdown[N]:
        match node:
            case And(parts):
                return self._all([self._split(part) for part in parts])
            case Or(parts):
                return self._any([self._split(part) for part in parts], node)
            case Not(Condition() as condition):
                return _halves(self.violating(condition), node)
            case Condition():
                return _halves(self.satisfying(node), node)
            case Not():
                raise AssertionError("negation normal form negates conditions only")
            case Constant():
                return Pushdown(None, None if node is TRUE else FALSE)
            case _:
                assert_never(node)

    def _all(self, halves: Sequence[Pushdown[N]]) -> Pushdown[N]:
        """Each part weakens on its own, so only what is left of the inexact ones has to be checked."""
        natives = [half.native for half in halves if half.native is not None]
        residuals = [half.residual for half in halves if half.residual is not None]
        native = None if not natives else natives[0] if len(natives) == 1 else self.all_of(natives)
        return Pushdown(native, conjunction(residuals) if residuals else None)

    def _any(self, halves: Sequence[Pushdown[N]], whole: Filter) -> Pushdown[N]:
        """One part that cannot be pushed lets everything through, so then nothing may be pushed for the others.

        A hit does not say through which part it came: with one inexact part the whole has to be checked.
        """
        natives = [half.native for half in halves if half.native is not None]
        native = self.any_of(natives) if len(natives) == len(halves) else None
        return Pushdown(native, None if native is not None and all(half.exact for half in halves) else whole)


def _halves(bound: Exact[N] | Loose[N] | None, literal: Filter) -> Pushdown[N]:
    match bound:
        case None:
            return Pushdown(None, literal)
        case Exact(native):
            return Pushdown(native, None)
        case Loose(native):
            return Pushdown(native, literal)
        case _:
            assert_never(bound)


def push_folded(folded: Folded, push_down: Callable[[Filter], Pushdown[N]]) -> Pushdown[N]:
    """Push down what :func:`~gateway.filters.normal.fold` left, through an engine's ``push_down``.

    ``push_down`` never sees a constant, nor a field that its engine does not declare; what ``fold`` kept of such
    fields becomes residual.
    """
    if folded.pushable is FALSE or folded.filter is FALSE:
        return Pushdown(None, FALSE)
    halves: Pushdown[N] = Pushdown(None, None) if folded.pushable is TRUE else push_down(folded.pushable)
    if folded.filter == folded.pushable:
        return halves
    return Pushdown(halves.native, None if folded.filter is TRUE else folded.filter)
