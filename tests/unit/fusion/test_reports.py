"""What went wrong in other people's fusion (PUBLIC_REPORTS R1-R16, R51), each as a test of its whole kind."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gateway.errors import CallerError
from gateway.fusion import (
    Confidence,
    Convex,
    Fused,
    LegOffer,
    Ranking,
    Rrf,
    Strategy,
    Weighted,
    fuse,
    leg_weights,
    merged_hit,
    merged_meta,
)
from gateway.model import Document, Hit, hit, member
from gateway.spi.passage import document_id

STRATEGIES = [Rrf(), Weighted(), Convex(), Confidence()]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)


def rank(engine: str, *hits: Hit, order: int = 0, **settings: Any) -> Ranking:
    settings.setdefault("floor", 0.0)
    return Ranking(engine=engine, hits=hits, order=order, **settings)


def doc(id: str, score: float | None = 0.5, **members: Any) -> Hit:
    members.setdefault("confidence", 0.5)
    return hit(id, score, **members)


def ids(fused: list[Fused]) -> list[str]:
    return [document.id for document in fused]


@every_strategy
def test_metadata_of_all_copies_is_kept_and_the_best_rank_wins_a_conflict(strategy: Strategy) -> None:
    a = rank("A", doc("x", meta={"src": "a", "p": 1}))
    b = rank("B", doc("y", 0.9), doc("x", meta={"src": "b", "q": 2}), order=1)
    [x] = [document for document in fuse([b, a], strategy)[0] if document.id == "x"]
    meta = merged_meta(x)
    assert (meta["src"], meta["p"], meta["q"], meta["engines"]) == ("a", 1, 2, ["A", "B"])


@pytest.mark.parametrize("first", ["A", "B"])
def test_equal_ranks_are_settled_by_the_plan_not_by_arrival(first: str) -> None:
    a, b = rank("A", doc("x", meta={"src": "a"}), order=0), rank("B", doc("x", meta={"src": "b"}), order=1)
    [x] = fuse([a, b] if first == "A" else [b, a], Rrf())[0]
    assert merged_meta(x)["src"] == "a"


@every_strategy
def test_a_merged_document_keeps_the_best_rank_and_its_score(strategy: Strategy) -> None:
    rankings = [rank("A", doc("x", 0.9)), rank("B", doc("z", 0.95), doc("x", 0.1), order=1)]
    [x] = [document for document in fuse(rankings, strategy)[0] if document.id == "x"]
    meta = merged_meta(x)
    assert (meta["engine"], meta["engineRank"], meta["engineScore"]) == ("A", 1, 0.9)


BOILERPLATE = "This agreement is governed by the laws of the land."


def boilerplate(id: str) -> Hit:
    return doc(id, text=BOILERPLATE, citation={"uri": f"file:///{id}"})


@every_strategy
def test_equal_texts_of_two_documents_stay_two_unless_asked_for(strategy: Strategy) -> None:
    rankings = [rank("A", boilerplate("contractA#3")), rank("B", boilerplate("contractB#7"), order=1)]
    assert len(fuse(rankings, strategy)[0]) == 2
    [one] = fuse(rankings, strategy, "content")[0]
    assert merged_meta(one)["citations"] == [{"uri": "file:///contractA#3"}, {"uri": "file:///contractB#7"}]
    assert one.ids == ("contractA#3", "contractB#7")


def test_a_document_an_engine_folds_with_its_own_is_cited_and_does_not_vote_twice() -> None:
    [one] = fuse([rank("A", boilerplate("a"), boilerplate("b"))], Rrf(), "content")[0]
    assert one.score == round(1 / 61, 13)
    assert [citation["uri"] for citation in merged_meta(one)["citations"]] == ["file:///a", "file:///b"]


@every_strategy
def test_identity_looks_at_nothing_but_the_key(strategy: Strategy) -> None:
    a = rank("A", doc("x", 0.9, meta={"a": 1}, scores={"dense": 0.9}))
    b = rank("B", doc("x", 12.0, meta={"b": 2}, scores={"sparse": 12.0}), order=1)
    assert ids(fuse([a, b], strategy)[0]) == ["x"]


def test_a_document_first_in_two_engines_scores_two_sixty_firsts() -> None:
    [x] = fuse([rank("A", doc("x", 0.9)), rank("B", doc("x", 0.2), order=1)], Rrf())[0]
    assert x.score == float(f"{2 / 61:.11e}")


def made_id(text: str) -> str:
    return document_id(Document(text=text))


def test_an_id_made_from_content_does_not_depend_on_the_place_in_the_list() -> None:
    texts = ["one", "two", "three"]
    assert sorted(map(made_id, texts)) == sorted(map(made_id, reversed(texts)))
    assert len(set(map(made_id, texts))) == 3


@every_strategy
def test_a_hit_without_the_stores_id_meets_its_copy_by_content(strategy: Strategy) -> None:
    rankings = [rank("A", doc("1", text="T")), rank("B", doc(made_id("T"), text="T"), order=1)]
    [one] = fuse(rankings, strategy, "id+content")[0]
    assert one.id == "1"
    assert [copy.engine for copy in one.copies] == ["A", "B"]


@every_strategy
@pytest.mark.parametrize("identity", ["id", "uri", "content", "id+content", "id+uri+content"])
def test_overlapping_lists_give_no_id_twice(strategy: Strategy, identity: str) -> None:
    a = rank("A", *[doc(str(n), 1 - n / 10, text=f"t{n}", citation={"uri": f"u:{n}"}) for n in range(6)])
    b = rank(
        "B", *[doc(str(n), 1 - n / 10, text=f"t{n + 1}", citation={"uri": f"u:{n}"}) for n in range(3, 9)], order=1
    )
    found = ids(fuse([a, b], strategy, identity)[0])
    assert len(found) == len(set(found))


@every_strategy
def test_uris_are_compared_normalised_and_emitted_as_they_came(strategy: Strategy) -> None:
    a = rank("A", doc("1", citation={"uri": "https://h/p/"}))
    b = rank("B", doc("2", citation={"uri": "http://h/p?utm_source=x"}), order=1)
    [one] = fuse([a, b], strategy, "uri")[0]
    assert member(merged_hit(one), "citation") == {"uri": "https://h/p/"}


@every_strategy
def test_every_origin_is_named(strategy: Strategy) -> None:
    rankings = [rank(engine, doc("x"), order=order) for order, engine in enumerate("ABC")]
    assert merged_meta(fuse(rankings, strategy)[0][0])["engines"] == ["A", "B", "C"]


@every_strategy
@pytest.mark.parametrize(("heavy", "first"), [("A", "a"), ("B", "b")])
def test_weights_are_honoured(strategy: Strategy, heavy: str, first: str) -> None:
    a = rank("A", doc("a"), weight=4.0 if heavy == "A" else 1.0)
    b = rank("B", doc("b"), weight=4.0 if heavy == "B" else 1.0, order=1)
    found = fuse([a, b], strategy)[0]
    assert ids(found)[0] == first
    assert found[0].score > found[1].score


LEGS = [LegOffer(engine="A", mode="dense"), LegOffer(engine="B", mode="sparse")]


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, True, "2", None, 1e300])
def test_a_weight_that_is_no_weight_is_refused(bad: Any) -> None:
    with pytest.raises(CallerError) as refused:
        leg_weights({"A": bad}, LEGS, known={"A", "B"})
    assert refused.value.data == {"field": "fusion.weights.A"}


def test_a_weight_for_nobody_and_weights_that_ask_nobody_are_refused() -> None:
    with pytest.raises(CallerError, match="unknown engine"):
        leg_weights({"A": 0, "typo": 1}, LEGS, known={"A", "B"})
    with pytest.raises(CallerError, match="no engine would be asked"):
        leg_weights({"A": 0, "sparse": 0}, LEGS, known={"A", "B"})


def test_a_missing_weight_is_one_and_an_engines_own_wins_over_its_modes() -> None:
    assert leg_weights({"A": 0}, LEGS, known={"A", "B"}) == {"A": 0.0, "B": 1.0}
    assert leg_weights({"dense": 3, "A": 2}, LEGS, known={"A", "B"}) == {"A": 2.0, "B": 1.0}
    assert leg_weights({"dense": 3}, LEGS, known={"A", "B"}, defaults={"B": 5.0}) == {"A": 3.0, "B": 5.0}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, True])
def test_a_ranking_with_an_unusable_weight_is_a_bug_of_the_caller(bad: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        fuse([rank("A", doc("a"), weight=bad)], Rrf())


def test_contributions_are_summed_and_an_absent_document_adds_nothing() -> None:
    a = rank("A", doc("y", 0.9), doc("x", 0.8))
    b = rank("B", doc("z", 0.9), doc("x", 0.8), order=1)
    scores = {document.id: document.score for document in fuse([a, b], Rrf())[0]}
    assert scores == {"x": float(f"{2 / 62:.11e}"), "y": float(f"{1 / 61:.11e}"), "z": float(f"{1 / 61:.11e}")}


@every_strategy
def test_a_list_of_one_hit_or_of_equal_scores_is_not_put_last(strategy: Strategy) -> None:
    single = rank("A", doc("k", 7.2, confidence=0.9))
    spread = rank("B", doc("p", 0.9), doc("q", 0.8), doc("r", 0.1, confidence=0.1), order=1)
    assert ids(fuse([single, spread], strategy)[0]).index("k") < 2
    equal = rank("A", *[doc(id, 3.0) for id in "klm"])
    assert all(document.score > 0 for document in fuse([equal], strategy)[0])


def test_min_max_gives_each_of_equal_scores_one() -> None:
    assert [d.score for d in fuse([rank("A", *[doc(id, 3.0) for id in "klm"])], Weighted())[0]] == [1.0, 1.0, 1.0]


@every_strategy
def test_an_empty_list_adds_nothing_and_breaks_nothing(strategy: Strategy) -> None:
    full = rank("B", doc("x"), order=1)
    assert ids(fuse([rank("A"), full], strategy)[0]) == ["x"]
    assert fuse([rank("A")], strategy)[0] == []
    assert fuse([], strategy) == ([], [])


def test_min_max_over_a_tiny_range_is_noted_and_a_floor_avoids_it() -> None:
    a, b = rank("A", doc("a", 0.003), doc("b", 0.0)), rank("B", doc("b", 0.1), doc("a", 0.0), order=1)
    fused, notes = fuse([a, b], Weighted())
    assert [(note.kind, note.engines) for note in notes] == [("narrow-range", ("A",))]
    assert fused[0].score == fused[1].score == 1.0
    floored = [rank("A", doc("a", 0.003), doc("b", 0.0), floor=-1.0), b]
    assert ids(fuse(floored, Convex())[0]) == ["b", "a"]


@every_strategy
def test_zero_and_negative_are_scores(strategy: Strategy) -> None:
    a, b = rank("A", doc("x", 0.0), floor=-1.0), rank("B", doc("x", -0.1), order=1, floor=-1.0)
    fused, notes = fuse([a, b], strategy)
    assert merged_meta(fused[0])["engineScore"] == 0.0
    assert "no-score" not in {note.kind for note in notes}


@every_strategy
@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_an_unusable_score_or_confidence_never_gets_out(strategy: Strategy, bad: float | None) -> None:
    ranking = rank("A", Hit("a", bad, bad), Hit("b", 0.4, 0.4), Hit("c", bad, bad))
    fused, notes = fuse([ranking, rank("B", Hit("a", bad, bad), order=1)], strategy)
    assert {document.id for document in fused} == {"a", "b", "c"}
    assert all(math.isfinite(d.score) and (d.confidence is None or 0 <= d.confidence <= 1) for d in fused)
    kind = {"rrf": set(), "confidence": {"no-confidence"}}.get(strategy.name, {"no-score"})
    assert {note.kind for note in notes} == kind
    assert len({(note.kind, note.engines) for note in notes}) == len(notes)


@pytest.mark.parametrize("strategy", [Rrf(), Weighted()], ids=lambda strategy: strategy.name)
def test_a_list_without_any_score_keeps_its_order(strategy: Strategy) -> None:
    assert ids(fuse([rank("A", *[doc(id, None) for id in "cab"])], strategy)[0]) == ["c", "a", "b"]
