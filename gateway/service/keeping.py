"""What handlers remember from one request to the next."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.federation.cursor import Cursors
from gateway.refine.trajectory import Trajectories
from gateway.state import Idempotency, Rate

__all__ = ["Keeping"]


@dataclass(frozen=True, slots=True)
class Keeping:
    """All of it lives in one store, which may be shared with other workers. Without ``rate`` calls are not counted."""

    cursors: Cursors
    trajectories: Trajectories
    idempotency: Idempotency
    rate: Rate | None = None
