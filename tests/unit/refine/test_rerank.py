"""The head of the list in the reranker's order, whatever the reranker does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from gateway.errors import Timeout
from gateway.model import hit
from gateway.refine.candidate import Candidate
from gateway.refine.lexical import by_words, lexical_scores
from gateway.refine.line import Refinements
from gateway.refine.pack import emitted
from gateway.refine.rerank import Rerank
from tests.unit.refine.lists import answering, documents, ids, refined

FOUR = documents(*(hit(id, 0.5, text=f"text of {id}") for id in "abcd"))
ALL = Refinements(rerank=Rerank(top_n=4))


def test_scored_hits_come_by_score_and_ties_in_the_order_of_fusion() -> None:
    result = refined(FOUR, ALL, score=answering(0.1, 0.9, 0.1, 0.5))
    assert ids(result.candidates) == ["b", "d", "a", "c"]
    assert [one.score for one in result.candidates] == [0.9, 0.5, 0.1, 0.1]
    assert [dict(one.scores) for one in result.candidates][:2] == [{"rerank": 0.9}, {"rerank": 0.5}]
    assert (result.reranked, result.scale, result.notes) == (4, "rerank", ())


def test_only_the_window_is_shown_and_the_tail_follows_unscored() -> None:
    shown: list[tuple[str, Sequence[str]]] = []

    async def score(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        shown.append((query, passages))
        return [-7.0, -2.0]

    result = refined(FOUR, Refinements(rerank=Rerank(top_n=2)), score=score, query="what?")
    assert shown == [("what?", ["text of a", "text of b"])]
    assert ids(result.candidates) == ["b", "a", "c", "d"]
    assert [one.score for one in result.candidates] == [-2.0, -7.0, None, None]
    assert emitted(result.candidates) == [-2.0, -7.0, -7.0, -7.0]
    assert result.reranked == 2


def test_a_hit_without_text_is_not_shown_and_keeps_its_place_among_the_unscored() -> None:
    hits = [hit("a", 1.0), hit("b", 1.0, text="b"), hit("c", 1.0, text=" \n"), hit("d", 1.0, text="d")]
    shown: list[Sequence[str]] = []

    async def score(query: str, passages: Sequence[str]) -> Sequence[float | None]:
        shown.append(passages)
        return [1.0, 2.0]

    result = refined(documents(*hits), ALL, score=score)
    assert shown == [["b", "d"]]
    assert ids(result.candidates) == ["d", "b", "a", "c"]
    assert [one.score for one in result.candidates] == [2.0, 1.0, None, None]


@pytest.mark.parametrize(
    ("scores", "order", "count"),
    [
        ((0.1, 0.2), ["b", "a", "c", "d"], 2),
        ((math.nan, 0.2, None, 0.3), ["d", "b", "a", "c"], 2),
        ((math.inf, 0.2, -math.inf, "9"), ["b", "a", "c", "d"], 1),
        ((-3.0, -1.0, -2.0, -9.0), ["b", "c", "a", "d"], 4),
        ((10**400, True, 5, 6.5), ["d", "c", "a", "b"], 2),
    ],
)
def test_what_is_no_score_leaves_its_hit_behind_the_scored(
    scores: tuple[float, ...], order: list[str], count: int
) -> None:
    result = refined(FOUR, ALL, score=answering(*scores))
    assert ids(result.candidates) == order
    assert result.reranked == count
    short = f"{count} of 4 hits were reranked: the others have no text or were given no score"
    assert result.notes == ((short,) if count < 4 else ())
    assert [one.score is None for one in result.candidates] == [False] * count + [True] * (4 - count)


async def late(query: str, passages: Sequence[str]) -> Sequence[float | None]:
    raise Timeout("ranker: no answer in 2 s")


@pytest.mark.parametrize(
    ("score", "why"),
    [
        (late, "ranker: no answer in 2 s"),
        (answering(1.0, 2.0, 3.0, 4.0, 5.0), "it gave 5 scores for 4 passages"),
        (answering(), "it scored none of the passages"),
        (answering(None, math.nan), "it scored none of the passages"),
        (None, "nobody reranks"),
    ],
)
def test_a_failed_rerank_keeps_the_fused_order_and_scores(score: object, why: str) -> None:
    told: list[str] = []
    result = refined(FOUR, ALL, score=score, told=lambda stage, found: told.append(stage))
    assert ids(result.candidates) == ["a", "b", "c", "d"]
    assert [one.score for one in result.candidates] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert (result.reranked, result.scale) == (0, "rrf")
    assert (result.notes, result.failed.why) == ((), why)
    assert told == []


def test_passages_without_any_text_are_not_sent() -> None:
    result = refined(documents(hit("a", 1.0), hit("b", 1.0)), ALL, score=answering(1.0, 2.0))
    assert ids(result.candidates) == ["a", "b"]
    assert result.notes == ("not reranked, the order is that of fusion: no hit has a text to rerank",)


def test_an_empty_list_is_reranked_without_asking_anybody() -> None:
    result = refined([], ALL, score=late)
    assert (result.candidates, result.notes) == ((), ())


def test_min_score_is_not_applied_to_scores_it_was_not_meant_for() -> None:
    wanted = Refinements(rerank=Rerank(top_n=4), min_score=0.6)
    failed = refined(FOUR, wanted, score=late)
    assert ids(failed.candidates) == ["a", "b", "c", "d"]
    assert failed.notes[0] == "minScore 0.6 was meant for reranked scores and is not applied"
    assert ids(refined(FOUR, wanted, score=answering(0.1, 0.9, 0.6, None)).candidates) == ["b", "c"]


def test_each_stage_is_told_once_in_turn_with_what_passed_it() -> None:
    told: list[tuple[str, list[str]]] = []

    def tell(stage: str, found: Sequence[Candidate]) -> None:
        told.append((stage, ids(found)))

    wanted = Refinements(rerank=Rerank(top_n=4), min_score=0.2, per_document=1)
    refined(FOUR, wanted, score=answering(0.1, 0.3, 0.2, 0.9), told=tell)
    assert told == [("rerank", ["d", "b", "c"]), ("diversify", ["d", "b", "c"])]


@pytest.mark.anyio
async def test_long_passages_are_counted_as_short_ones_are() -> None:
    passages = ["fox " * 3000, "a fox", "nothing"]
    assert await by_words("fox", passages) == lexical_scores("fox", passages)
    assert await by_words("fox", passages[1:]) == lexical_scores("fox", passages[1:])
