"""Pages that are made when they are asked for are what they would have been with the first."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway._json import Raw, decode, encode
from gateway.federation.cursor import Window
from gateway.fusion import Ranking, Rrf, fuse
from gateway.model import Hit, hit
from gateway.refine.candidate import Candidate
from gateway.refine.pack import sealed
from gateway.service.later import Later, held
from gateway.state import MemoryStore
from gateway_rcp.encoded import EncodedHit
from tests.engines import Running, Script, gateway_of, hits, ids

pytestmark = pytest.mark.anyio

ODD = [None, 0.5, "ünïcode", "\ud800", float("nan"), datetime(2026, 1, 2, tzinfo=UTC), [1, None], {"a": {"b": None}}]


async def walked(gateway: Running, k: int, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        result = await gateway.retrieve(k=k, **params, **cursor)
        found += result["hits"]
        if "nextCursor" not in result:
            return found
        cursor = {"cursor": result["nextCursor"]}


async def refusing(self: MemoryStore, *given: Any, **more: Any) -> bool:
    """A store that holds nothing but bytes."""
    return False


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 9), odd=st.booleans(), identity=st.sampled_from(["id", "uri"]))
async def test_they_are_the_same_as_those_sealed_at_once(seed: int, k: int, odd: bool, identity: str) -> None:
    draw = random.Random(seed)

    def engine() -> Script:
        return Script(
            [
                hit(
                    f"d{n}",
                    draw.choice([None, 1.0 - place / 50]),
                    text=f"text {n} {'w' * draw.randrange(3)}",
                    meta={"lang": "en", **({"odd": draw.choice(ODD)} if odd else {})},
                    citation={"uri": f"https://example.org/{n % 17}"},
                )
                for place, n in enumerate(draw.sample(range(25), draw.randint(0, 20)))
            ]
        )

    scripts = {name: engine() for name in "abc"[: draw.randint(1, 3)]}
    async with gateway_of(scripts, fusion={"identity": identity}) as gateway:
        made_later = await walked(gateway, k)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "hold", refusing)
            assert await walked(gateway, k) == made_later
    assert len({found["id"] for found in made_later}) == len(made_later)


async def test_what_an_engine_does_to_its_hits_afterwards_changes_no_page() -> None:
    kept = hits(*(f"d{n}" for n in range(9)), lang="en")
    async with gateway_of({"a": Script(kept)}) as gateway:
        first = await gateway.retrieve(k=3)
        for one in kept:
            one.members["meta"]["lang"] = "de"  # type: ignore[index]
            one.members["text"] = "another"  # type: ignore[index]
        second = await gateway.retrieve(k=3, cursor=first["nextCursor"])
    assert [found["meta"]["lang"] for found in second["hits"]] == ["en"] * 3
    assert [found["text"] for found in second["hits"]] == ["text of d3", "text of d4", "text of d5"]


async def test_feedback_on_a_hit_of_a_later_page_finds_its_engine() -> None:
    told: list[str] = []

    async def feedback(query: Any, call: Any) -> int:
        told.extend(signal.hit_id for signal in query.signals)
        return len(query.signals)

    takes = {"feedback": {}}
    scripts = {
        "a": Script(hits(*(f"d{n}" for n in range(9))), takes, feedback=feedback),
        "b": Script(hits("x"), takes),
    }
    async with gateway_of(scripts) as gateway:
        first = await gateway.retrieve(k=4)
        second = await gateway.retrieve(k=4, cursor=first["nextCursor"])
        last = ids(second)[-1]
        answer = await gateway.call("feedback", {"signals": [{"hitId": last, "reward": 1.0}]})
    assert answer["result"] == {"accepted": 1}
    assert told == [last]


async def test_a_window_weighs_what_its_engines_gave() -> None:
    found = [hit(f"d{n}", 1.0, text="w" * 10_000) for n in range(20)]
    async with gateway_of({"a": Script(found)}, pagination={"bytes": 450_000, "caller_bytes": 450_000}) as gateway:
        cursors = [(await gateway.retrieve(str(n), k=5))["nextCursor"] for n in range(3)]
        assert (await gateway.refused("0", k=5, cursor=cursors[0]))["code"] == -32015
        for n in (1, 2):
            assert len(ids(await gateway.retrieve(str(n), k=5, cursor=cursors[n]))) == 5


# What may be kept so.


def _later(*found: Hit) -> Later:
    def fusing(rankings: Any, limit: int | None = None) -> Any:
        return fuse(rankings, Rrf(), limit=limit)[0], []

    def seal(line: list[Candidate]) -> tuple[Raw, ...]:
        return sealed(line, include_text=True, include_vectors=True)

    return Later([Ranking(engine="a", hits=found)], fusing, seal)  # type: ignore[arg-type]


@given(
    members=st.fixed_dictionaries(
        {},
        optional={
            "text": st.text(st.characters(exclude_categories=["Cs"])),
            "meta": st.dictionaries(st.text("abc"), st.none() | st.integers(-9, 9) | st.text('é\n"')),
            "vector": st.none() | st.lists(st.floats(-1, 1)),
            "level": st.integers(0, 3),
            "trust": st.just({"level": "untrusted"}),
        },
    ),
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    id=st.text("abc", min_size=1) | st.integers(0, 9),
)
def test_hits_of_rcp_engines_stay_what_they_are(members: dict[str, Any], score: float | None, id: str | int) -> None:
    own = decode(json.dumps({"id": id, "score": score, **members}).encode(), EncodedHit)
    assert decode(encode(own), EncodedHit).items() == own.items()
    later = _later(Hit(str(id), score, None, own))  # type: ignore[arg-type]
    window = held(later, Window(hits=()))
    assert window is not None
    said, seal = window.open()
    assert said.ids == (str(id),)
    assert seal([0]) == later.seal(later.candidates())


@pytest.mark.parametrize(
    "found",
    [
        [hit("a", 1.0, meta={"when": datetime(2026, 1, 2, tzinfo=UTC)})],
        [hit("a", 1.0, meta={"n": float("nan")})],
        [hit("a", 1.0, text="\ud800")],
        [hit("a", 1.0, meta={"n": 2**70})],
        [Hit("a", 1.0, None, {"text": Raw(b'"x"')})],
        [hit("a", 1.0), Hit("b", 0.5, None, decode(b'{"id":"b"}', EncodedHit))],  # type: ignore[arg-type]
    ],
)
def test_hits_that_would_not_be_read_as_they_were_written_are_sealed_at_once(found: list[Hit]) -> None:
    assert held(_later(*found), Window(hits=())) is None
