"""What the engine makes of answers, good and bad, over every transport."""

from collections.abc import Mapping

import pytest

from gateway.errors import BackendUnavailable
from gateway.model import member, meta_of, text_of_hit
from gateway.spi.engine import EngineQuery
from tests.obligations import obligation
from tests.plugins.rcp.conftest import FakeCall

pytestmark = pytest.mark.anyio


async def ask(over, *behaviours, k=10, **settings):
    async with over(",".join(behaviours), **settings) as engine:
        return await engine.retrieve(EngineQuery(text="paris", k=k), FakeCall())


def listed(reply):
    return [(hit.id, hit.score) for hit in reply.hits]


@obligation(187, 214, 221)
async def test_a_plain_answer_comes_through_with_its_members(over):
    reply = await ask(over, "ok")
    assert listed(reply) == [("a", 3.0), ("b", 2.0), ("c", 1.0)]
    assert text_of_hit(reply.hits[0]) == "alpha"
    assert meta_of(reply.hits[0]) == {"lang": "en"}
    assert isinstance(reply.hits[0].members, Mapping), "what is none is no hit to the gateway"
    assert reply.notes == ("all is well",)


@obligation(22, 187, 221)
async def test_hits_with_scores_that_are_no_numbers_keep_their_place_without_a_score(over):
    assert listed(await ask(over, "nan")) == [("a", None), ("b", None), ("c", None), ("d", 1.5)]


@obligation(23, 187)
async def test_a_score_that_overflows_is_no_score(over):
    reply = await ask(over, "overflow")
    assert listed(reply) == [("a", None), ("b", 1.0)]
    assert reply.hits[0].confidence is None


@obligation(187)
async def test_text_and_booleans_are_no_scores(over):
    assert listed(await ask(over, "stringscores")) == [("a", None), ("b", None), ("c", None), ("d", 0.1)]


@obligation(30)
async def test_a_lone_surrogate_costs_one_letter_and_not_the_answer(over):
    reply = await ask(over, "surrogate")
    assert text_of_hit(reply.hits[0]) == "x\N{REPLACEMENT CHARACTER}y"


@obligation(187, 221)
async def test_hits_without_a_usable_id_are_dropped_with_a_note(over):
    reply = await ask(over, "badids")
    assert [hit.id for hit in reply.hits] == ["good"]
    assert reply.notes == ("8 hits without a usable id were dropped",)


@obligation(187)
async def test_numeric_ids_become_text_without_losing_a_digit(over):
    reply = await ask(over, "numberids")
    assert [hit.id for hit in reply.hits] == ["7", "8", "9007199254740993"]


@obligation(188)
async def test_repeated_ids_are_left_to_fusion_in_their_order(over):
    assert listed(await ask(over, "duplicates")) == [("a", 3.0), ("a", 2.0), ("b", 1.0)]


@obligation(221)
async def test_more_hits_than_asked_for_are_cut(over):
    reply = await ask(over, "toomany", k=5)
    assert [hit.id for hit in reply.hits] == ["h0", "h1", "h2", "h3", "h4"]
    assert not reply.exhausted
    assert reply.notes == ("95 hits beyond the 5 asked for were dropped",)


@obligation(19, 214)
async def test_unknown_members_survive_and_nulls_do_not(over):
    reply = await ask(over, "unknown")
    assert member(reply.hits[0], "new") == {"b": [1]}
    assert "gone" not in reply.hits[0].members


@obligation(194)
async def test_nothing_in_a_hit_is_an_instruction(over):
    reply = await ask(over, "uncited")
    assert meta_of(reply.hits[0]) == {"federation": {"depth": 99}, "_meta": {"x": 1}}
    assert reply.index_version == "v7"
    assert reply.notes == ()


async def test_notes_are_bounded_and_on_one_line(over):
    reply = await ask(over, "notes")
    assert len(reply.notes) == 10
    assert all(len(note) <= 300 and note.isprintable() for note in reply.notes)


@obligation(220)
async def test_line_separators_of_unicode_are_text(over):
    reply = await ask(over, "seps")
    assert text_of_hit(reply.hits[0]) == "one\u2028two\u2029three\u0085four"


@obligation(224)
async def test_an_answer_beyond_the_usual_64_kib_line_limit_arrives_whole(over):
    reply = await ask(over, "large")
    assert len(text_of_hit(reply.hits[0]) or "") == 300_000


@obligation(214)
async def test_a_byte_order_mark_is_passed_over(over):
    assert len((await ask(over, "bom")).hits) == 3


async def test_fewer_hits_than_asked_for_say_that_there_are_no_more(over):
    assert (await ask(over, "ok", k=4)).exhausted
    assert not (await ask(over, "ok", k=3)).exhausted


@pytest.mark.parametrize("behaviour", ["cursor", "degraded"])
async def test_a_list_that_was_cut_short_is_not_the_end(over, behaviour):
    reply = await ask(over, behaviour)
    assert len(reply.hits) == 1
    assert not reply.exhausted


@obligation(233)
async def test_a_gateway_that_says_whom_it_misses_gave_a_partial_answer(over):
    assert (await ask(over, "degraded")).partial == ("x",)
    assert (await ask(over, "degradedoddly")).partial == ("x y",)
    assert (await ask(over, "ok")).partial is None


@obligation(3, 221)
@pytest.mark.parametrize("behaviour", ["array", "nullresult", "nohits", "hitsobject", "neither"])
async def test_an_answer_of_another_shape_is_a_failed_engine(over, behaviour):
    with pytest.raises(BackendUnavailable):
        await ask(over, behaviour)
