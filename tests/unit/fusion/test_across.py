"""Documents of different corpora, scored again together."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fusion import Copy, Fused, Ranking, Rrf, fuse, rescored, rescored_by
from gateway.fusion.across import relevance
from gateway.fusion.bm25 import words
from gateway.model import hit


def document(id: str, score: float, text: str | None = None, weight: float = 1.0) -> Fused:
    return Fused(id=id, score=score, weight=weight, copies=(Copy("e", 1, hit(id, None, text=text), weight, 0, "c"),))


def ids(fused: list[Fused]) -> list[str]:
    return [one.id for one in fused]


def test_the_score_is_seven_tenths_passage_and_three_tenths_fused_score_each_over_its_maximum() -> None:
    texts = ["green apple", "apple", "stone"]
    fused = [document(id, score, text) for id, score, text in zip("abc", (0.01, 0.02, 0.04), texts, strict=True)]
    b = relevance("green apple", texts)
    again = {one.id: one.score for one in rescored("green apple", fused)}
    assert again["a"] == pytest.approx(0.7 + 0.3 * 0.25)
    assert again["b"] == pytest.approx(0.7 * b[1] / b[0] + 0.3 * 0.5)
    assert again["c"] == pytest.approx(0.3)
    assert ids(rescored("green apple", fused)) == ["a", "b", "c"]


def test_a_document_without_text_keeps_only_the_share_of_its_fused_score() -> None:
    again = rescored("apple", [document("a", 0.02), document("b", 0.01, "apple"), document("c", 0.01, "")])
    assert {one.id: one.score for one in again} == pytest.approx({"a": 0.3, "b": 0.85, "c": 0.15})


def test_where_no_passage_holds_a_word_of_the_query_the_fused_order_stays() -> None:
    fused = [document("b", 0.03, "x"), document("a", 0.02, "y"), document("c", 0.02, None)]
    assert [(one.id, one.score) for one in rescored("apple", fused)] == [("b", 0.3), ("a", 0.2), ("c", 0.2)]
    assert rescored("apple", []) == []


def test_equal_scores_are_ordered_by_summed_weight_then_by_id() -> None:
    fused = [document(id, 0.01, "apple", weight) for id, weight in (("c", 1.0), ("b", 1.0), ("a", 0.5), ("d", 2.0))]
    assert ids(rescored("apple", fused)) == ["d", "b", "c", "a"]


def test_the_mix_moves_the_order_from_fused_scores_to_passages() -> None:
    fused = [document("a", 0.02, "stone"), document("b", 0.01, "apple")]
    assert ids(rescored("apple", fused, mix=0)) == ["a", "b"]
    assert ids(rescored("apple", fused, mix=1)) == ["b", "a"]


def test_letter_case_and_plurals_make_no_difference_and_stop_words_do_not_count() -> None:
    b = relevance("THE APPLES OF EUROPE", ["apple", "Apples", "of the", "europe of the"])
    assert b[0] == b[1] > 0
    assert b[2] == 0
    assert b[3] > 0


@pytest.mark.parametrize(
    ("word", "form"), [("cities", "city"), ("sizes", "size"), ("circuits", "circuit"), ("bus", "bus"), ("loss", "loss")]
)
def test_a_plural_finds_its_singular(word: str, form: str) -> None:
    [one, other] = relevance(word, [form, "something else"])
    assert one > 0 == other


def test_a_query_of_stop_words_alone_is_searched_for_as_it_is() -> None:
    assert relevance("to be", ["to be or not", "green"])[0] > 0


def test_words_of_scripts_without_spaces_are_found() -> None:
    assert [bool(score) for score in relevance("東京", ["東京都の人口", "大阪"])] == [True, False]


def test_a_rare_word_weighs_more_than_one_that_all_passages_hold() -> None:
    common, rare, _, _ = relevance("common rare", ["common one", "rare one", "common two", "common three"])
    assert rare > common > 0


def test_only_the_beginning_of_a_passage_is_read() -> None:
    late = "x " * 4096 + "apple"
    assert relevance("apple", [late, "apple"])[0] == 0


def test_scores_of_a_reranker_on_any_scale_take_the_place_of_the_passages() -> None:
    fused = [document("a", 0.02, "x"), document("b", 0.02, "x"), document("c", 0.02, "x")]
    again = rescored_by([-9.0, 1.0, -4.0], fused)
    assert {one.id: one.score for one in again} == pytest.approx({"b": 1.0, "c": 0.65, "a": 0.3})
    assert ids(rescored_by([5.0, 5.0, None], fused)) == ["a", "b", "c"]
    assert [one.score for one in rescored_by([5.0, 5.0, None], fused)] == [1.0, 1.0, 0.3]
    assert [one.score for one in rescored_by([math.nan, math.inf, None], fused)] == [0.3] * 3
    with pytest.raises(ValueError, match="2 scores for 3"):
        rescored_by([1.0, 2.0], fused)


def test_scores_that_span_all_floats_stay_finite() -> None:
    fused = [document("a", 0.02), document("b", 0.02)]
    assert [one.score for one in rescored_by([1.7e308, -1.7e308], fused)] == pytest.approx([1.0, 0.3])


def test_fused_scores_of_a_plugin_below_zero_keep_their_order() -> None:
    assert ids(rescored("q", [document("a", -3.0), document("b", -1.0), document("c", -2.0)])) == ["b", "c", "a"]


TEXTS = st.one_of(
    st.none(), st.lists(st.sampled_from(["apple", "pears", "of", "stone", "ß"]), max_size=6).map(" ".join)
)
RANKINGS = st.lists(st.lists(st.tuples(st.integers(0, 30), TEXTS), max_size=12), min_size=1, max_size=5)
QUERIES = st.lists(st.sampled_from(["apple", "pear", "the", "stones", "SS"]), max_size=3).map(" ".join)


def rankings(given: list[list[tuple[int, str | None]]]) -> list[Ranking]:
    return [
        Ranking(
            engine=f"e{place}",
            order=place,
            corpus=f"c{place // 2}",
            weight=1 + place / 3,
            hits=[hit(str(id), None, text=text) for id, text in own],
        )
        for place, own in enumerate(given)
    ]


@given(RANKINGS, QUERIES, st.floats(0, 1), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(
    lists: list[list[tuple[int, str | None]]], query: str, mix: float, chance: random.Random
) -> None:
    there = rankings(lists)
    expected = rescored(query, fuse(there, Rrf())[0], mix=mix)
    chance.shuffle(there)
    fused = fuse(there, Rrf())[0]
    chance.shuffle(fused)
    assert rescored(query, fused, mix=mix) == expected


@given(RANKINGS, QUERIES, st.floats(0, 1))
def test_no_document_is_lost_or_doubled_and_scores_lie_between_0_and_1_and_fall(
    lists: list[list[tuple[int, str | None]]], query: str, mix: float
) -> None:
    fused = fuse(rankings(lists), Rrf())[0]
    again = rescored(query, fused, mix=mix)
    assert sorted(ids(again)) == sorted(ids(fused))
    assert {one.id: one.copies for one in again} == {one.id: one.copies for one in fused}
    scores = [one.score for one in again]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


@given(RANKINGS, QUERIES)
def test_a_mix_of_nothing_keeps_the_order_of_the_fused_scores(
    lists: list[list[tuple[int, str | None]]], query: str
) -> None:
    fused = fuse(rankings(lists), Rrf())[0]
    assert ids(rescored(query, fused, mix=0)) == ids(fused)


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_is_split_into_the_words_that_any_text_is(text: str) -> None:
    assert words(text) == words(text + " é")[:-1]
    assert words(text, query=True) == words(text + " é", query=True)[:-1]
