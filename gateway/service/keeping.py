"""What handlers remember from one request to the next."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.federation.cursor import Cursors
from gateway.refine.trajectory import Trajectories
from gateway.state import Idempotency

__all__ = ["Keeping"]


@dataclass(frozen=True, slots=True)
class Keeping:
    """All of it lives in one store, which may be shared with other workers."""

    cursors: Cursors
    trajectories: Trajectories
    idempotency: Idempotency
