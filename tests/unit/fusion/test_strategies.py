"""The formulas, with exact values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.errors import Unsupported
from gateway.fusion import (
    Confidence,
    Contributions,
    Convex,
    LegOffer,
    Ranking,
    Rrf,
    Scale,
    Strategy,
    Weighted,
    choose,
    fuse,
    fuse_queries,
)
from gateway.model import Hit


def rank(engine: str, *hits: Hit, order: int = 0, **settings: Any) -> Ranking:
    return Ranking(engine=engine, hits=hits, order=order, **settings)


def hits(*pairs: tuple[str, float | None]) -> list[Hit]:
    return [Hit(id, score) for id, score in pairs]


def sure(*pairs: tuple[str, float | None]) -> list[Hit]:
    return [Hit(id, 1.0, confidence) for id, confidence in pairs]


def scores(rankings: Sequence[Ranking], strategy: Strategy, **settings: Any) -> dict[str, float]:
    return {document.id: document.score for document in fuse(rankings, strategy, **settings)[0]}


def test_a_repeated_id_of_one_engine_votes_once_and_ranks_close_up() -> None:
    ranking = rank("A", *hits(("x", 0.9), ("x", 0.8), ("x", 0.7), ("y", 0.1)))
    assert scores([ranking], Rrf()) == {"x": float(f"{1 / 61:.11e}"), "y": float(f"{1 / 62:.11e}")}


def test_ranks_one_two_three_and_three_one_two_tie() -> None:
    lists = ["xay", "yx", "byx"]
    found = scores([rank(str(n), *[Hit(id, None) for id in ids], order=n) for n, ids in enumerate(lists)], Rrf())
    assert found["x"] == found["y"] == float(f"{1 / 61 + 1 / 62 + 1 / 63:.11e}")


def test_three_times_a_third_of_the_weight_ties_with_the_whole_weight() -> None:
    filler = [Hit(f"f{n}", None) for n in range(7)]
    thirds = [rank(f"t{n}", *filler, Hit("thirds", None), order=n, weight=1.0) for n in range(3)]
    whole = rank("w", *filler, Hit("whole", None), order=3, weight=3.0)
    found = scores([*thirds, whole], Rrf())
    assert found["thirds"] == found["whole"]


def test_ties_go_to_the_greater_summed_weight_then_to_the_smaller_id() -> None:
    flat = rank("A", *[Hit(id, 1.0, 0.0) for id in ("b", "a")], weight=1.0)
    heavy = rank("B", Hit("z", 1.0, 0.0), weight=2.0, order=1)
    assert [d.id for d in fuse([flat, heavy], Confidence())[0]] == ["z", "a", "b"]


def test_ids_are_ordered_by_code_point() -> None:
    names = ["é", "z", "Z", "10", "9", "\U0001f600", "\uffee"]
    fused = fuse([rank("A", *[Hit(name, 1.0) for name in names])], Weighted())[0]
    assert [document.id for document in fused] == ["10", "9", "Z", "z", "é", "\uffee", "\U0001f600"]


def test_weighted_is_the_weighted_sum_of_min_max() -> None:
    a = rank("A", *hits(("x", 10.0), ("y", 5.0), ("z", 0.0)), weight=2.0)
    b = rank("B", *hits(("z", 1.0), ("y", 0.25), ("w", 0.0)), order=1)
    assert scores([a, b], Weighted()) == {"x": 2.0, "y": 1.25, "z": 1.0, "w": 0.0}


def test_weighted_fills_a_missing_score_from_the_next_worse_hit() -> None:
    a = rank("A", *hits(("p", 4.0), ("q", None), ("r", 3.0), ("s", 2.0), ("t", None)))
    assert scores([a], Weighted()) == {"p": 1.0, "q": 0.5, "r": 0.5, "s": 0.0, "t": 0.0}


@pytest.mark.parametrize("extreme", [(1e308, -1e308), (5e-324, 0.0), (1.7e308, 1.6e308)])
def test_extreme_scores_stay_finite(extreme: tuple[float, float]) -> None:
    ranking = rank("A", Hit("a", extreme[0], 0.5), Hit("b", extreme[1], 0.5), floor=-1.7e308)
    for strategy in (Weighted(), Convex()):
        found = scores([ranking], strategy)
        assert all(0 <= value <= 1 for value in found.values())
        assert found["a"] == 1.0


def test_convex_divides_by_the_distance_to_the_floor_and_weights_sum_to_one() -> None:
    a = rank("A", *hits(("x", 0.5), ("y", 0.0)), weight=3.0, floor=-1.0)
    b = rank("B", *hits(("y", 8.0), ("z", 2.0)), order=1, floor=0.0)
    assert scores([a, b], Convex()) == {"x": 0.75, "y": 0.75, "z": 0.0625}


def test_a_failed_leg_changes_no_scale() -> None:
    a = rank("A", Hit("x", 0.5, 0.8), weight=1.0, floor=0.0)
    planned = {"planned_max_weight": 4.0, "planned_total_weight": 5.0}
    assert scores([a], Convex(), **planned) == {"x": 0.2}
    assert scores([a], Confidence(), **planned) == {"x": 0.2}


def test_convex_counts_what_is_below_the_floor_as_nothing_with_a_note() -> None:
    fused, notes = fuse([rank("A", *hits(("x", 2.0), ("y", -1.0), ("z", None)), floor=0.0)], Convex())
    assert [(d.id, d.score) for d in fused] == [("x", 1.0), ("y", 0.0), ("z", 0.0)]
    assert [note.kind for note in notes] == ["below-floor", "no-score"]
    nothing = rank("A", *hits(("x", 0.0), ("y", -1.0)), floor=0.0)
    assert scores([nothing], Convex()) == {"x": 0.0, "y": 0.0}


def test_alpha_is_the_share_of_the_dense_leg_even_when_the_other_failed() -> None:
    dense = rank("D", Hit("x", 1.0), mode="dense", floor=-1.0)
    sparse = rank("S", Hit("y", 9.0), mode="sparse", floor=0.0, order=1, weight=7.0)
    assert scores([dense, sparse], Convex(alpha=0.75)) == {"x": 0.75, "y": 0.25}
    assert scores([sparse], Convex(alpha=0.75)) == {"y": 0.25}


@pytest.mark.parametrize(
    "modes", [["dense"], ["dense", "dense"], ["dense", "sparse", "sparse"], ["dense", "hybrid"], []]
)
def test_alpha_without_one_dense_and_one_sparse_leg_is_refused(modes: list[str]) -> None:
    legs = [LegOffer(engine=str(n), mode=mode, floor=0.0) for n, mode in enumerate(modes)]
    with pytest.raises(Unsupported) as refused:
        Convex(alpha=0.5).requires(legs)
    assert (refused.value.code, refused.value.data) == (-32005, {"option": "fusion.alpha"})


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, True])
def test_alpha_lies_between_zero_and_one(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        Convex(alpha=alpha)


@pytest.mark.parametrize("k", [0, -1, math.nan, math.inf, True])
def test_k_is_positive(k: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Rrf(k)


def test_the_plan_falls_back_to_rank_fusion_with_a_note() -> None:
    legs = [LegOffer(engine="A", floor=0.0, confidence=True), LegOffer(engine="B")]
    for strategy in (Convex(), Confidence()):
        chosen, [note] = choose(strategy, legs)
        assert chosen == Rrf()
        assert note.kind == "fusion-fallback"
        assert "B" in note.text
        assert choose(strategy, legs[:1]) == (strategy, [])
    for strategy in (Rrf(), Weighted()):
        assert choose(strategy, legs) == (strategy, [])


def test_a_floor_that_the_reply_voids_makes_the_whole_answer_rank_fusion() -> None:
    a, b = rank("A", Hit("x", 0.9), floor=0.0), rank("B", Hit("y", 0.9), order=1, floor=None)
    fused, notes = fuse([a, b], Convex())
    assert {d.score for d in fused} == {float(f"{1 / 61:.11e}")}
    assert [(note.kind, note.engines) for note in notes] == [("fusion-fallback", ("B",))]


def test_confidence_is_the_probability_that_not_every_engine_is_wrong() -> None:
    a = rank("A", *sure(("x", 0.5), ("y", 0.25)), weight=2.0)
    b = rank("B", *sure(("x", 0.5)), weight=1.0, order=1)
    assert scores([a, b], Confidence()) == {"x": 0.625, "y": 0.25}


@pytest.mark.parametrize("bad", [None, math.nan, -0.1, 1.5])
def test_a_missing_confidence_takes_the_next_worse_ranked_hits(bad: float | None) -> None:
    ranking = rank("A", *sure(("p", bad), ("q", 0.5), ("r", bad)))
    fused, [note] = fuse([ranking], Confidence())
    assert {d.id: d.score for d in fused} == {"p": 0.5, "q": 0.5, "r": 0.0}
    assert (note.kind, note.engines) == ("no-confidence", ("A",))


@pytest.mark.parametrize("strategy", [Rrf(), Weighted(), Convex(), Confidence()], ids=lambda strategy: strategy.name)
def test_the_emitted_confidence_is_the_weighted_mean_of_those_really_carried(strategy: Strategy) -> None:
    a = rank("A", Hit("x", 1.0, 0.5), Hit("y", 0.5, None), weight=3.0, floor=0.0)
    b = rank("B", Hit("x", 1.0, 0.1), order=1, floor=0.0)
    c = rank("C", Hit("x", 1.0, None), order=2, floor=0.0)
    assert {d.id: d.confidence for d in fuse([a, b, c], strategy)[0]} == {"x": 0.4, "y": None}


def test_the_rewritings_of_one_query_become_one_list_of_the_engine() -> None:
    merged = fuse_queries([hits(("a", 0.9), ("b", 0.8)), hits(("b", 0.95), ("c", 0.1))])
    assert [(found.id, found.score) for found in merged] == [("b", 0.95), ("a", 0.9), ("c", 0.1)]


def test_one_engine_with_two_rankings_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="votes once"):
        fuse([rank("A"), rank("A", order=1)], Rrf())


class Custom(Strategy):
    """A plugin's: the product of contributions, and numbers as bad as the test wants."""

    name = "custom"

    def __init__(self, value: float) -> None:
        self.value = value

    def contributions(self, rankings: Sequence[Ranking], scale: Scale) -> Contributions:
        return [[self.value] * len(ranking.hits) for ranking in rankings], []

    def total(self, contributions: Sequence[float]) -> float:
        return math.prod(contributions)


def test_a_plugin_brings_its_own_way_to_fuse() -> None:
    rankings = [rank("A", Hit("x", None), Hit("y", None)), rank("B", Hit("x", None), order=1)]
    assert scores(rankings, Custom(3.0)) == {"x": 9.0, "y": 3.0}
    assert scores(rankings, Custom(-3.0), limit=1) == {"x": 9.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_what_a_plugin_gets_wrong_does_not_get_out(bad: float) -> None:
    rankings = [rank("A", Hit("x", None)), rank("B", Hit("x", None), order=1)]
    fused, notes = fuse(rankings, Custom(bad))
    assert [d.score for d in fused] == [0.0]
    assert {note.kind for note in notes} == {"not-finite"}
