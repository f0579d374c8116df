"""How good a ranking is, and whether the difference between two is more than chance."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

__all__ = ["ndcg", "paired_p"]


def ndcg(ranked: Sequence[str], grades: Mapping[str, int], k: int = 10) -> float | None:
    """Discounted gain of the first ``k``, gain = grade, over that of the best order there is (Järvelin and Kekäläinen
    2002). ``None`` if nothing is relevant. A document that stands twice counts once, at its first place.
    """
    best = math.fsum(_gain(grade, place) for place, grade in enumerate(sorted(grades.values(), reverse=True)[:k]))
    if best == 0:
        return None
    seen = dict.fromkeys(ranked[:k])
    return math.fsum(_gain(grades.get(id, 0), ranked.index(id)) for id in seen) / best


def _gain(grade: int, place: int) -> float:
    return max(0, grade) / math.log2(place + 2)


def paired_p(one: Sequence[float], other: Sequence[float], *, rounds: int = 10_000, seed: int = 0) -> float:
    """Two-sided p of Fisher's randomisation test on the mean difference of paired values (Smucker et al. 2007).

    With few pairs every assignment of signs is counted, which is exact; otherwise ``rounds`` random ones. Raises
    ``ValueError`` unless there are as many of the one as of the other, and some.
    """
    differences = [a - b for a, b in zip(one, other, strict=True)]
    if not differences:
        raise ValueError("there is nothing to compare")
    # Sums that differ only by rounding are as extreme as each other.
    least = abs(math.fsum(differences)) - 1e-12 * math.fsum(map(abs, differences))
    count = len(differences)
    if 2**count <= rounds:
        signs = range(2**count)
        return sum(_as_extreme(differences, sign, least) for sign in signs) / len(signs)
    chooser = random.Random(seed)  # noqa: S311  # a test that can be repeated
    hits = sum(_as_extreme(differences, chooser.getrandbits(count), least) for _ in range(rounds))
    return (hits + 1) / (rounds + 1)


def _as_extreme(differences: Sequence[float], signs: int, least: float) -> bool:
    total = math.fsum(-one if signs >> place & 1 else one for place, one in enumerate(differences))
    return abs(total) >= least
