"""The examples of docs/methods.md, played."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.model import hit
from gateway.protocol.methods import METHODS
from gateway.spi import Call, Clue, Edge, GraphReply, MemoryReply
from tests.engines import Script, gateway_of

pytestmark = pytest.mark.anyio

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "methods.md"
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)]


def reply(method: str, given: Mapping[str, Any]) -> GraphReply | MemoryReply:
    if method == "memory/recall":
        clues = [Clue(query=one["query"], seed_ids=tuple(one.get("seedIds", ())), weight=one.get("weight"))
                 for one in given["clues"]]  # fmt: skip
        return MemoryReply(clues=clues)
    ends = ("src", "dst", "weight")
    edges = [
        Edge(**{name: one.get(name) for name in ends}, members={n: v for n, v in one.items() if n not in ends})
        for one in given["edges"]
    ]
    return GraphReply(nodes=[hit(one["id"], None) for one in given["nodes"]], edges=edges)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: str(example["ask"]["method"]))
async def test_an_example_of_the_document_is_what_happens(example: dict[str, Any]) -> None:
    method, params = example["ask"]["method"], example["ask"]["params"]
    offers = {"graph": {"ops": ["neighbors"]}, "memory": {}}

    def answering(given: Mapping[str, Any]) -> Any:
        async def answer(query: Any, call: Call) -> Any:
            return reply(method, given)

        return answer

    scripts = {id: Script(capabilities=offers, graph=answering(example[id]), recall=answering(example[id]))
               for id in ("one", "two")}  # fmt: skip
    async with gateway_of(scripts) as gateway:
        found = (await gateway.call(method, params))["result"]
    shown = {name: found[name] for name in example["answer"]}
    if "nodes" in shown:
        shown["nodes"] = [node["id"] for node in shown["nodes"]]
    assert shown == example["answer"]


def test_there_are_examples_and_every_method_is_told_of() -> None:
    assert len(EXAMPLES) == 2
    text = DOCUMENT.read_text("utf-8") + "`initialize` `shutdown`"
    assert [name for name in METHODS if f"`{name}`" not in text] == []
