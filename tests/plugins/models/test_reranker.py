"""Reranking services: scores stay with their passages, whatever the service leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gateway.errors import BackendUnavailable, ConfigError, RateLimited, UpstreamError
from gateway.secret import Secret
from gateway.spi.engine import Engine, RerankQuery
from gateway_models.rerank_dialects import DIALECTS
from gateway_models.reranker import RerankerConfig
from tests.plugins.models.conftest import Opener
from tests.plugins.qdrant.conftest import StubCall
from tests.servers.providers import Providers

pytestmark = pytest.mark.anyio

ALL = list(DIALECTS)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def rerank(engine: Engine, query: str, *passages: str, **given: Any) -> Sequence[float | None]:
    return await engine.rerank(RerankQuery(query=query, passages=passages, **given), StubCall())


@pytest.mark.parametrize("dialect", ALL)
async def test_scores_are_aligned_whatever_the_order_and_the_top_n(dialect: str, opened: Opener) -> None:
    async with opened.reranker(dialect) as engine:
        offered = engine.capabilities().rerank
        assert offered is not None
        assert offered.methods == ("cross-encoder",)
        assert await rerank(engine, "red fox", "a dog", "a red fox", "a red dog", top_n=1) == [0.0, 0.2, 0.1]


@pytest.mark.parametrize("dialect", ALL)
async def test_blank_passages_keep_their_place_and_get_no_score(
    dialect: str, opened: Opener, server: Providers
) -> None:
    async with opened.reranker(dialect) as engine:
        assert await rerank(engine, "fox", "", "fox", " \n") == [None, 0.1, None]
        asked = len(server.seen)
        assert await rerank(engine, "fox", "", " ") == [None, None]
        assert await rerank(engine, " ", "fox") == [None]
        assert await rerank(engine, "fox") == []
    assert len(server.seen) == asked


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(("fault", "scores"), [("short", [None, 0.1]), ("null", [0.0, None])])
async def test_a_passage_the_service_left_out_has_no_score(
    fault: str, scores: list[float | None], dialect: str, opened: Opener, server: Providers
) -> None:
    async with opened.reranker(dialect) as engine:
        server.faults.append(fault)
        assert await rerank(engine, "fox", "dog", "fox") == scores


@pytest.mark.parametrize("dialect", ALL)
async def test_negative_scores_stay_as_they_are(dialect: str, opened: Opener, server: Providers) -> None:
    async with opened.reranker(dialect) as engine:
        server.faults.append("negative")
        assert await rerank(engine, "fox", "dog", "a fox") == [-1.0, -0.9]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("twice", "twice"),
        ("beyond", "passage 2, and there are 2"),
        ("nan", "NaN"),
        ("html", "is not JSON"),
    ],
)
async def test_an_answer_that_cannot_be_right_is_refused(
    fault: str, told: str, dialect: str, opened: Opener, server: Providers
) -> None:
    async with opened.reranker(dialect) as engine:
        server.faults.append(fault)
        with pytest.raises(BackendUnavailable, match=told):
            await rerank(engine, "fox", "dog", "fox")


async def test_more_passages_than_one_request_takes_are_sent_in_several(opened: Opener, server: Providers) -> None:
    passages = [f"fox {number}" if number % 2 else f"dog {number}" for number in range(70)]
    async with opened.reranker("tei") as engine:
        assert await rerank(engine, "fox", *passages) == [0.1 if number % 2 else 0.0 for number in range(70)]
        assert [len(one.body["texts"]) for one in server.seen] == [32, 32, 6]
        server.limit = 10
        assert await rerank(engine, "fox", *passages[:20]) == [0.1 if number % 2 else 0.0 for number in range(20)]


async def test_a_caller_may_name_a_model_of_the_settings_and_no_other(opened: Opener, server: Providers) -> None:
    async with opened.reranker("jina", models=("m-2",)) as engine:
        for model in (None, "m-2", "very-expensive"):
            await rerank(engine, "fox", "fox", model=model)
    assert [one.body["model"] for one in server.seen] == ["m-1", "m-2", "m-1"]


@pytest.mark.parametrize("dialect", ALL)
async def test_a_batch_that_is_too_large_is_halved_until_it_fits(
    dialect: str, opened: Opener, server: Providers
) -> None:
    server.limit = 3
    async with opened.reranker(dialect) as engine:
        found = await rerank(engine, "fox", *("fox" if number % 2 else "dog" for number in range(10)))
    assert found == [0.1 if number % 2 else 0.0 for number in range(10)]
    assert [len(one.body.get("documents") or one.body["texts"]) for one in server.seen] == [10, 5, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("dialect", ALL)
async def test_a_413_halves_a_batch_and_a_single_passage_is_an_error(
    dialect: str, opened: Opener, server: Providers
) -> None:
    async with opened.reranker(dialect) as engine:
        server.faults.append(413)
        assert await rerank(engine, "fox", "dog", "fox") == [0.0, 0.1]
        server.faults.append(413)
        with pytest.raises(UpstreamError, match="too large"):
            await rerank(engine, "fox", "fox")


@pytest.mark.parametrize("dialect", ALL)
async def test_refusals_mean_what_they_mean(dialect: str, opened: Opener, server: Providers) -> None:
    async with opened.reranker(dialect) as engine:
        server.faults += [429, 500]
        with pytest.raises(RateLimited) as limited:
            await rerank(engine, "fox", "fox")
        assert limited.value.data["retryAfterMs"] == 7000
        with pytest.raises(BackendUnavailable):
            await rerank(engine, "fox", "fox")
    async with opened.reranker(dialect, api_key=Secret("sk-wrong-key")) as engine:
        with pytest.raises(UpstreamError, match="credentials") as refused:
            await rerank(engine, "fox", "fox")
    assert not refused.value.retryable
    assert "sk-wrong-key" not in f"{refused.value} {refused.value.detail} {refused.value.data}"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"dialect": "tei"}, "url"),
        ({"dialect": "cohere"}, "model"),
        ({"dialect": "cohere", "model": "m", "max_candidates": 0}, "max_candidates"),
        ({"dialect": "tei", "url": "http://x", "models": ("m",)}, "models"),
    ],
)
def test_settings_that_cannot_work_are_configuration_errors(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RerankerConfig(**given)
    assert refused.value.path == path
