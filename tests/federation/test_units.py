"""``unit`` and ``level``: the granularity that is asked for goes to engines that have it (RCP section 7.7)."""

from __future__ import annotations

import pytest

from tests.engines import Script, gateway_of, hits, ids, notes
from tests.obligations import obligation

pytestmark = pytest.mark.anyio

PAGES = {"retrieve": {"maxK": 100, "units": ["page", "chunk"]}}
TREE = {"retrieve": {"maxK": 100, "units": ["tree-node"], "levels": 3}}


@obligation(143, 210)
async def test_a_unit_goes_to_the_engines_that_have_it() -> None:
    scripts = {"p": Script(hits("x"), PAGES), "t": Script(hits("y"), TREE)}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["retrieve"]
        result = await gateway.retrieve(unit="page")
        assert (await gateway.refused(unit="document"))["data"]["option"] == "document"
        loose = await gateway.retrieve(unit="page", strict=False)
    assert told["units"] == ["page", "chunk", "tree-node"]
    assert ids(result) == ["x"]
    assert scripts["p"].queries[0].unit == "page"
    assert "engine t was not asked: it does not offer unit 'page'" in notes(result)
    assert sorted(ids(loose)) == ["x", "y"]
    assert scripts["t"].queries[0].unit is None


async def test_a_level_goes_to_the_engines_that_are_that_deep() -> None:
    scripts = {"p": Script(hits("x"), PAGES), "t": Script(hits("y"), TREE)}
    async with gateway_of(scripts) as gateway:
        told = (await gateway.call("info"))["result"]["capabilities"]["retrieve"]
        result = await gateway.retrieve(level=2)
        assert (await gateway.refused(level=3))["code"] == -32005
        assert (await gateway.refused(level=-1))["code"] == -32602
    assert told["levels"] == 3
    assert ids(result) == ["y"]
    assert scripts["t"].queries[0].level == 2


async def test_what_a_hit_says_of_its_unit_and_level_stays() -> None:
    from gateway.model import hit

    node = hit("n", 1.0, text="summary", unit="tree-node", level=1)
    async with gateway_of({"t": Script([node], TREE)}) as gateway:
        found = (await gateway.retrieve(unit="tree-node", level=1))["hits"][0]
    assert (found["unit"], found["level"]) == ("tree-node", 1)
