"""Passages of one document are limited, and what says the same comes later."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from gateway.fusion import Fused, Ranking, Rrf, fuse
from gateway.fusion.texts import word_set
from gateway.model import hit
from gateway.refine.candidate import Candidate, candidates
from gateway.refine.diversify import diversified, document_of
from gateway.refine.line import Refinements, refine
from tests.unit.refine.lists import NOW, document, documents, ids, refined


def order(fused: list[Fused], weight: float, **given: Any) -> list[str]:
    return ids(refined(fused, Refinements(mmr=weight), **given).candidates)


@pytest.mark.parametrize(
    ("members", "of"),
    [
        ({"chunk": {"docId": "book"}, "citation": {"uri": "https://x"}}, "book"),
        ({"chunk": {"index": 1}, "citation": {"uri": "https://x"}}, "https://x"),
        ({"chunk": {"docId": " "}, "citation": {"uri": ""}}, "page"),
        ({"chunk": "book", "citation": ["https://x"]}, "page"),
        ({}, "page"),
    ],
)
def test_a_passage_names_its_document(members: dict[str, Any], of: str) -> None:
    [one] = candidates(documents(hit("page#3", 1.0, **members)))
    assert document_of(one) == of


def test_an_id_that_begins_with_the_mark_is_a_document_of_its_own() -> None:
    assert [document_of(one) for one in candidates(documents(hit("#1", 1.0), hit("#2", 1.0)))] == ["#1", "#2"]


def test_documents_of_two_corpora_are_two_even_if_they_are_called_the_same() -> None:
    rankings = [
        Ranking(engine=corpus, corpus=corpus, order=n, hits=[hit("p#1", 1.0, chunk={"docId": "p"}), hit("p#2", 1.0)])
        for n, corpus in enumerate(["a", "b"])
    ]
    found = candidates(fuse(rankings, Rrf())[0])
    assert sorted(map(document_of, found)) == ["a/p", "a/p", "b/p", "b/p"]


def test_the_first_passages_of_each_document_stay() -> None:
    fused = documents(*(hit(id, 1.0) for id in ["a#1", "a#2", "b#1", "a#3", "b#2"]))
    result = refined(fused, Refinements(per_document=1))
    assert ids(result.candidates) == ["a#1", "b#1"]
    assert ids(refined(fused, Refinements(per_document=2)).candidates) == ["a#1", "a#2", "b#1", "b#2"]


def test_a_second_copy_of_a_text_makes_room_for_another() -> None:
    fused = documents(*(hit(id, 1.0, text=text) for id, text in [("a", "one two"), ("b", "One, two!"), ("c", "three")]))
    assert order(fused, 0.5) == ["a", "c", "b"]
    assert order(fused, 1.0) == ["a", "b", "c"]
    assert order(fused, 0.9) == ["a", "b", "c"]


def test_a_copy_of_the_first_is_late_even_if_it_is_unlike_the_last() -> None:
    texts = [("a", "one two"), ("b", "three four"), ("copy", "one two"), ("c", "four five six")]
    assert order(documents(*(hit(id, 1.0, text=text) for id, text in texts)), 0.3) == ["a", "b", "c", "copy"]


def test_vectors_speak_only_if_every_hit_has_one_of_the_same_embedder() -> None:
    def three(*vectors: Any) -> list[Fused]:
        """Texts that make b the copy of a, and vectors that make c it."""
        rows = zip("abc", ["one", "one", "two"], [0.9, 0.8, 0.7], vectors, strict=True)
        return [document(hit(id, 1.0, text=text, vector=one), score) for id, text, score, one in rows]

    good = three([1.0, 0.0], [0.0, 3.0], [2.0, 0.0])
    assert order(good, 0.2, vectors_comparable=True) == ["a", "b", "c"]
    assert order(good, 0.2) == ["a", "c", "b"]
    packed = base64.b64encode(struct.pack("<2f", 2.0, 0.0)).decode()
    assert order(three([1.0, 0.0], [0.0, 3.0], packed), 0.2, vectors_comparable=True) == ["a", "b", "c"]
    for bad in (None, [2.0], [0.0, 0.0], [float("nan"), 1.0], ["2", 0], [True, 0], "no base64", [10**400, 1], {}):
        assert order(three([1.0, 0.0], [0.0, 3.0], bad), 0.2, vectors_comparable=True) == ["a", "c", "b"], bad


def test_hits_without_text_are_like_nothing() -> None:
    assert order(documents(hit("a", 1.0), hit("b", 1.0), hit("c", 1.0, text="one")), 0.5) == ["a", "b", "c"]


def test_unscored_hits_stay_behind_however_different() -> None:
    texts = [("a", "one"), ("b", "one"), ("c", "two")]
    fused = documents(*(hit(id, 1.0, text=text) for id, text in texts))
    found = candidates(fused)
    assert ids(diversified([*found[:2], Candidate(fused[2], None)], 0.1)) == ["a", "b", "c"]


def test_a_lambda_of_one_keeps_an_order_that_is_not_that_of_the_scores() -> None:
    found = candidates(documents(hit("a", 1.0, text="one"), hit("b", 1.0, text="two")))[::-1]
    assert ids(diversified(found, 1.0)) == ["b", "a"]
    assert ids(diversified(found, 0.9)) == ["a", "b"]


@pytest.mark.anyio
async def test_a_long_list_is_diversified_off_the_loop_and_no_differently() -> None:
    fused = documents(*(hit(f"d{n}", 1.0, text=f"w{n % 7} w{n % 5} w{n}") for n in range(90)))
    result = await refine(fused, Refinements(mmr=0.4), query="q", scale="rrf", now=NOW)
    assert list(result.candidates) == diversified(candidates(fused), 0.4)
    assert ids(result.candidates) != [one.id for one in fused]


def test_words_are_the_same_in_plain_texts_and_in_others() -> None:
    assert word_set("Straße 12, a_b; ÉTÉ 東京") == {"straße", "12", "a", "b", "été", "東", "京"}
    assert word_set("Street 12, a_b; X-ray") == {"street", "12", "a", "b", "x", "ray"}
