"""What fits into k and a budget of tokens, and how it is sent."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from gateway import _json
from gateway.model import Usage, hit
from gateway.model.vectors import numbers_of, packed_floats
from gateway.refine.candidate import Candidate
from gateway.refine.pack import Fit, emitted, fit, pack, passed_over, sealed
from gateway.refine.seal import seal
from tests.obligations import obligation
from tests.unit.refine.lists import documents


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


def test_what_is_passed_over_is_named_with_its_size() -> None:
    assert passed_over(["a", "b" * 200], [9, 10], 8) == [
        f"passed over, having more tokens than the whole tokenBudget of 8: a (9), {'b' * 80} (10)"
    ]
    assert passed_over([], [], 8) == []


def test_of_many_that_are_passed_over_a_few_are_named() -> None:
    [note] = passed_over([f"d{n}" for n in range(13)], [9] * 13, 8)
    assert note.endswith("d8 (9), d9 (9) and 3 more")


def test_emitted_scores_follow_the_least_before_them() -> None:
    fused = documents(*(hit(f"d{n}", 1.0) for n in range(5)))
    scores = [0.5, 0.7, None, 0.2, None]
    line = [Candidate(one, score) for one, score in zip(fused, scores, strict=True)]
    assert emitted(line) == [0.5, 0.5, 0.5, 0.2, 0.2]
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


def test_a_result_says_only_what_there_is_to_say() -> None:
    usage = Usage(candidates=7, latency_ms=1.5, reranked=3, tokens=9)
    result = pack((), usage, degraded=(), vendor={"scale": "rerank", "losses": []})
    assert json.loads(_json.encode(result)) == {
        "hits": [],
        "usage": {"candidates": 7, "latencyMs": 1.5, "reranked": 3, "tokens": 9},
        "_meta": {"x-gateway": {"scale": "rerank"}},
    }
    full = pack((), usage, degraded=["a"], vendor={}, next_cursor="c", index_version="v", rewritten_query="q")
    read = json.loads(_json.encode(full))
    assert (read["nextCursor"], read["indexVersion"], read["rewrittenQuery"]) == ("c", "v", "q")
    assert read["_meta"] == {"degraded": ["a"], "x-gateway": {}}
