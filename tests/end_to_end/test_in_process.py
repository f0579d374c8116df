"""The gateway inside a program, against what the same gateway says on the wire."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio import fail_after

from gateway import Gateway
from gateway.caller import Caller
from gateway.config import load_text
from gateway.errors import (
    BackendUnavailable,
    CallerError,
    Code,
    ConfigError,
    ConfigErrors,
    GatewayError,
    InternalError,
    RateLimited,
    RcpError,
    Timeout,
    Unsupported,
    UpstreamError,
    from_wire,
)
from gateway.inprocess import Passage, Progress, RetrieveOptions
from gateway.model import FusionOptions, RetrieveRequest
from tests.end_to_end.running import ROOT
from tests.engines import EMBEDDER, Running, Script, hits, plugins_of

pytestmark = pytest.mark.anyio

CONFIG = {
    "name": "inside",
    "engines": [
        {"id": "a", "kind": "scripted", "with": {"name": "a"}},
        {"id": "b", "kind": "scripted", "with": {"name": "b"}},
    ],
    "profiles": [{"name": "only-a", "engines": ["a"]}],
    "writes": "a",
}


def scripts(**given: Script) -> dict[str, Script]:
    fields = {"filter": {"fields": {"year": "int"}}}
    return {
        "a": Script(
            hits=hits(("x", 3.0), "y", year=2020, title="T"),
            capabilities={**fields, "embed": msgspec.to_builtins(EMBEDDER), "index": {"writable": True}},
        ),
        "b": Script(hits=hits("x", "z", year=2021), capabilities={**fields, "transform": {"methods": ["rewrite"]}}),
        **given,
    }


@asynccontextmanager
async def inside(
    given: Mapping[str, Script] | None = None, *, profile: str | None = None, **more: Any
) -> AsyncIterator[Gateway]:
    async with Gateway({**CONFIG, **more}, profile=profile, plugins=plugins_of(given or scripts())) as gateway:
        yield gateway


async def test_retrieve_gives_hits_with_attributes() -> None:
    async with inside() as gateway:
        answer = await gateway.retrieve("q", k=2, filter={"field": "year", "op": "gte", "value": 2020})
        first = answer.hits[0]
        assert (first.id, first.text, first.meta["engines"]) == ("x", "text of x", ["a", "b"])
        assert first.score > answer.hits[1].score
        assert len(answer.hits) == 2
        assert answer.usage.candidates == 4
        assert answer.meta["x-gateway"]["scale"] == "rrf"


async def test_it_says_what_the_wire_says() -> None:
    params: dict[str, Any] = {
        "query": "q",
        "k": 3,
        "candidateK": 20,
        "fusion": {"method": "weighted", "weights": {"a": 2}},
        "minScore": 0.1,
        "includeText": False,
    }
    async with inside() as gateway:
        assert gateway._open is not None
        wire = await Running(gateway._open, {}).call("retrieve", params)
        typed = await gateway.retrieve(
            "q",
            k=3,
            candidate_k=20,
            fusion=FusionOptions(method="weighted", weights={"a": 2}),
            min_score=0.1,
            include_text=False,
        )
        plain = await gateway.call("retrieve", params)
        assert plain["hits"] == wire["result"]["hits"]
        assert msgspec.to_builtins(typed.hits) == msgspec.to_builtins(
            msgspec.convert(plain["hits"], tuple[Passage, ...])
        )
        assert (await gateway.call("info")) == (await Running(gateway._open, {}).call("info"))["result"]


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"k": 0}, CallerError, -32602),
        ({"filter": {"field": "nope", "op": "eq", "value": 1}}, CallerError, -32602),
        ({"mode": "hybrid"}, Unsupported, -32005),
        ({"cursor": "made up"}, CallerError, -32015),
    ],
)
async def test_what_the_wire_refuses_is_raised(options: Any, kind: type[RcpError], code: int) -> None:
    async with inside() as gateway:
        assert gateway._open is not None
        with pytest.raises(RcpError) as refused:
            await gateway.retrieve("q", **options)
        wire = await Running(gateway._open, {}).call("retrieve", {"query": "q", **options})
        assert isinstance(refused.value, kind)
        assert refused.value.code == code
        assert refused.value.to_wire() == wire["error"]


async def test_a_failing_engine_is_the_error_of_an_upstream() -> None:
    async def fails(query: Any, call: Any) -> Any:
        raise BackendUnavailable("down")

    async with inside({"a": Script(retrieve=fails), "b": Script(retrieve=fails)}, writes=None) as gateway:
        with pytest.raises(UpstreamError) as refused:
            await gateway.retrieve("q")
        assert (refused.value.code, refused.value.retryable) == (-32010, True)


async def test_an_option_that_there_is_not_is_a_type_error_with_the_nearest_name() -> None:
    async with inside() as gateway:
        with pytest.raises(TypeError, match="no option 'candidatek' \\(did you mean 'candidate_k'\\?\\)"):
            await gateway.retrieve("q", candidatek=5)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="retrieve cannot be written as JSON"):
            await gateway.retrieve("q", filter={"field": "year", "op": "eq", "value": object()})


def test_the_options_are_those_of_the_protocol() -> None:
    names = {field.name for field in msgspec.structs.fields(RetrieveRequest)} - {"query"}
    assert set(typing.get_type_hints(RetrieveOptions)) == names


async def test_the_other_methods_are_coroutines_with_results_of_their_own() -> None:
    async with inside() as gateway:
        assert (await gateway.embed(["ab", "c"], kind="document")).vectors == ([2.0, 1.0], [1.0, 1.0])
        assert (await gateway.rerank("word", ["no", "a word"], top_n=1)).order == (1,)
        assert (await gateway.transform("q", "rewrite")).queries == ("Q",)
        assert (await gateway.index_add([{"id": "d", "text": "t"}])).ids == ("d",)
        again = [await gateway.index_delete(["d", "e"], meta={"idempotencyKey": "once"}) for _ in range(2)]
        assert [one.deleted for one in again] == [1, 1], "the second is the answer of the first"
        assert [entry.id for entry in (await gateway.catalog()).engines] == ["a", "b"]
        assert (await gateway.info()).server.name == "inside"
        for refused in (
            gateway.graph("q"),
            gateway.feedback(hitId="x", useful=True),
            gateway.memory_build(documents=[]),
            gateway.memory_recall(query="q"),
        ):
            with pytest.raises(Unsupported) as error:
                await refused
            assert error.value.code == -32003


async def test_progress_comes_to_a_callback_with_the_hits_of_each_engine() -> None:
    seen: list[Progress] = []
    async with inside() as gateway:
        await gateway.retrieve("q", on_progress=seen.append, meta={"x-gateway": {"engines": ["a", "b"]}})
    fractions = [one.progress for one in seen]
    assert fractions == sorted(fractions)
    assert {hit.id for one in seen for hit in one.hits} == {"x", "y", "z"}


async def test_a_callback_that_raises_does_not_end_the_call(caplog: pytest.LogCaptureFixture) -> None:
    def raises(progress: Progress) -> None:
        raise ValueError("of the program's own")

    async with inside() as gateway:
        assert len((await gateway.retrieve("q", on_progress=raises)).hits) == 3
    assert "a notification could not be sent" in caplog.text


async def test_cancelling_the_task_cancels_the_engines() -> None:
    async def never(query: Any, call: Any) -> Any:
        await asyncio.Event().wait()

    given = scripts(b=Script(retrieve=never))
    with fail_after(20):
        async with inside(given) as gateway:
            call = asyncio.create_task(gateway.retrieve("q"))
            await given["b"].started.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert given["b"].cancelled.is_set()


async def test_many_calls_at_once_are_not_refused() -> None:
    async with inside(limits={"concurrency": 1}) as gateway:
        answers = await asyncio.gather(*(gateway.retrieve("q") for _ in range(300)))
        assert {len(answer.hits) for answer in answers} == {3}


async def test_a_profile_is_asked_by_name_over_the_same_engines() -> None:
    async with inside(profile="only-a") as gateway, inside() as other:
        assert [hit.id for hit in (await gateway.retrieve("q")).hits] == ["x", "y"]
        assert len((await gateway.profile(None).retrieve("q")).hits) == 3
        assert [hit.id for hit in (await other.profile("only-a").retrieve("q")).hits] == ["x", "y"]
        with pytest.raises(ConfigError, match="no profile 'only-b' \\(did you mean 'only-a'\\?\\)"):
            other.profile("only-b")
        nobody = other.profile(None, caller=Caller(engines=frozenset({"b"})))
        assert [hit.id for hit in (await nobody.retrieve("q")).hits] == ["x", "z"]
    with pytest.raises(ConfigError, match="no profile"):
        async with inside(profile="nobody"):
            pytest.fail("it opened")


async def test_it_answers_only_while_it_is_open_and_can_be_opened_again() -> None:
    gateway = Gateway(CONFIG, plugins=plugins_of(scripts()))
    with pytest.raises(GatewayError, match="not open"):
        await gateway.retrieve("q")
    with pytest.raises(GatewayError, match="not open"):
        gateway.profile("only-a")
    for _ in range(2):
        async with gateway:
            assert len((await gateway.retrieve("q")).hits) == 3
            with pytest.raises(GatewayError, match="open already"):
                await gateway.__aenter__()
    with pytest.raises(GatewayError, match="not open"):
        await gateway.retrieve("q")


async def test_it_takes_a_path_a_mapping_or_a_configuration(tmp_path: Path) -> None:
    text = json.dumps(
        {"engines": [{"id": "m", "kind": "memory", "with": {"documents": [{"id": "d", "text": "word"}]}}]}
    )
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    for config in (path, str(path), json.loads(text), load_text(text, base_dir=tmp_path)):
        async with Gateway(config) as gateway:
            assert [hit.id for hit in (await gateway.retrieve("word")).hits] == ["d"]
    for wrong in ({"engines": [{"id": "m", "kind": "memery"}]}, tmp_path / "missing.yaml"):
        with pytest.raises(ConfigErrors):
            async with Gateway(wrong):
                pytest.fail("it opened")


@pytest.mark.parametrize("code", [*Code, -1, None])
def test_an_error_of_the_wire_becomes_the_class_of_its_code_and_says_the_same(code: int | None) -> None:
    kinds = {-32603: InternalError, -32003: Unsupported, -32005: Unsupported, -32011: RateLimited, -32014: Timeout}
    kinds |= {-32010: BackendUnavailable}
    for data in ({}, {"retryable": True, "engine": "a", "upstreamCode": -32602}):
        wire = {"code": code, "message": "m", **({"data": data} if data else {})}
        made = from_wire(wire)
        assert made.to_wire() == {**wire, "code": -32603 if code is None else code}
        assert isinstance(made, kinds.get(code or -32603, RcpError))
        assert made.retryable is bool(data)


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = "sorted(name for name in sys.modules if name.startswith('gateway'))"
    script = f"import sys, gateway; print({loaded}); from gateway import Gateway; print(Gateway.__module__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split("\n")[:2] == ["['gateway']", "gateway.inprocess"]
    with pytest.raises(ImportError):
        from gateway import Nothing  # type: ignore[attr-defined]  # noqa: F401


def run(*arguments: str, cwd: Path) -> list[str]:
    path = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=cwd, env=environment, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_example_runs_as_it_stands(tmp_path: Path) -> None:
    lines = run(str(ROOT / "examples" / "in_process.py"), "rank", "fusion", cwd=tmp_path)
    ranking = [line.split()[1] for line in lines if line.startswith("0.")]
    assert ranking == ["rrf", "fusion"]
    assert {"… notes: 1 hit", "… papers: 2 hits"} <= set(lines)
    assert lines[-2:] == ["recent: rrf", "refused: not a declared filter field (did you mean year?); there are year"]


def test_the_program_of_the_documentation_runs(tmp_path: Path) -> None:
    document = (ROOT / "docs" / "in-process.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", document, re.DOTALL)
    passage = {"id": "p", "text": "how scores are fused", "meta": {"path": "docs/federation.md"}}
    settings = {"fields": {"path": "keyword"}, "documents": [passage]}
    (tmp_path / "gateway.yaml").write_text(json.dumps({"engines": [{"id": "m", "kind": "memory", "with": settings}]}))
    assert run("-c", program, cwd=tmp_path) == ["0.0164 p ['m']"]
