"""The end of the line: the first k documents, sealed, with what was lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway._json import Raw
from gateway.fusion import Fused, merged_hit
from gateway.model import RetrieveResult, Usage
from gateway.refine.seal import seal

__all__ = ["pack", "sealed"]


def sealed(
    fused: Sequence[Fused],
    k: int,
    *,
    include_text: bool,
    include_vectors: bool,
    keep: Callable[[dict[str, Any]], bool] | None = None,
) -> tuple[Raw, ...]:
    """The first ``k`` as final JSON. Emitted scores never rise down the list."""
    hits: list[Raw] = []
    lowest = float("inf")
    for one in fused[:k]:
        lowest = min(lowest, one.score)
        hits.append(seal(merged_hit(one, keep), lowest, include_text=include_text, include_vectors=include_vectors))
    return tuple(hits)


def pack(
    hits: tuple[Raw, ...],
    *,
    candidates: int,
    started: float,
    notes: Sequence[str],
    degraded: Sequence[str],
    vendor: Mapping[str, Any],
) -> RetrieveResult:
    """The result of ``retrieve``. ``candidates`` counts the engines' hits; ``started`` is ``time.perf_counter()``."""
    meta: dict[str, Any] = {}
    if degraded:
        meta["degraded"] = list(degraded)
    meta["x-gateway"] = msgspec.to_builtins({name: value for name, value in vendor.items() if value})
    usage = Usage(
        candidates=candidates,
        reranked=0,
        latency_ms=round((time.perf_counter() - started) * 1000, 1),
        notes=tuple(notes) or None,
    )
    return RetrieveResult(hits=hits, usage=usage, meta=meta)
