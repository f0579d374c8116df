"""What a peer may ask of us before it is refused."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the protocol layer; those of engines and of callers stand elsewhere.

    Sizes are bytes. ``depth`` counts nested arrays and objects of a frame, ``batch`` the members of one batch.
    ``concurrent_per_session`` calls run at once, ``queued_per_session`` more may wait, any beyond is ``-32011``.
    ``notifications_per_call`` bounds what one call may send to the client before its answer; the rest is dropped.
    """

    frame_bytes: int = 16 * 1024 * 1024
    depth: int = 128
    batch: int = 100
    id_bytes: int = 512
    concurrent_per_session: int = 64
    queued_per_session: int = 256
    notifications_per_call: int = 1000
