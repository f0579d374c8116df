"""minScore is read on the scale of what is emitted."""

from __future__ import annotations

from gateway.model import hit
from gateway.refine.line import Refinements
from gateway.refine.rerank import Rerank
from tests.obligations import obligation
from tests.unit.refine.lists import answering, documents, ids, refined

FOUR = documents(*(hit(id, 0.5, text=f"text of {id}") for id in "abcd"))


@obligation(149)
def test_what_scores_less_is_dropped_and_what_scores_as_much_stays() -> None:
    result = refined(FOUR, Refinements(min_score=0.5))
    assert (ids(result.candidates), result.notes) == (["a", "b"], ())


@obligation(149)
def test_if_all_is_cut_the_note_names_the_scale_and_the_best_score() -> None:
    result = refined(FOUR, Refinements(min_score=2.0))
    assert result.candidates == ()
    assert result.notes == ("minScore 2 is read on the scale of rrf, where the best score was 1",)
    reranked = refined(FOUR, Refinements(min_score=2.0, rerank=Rerank(top_n=2)), score=answering(0.25, 0.75))
    assert reranked.notes == ("minScore 2 is read on the scale of rerank, where the best score was 0.75",)


def test_what_was_not_scored_is_not_good_enough() -> None:
    wanted = Refinements(min_score=-9.0, rerank=Rerank(top_n=2))
    assert ids(refined(FOUR, wanted, score=answering(-3.0, 0.5)).candidates) == ["b", "a"]


def test_an_empty_list_needs_no_excuse() -> None:
    assert refined([], Refinements(min_score=2.0)).notes == ()
