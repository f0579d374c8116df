"""What holds for any rankings."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fusion import Confidence, Convex, Ranking, Rrf, Strategy, Weighted, fuse, merged_hit
from gateway.fusion.ranking import twelve_digits
from gateway.model import Hit, hit

STRATEGIES = [Rrf(), Weighted(), Convex(), Confidence()]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
IDENTITIES = ["id", "uri", "content", "id+content", "id+uri+content"]

numbers = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -1.0, 0.5, 1.0]))


@st.composite
def hits(draw: st.DrawFn) -> Hit:
    found = hit(
        draw(st.sampled_from("abcdefgh")),
        0.0,
        text=draw(st.sampled_from(["", "one text", "another text", "stranger", None])),
        citation=draw(st.sampled_from([None, {"uri": "u:1"}, {"uri": "u:2", "page": 1}])),
        meta=draw(st.sampled_from([None, {"engine": "spoof"}, {"p": 1}, {"p": 2, "q": [1]}])),
        trust=draw(st.sampled_from([None, {"level": "trusted"}, {"level": "untrusted", "score": 0.1}])),
    )
    return msgspec.structs.replace(found, score=draw(numbers), confidence=draw(numbers))


@st.composite
def rankings(draw: st.DrawFn) -> list[Ranking]:
    corpora = draw(st.booleans())
    return [
        Ranking(
            engine=f"E{order}",
            order=order,
            hits=draw(st.lists(hits(), max_size=8)),
            weight=draw(st.sampled_from([1.0, 1.0, 0.3, 2.5])),
            trust=draw(st.sampled_from(["community", "community", "trusted", "untrusted"])),
            corpus=draw(st.sampled_from(["c", "d"])) if corpora else None,
            floor=draw(st.sampled_from([0.0, -1.0])),
        )
        for order in range(draw(st.integers(0, 4)))
    ]


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


@every_strategy
@settings(max_examples=60, deadline=None)
@given(given=rankings(), identity=st.sampled_from(IDENTITIES), data=st.data())
def test_whatever_is_given_the_laws_hold(strategy: Strategy, given: list[Ranking], identity: str, data: Any) -> None:
    fused, notes = fuse(given, strategy, identity)

    shuffled = data.draw(st.permutations(given))
    again = fuse(shuffled, strategy, identity)
    assert encoded([fused, notes]) == encoded(again), "arrival order shows"
    assert encoded([merged_hit(d) for d in fused]) == encoded([merged_hit(d) for d in again[0]])

    ids = [document.id for document in fused]
    assert len(ids) == len(set(ids)), "an identity twice"
    for document in fused:
        engines = [copy.engine for copy in document.copies]
        assert engines
        assert len(engines) == len(set(engines)), "an engine votes twice"
        assert math.isfinite(document.score)
        assert document.confidence is None or 0 <= document.confidence <= 1
        assert 0 <= document.body < len(document.copies)
        assert [(c.rank, c.order) for c in document.copies] == sorted((c.rank, c.order) for c in document.copies)
    keys = [(-document.score, -document.weight, document.id) for document in fused]
    assert keys == sorted(keys), "not in the total order"


@every_strategy
@settings(max_examples=40, deadline=None)
@given(given=rankings(), identity=st.sampled_from(IDENTITIES))
def test_a_limit_only_cuts(strategy: Strategy, given: list[Ranking], identity: str) -> None:
    """Given the same replies the top k is a prefix of the top k + 1: the window, not k, sets the depth."""
    everything = encoded(fuse(given, strategy, identity)[0])
    for limit in range(10):
        assert encoded(msgspec.json.decode(everything)[:limit]) == encoded(
            fuse(given, strategy, identity, limit=limit)[0]
        )


plain = st.lists(st.lists(st.sampled_from("abcdefghij"), unique=True, min_size=1, max_size=8), min_size=1, max_size=4)


def by_rank(lists: list[list[str]], weights: list[float] | None = None) -> list[Ranking]:
    return [
        Ranking(engine=f"E{n}", order=n, hits=[Hit(id, None) for id in ids], weight=weights[n] if weights else 1.0)
        for n, ids in enumerate(lists)
    ]


@settings(max_examples=100, deadline=None)
@given(lists=plain, depth=st.integers(1, 8))
def test_deeper_lists_never_lower_a_rank_fused_score(lists: list[list[str]], depth: int) -> None:
    """What is true of depth: nobody's score falls, and documents that the added part does not name keep theirs.

    The top k itself may change, and under min-max any score may: so depth must not depend on k.
    """
    shallow = {d.id: d.score for d in fuse(by_rank([ids[:depth] for ids in lists]), Rrf())[0]}
    deep = {d.id: d.score for d in fuse(by_rank(lists), Rrf())[0]}
    added = {id for ids in lists for id in ids[depth:]}
    for id, score in shallow.items():
        assert deep[id] >= score
        assert id in added or deep[id] == score


@settings(max_examples=100, deadline=None)
@given(lists=plain, factor=st.sampled_from([0.25, 2.0, 8.0, 1024.0]), data=st.data())
def test_scaling_all_weights_leaves_the_rank_fused_order(lists: list[list[str]], factor: float, data: Any) -> None:
    weights = data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=len(lists), max_size=len(lists)))
    order = [d.id for d in fuse(by_rank(lists, weights), Rrf())[0]]
    scaled = fuse(by_rank(lists, [weight * factor for weight in weights]), Rrf())[0]
    assert [d.id for d in scaled] == order


@settings(max_examples=50, deadline=None)
@given(lists=plain)
def test_one_ranking_keeps_its_order(lists: list[list[str]]) -> None:
    assert [d.id for d in fuse(by_rank(lists[:1]), Rrf())[0]] == lists[0]


@settings(max_examples=500, deadline=None)
@given(st.floats(min_value=-1e6, max_value=1e6))
def test_rounding_is_to_twelve_significant_digits(value: float) -> None:
    assert twelve_digits(value) == pytest.approx(float(f"{value:.11e}"), rel=2e-12, abs=0)
    assert twelve_digits(twelve_digits(value)) == twelve_digits(value)


@settings(max_examples=500, deadline=None)
@given(st.floats(min_value=1e-4, max_value=20), st.floats(min_value=1e-4, max_value=20))
def test_rounding_keeps_the_order(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert twelve_digits(low) <= twelve_digits(high)
