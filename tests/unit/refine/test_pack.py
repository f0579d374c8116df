"""What fits into k and a budget of tokens, and how it is sent."""

from __future__ import annotations

import base64
import json
import struct
import time
from typing import Any

import pytest

from gateway import _json
from gateway.model import hit
from gateway.refine.candidate import Candidate, candidates
from gateway.refine.encoding import numbers_of, packed_floats
from gateway.refine.pack import Fit, emitted, fit, pack, packed, sealed
from gateway.refine.seal import seal
from tests.obligations import obligation
from tests.unit.refine.lists import documents, ids


class Letters:
    """A token to a letter."""

    def count(self, text: str) -> int:
        return len(text)


def found(*sizes: int) -> list[Candidate]:
    return candidates(documents(*(hit(f"d{n}", 1.0, text="x" * size) for n, size in enumerate(sizes))))


@pytest.mark.parametrize(
    ("sizes", "k", "budget", "expected"),
    [
        ([3, 3, 3], 2, None, Fit((0, 1), (), 2, 6)),
        ([3, 3, 3], 9, 8, Fit((0, 1), (), 2, 6)),
        ([3, 3, 2], 9, 8, Fit((0, 1, 2), (), 3, 8)),
        ([3, 6, 2], 9, 8, Fit((0,), (), 1, 3)),
        ([9, 3, 10, 5, 1], 9, 8, Fit((1, 3), (0, 2), 4, 8)),
        ([9, 9], 9, 8, Fit((), (0, 1), 2, 0)),
        ([3, 9, 9], 1, 8, Fit((0,), (), 1, 3)),
        ([0, 0], 9, 1, Fit((0, 1), (), 2, 0)),
        ([], 9, 8, Fit((), (), 0, 0)),
        ([1], 0, 8, Fit((), (), 0, 0)),
    ],
)
def test_the_longest_beginning_that_fits_is_taken(sizes: list[int], k: int, budget: int | None, expected: Fit) -> None:
    assert fit(sizes, k, budget) == expected


def test_a_text_larger_than_the_budget_is_passed_over_by_name_and_counts_as_delivered() -> None:
    result = packed(found(9, 3, 5, 1), 10, 8, Letters())
    assert ids(result.candidates) == ["d1", "d2"]
    assert (result.consumed, result.tokens) == (3, 8)
    assert result.notes == ("passed over, having more tokens than the whole tokenBudget of 8: d0 (9)",)


def test_of_many_that_are_passed_over_a_few_are_named() -> None:
    [note] = packed(found(*[9] * 13), 10, 8, Letters()).notes
    assert note.endswith("d8 (9), d9 (9) and 3 more")


def test_without_a_budget_nothing_is_counted() -> None:
    result = packed(found(9, 3, 5), 2)
    assert (ids(result.candidates), result.consumed, result.tokens, result.notes) == (["d0", "d1"], 2, None, ())


def test_texts_beyond_what_fits_are_not_counted() -> None:
    counted: list[str] = []

    class Noting:
        def count(self, text: str) -> int:
            counted.append(text)
            return len(text)

    packed(found(5, 5, 5, 5), 10, 8, Noting())
    assert counted == ["x" * 5] * 2


def test_emitted_scores_follow_the_least_before_them() -> None:
    fused = documents(*(hit(f"d{n}", 1.0) for n in range(5)))
    scores = [0.5, 0.7, None, 0.2, None]
    line = [Candidate(one, score) for one, score in zip(fused, scores, strict=True)]
    assert emitted(line) == [0.5, 0.5, 0.5, 0.2, 0.2]
    assert emitted(line, 0.3) == [0.3, 0.3, 0.3, 0.2, 0.2]
    assert emitted(line[2:3]) == [0.0]


def test_raw_scores_of_the_gateway_stand_beside_the_engines() -> None:
    [one] = documents(hit("a", 1.0, scores={"dense": 0.7, "rerank": 0.1}))
    [sent] = sealed([Candidate(one, 0.25, {"rerank": 0.9})], include_text=True, include_vectors=False)
    read = json.loads(bytes(sent))
    assert read["score"] == 0.25
    assert read["scores"] == {"dense": 0.7, "rerank": 0.9}
    assert read["meta"]["fusedScore"] == 1.0
    [plain] = documents(hit("a", 1.0, scores={"dense": float("nan")}))
    [sent] = sealed([Candidate(plain, 0.25, {"rerank": 0.9})], include_text=True, include_vectors=False)
    assert json.loads(bytes(sent))["scores"] == {"rerank": 0.9}


VECTOR = [0.5, -2.0, 0.25]
TEXT = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()


@obligation(176)
@pytest.mark.parametrize("given", [VECTOR, TEXT, _json.Raw(json.dumps(TEXT).encode()), _json.Raw(b"[0.5,-2,0.25]")])
@pytest.mark.parametrize("meta", [{"a": 1}, {"a": float("nan")}])
@pytest.mark.parametrize(("encoding", "sent"), [(None, VECTOR), ("json", VECTOR), ("f32-base64", TEXT)])
def test_a_vector_is_sent_in_the_encoding_asked_for_whichever_came(
    given: Any, meta: dict[str, Any], encoding: str | None, sent: Any
) -> None:
    one = hit("a", 1.0, vector=given, meta=meta)
    data = seal(one, 0.5, include_text=True, include_vectors=True, encoding=encoding)
    assert json.loads(bytes(data))["vector"] == sent
    assert "vector" not in json.loads(
        bytes(seal(one, 0.5, include_text=True, include_vectors=False, encoding=encoding))
    )


@pytest.mark.parametrize(
    "bad", ["", "AAA", "AAAAAAA=", "no base64", base64.b64encode(struct.pack("<f", float("inf"))).decode(), "é" * 4]
)
@pytest.mark.parametrize("encoding", [None, "f32-base64"])
def test_what_is_no_vector_is_left_out(bad: str, encoding: str | None) -> None:
    assert numbers_of(bad) is None
    data = seal(hit("a", 1.0, vector=bad), 0.5, include_text=True, include_vectors=True, encoding=encoding)  # type: ignore[arg-type]
    assert "vector" not in json.loads(bytes(data))


def test_numbers_beyond_32_bits_become_the_largest_of_them() -> None:
    packed_text = packed_floats([1e300, -1e300, 1e-300])
    assert numbers_of(packed_text) == [3.4028234663852886e38, -3.4028234663852886e38, 0.0]


def test_usage_tells_the_true_numbers() -> None:
    result = pack(
        (),
        candidates=7,
        started=time.perf_counter(),
        notes=(),
        degraded=(),
        vendor={"scale": "rerank"},
        reranked=3,
        tokens=9,
    )
    usage = json.loads(_json.encode(result))["usage"]
    assert {name: usage[name] for name in ("candidates", "reranked", "tokens")} == {
        "candidates": 7,
        "reranked": 3,
        "tokens": 9,
    }
