"""Measures against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from gateway.evaluate import ndcg, paired_p, read_documents, read_qrels, read_topics


def test_ndcg_is_the_discounted_gain_over_the_best_possible() -> None:
    grades = {"a": 3, "b": 2, "c": 1}
    got = 2 / math.log2(2) + 0 + 3 / math.log2(4)
    best = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert ndcg(["b", "x", "a"], grades) == pytest.approx(got / best)
    assert ndcg(["a", "b", "c"], grades) == 1
    assert ndcg(["x", "y"], grades) == 0


def test_ndcg_reads_the_first_k_only_and_its_best_has_no_more() -> None:
    assert ndcg(["x", "a"], {"a": 1}, k=1) == 0
    assert ndcg(["a"], {"a": 1, "b": 1}, k=1) == 1
    assert ndcg(["a"], {"a": 1, "b": 1}, k=2) == pytest.approx(1 / (1 + 1 / math.log2(3)))


def test_a_document_that_stands_twice_counts_once() -> None:
    assert ndcg(["a", "a"], {"a": 1, "b": 1}) == ndcg(["a", "x"], {"a": 1, "b": 1})


def test_without_anything_relevant_there_is_no_ndcg() -> None:
    assert ndcg(["a"], {"a": 0}) is None
    assert ndcg(["a"], {}) is None


def test_the_paired_test_counts_every_assignment_of_signs_of_few_pairs() -> None:
    # Of the eight ways to sign 1, 2 and 3, only +++ and --- are as far from 0 as the sum seen.
    assert paired_p([1, 2, 3], [0, 0, 0]) == 2 / 8
    # 3 - 1 - 1 = 1: of the eight sums ±5, ±3 (twice), ±1 all are as extreme.
    assert paired_p([3, 0, 0], [0, 1, 1]) == 1
    assert paired_p([0.5, 0.5], [0.5, 0.5]) == 1


def test_the_paired_test_of_many_pairs_is_repeatable_and_tells_a_shift_from_noise() -> None:
    noise = [(place * 37 % 101) / 101 - 0.5 for place in range(60)]
    assert paired_p(noise, [0.0] * 60) > 0.3
    assert paired_p([one + 0.5 for one in noise], [0.0] * 60) < 0.001
    assert paired_p(noise, [0.0] * 60) == paired_p(noise, [0.0] * 60)


@pytest.mark.parametrize(("one", "other"), [([], []), ([1.0], [])])
def test_only_pairs_can_be_compared(one: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError):
        paired_p(one, other)


def test_collections_are_read_in_the_formats_of_trec() -> None:
    assert read_qrels("1 0 d1 1\n\n1 0 d2 0\n2 0 d1 2\n") == {"1": {"d1": 1, "d2": 0}, "2": {"d1": 2}}
    assert read_documents("<DOC>\n<DOCNO>7</DOCNO>\none\ntwo\n</DOC>\n<DOC><DOCNO> 8 </DOCNO> x </DOC>") == {
        "7": "one\ntwo",
        "8": "x",
    }
    topics = "<top>\n<num>1</num><title>\nA LONG\nQUERY\n</title>\n</top>\n<top><num>2</num><title>B</title></top>"
    assert read_topics(topics) == {"1": "A LONG QUERY", "2": "B"}


def test_a_judgement_that_cannot_be_read_is_named_by_its_line() -> None:
    with pytest.raises(ValueError, match="line 2"):
        read_qrels("1 0 d1 1\n1 0 d1\n")
