"""Which engines the hits came from that clients were given lately, for the feedback they may send."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from gateway.fusion import Fused

__all__ = ["Origins"]


class Origins:
    """The latest ``limit`` hits, by caller and emitted id, in this process. The longest unused goes first.

    What is not here is no loss of truth: then only an id that tells its engine can be told on (see ``owners``).
    """

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[str, str], ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def remember(self, caller: str, fused: Iterable[Fused]) -> None:
        """Keeps of each document the engines that returned it, and what each calls it."""
        for one in fused:
            key = (caller, one.id)
            self._kept[key] = tuple((copy.engine, copy.hit.id) for copy in one.copies)
            self._kept.move_to_end(key)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def of(self, caller: str, id: str) -> tuple[tuple[str, str], ...] | None:
        """Engine and own id of every copy, best rank first; ``None`` if this caller was given no such hit lately."""
        found = self._kept.get((caller, id))
        if found is not None:
            self._kept.move_to_end((caller, id))
        return found
