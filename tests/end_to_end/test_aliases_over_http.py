"""Field aliases of an engine that is another gateway, over real HTTP: what is sent to it, what a client reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.running import HOSTILE, memory, opened, peer_over_http, upstream
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import connect

pytestmark = pytest.mark.anyio

GERMAN = {"field": "language", "op": "eq", "value": "de"}
LANGUAGE = {"aliases": {"language": "lang"}}


def languages(hits: Any) -> dict[str, Any]:
    return {hit["id"]: (hit.get("meta", {}).get("language"), hit.get("meta", {}).get("lang")) for hit in hits}


@obligation(171)
async def test_an_upstream_is_asked_by_its_names_and_checked_by_ours(reports: Reports) -> None:
    english = {"field": "language", "op": "eq", "value": "en"}
    async with peer_over_http(reports, HOSTILE, "ok") as url:
        far = upstream("far", own={"url": url}, **LANGUAGE)
        async with opened(memory(**LANGUAGE), far) as gateway, connect("http", gateway) as client:
            told = (await client.call("info"))["result"]["capabilities"]["filter"]["fields"]
            frame = await client.call("retrieve", {"query": "Paris", "k": 10, "filter": english})
    assert (told["language"], "lang" in told) == ("keyword", False)
    assert (await reports.frame("retrieve"))["params"]["filter"] == {**english, "field": "lang"}
    # The peer applies no filter at all: b says that it is French, c says nothing.
    assert languages(frame["result"]["hits"]) == {"a": ("en", None), "m1": ("en", None), "c": (None, None)}


async def test_hits_on_the_way_have_the_names_that_the_answer_has() -> None:
    documents = [{"id": "d", "text": "Paris", "meta": {"lang": "de"}}]
    async with opened(memory(documents=documents, **LANGUAGE)) as gateway, connect("sse", gateway) as client:
        params = {"query": "Paris", "k": 10, "filter": GERMAN, "_meta": {"progressToken": 1}}
        frame = await client.call("retrieve", params)
    partial = [one["params"]["partial"] for one in client.frames if "partial" in one["params"]]
    # As they come, and as they fuse.
    assert [languages(one["hits"]) for one in partial] == [{"d": ("de", None)}] * 2
    assert languages(frame["result"]["hits"]) == {"d": ("de", None)}
