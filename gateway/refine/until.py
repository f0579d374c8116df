"""How long work may take that nobody can interrupt: what runs in a thread goes on when its caller has left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["Until"]


class Until:
    """True once ``seconds`` are over, or :meth:`end` was called. ``passed`` tells whether anybody has heard so."""

    __slots__ = ("_at", "_clock", "passed")

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock() + seconds
        self.passed = False

    def __call__(self) -> bool:
        if self._clock() >= self._at:
            self.passed = True
        return self.passed

    def end(self) -> None:
        """The one who waited has left."""
        self._at = -math.inf
