"""When hits of two engines are one document, from request to answer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.model import hit
from tests.engines import Script, gateway_of, ids, notes

pytestmark = pytest.mark.anyio


async def fused(a: Any, b: Any, identity: str, engines: Any = None) -> dict[str, Any]:
    async with gateway_of({"a": Script(a), "b": Script(b)}, engines=engines, fusion={"identity": identity}) as gateway:
        return await gateway.retrieve()


async def test_by_uri_the_link_is_compared_without_its_frills_and_given_back_as_it_was() -> None:
    a = [hit("1", 1.0, text="a longer text", citation={"source": "s", "uri": "https://h/p/"})]
    b = [hit("2", 1.0, text="text", citation={"source": "s", "uri": "http://h/p?utm_source=x"})]
    result = await fused(a, b, "uri")
    (one,) = result["hits"]
    assert one["citation"]["uri"] == "https://h/p/"
    assert one["score"] == pytest.approx(2 / 61)
    assert [citation["uri"] for citation in one["meta"]["citations"]] == ["https://h/p/", "http://h/p?utm_source=x"]
    assert len((await fused(a, b, "id"))["hits"]) == 2


async def test_by_uri_passages_of_one_page_stay_apart() -> None:
    def passages(*places: int) -> Any:
        return [hit(f"{n}", 1.0, citation={"source": "s", "uri": "https://h/p", "page": n}) for n in places]

    assert len((await fused(passages(1, 2), passages(2, 3), "uri"))["hits"]) == 3


async def test_by_content_equal_texts_are_one_and_empty_ones_are_not() -> None:
    a = [hit("1", 1.0, text="same"), hit("2", 0.9, text="")]
    b = [hit("3", 1.0, text="same"), hit("4", 0.9, text=" ")]
    assert sorted(ids(await fused(a, b, "content"))) == ["1", "2", "4"]
    assert sorted(ids(await fused(a, b, "id"))) == ["1", "2", "3", "4"]


async def test_by_id_or_content_either_makes_them_one() -> None:
    a = [hit("1", 1.0, text="same"), hit("2", 0.9, text="one")]
    b = [hit("3", 1.0, text="same"), hit("2", 0.9, text="another, longer")]
    result = await fused(a, b, "id+content")
    assert sorted(ids(result)) == ["1", "2"]
    assert all(len(one["meta"]["engines"]) == 2 for one in result["hits"])


async def test_hits_that_carry_nothing_to_compare_are_told_apart_by_id_with_a_note() -> None:
    result = await fused([hit("1", 1.0)], [hit("2", 1.0)], "uri")
    assert ids(result) == ["1", "2"]
    assert "carry nothing for identity by uri" in notes(result)


async def test_an_engine_nobody_vouches_for_cannot_take_over_a_trusted_document() -> None:
    a, b = [hit("1", 1.0, text="truth")], [hit("1", 1.0, text="a much longer lie")]
    apart = {"a": {"trust": "trusted"}, "b": {"trust": "untrusted"}}
    result = await fused(a, b, "id", apart)
    (one,) = result["hits"]
    assert (one["text"], one["meta"]["engines"], one["trust"]["level"]) == ("truth", ["a"], "trusted")
    assert "belong to documents of more trusted engines" in notes(result)
    together = {id: {**own, "corpus": "c"} for id, own in apart.items()}
    (one,) = (await fused(a, b, "id", together))["hits"]
    assert (one["id"], one["text"], one["trust"]["level"]) == ("c/1", "truth", "untrusted")
    assert one["meta"]["engines"] == ["a", "b"]


@pytest.mark.parametrize("identity", ["id", "uri", "content", "id+content"])
async def test_no_document_comes_twice_under_any_identity(identity: str) -> None:
    def listed(step: int) -> Any:
        return [
            hit(f"d{n * step % 13}", 1 - n / 50, text=f"t{n % 5}", citation={"source": "s", "uri": f"u{n % 7}"})
            for n in range(20)
        ]

    result = await fused(listed(1), listed(5), identity)
    assert len(set(ids(result))) == len(ids(result))
    scores = [one["score"] for one in result["hits"]]
    assert scores == sorted(scores, reverse=True)
