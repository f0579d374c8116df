"""What the tests of the model services share: the server, a host, and engines opened against it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from gateway.federation.context import HostContext
from gateway.secret import Secret
from gateway.spi.engine import Engine
from gateway.spi.http import HttpSettings
from gateway_models.embeddings import EmbeddingsConfig, EmbeddingsKind
from gateway_models.llm import LlmConfig, LlmKind
from gateway_models.reranker import RerankerConfig, RerankerKind
from tests.servers.providers import KEY, Providers, providers


@pytest.fixture(scope="module")
def running() -> Iterator[Providers]:
    with providers() as server:
        yield server


@pytest.fixture
def server(running: Providers) -> Iterator[Providers]:
    fresh = Providers()
    running.faults.clear()
    running.seen.clear()
    running.arrived.clear()
    running.limit, running.dimension, running.said = fresh.limit, fresh.dimension, fresh.said
    yield running
    assert not running.faults, "a fault that nobody met"


class Opener:
    """Opens engines against the server."""

    def __init__(self, server: Providers, folder: Path) -> None:
        self._server = server
        self._folder = folder

    def _host(self) -> HostContext:
        return HostContext("e", self._folder, http=HttpSettings())

    def _given(self, given: dict[str, Any], folder: str) -> dict[str, Any]:
        return {"url": f"{self._server.url}/{folder}", "api_key": Secret(KEY), "model": "m-1", **given}

    def embeddings(self, dialect: str, **given: Any) -> AbstractAsyncContextManager[Engine]:
        versions = {"openai": "/v1", "voyage": "/v1", "jina": "/v1", "cohere": "/v2", "ollama": "/api", "tei": ""}
        settings = self._given(given, dialect + versions[dialect])
        return EmbeddingsKind().open(EmbeddingsConfig(dialect=dialect, **settings), self._host())  # type: ignore[arg-type]

    def reranker(self, dialect: str, **given: Any) -> AbstractAsyncContextManager[Engine]:
        versions = {"cohere": "/v2", "jina": "/v1", "voyage": "/v1", "tei": ""}
        settings = self._given(given, dialect + versions[dialect])
        return RerankerKind().open(RerankerConfig(dialect=dialect, **settings), self._host())  # type: ignore[arg-type]

    def llm(self, **given: Any) -> AbstractAsyncContextManager[Engine]:
        return LlmKind().open(LlmConfig(**self._given(given, "openai/v1")), self._host())


@pytest.fixture
def opened(server: Providers, tmp_path: Path) -> Opener:
    return Opener(server, tmp_path)
