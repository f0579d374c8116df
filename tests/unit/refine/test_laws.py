"""What holds for every list and every combination of refinements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fusion import Fused
from gateway.fusion.texts import word_set
from gateway.model import hit
from gateway.refine.candidate import Candidate, candidates, text
from gateway.refine.diversify import diversified, document_of, greedy
from gateway.refine.line import Refined, Refinements
from gateway.refine.pack import emitted, sealed
from gateway.refine.tokens import Estimate
from tests.unit.refine.lists import LISTS, NOW, WANTED, answering, documents, ids, page, refined

many = settings(deadline=None, max_examples=80)
SCORES: st.SearchStrategy[Any] = st.lists(
    st.floats(-5, 5) | st.floats() | st.none() | st.integers() | st.booleans() | st.just("0.5"), max_size=14
)


@many
@given(LISTS, WANTED, SCORES)
def test_whatever_a_reranker_says_nothing_comes_twice_and_nothing_from_nowhere(
    fused: list[Fused], wanted: Refinements, scores: list[Any]
) -> None:
    stages: list[Sequence[Candidate]] = []
    result = refined(fused, wanted, score=answering(*scores), told=lambda stage, found: stages.append(found))
    for found in (*stages, result.candidates):
        assert len(set(ids(found))) == len(found)
        assert set(ids(found)) <= {one.id for one in fused}


@many
@given(LISTS, WANTED, SCORES)
def test_without_cut_and_limit_nothing_is_lost(fused: list[Fused], wanted: Refinements, scores: list[Any]) -> None:
    wanted = msgspec.structs.replace(wanted, min_score=None, per_document=None)
    result = refined(fused, wanted, score=answering(*scores))
    assert sorted(ids(result.candidates)) == sorted(one.id for one in fused)
    assert {one.fused.id: one.fused for one in result.candidates} == {one.id: one for one in fused}


@many
@given(LISTS, WANTED, SCORES, st.booleans())
def test_the_reranked_stay_above_the_tail_in_the_order_of_fusion(
    fused: list[Fused], wanted: Refinements, scores: list[Any], vectors: bool
) -> None:
    result = refined(fused, wanted, score=answering(*scores), vectors_comparable=vectors)
    unscored = [place for place, one in enumerate(result.candidates) if one.score is None]
    assert unscored == list(range(len(result.candidates) - len(unscored), len(result.candidates)))
    before = [one.id for one in fused]
    places = [before.index(result.candidates[place].fused.id) for place in unscored]
    assert places == sorted(places)
    assert result.reranked == 0 or not unscored or result.reranked >= len(result.candidates) - len(unscored)


@many
@given(LISTS, WANTED, SCORES)
def test_emitted_scores_are_numbers_and_never_rise(fused: list[Fused], wanted: Refinements, scores: list[Any]) -> None:
    sent = emitted(refined(fused, wanted, score=answering(*scores)).candidates)
    assert sent == sorted(sent, reverse=True)
    assert all(abs(score) < float("inf") for score in sent)


@many
@given(LISTS, WANTED, st.integers(1, 12), st.none() | st.integers(1, 30))
def test_the_best_k_are_the_beginning_of_the_best_k_and_one_more(
    fused: list[Fused], wanted: Refinements, k: int, budget: int | None
) -> None:
    shorter, _ = page(refined(fused, wanted).candidates, k, budget)
    longer, _ = page(refined(fused, wanted).candidates, k + 1, budget)
    assert len(shorter) <= k
    assert ids(longer)[: len(shorter)] == ids(shorter)
    assert emitted(longer)[: len(shorter)] == emitted(shorter)


@many
@given(LISTS, WANTED, st.integers(1, 5), st.none() | st.integers(1, 30))
def test_pages_give_each_document_once_and_in_the_order_of_one_long_list(
    fused: list[Fused], wanted: Refinements, k: int, budget: int | None
) -> None:
    found = list(refined(fused, wanted).candidates)
    sent = dict(zip(ids(found), emitted(found), strict=True))  # pages are cut from what is sealed once
    walked: list[Candidate] = []
    at = passed = 0
    while at < len(found):
        hits, fits = page(found[at:], k, budget)
        assert fits.consumed > 0
        if budget is None:
            assert len(hits) == k or at + fits.consumed == len(found)
        walked += hits
        passed += len(fits.passed)
        at += fits.consumed
    fitting = [one for one in found if budget is None or Estimate().count(text(one)) <= budget]
    assert ids(walked) == ids(fitting)
    scores = [sent[id] for id in ids(walked)]
    assert scores == sorted(scores, reverse=True)
    assert passed == len(found) - len(fitting)


@many
@given(LISTS, WANTED, SCORES)
def test_the_same_lists_give_the_same_bytes(fused: list[Fused], wanted: Refinements, scores: list[Any]) -> None:
    def once() -> tuple[Refined, list[bytes]]:
        result = refined(fused, wanted, score=answering(*scores))
        return result, [bytes(one) for one in sealed(result.candidates, include_text=True, include_vectors=True)]

    assert once() == once()


@many
@given(LISTS, WANTED.map(lambda wanted: msgspec.structs.replace(wanted, mmr=None)), st.booleans())
def test_a_lambda_of_one_changes_nothing(fused: list[Fused], wanted: Refinements, vectors: bool) -> None:
    with_mmr = msgspec.structs.replace(wanted, mmr=1.0)
    assert refined(fused, with_mmr, vectors_comparable=vectors) == refined(fused, wanted)


@many
@given(LISTS, WANTED, st.integers(1, 3))
def test_no_document_has_more_passages_than_allowed(fused: list[Fused], wanted: Refinements, most: int) -> None:
    unlimited = refined(fused, msgspec.structs.replace(wanted, per_document=None, mmr=None)).candidates
    limited = refined(fused, msgspec.structs.replace(wanted, per_document=most, mmr=None)).candidates
    of = [document_of(one) for one in unlimited]
    kept = [one for place, one in enumerate(unlimited) if of[:place].count(of[place]) < most]
    assert list(limited) == kept


def test_what_was_seen_under_another_id_of_the_same_document_was_seen() -> None:
    [one, other] = documents(hit("a", 1.0), hit("b", 1.0))
    joined = msgspec.structs.replace(one, ids=("a", "z/a"))
    result = refined([joined, other], Refinements(), seen={"z/a"})
    assert (ids(result.candidates), result.seen) == (["b"], 1)


def formula(relevance: Sequence[float], alike: Sequence[Sequence[float]], weight: float) -> list[int]:
    """MMR as it is written down: against every one that has been selected, whenever one is chosen."""
    selected: list[int] = []
    while len(selected) < len(relevance):
        values = {
            place: weight * relevance[place] - (1 - weight) * max((alike[place][one] for one in selected), default=0.0)
            for place in range(len(relevance))
            if place not in selected
        }
        selected.append(min(place for place, value in values.items() if value == max(values.values())))
    return selected


SHARES = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1)


@many
@given(st.integers(0, 8), st.data(), SHARES)
def test_every_selected_document_counts_for_the_next(n: int, data: st.DataObject, weight: float) -> None:
    relevance = data.draw(st.lists(SHARES, min_size=n, max_size=n))
    alike = [[0.0] * n for _ in range(n)]
    for one in range(n):
        for other in range(one):
            alike[one][other] = alike[other][one] = data.draw(SHARES | st.floats(-1, 1))
    order = greedy(relevance, lambda chosen, others: [alike[chosen][place] for place in others], weight)
    assert order == formula(relevance, alike, weight)


@many
@given(LISTS, st.floats(0, 0.99))
def test_texts_are_alike_by_the_share_of_their_common_words(fused: list[Fused], weight: float) -> None:
    found = candidates(fused)
    words = [word_set(text(one)) for one in found]
    alike = [[len(a & b) / len(a | b) if a | b else 0.0 for b in words] for a in words]
    scores = [one.score for one in fused]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    relevance = [(score - low) / (high - low) if high > low else 1.0 for score in scores]
    assert ids(diversified(found, weight)) == [fused[place].id for place in formula(relevance, alike, weight)]


@many
@given(LISTS, WANTED)
def test_what_was_seen_takes_no_part(fused: list[Fused], wanted: Refinements) -> None:
    seen = {one.id for one in fused[::2]}
    result = refined(fused, wanted, seen=seen, now=NOW)
    alone = refined(fused[1::2], wanted, now=NOW)
    assert result == msgspec.structs.replace(alone, seen=len(seen))
