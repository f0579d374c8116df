"""``minScore``: dropping what is below the client's threshold."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.fusion import Fused

__all__ = ["cut"]


def cut(fused: Sequence[Fused], min_score: float | None, scale: str) -> tuple[list[Fused], list[str]]:
    """Keeps what scores at least ``min_score`` on the scale the gateway emits (DECISIONS D13), and the notes on it.

    The scale is the gateway's own (``scale`` names it), never an engine's; if nothing is left, the note says what the
    best score was.
    """
    if min_score is None:
        return list(fused), []
    kept = [one for one in fused if one.score >= min_score]
    if kept or not fused:
        return kept, []
    return [], [
        f"minScore {min_score:g} is read on the scale of {scale}, where the best score was {fused[0].score:.6g}"
    ]
