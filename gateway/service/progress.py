"""What a client hears while its retrieve runs: the stages, and the hits as they fuse (RCP section 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.federation.loss import Failure
from gateway.federation.plan import RetrievePlan
from gateway.federation.reading import Reply
from gateway.federation.transform import Forms
from gateway.fusion import Fused
from gateway.refine.candidate import Candidate, candidates
from gateway.refine.cut import cut
from gateway.refine.trajectory import Seen
from gateway.service.refining import sealer
from gateway.spi.call import ClientCall

__all__ = ["Teller", "counted"]

_FRACTIONS = {"transform": 0.1, "fuse": 0.8, "rerank": 0.9, "diversify": 0.95, "pack": 1.0}
"""How far a call is once a stage is done; recall fills what lies between the first two."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """``1 hit``, ``2 hits``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


class Teller:
    """Tells of one call. ``fused`` fuses the replies there are so far; ``seen`` is what the session has been given.

    Nothing is made ready for a client that did not ask.
    """

    def __init__(
        self,
        call: ClientCall,
        planned: RetrievePlan,
        fused: Callable[[Sequence[Reply]], Sequence[Fused]],
        seen: Seen,
    ) -> None:
        self._call = call
        self._planned = planned
        self._fused = fused
        self._seen = seen
        self._replies: list[Reply] = []
        # Hits that a later stage will score are not held against a threshold on its scale.
        stages = planned.stages
        self._min_score = planned.min_score if stages.rerank is None and stages.recency is None else None

    def transformed(self, forms: Forms) -> None:
        if forms.told is not None:
            self._call.progress(_FRACTIONS["transform"], "transform", counted(len(forms.forms), "query", "queries"))

    def answered(self, fraction: float, outcome: Reply | Failure) -> None:
        """An engine is done: its name, and the first hits of what has been fused so far."""
        if not self._call.wants_progress:
            return
        if isinstance(outcome, Failure):
            self._call.progress(fraction, "recall", f"{outcome.engine}: failed")
            return
        self._replies.append(outcome)
        found = candidates(self._fused(self._replies))
        self._tell(fraction, "recall", f"{outcome.leg.id}: {counted(len(outcome.hits), 'hit')}", found)

    def fused(self, found: Sequence[Fused]) -> None:
        if self._call.wants_progress:
            self.stage("fuse", candidates(found))

    def stage(self, name: str, found: Sequence[Candidate]) -> None:
        """A stage after recall is done, with the first hits as they stand now."""
        if self._call.wants_progress:
            self._tell(_FRACTIONS[name], name, counted(len(found), "document"), found)

    def _tell(self, fraction: float, stage: str, message: str, found: Sequence[Candidate]) -> None:
        if stage in ("recall", "fuse"):
            fresh = [one for one in found if one.fused.id not in self._seen] if self._seen else found
            found, _ = cut(fresh, self._min_score, self._planned.scored_by)
        self._call.progress(fraction, stage, message, sealer(self._planned)(found[: self._planned.k]))
