"""Which hits are one document, and what it says then."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from gateway.errors import ConfigError
from gateway.fusion import (
    Fused,
    Identity,
    Ranking,
    Rrf,
    UriRules,
    fuse,
    merged_hit,
    merged_meta,
    merged_trust,
    read_identity,
)
from gateway.fusion.identity import uri_key
from gateway.fusion.texts import strangers
from gateway.model import Hit, hit, member


def rank(engine: str, *hits: Hit, order: int = 0, **settings: Any) -> Ranking:
    return Ranking(engine=engine, hits=hits, order=order, **settings)


def only(*rankings: Ranking, identity: str = "id") -> Fused:
    [document] = fuse(rankings, Rrf(), identity)[0]
    return document


SAME = [
    ("https://h/p/", "http://h/p"),
    ("http://h:80/p", "http://h/p"),
    ("https://H/p#part", "https://h/p"),
    ("https://h/p?utm_source=x&q=1&gclid=z", "https://h/p?q=1"),
    ("https://h", "https://h/"),
]
OTHER = [
    ("https://h/p?q=1", "https://h/p?q=2"),
    ("https://h:8443/p", "https://h/p"),
    ("https://h/p", "https://h/P"),
    ("https://h/p", "https://g/p"),
    ("https://u@h/p", "https://h/p"),
    ("file:///a", "https:///a"),
    ("http://[", "http://[["),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_these_uris_name_one_document(one: str, other: str) -> None:
    assert uri_key(one, UriRules()) == uri_key(other, UriRules())


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_these_uris_name_two(one: str, other: str) -> None:
    assert uri_key(one, UriRules()) != uri_key(other, UriRules())


@pytest.mark.parametrize(
    ("rule", "pair"), [*zip(["scheme", "default_port", "fragment", "tracking"], SAME[:4], strict=True)]
)
def test_each_rule_can_be_switched_off(rule: str, pair: tuple[str, str]) -> None:
    rules = UriRules(**{rule: False})
    assert uri_key(pair[0], rules) != uri_key(pair[1], rules)


@pytest.mark.parametrize("place", ["index", "page", "start"])
def test_places_in_one_uri_are_different_documents(place: str) -> None:
    def at(id: str, number: int) -> Hit:
        where = {place: number}
        if place == "index":
            return hit(id, 1.0, citation={"uri": "https://h/p"}, chunk=where)
        return hit(id, 1.0, citation={"uri": "https://h/p", **where})

    fused = fuse([rank("A", at("1", 0), at("2", 1)), rank("B", at("3", 0), order=1)], Rrf(), "uri")[0]
    assert [document.ids for document in fused] == [("1", "3"), ()]


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_an_empty_text_identifies_nothing(text: str | None) -> None:
    fused, notes = fuse(
        [rank("A", hit("1", 1.0, text=text)), rank("B", hit("2", 1.0, text=text), order=1)], Rrf(), "content"
    )
    assert len(fused) == 2
    assert [(note.kind, note.engines) for note in notes] == [
        ("identity-fallback", ("A",)),
        ("identity-fallback", ("B",)),
    ]


def test_identities_are_read_strictly() -> None:
    assert read_identity("content+id") == Identity(("id", "content"))
    for wrong in ("", "text", "id+", "id+url"):
        with pytest.raises(ConfigError):
            read_identity(wrong)


def test_joining_by_id_and_content_is_transitive_in_any_order() -> None:
    links = [
        rank("A", hit("1", 1.0, text="S")),
        rank("B", hit("1", 1.0, text="T"), order=1),
        rank("C", hit("2", 1.0, text="T"), order=2),
        rank("D", hit("2", 1.0, text="U"), order=3),
    ]
    results = {msgspec.json.encode(fuse(order, Rrf(), "id+content")[0]) for order in itertools.permutations(links)}
    assert len(results) == 1
    assert len(only(*links, identity="id+content").copies) == 4


def test_documents_that_come_out_under_one_id_merge_and_an_engine_votes_once() -> None:
    a = rank("A", hit("d", 1.0, citation={"uri": "u:1"}), hit("d", 0.9, citation={"uri": "u:2"}))
    document = only(a, rank("B", hit("d", 1.0, citation={"uri": "u:3"}), order=1), identity="uri")
    assert [(copy.engine, copy.rank) for copy in document.copies] == [("A", 1), ("B", 1)]
    assert document.score == float(f"{2 / 61:.11e}")


def test_a_corpus_qualifies_ids_and_keeps_equal_ids_apart() -> None:
    fused = fuse([rank("A", hit("d1", 1.0), corpus="x"), rank("B", hit("d1", 1.0), corpus="y", order=1)], Rrf())[0]
    assert [document.id for document in fused] == ["x/d1", "y/d1"]


@pytest.mark.parametrize("identity", ["id", "uri", "content", "id+content"])
def test_engines_of_different_trust_merge_only_inside_one_corpus(identity: str) -> None:
    def copy(engine: str, trust: str, order: int, corpus: str | None) -> Ranking:
        one = hit("d", 1.0, text="the very same text", citation={"uri": "u:d"})
        return rank(engine, one, trust=trust, order=order, corpus=corpus)

    inside = only(copy("A", "trusted", 0, "c"), copy("B", "community", 1, "c"), identity=identity)
    assert len(inside.copies) == 2
    across = fuse([copy("A", "trusted", 0, "c"), copy("B", "community", 1, "d")], Rrf(), identity)[0]
    assert [len(document.copies) for document in across] == [1, 1]


@pytest.mark.parametrize("identity", ["id", "uri", "content", "id+content"])
def test_an_id_that_two_levels_of_trust_claim_belongs_to_the_higher(identity: str) -> None:
    honest = rank(
        "A", *[hit(f"f{n}", 1.0, text=f"filler {n}") for n in range(9)], hit("d", 0.1, text="true"), trust="trusted"
    )
    spoof = rank("B", hit("d", 9.0, text="a far longer lie"), hit("own", 1.0), order=1)
    for rankings in ([honest, spoof], [spoof, honest]):
        fused, notes = fuse(rankings, Rrf(), identity)
        [document] = [d for d in fused if d.id == "d"]
        assert [copy.engine for copy in document.copies] == ["A"]
        assert document.score == float(f"{1 / 70:.11e}")
        assert "own" in {d.id for d in fused}
        assert ("id-conflict", ("B",)) in {(note.kind, note.engines) for note in notes}


BODY = [
    ("trust before length", ("short", "trusted"), ("much longer", "community"), "A"),
    ("length", ("short", "community"), ("much longer", "community"), "B"),
    ("rank", ("equal", "community"), ("equal", "community"), "A"),
    ("text before none", (None, "community"), ("x", "community"), "B"),
]


@pytest.mark.parametrize(("name", "a", "b", "winner"), BODY, ids=[row[0] for row in BODY])
@pytest.mark.parametrize("encoded", [False, True])
def test_one_copy_gives_the_body(name: str, a: Any, b: Any, winner: str, encoded: bool) -> None:
    def of(text: str | None, engine: str) -> Hit:
        plain = hit("x", 1.0, text=text, citation={"uri": engine}, scores={"dense": 1.0} if engine == "A" else None)
        if not encoded:
            return plain
        return Hit(
            "x", 1.0, None, {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in plain.members.items()}
        )

    document = only(
        rank("A", of(a[0], "A"), trust=a[1], corpus="c"), rank("B", of(b[0], "B"), trust=b[1], corpus="c", order=1)
    )
    merged = merged_hit(document)
    assert member(merged, "citation") == {"uri": winner}
    assert member(merged, "meta")["bodyEngine"] == winner
    assert member(merged, "scores") == {"dense": 1.0}


def test_an_upstreams_own_trust_lowers_a_copys_claim_to_the_body() -> None:
    low = hit("x", 1.0, text="much longer", trust={"level": "untrusted"})
    document = only(rank("A", low), rank("B", hit("x", 1.0, text="short"), order=1))
    assert document.copies[document.body].engine == "B"


TRUST = [
    ("absent is configured", "trusted", None, {"level": "trusted"}),
    ("capped", "community", {"level": "trusted"}, {"level": "community"}),
    ("lowered", "trusted", {"level": "untrusted"}, {"level": "untrusted"}),
    ("unknown is configured", "community", {"level": "corpus"}, {"level": "community"}),
    ("no string", "community", {"level": ["trusted"]}, {"level": "community"}),
    ("bad score", "community", {"level": "community", "score": 1.5}, {"level": "community"}),
    ("bad configured", "nonsense", {"level": "trusted"}, {"level": "untrusted"}),
    (
        "kept",
        "community",
        {"level": "community", "score": 0.5, "sanitized": True},
        {"level": "community", "score": 0.5, "sanitized": True},
    ),
]


@pytest.mark.parametrize(("name", "configured", "stated", "expected"), TRUST, ids=[row[0] for row in TRUST])
def test_trust_is_the_upstreams_word_capped_by_the_configuration(
    name: str, configured: str, stated: Any, expected: Any
) -> None:
    assert merged_trust(only(rank("A", hit("x", 1.0, trust=stated), trust=configured))) == expected


def test_merged_trust_is_the_lowest_and_suspicion_spreads() -> None:
    a = hit("x", 1.0, text="long text", trust={"level": "community", "score": 0.9, "sanitized": True})
    b = hit(
        "x",
        1.0,
        text="text",
        trust={"level": "untrusted", "score": 0.2, "injectionSuspected": True, "sanitized": False},
    )
    merged = merged_trust(only(rank("A", a), rank("B", b, order=1)))
    assert merged == {"level": "untrusted", "score": 0.2, "injectionSuspected": True, "sanitized": True}


def test_an_upstream_cannot_pose_as_an_engine() -> None:
    spoof = {"engine": "root", "engines": ["root"], "fusedScore": 99, "lang": "en", "x-upstream": {"engine": "deeper"}}
    meta = merged_meta(only(rank("A", hit("x", 1.0, meta=spoof))))
    assert meta == {
        "lang": "en",
        "engine": "A",
        "bodyEngine": "A",
        "engines": ["A"],
        "engineRank": 1,
        "engineScore": 1.0,
        "fusedScore": float(f"{1 / 61:.11e}"),
        "x-upstream": {
            "engine": "root",
            "engines": ["root"],
            "fusedScore": 99,
            "x-upstream": {"engine": "deeper"},
        },
    }


def test_a_missing_engine_score_is_left_out() -> None:
    assert "engineScore" not in merged_meta(only(rank("A", Hit("x", None))))


def test_merged_metadata_that_fails_the_filter_gives_way_to_the_best_ranked_copys() -> None:
    a, b = hit("x", 1.0, meta={"lang": "en"}), hit("x", 1.0, meta={"draft": True})
    document = only(rank("A", a), rank("B", b, order=1))
    assert merged_meta(document)["draft"] is True
    alone = merged_meta(document, keep=lambda meta: "draft" not in meta)
    assert "draft" not in alone
    assert (alone["lang"], alone["engines"]) == ("en", ["A", "B"])


def test_a_users_field_called_citations_is_left_alone_where_nothing_is_folded() -> None:
    assert merged_meta(only(rank("A", hit("x", 1.0, meta={"citations": 7}))))["citations"] == 7


PARIS, MODELS = "Paris is the capital of France.", "Transformers are the models of choice."


def test_a_merge_of_unlike_texts_is_noted_once_for_a_pair_of_engines() -> None:
    a = rank("A", *[hit(f"d{n}", 1.0, text=PARIS) for n in range(3)])
    b = rank("B", *[hit(f"d{n}", 1.0, text=MODELS) for n in range(3)], order=1)
    fused, notes = fuse([a, b], Rrf())
    assert len(fused) == 3
    assert [(note.kind, note.engines) for note in notes] == [("unlike-texts", ("A", "B"))]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (PARIS, MODELS, True),
        (PARIS, "france", False),
        (PARIS, "", False),
        ("...", "Paris", False),
        ("a b", "b c", False),
        ("a b", "c d", True),
        ("東京は首都", "首都の東京", False),
        ("form", "transformers inform", True),
    ],
)
def test_texts_are_strangers_if_they_share_no_word(one: str, other: str, expected: bool) -> None:
    assert strangers(one, other) is strangers(other, one) is expected
