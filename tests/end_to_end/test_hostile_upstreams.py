"""An upstream that misbehaves costs at most itself, over each of its transports and each of the gateway's.

Beside it stands a healthy engine, and meanwhile somebody pings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import fail_after

from tests.end_to_end.running import HOSTILE, Whole, child, memory, opened, peer_over_http, upstream
from tests.obligations import obligation
from tests.peers.reports import Reports
from tests.transports import KINDS, Client, Frame, connect

pytestmark = pytest.mark.anyio

QUERY = {"query": "capital of France", "k": 5}
HEALTHY = ["m1", "m2"]
LOST = None
"""It gave nothing: the answer is the healthy engine's, and says so."""

# What becomes of its hits, by behaviour.
ANYWAY: dict[str, list[str] | None] = {
    "ok": ["a", "b", "c"],
    # What it says is not quite right.
    "nan": ["a", "b", "c", "d"],
    "overflow": ["a", "b"],
    "surrogate": ["a"],
    "badids": ["good"],
    "numberids": ["7", "8", "9007199254740993"],
    "stringscores": ["a", "b", "c", "d"],
    "duplicates": ["a", "b"],
    "toomany": ["h0", "h1", "h2", "h3", "h4"],
    "unknown": ["a"],
    "notes": [],
    "cursor": ["a"],
    "degraded": ["a"],
    "uncited": ["a"],
    "seps": ["a"],
    "large": ["a"],
    "bom": ["a", "b", "c"],
    "latethenright": ["a", "b", "c"],
    "noversion": ["a", "b", "c"],
    "oddcapabilities": ["a", "b", "c"],
    "already": ["a", "b", "c"],
    "forgets": ["a", "b", "c"],
    # It says nothing that could be used.
    "array": LOST,
    "nullresult": LOST,
    "nohits": LOST,
    "hitsobject": LOST,
    "deep": LOST,
    "nullresponse": LOST,
    "neither": LOST,
    "batch": LOST,
    "wrongid": LOST,
    "nullid": LOST,
    "hang": LOST,
    "die": LOST,
    # It refuses.
    "refused": LOST,
    "optionrefused": LOST,
    "missing": LOST,
    "unknownmethod": LOST,
    "unauthorized": LOST,
    "ratelimited": LOST,
    "unavailable": LOST,
    "timedout": LOST,
    "internal": LOST,
    "unknowncode": LOST,
    "stringcode": LOST,
    "errortext": LOST,
    # It does not get as far as that.
    "handshakehangs": LOST,
    "handshakearray": LOST,
    "tooold": LOST,
    "version0": LOST,
    "versiontext": LOST,
}
ON_STDIO = {
    "noise": ["a", "b", "c"],
    "stderr": ["a", "b", "c"],
    "ignoresshutdown": ["a", "b", "c"],
    "progress": ["a", "b", "c"],
    "stopsreading": LOST,
    "diesatonce": LOST,
}
OVER_HTTP = dict.fromkeys(["http302", "http401", "http404", "http429", "http500", "http503"], LOST)
OVER_HTTP |= {"token": ["a", "b", "c"]}
OVER_EVENTS = {
    "ssecrlf": ["a", "b", "c"],
    "ssemultiline": ["a", "b", "c"],
    "ssechopped": ["a", "b", "c"],
    "ssehangs": ["a", "b", "c"],
    "progress": ["a", "b", "c"],
    "ssetruncated": LOST,
}
# These say nothing at all, or nothing that could be told to be the answer: only time ends the wait.
SILENT = {"hang", "deep", "wrongid", "nullid", "nullresponse", "batch", "stopsreading", "ssetruncated"}

CASES = [
    *(("stdio", behaviour, given) for behaviour, given in (ANYWAY | ON_STDIO).items()),
    *(("http", behaviour, given) for behaviour, given in (ANYWAY | OVER_HTTP).items()),
    *(("sse", behaviour, given) for behaviour, given in OVER_EVENTS.items()),
]


@asynccontextmanager
async def beside(over: str, behaviour: str, reports: Reports, **host: Any) -> AsyncIterator[Whole]:
    """A gateway with a healthy engine and, called ``hostile``, one that does this."""
    own = {"handshake_timeout": 0.3 if behaviour == "handshakehangs" else 20, "restart_delay": 0.1}
    settings = {"retry": {"attempts": 1}, **host}
    if over == "stdio":
        engine = upstream("hostile", own=child(HOSTILE, behaviour, reports=reports, **own), **settings)
        async with opened(memory(), engine) as gateway:
            yield gateway
        return
    async with peer_over_http(reports, HOSTILE, behaviour) as url:
        engine = upstream("hostile", own={"url": url, "streaming": over == "sse", **own}, **settings)
        async with opened(memory(), engine) as gateway:
            yield gateway


async def asked(client: Client, kind: str) -> Frame:
    """The answer to the query; while it is under way, a ping is answered at once."""
    params = {**QUERY, "_meta": {"progressToken": f"for {kind}"}}
    answering = asyncio.create_task(client.call("retrieve", params, id=f"query over {kind}"))
    with fail_after(5):  # of the thirty that a call may take
        assert (await client.call("ping", {"nonce": 7}))["result"] == {"nonce": 7}
    return await answering


@obligation(65, 187, 189, 221, 224, 232, 233)
@pytest.mark.parametrize(("over", "behaviour", "given"), CASES, ids=lambda value: value if type(value) is str else "")
async def test_an_upstream_costs_at_most_itself(
    over: str, behaviour: str, given: list[str] | None, reports: Reports
) -> None:
    with fail_after(30):
        async with (
            beside(over, behaviour, reports, timeout=0.7 if behaviour in SILENT else 10.0) as gateway,
            connect("http", gateway) as http,
            connect("sse", gateway) as sse,
            connect("stdio", gateway) as stdio,
        ):
            clients = dict(zip(KINDS, (http, sse, stdio), strict=True))
            for frame in await asyncio.gather(*(asked(client, kind) for kind, client in clients.items())):
                result = frame["result"]  # checked already, as all frames are
                found = [hit["id"] for hit in result["hits"]]
                told = result.get("_meta", {}).get("degraded", [])
                if given is LOST:
                    assert found == HEALTHY
                    assert told == ["hostile"]
                    assert any("hostile" in note for note in result["usage"]["notes"])
                else:
                    assert told == (["hostile"] if behaviour == "degraded" else [])  # it says so itself
                    assert [id for id in found if id not in HEALTHY] == given[: 5 - len(set(HEALTHY) & set(found))]
                assert "secret" not in str(frame)
