"""Profiles over HTTP: paths below the base, sessions of their own, and what leads nowhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import fail_after

from gateway.app import open_gateway
from gateway.cli.serve import over_http
from gateway.config import load_text
from tests.engines import Script, hits, plugins_of
from tests.schema import check_exchange
from tests.transports import HANDSHAKE, request

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(scripts: dict[str, Script] | None = None, **config: Any) -> AsyncIterator[httpx.AsyncClient]:
    scripts = scripts or {"papers": Script(hits=hits("p1")), "news": Script(hits=hits("n1"))}
    engines = [{"id": id, "kind": "scripted", "with": {"name": id}} for id in scripts]
    sections = {"name": "served", "profiles": [{"name": "papers", "engines": ["papers"]}], **config}
    text = json.dumps({"engines": engines, **sections})
    async with (
        open_gateway(load_text(text, base_dir=Path.cwd()), plugins_of(scripts)) as gateway,
        over_http(gateway, port=0) as address,
        httpx.AsyncClient(base_url=address.url, timeout=30) as http,
    ):
        yield http


async def asked(http: httpx.AsyncClient, path: str, method: str = "retrieve", **headers: str) -> dict[str, Any]:
    sent = request(method, {"query": "q"} if method == "retrieve" else HANDSHAKE)
    response = await http.post(path, content=sent, headers={"content-type": "application/json", **headers})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = check_exchange(sent, response.content)
    return answer


def found(answer: dict[str, Any]) -> set[str]:
    return {hit["id"] for hit in answer["result"]["hits"]}


@pytest.mark.parametrize("path", ["/rcp/papers/retrieve", "/rcp/papers", "/rcp/papers/"])
async def test_a_profile_stands_below_the_base_with_the_method_in_the_path_or_in_the_body(path: str) -> None:
    async with served() as http:
        assert found(await asked(http, path)) == {"p1"}


async def test_the_base_path_serves_all_engines_as_before() -> None:
    async with served() as http:
        for path in ("/rcp/retrieve", "/rcp"):
            assert found(await asked(http, path)) == {"p1", "n1"}


async def test_profiles_work_below_any_base() -> None:
    for base, path in (("/", "/papers/retrieve"), ("/a/b", "/a/b/papers/retrieve"), ("/a/", "/a/papers")):
        async with served(http={"base": base}) as http:
            assert found(await asked(http, path)) == {"p1"}
            assert (await http.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    "path", ["/rcp/paper/retrieve", "/rcp/nobody", "/rcp/papers/nobody/retrieve", "/rcp/Papers", "/other/papers"]
)
async def test_the_path_of_a_profile_that_there_is_not_is_404(path: str) -> None:
    async with served() as http:
        response = await http.post(path, content=request("retrieve", {"query": "q"}))
        assert (response.status_code, response.text) == (404, "not found\n")


async def test_a_method_that_nobody_knows_is_still_an_error_of_the_protocol() -> None:
    async with served() as http:
        for path in ("/rcp/frobnicate", "/rcp/papers/frobnicate"):
            assert (await asked(http, path, "frobnicate"))["error"]["code"] == -32004
        for path in ("/rcp/x-vendor/do", "/rcp/embed"):
            assert (await asked(http, path))["error"]["code"] == -32600, "another method than the body's"


async def test_a_session_belongs_to_its_profile() -> None:
    async with served(http={"sessions": "token"}) as http:
        opened = await asked(http, "/rcp/papers/initialize", "initialize")
        token = opened["result"]["_meta"]["session"]
        assert opened["result"]["capabilities"]["catalog"]["engines"] == 1
        assert found(await asked(http, "/rcp/papers/retrieve", **{"rcp-session": token})) == {"p1"}
        assert (await asked(http, "/rcp/retrieve", **{"rcp-session": token}))["error"]["code"] == -32001


async def test_stopping_answers_a_call_of_a_profile_that_would_not_end() -> None:
    script = Script()

    async def never(query: Any, call: Any) -> Any:
        await asyncio.Event().wait()

    script.retrieve = never
    with fail_after(20):
        async with httpx.AsyncClient(timeout=30) as outside:
            async with served({"papers": script}, http={"drain_timeout": 0.1}) as http:
                outside.base_url = http.base_url
                call = asyncio.create_task(asked(outside, "/rcp/papers/retrieve"))
                await script.started.wait()
            assert (await call)["error"]["code"] == -32010
            assert script.cancelled.is_set()
