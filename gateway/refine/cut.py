"""``minScore``: dropping what is below the client's threshold."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.refine.candidate import Candidate

__all__ = ["cut"]


def cut(found: Sequence[Candidate], min_score: float | None, scale: str) -> tuple[list[Candidate], list[str]]:
    """Keeps what scores at least ``min_score`` on the scale the gateway emits (DECISIONS D13), and the notes on it.

    What the last stage did not score is dropped. The scale is the gateway's own (``scale`` names it), never an
    engine's; if nothing is left, the note says what the best score was.
    """
    if min_score is None:
        return list(found), []
    kept = [one for one in found if one.score is not None and one.score >= min_score]
    if kept or not found:
        return kept, []
    best = max((one.score for one in found if one.score is not None), default=0.0)
    return [], [f"minScore {min_score:g} is read on the scale of {scale}, where the best score was {best:.6g}"]
