"""The pages after the first of a plain retrieve: kept as the engines gave them, fused and sealed when asked for.

Most clients never ask for a second page, and sealing a window costs several times what its first page does. Fusion is a
function of what is kept here and of nothing else, so it does not matter when it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from gateway._json import Raw, decode, encode, encode_sound
from gateway.federation.cursor import Unsealed, Window
from gateway.fusion import Fused, Ranking
from gateway.model import Hit
from gateway.refine.candidate import Candidate, candidates

__all__ = ["Fuse", "Later", "further", "held"]

_OVERHEAD = 2048
"""About what one takes beside the hits and what is said, in bytes; and so much again for each engine."""

Seal = Callable[[Sequence[Candidate]], tuple[Raw, ...]]


class Fuse(Protocol):
    """The documents of these rankings, at most ``limit``, and notes."""

    def __call__(self, rankings: Sequence[Ranking], limit: int | None = None) -> tuple[list[Fused], list[str]]: ...


class Later(msgspec.Struct, frozen=True):
    """What the window of an answer is made of, should more than its first page be wanted.

    ``fuse`` and ``seal`` are kept with it, so they hold nothing of the call. ``size`` is what they take, in bytes.
    """

    rankings: Sequence[Ranking]
    fuse: Fuse
    seal: Seal
    size: int = 0

    def candidates(self) -> list[Candidate]:
        """The whole window."""
        return candidates(self.fuse(self.rankings)[0])


class _Kept(msgspec.Struct):
    """A hit as it is kept; ``members`` by the type that they had."""

    id: str
    score: float | None
    confidence: float | None
    members: Raw


class _Held(Unsealed):
    """The hits are encoded, so that nobody can change them and their size is known."""

    __slots__ = ("_fuse", "_hits", "_rankings", "_said", "_seal", "size")

    def __init__(self, later: Later, hits: Sequence[tuple[Any, bytes]], said: Window) -> None:
        self._rankings = [replace(ranking, hits=()) for ranking in later.rankings]
        self._hits = hits
        self._fuse = later.fuse
        self._seal = later.seal
        self._said = said
        each = [len(encoded) + _OVERHEAD for _, encoded in hits]
        self.size = sum(each) + _OVERHEAD + later.size + len(encode(said))

    def open(self) -> tuple[Window, Callable[[Sequence[int]], tuple[Raw, ...]]]:
        rankings = [
            replace(ranking, hits=_hits(encoded, type))
            for ranking, (type, encoded) in zip(self._rankings, self._hits, strict=True)
        ]
        fused, notes = self._fuse(rankings)
        window = replace(self._said.telling(notes), ids=tuple([one.id for one in fused]), further=further(fused))

        def seal(places: Sequence[int]) -> tuple[Raw, ...]:
            return self._seal(candidates([fused[place] for place in places]))

        return window, seal


def further(fused: Sequence[Fused]) -> tuple[tuple[str, ...], ...]:
    """The other ids of each document; nothing at all if none has any."""
    return tuple([one.ids for one in fused]) if any(one.ids for one in fused) else ()


def held(later: Later, said: Window) -> Unsealed | None:
    """Ready to be kept; ``None`` if the hits hold what would not be the same after being written down and read."""
    kept = []
    for ranking in later.rankings:
        hits = ranking.hits
        types: set[Any] = {type(hit.members) for hit in hits}
        if len(types) > 1:
            return None
        members = types.pop() if types else dict
        if members is dict:
            if encode_sound([hit.members for hit in hits]) is None:
                return None
        elif not _rereadable(members):
            return None
        kept.append((members, encode(hits)))
    return _Held(later, kept, said)


def _hits(encoded: bytes, members: Any) -> list[Hit]:
    kept: Iterable[_Kept] = decode(encoded, list[_Kept])
    type = dict[str, Any] if members is dict else members
    return [Hit(one.id, one.score, one.confidence, decode(one.members, type)) for one in kept]


def _rereadable(members: Any) -> bool:
    """Whether they write themselves down as what they are read from (see :class:`~gateway.model.Hit`)."""
    return issubclass(members, msgspec.Struct) and members.__struct_config__.omit_defaults
