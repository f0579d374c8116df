"""Age halves what a hit is worth, by the half-life that was asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.fusion import Copy, Fused
from gateway.model import hit
from gateway.refine.line import Refinements
from gateway.refine.recency import Recency, minmax
from gateway.refine.rerank import Rerank
from tests.unit.refine.lists import DAY, NOW, answering, document, documents, ids, refined

WEEK = Recency(field="date", half_life_days=7)


def dated(*dates: Any) -> list[Fused]:
    """One score for all, so that only age tells them apart."""
    return [document(hit(f"h{n}", 1.0, text="t", meta={"date": one}), 0.5, n + 1) for n, one in enumerate(dates)]


def millis(days: float) -> int:
    return int((NOW - days * DAY) * 1000)


@pytest.mark.parametrize(
    ("date", "factor"),
    [
        (millis(0), 1.0),
        (millis(7), 0.5),
        (float(millis(14)), 0.25),
        (millis(-3), 1.0),
        ("2025-06-15T15:06:40Z", 1.0),
        ("2025-06-15T17:06:40+02:00", 1.0),
        ("2025-06-01T15:06:40Z", 0.25),
        ([millis(70), millis(7), "soon"], 0.5),
        ("1", 0.5),
        (None, 0.5),
        (True, 0.5),
        (math.nan, 0.5),
        ({"at": 1}, 0.5),
        ([], 0.5),
        (10**400, 1.0),
        (-(10**400), 0.0),
    ],
)
def test_a_date_halves_by_the_week_and_what_is_none_counts_half(date: Any, factor: float) -> None:
    [one] = refined(dated(date), Refinements(recency=WEEK)).candidates
    assert one.score == pytest.approx(factor, abs=1e-9)
    assert one.scores["recency"] == pytest.approx(factor, abs=1e-9)


def test_the_factor_of_undated_hits_can_be_set() -> None:
    wanted = Recency(field="date", half_life_days=7, undated=0.9)
    assert refined(dated(None), Refinements(recency=wanted)).candidates[0].score == 0.9


def test_relevance_lies_between_a_twentieth_and_one_over_the_window() -> None:
    fused = [
        document(hit(id, 1.0, meta={"date": millis(0)}), score) for id, score in [("a", 9.0), ("b", 5.0), ("c", 1.0)]
    ]
    result = refined(fused, Refinements(recency=WEEK))
    assert [one.score for one in result.candidates] == pytest.approx([1.0, 0.525, 0.05])
    assert result.scale == "recency"


def test_log_odds_are_read_as_shares_however_large() -> None:
    fused = documents(*(hit(id, 1.0, text=id, meta={"date": millis(7)}) for id in "abc"))
    wanted = Refinements(rerank=Rerank(top_n=3, logit=True), recency=WEEK)
    result = refined(fused, wanted, score=answering(0.0, 5000.0, -5000.0))
    assert ids(result.candidates) == ["b", "a", "c"]
    assert [one.score for one in result.candidates] == pytest.approx([0.5, 0.25, 0.0])
    assert [one.scores["rerank"] for one in result.candidates] == [5000.0, 0.0, -5000.0]


def test_log_odds_are_not_looked_for_in_fused_scores() -> None:
    wanted = Refinements(rerank=Rerank(top_n=1, logit=True), recency=WEEK)
    result = refined(dated(millis(0)), wanted, score=None)
    assert [one.score for one in result.candidates] == [1.0]


def test_what_is_unscored_stays_behind_however_new() -> None:
    fused = documents(*(hit(id, 1.0, text=id, meta={"date": millis(day)}) for id, day in [("a", 700), ("b", 0)]))
    result = refined(fused, Refinements(rerank=Rerank(top_n=1), recency=WEEK), score=answering(1.0))
    assert ids(result.candidates) == ["a", "b"]
    assert result.candidates[1].score is None


def test_newer_comes_first_among_equals_and_equals_keep_their_order() -> None:
    result = refined(dated(millis(9), millis(1), None, millis(7)), Refinements(recency=WEEK))
    assert ids(result.candidates) == ["h1", "h2", "h3", "h0"]


def test_the_field_is_read_from_what_all_copies_say_together() -> None:
    copies = tuple(
        Copy(engine=engine, rank=rank, hit=hit("x", 1.0, meta=meta), weight=1.0, order=rank, trust="community")
        for engine, rank, meta in [("a", 1, {"lang": "en"}), ("b", 2, {"date": millis(14), "lang": "fr"})]
    )
    both = [Fused(id="x", score=0.5, weight=2.0, copies=copies)]
    wanted = Refinements(recency=WEEK)
    assert refined(both, wanted).candidates[0].score == pytest.approx(0.25)
    assert refined(both, wanted, keep=lambda meta: "date" not in meta).candidates[0].score == 0.5


def test_scores_as_far_apart_as_floats_go_still_lie_between_nothing_and_one() -> None:
    assert minmax([1.7e308, 0.0, -1.7e308]) == [1.0, 0.5, 0.0]
    assert minmax([3.0, 3.0]) == [1.0, 1.0]
    assert minmax([]) == []
