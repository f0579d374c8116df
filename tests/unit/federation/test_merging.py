"""What holds of merged graphs and memories whatever engines give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from gateway.federation.capability import View
from gateway.federation.graph import edges_of, followups_of
from gateway.federation.memory import clues_of
from gateway.spi import Clue, Edge, GraphReply, MemoryReply

_ids = st.sampled_from(["a", "b", "c", "d/e", "\ud800"])
_members = st.dictionaries(st.sampled_from(["label", "src", "weight", "kind"]), st.sampled_from(["x", "y", None, [1]]))
_edges = st.builds(Edge, src=_ids, dst=_ids, weight=st.none() | st.floats(), members=_members)
_clues = st.builds(
    Clue,
    query=st.none() | st.sampled_from(["", "q", "r", "s\ud800"]),
    seed_ids=st.lists(_ids, max_size=3).map(tuple),
    weight=st.none() | st.floats(),
)


def view(id: str, corpus: str | None) -> View:
    settings = SimpleNamespace(id=id, corpus=corpus)
    return cast("View", SimpleNamespace(id=id, member=SimpleNamespace(settings=settings)))


def parts(edge: dict[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in edge.items() if name != "weight"))


@given(st.lists(st.lists(_edges, max_size=8), max_size=3), st.booleans(), st.sets(_ids, max_size=2))
def test_an_edge_is_given_once_between_nodes_that_are_shown(
    given_edges: list[list[Edge]], corpora: bool, cut: set[str]
) -> None:
    views = [view(f"e{n}", f"c{n}" if corpora else None) for n in range(len(given_edges))]
    replies = [(one, GraphReply(edges=edges)) for one, edges in zip(views, given_edges, strict=True)]
    hidden = {f"c{n}/{id}" if corpora else id for id in cut for n in range(3)}
    found = edges_of(replies, hidden)
    assert len({parts(edge) for edge in found}) == len(found)
    assert not {edge[end] for edge in found for end in ("src", "dst")} & hidden
    assert all(edge[end].startswith("c") for edge in found for end in ("src", "dst")) or not corpora
    assert all(isinstance(edge.get("weight", 0.0), float) or "weight" not in edge for edge in found)
    assert all(value is not None for edge in found for value in edge.values())
    shown = {(edge["src"], edge["dst"]) for edge in edges_of(replies)}
    kept = {(src, dst) for src, dst in shown if src not in hidden and dst not in hidden}
    assert {(edge["src"], edge["dst"]) for edge in found} == kept


@given(st.lists(st.lists(_clues, max_size=6), max_size=3), st.none() | st.integers(1, 8))
def test_clues_are_at_most_n_and_no_query_comes_twice(given_clues: list[list[Clue]], n: int | None) -> None:
    replies = [(view(f"e{at}", None), MemoryReply(clues=clues)) for at, clues in enumerate(given_clues)]
    found = clues_of(replies, n)
    queries = [clue["query"] for clue in found if "query" in clue]
    assert len(queries) == len(set(queries))
    assert len(found) <= (n or 100)
    assert all(clue.get("query") or clue.get("seedIds") for clue in found)
    assert all(len(seeds) == len(set(seeds)) for clue in found if (seeds := clue.get("seedIds")))
    wanted = {clue.query for clues in given_clues for clue in clues if clue.query}
    if n is None:
        assert len(queries) == len(wanted)


@given(st.lists(st.lists(st.text(max_size=5), max_size=40), max_size=3))
def test_followups_are_lines_each_once_and_not_too_many(texts: list[list[str]]) -> None:
    replies = [(view(f"e{at}", None), GraphReply(followups=tuple(own))) for at, own in enumerate(texts)]
    found = followups_of(replies)
    assert len(found) == len(set(found)) <= 32
    assert all(text and "\n" not in text for text in found)
