"""How an answer came about: usage, losses and who was asked, told alike by every method that asks several engines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.federation.loss import Loss, notes_of
from gateway.federation.several import Answers
from gateway.model import Usage

__all__ = ["account"]


def account(
    answers: Answers[Any], *, candidates: int, started: float, losses: Sequence[Loss] = (), **vendor: Any
) -> tuple[Usage, dict[str, Any]]:
    """``usage`` and ``_meta``. ``candidates`` counts the engines' hits; ``started`` is ``time.perf_counter()``."""
    told = [*answers.losses, *losses]
    usage = Usage(
        candidates=candidates,
        latency_ms=round((time.perf_counter() - started) * 1000, 1),
        notes=notes_of(told) or None,
    )
    meta: dict[str, Any] = {"degraded": answers.degraded} if answers.degraded else {}
    own: Mapping[str, Any] = {"engines": [view.id for view, _ in answers.replies], "losses": told, **vendor}
    meta["x-gateway"] = msgspec.to_builtins({name: value for name, value in own.items() if value})
    return usage, meta
