"""Weights a client or a configuration gives, read strictly: a wrong one must not pass as a different ranking."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.errors import invalid_params
from gateway.fusion.ranking import LegOffer

__all__ = ["LEG_KINDS", "MAX_WEIGHT", "leg_weights", "read_weight"]

LEG_KINDS = ("dense", "sparse")
"""Weight keys of RCP section 16.3 that mean every leg of a mode. Reserved: no engine has such an id."""

MAX_WEIGHT = 1e100
"""Far beyond any use; it keeps every sum of weights finite."""


def read_weight(value: Any, *, field: str) -> float:
    """A weight ≥ 0, where 0 means the engine is not asked. Raises ``-32602`` for all else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid_params("a weight must be a number", field=field)
    if not (0 <= value <= MAX_WEIGHT):  # false for NaN
        raise invalid_params("a weight must be a finite number that is not negative", field=field)
    return float(value)


def leg_weights(
    given: Mapping[str, Any],
    legs: Sequence[LegOffer],
    *,
    known: Collection[str],
    defaults: Mapping[str, float] | None = None,
    field: str = "fusion.weights",
) -> dict[str, float]:
    """The weight of every leg by engine id; a leg at 0 is not asked.

    A key is the id of an engine the caller can see (``known``) or one of :data:`LEG_KINDS`; the engine's own key wins
    over its mode's, and that over ``defaults`` (the configuration), and that over 1. Raises ``-32602`` for an unknown
    key, a bad weight, and for weights that leave no leg.
    """
    read: dict[str, float] = {}
    for key, value in given.items():
        if key not in known and key not in LEG_KINDS:
            raise invalid_params("a weight for an unknown engine", field=f"{field}.{key}")
        read[key] = read_weight(value, field=f"{field}.{key}")

    def of(leg: LegOffer) -> float:
        if leg.engine in read:
            return read[leg.engine]
        if leg.mode in LEG_KINDS and leg.mode in read:
            return read[leg.mode]
        return (defaults or {}).get(leg.engine, 1.0)

    weights = {leg.engine: of(leg) for leg in legs}
    if weights and not any(weights.values()):
        raise invalid_params("every weight is 0: no engine would be asked", field=field)
    return weights


def usable(weight: float) -> bool:
    """True for a weight that a ranking may carry: those at 0 were never asked."""
    return not isinstance(weight, bool) and math.isfinite(weight) and 0 < weight <= MAX_WEIGHT
