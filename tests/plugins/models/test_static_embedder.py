"""The offline embedder: what its vectors are, that it stays offline, and what it says when something is missing."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gateway.errors import ConfigError, PluginError
from gateway.federation.context import HostContext
from gateway.spi.engine import EmbedQuery, Engine
from gateway.spi.http import HttpSettings
from gateway_models import static
from gateway_models.static import DIMENSION, IDENTITY, StaticEmbedderConfig, StaticEmbedderKind
from tests.plugins.qdrant.conftest import StubCall

T = TypeVar("T")
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class CountingHost(HostContext):
    """Counts what was sent to a thread."""

    blocking = 0

    async def run_blocking(self, function: Callable[[], T]) -> T:
        self.blocking += 1
        return await super().run_blocking(function)


@pytest.fixture
def host(tmp_path: Path) -> CountingHost:
    return CountingHost("e", tmp_path, http=HttpSettings())


@pytest.fixture
async def embedder(host: CountingHost) -> AsyncIterator[Engine]:
    async with StaticEmbedderKind().open(StaticEmbedderConfig(), host) as engine:
        yield engine


async def vectors(engine: Engine, *texts: str, kind: Any = "query") -> tuple[tuple[float, ...], ...]:
    return (await engine.embed(EmbedQuery(inputs=texts, kind=kind), StubCall())).vectors


def cosine(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_vectors_have_the_declared_dimension_and_length_one(embedder: Engine) -> None:
    offered = embedder.capabilities().embed
    assert offered is not None
    assert (offered.dimension, offered.identity, offered.normalized) == (DIMENSION, IDENTITY, True)
    for vector in await vectors(
        embedder, "fox", "a longer sentence about foxes", "ünïcödé 中文 😀", " ", "\x00", "\ud800"
    ):
        assert len(vector) == DIMENSION
        assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5)
        assert all(isinstance(number, float) for number in vector)


async def test_texts_of_one_meaning_are_nearer_than_others(embedder: Engine) -> None:
    question, answer, other = await vectors(
        embedder,
        "How do I reset my password?",
        "Click 'forgot password' to choose a new password.",
        "The volcano erupted in spring.",
    )
    assert cosine(question, answer) > cosine(question, other) + 0.2


async def test_an_empty_text_has_a_vector_that_cosine_is_defined_for(embedder: Engine) -> None:
    empty, word = await vectors(embedder, "", "word")
    assert math.isclose(math.hypot(*empty), 1.0)
    assert abs(cosine(empty, word)) < 0.5


async def test_a_text_has_the_same_vector_alone_in_a_batch_and_as_a_document(embedder: Engine) -> None:
    (alone,) = await vectors(embedder, "the same text")
    batch = await vectors(embedder, "first", "the same text", "x" * 5_000)
    (document,) = await vectors(embedder, "the same text", kind="document")
    assert alone == batch[1] == document


async def test_long_batches_go_to_a_thread_and_short_queries_do_not(embedder: Engine, host: CountingHost) -> None:
    opening = host.blocking
    await vectors(embedder, "a query")
    assert host.blocking == opening
    await vectors(embedder, "a query", "word " * 1_000)
    assert host.blocking == opening + 1


async def test_many_calls_at_once_get_their_own_answers(embedder: Engine) -> None:
    texts = [f"text number {number} " * (200 if number % 3 == 0 else 1) for number in range(40)]
    together = await asyncio.gather(*(vectors(embedder, text) for text in texts))
    assert [one[0] for one in together] == list(await vectors(embedder, *texts))


def test_the_package_is_never_imported_and_no_socket_is_opened(tmp_path: Path) -> None:
    """In a process of its own: an audit hook refuses every connection."""
    code = """
import sys, asyncio
def audit(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"{event} {args}")
sys.addaudithook(audit)
from gateway_models import static
model = static._load()
assert len(model("hello")) == 256
assert "wordllama" not in sys.modules, "imported"
assert "huggingface_hub" not in sys.modules, "imported"
"""
    root = Path(static.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{root}:{root / 'plugins'}", "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_heavy_is_imported_before_an_engine_opens() -> None:
    root = Path(static.__file__).parents[2]
    code = "import sys, gateway_models.static, gateway_qdrant.engine; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{root}:{root / 'plugins'}"},
        check=True,
    )
    assert not {"numpy", "tokenizers", "safetensors", "qdrant_edge", "qdrant_client"} & set(done.stdout.split())


@pytest.mark.parametrize("package", ["wordllama", "tokenizers", "safetensors", "numpy"])
async def test_a_missing_package_is_one_error_that_names_the_extra(
    host: CountingHost, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    if package == "wordllama":
        monkeypatch.setattr(static, "find_spec", lambda _: None)
    else:
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setitem(sys.modules, f"{package}.numpy", None)
    with pytest.raises(PluginError, match=rf'needs {package}.*pip install "rcp-gateway\[local\]"'):
        async with StaticEmbedderKind().open(StaticEmbedderConfig(), host):
            pass


async def test_another_release_of_the_package_is_a_clear_error(
    host: CountingHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(static, "_folder", lambda: tmp_path)
    with pytest.raises(PluginError, match="cannot be read"):
        async with StaticEmbedderKind().open(StaticEmbedderConfig(), host):
            pass


def test_a_batch_limit_below_one_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="batch_limit"):
        StaticEmbedderConfig(batch_limit=0)


async def test_loading_does_not_hold_the_event_loop(host: CountingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    load = static._load

    def recorded() -> Any:
        seen.append(threading.current_thread() is threading.main_thread())
        return load()

    monkeypatch.setattr(static, "_load", recorded)
    async with StaticEmbedderKind().open(StaticEmbedderConfig(), host):
        pass
    assert seen == [False]
