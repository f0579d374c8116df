"""An embedder without a service and without a neural network: one table, read from an installed wheel.

The table is WordLlama's ``l2_supercat``, 256 numbers for each of 32,000 tokens. A text's vector is the mean of its
tokens' rows, scaled to length 1; that is the whole model. Only the wheel's own two files are read. The package itself
is never imported and its loader never called: it looks in the wrong folder and then asks a model hub.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from gateway.errors import ConfigError, PluginError
from gateway.model import Capabilities, EmbedCapability
from gateway.spi import Call, EmbedQuery, EmbedReply, Engine, EngineConfig, EngineContext, EngineKind
from gateway.spi.codec import mend

__all__ = ["DIMENSION", "IDENTITY", "StaticEmbedder", "StaticEmbedderConfig", "StaticEmbedderKind"]

DIMENSION = 256
IDENTITY = "wordllama/l2_supercat_256"

_PACKAGE = "wordllama"
_TABLE = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_TENSOR = "embedding.weight"
_INLINE_CHARACTERS = 2_000
"""About 0.7 ms of one core; what is longer goes to a thread, so that the event loop never waits for it."""

_BLANK = (1 / 16,) * DIMENSION
"""The vector of a text without a token, that is of ``""``. Cosine is not defined for a zero vector and stores refuse it
or answer NaN, so this is a vector of length 1 like any other: equal parts of every dimension, near to no real text."""


class StaticEmbedderConfig(EngineConfig, frozen=True, kw_only=True):
    """``batch_limit`` is how many texts one call may bring."""

    batch_limit: int = 256

    def __post_init__(self) -> None:
        if self.batch_limit < 1:
            raise ConfigError("must be at least 1", path="batch_limit")


class _Model(Protocol):
    def __call__(self, text: str) -> tuple[float, ...]:
        """The text's vector, of length 1."""


class StaticEmbedder(Engine):
    """Holds the table, 16 MB. Texts are embedded one after the other; nothing here keeps state between calls."""

    def __init__(self, model: _Model, config: StaticEmbedderConfig, context: EngineContext) -> None:
        self._model = model
        self._config = config
        self._context = context

    def capabilities(self) -> Capabilities:
        return _capabilities(self._config)

    async def embed(self, query: EmbedQuery, call: Call) -> EmbedReply:
        """``kind`` makes no difference: queries and documents are embedded alike."""
        inputs, model = query.inputs, self._model
        if sum(map(len, inputs)) <= _INLINE_CHARACTERS:
            return EmbedReply(vectors=tuple(map(model, inputs)))
        return EmbedReply(vectors=await self._context.run_blocking(lambda: tuple(map(model, inputs))))


class StaticEmbedderKind(EngineKind[StaticEmbedderConfig]):
    name = "static-embedder"
    config = StaticEmbedderConfig
    summary = "embeds offline from a table inside an installed wheel: no service, no network, 0.1 ms a query"
    extra = "local"

    def offers(self, config: StaticEmbedderConfig) -> Capabilities:
        return _capabilities(config)

    def requires(self, config: StaticEmbedderConfig) -> Sequence[str]:
        return ("numpy", "safetensors", "tokenizers", _PACKAGE)

    @asynccontextmanager
    async def open(self, config: StaticEmbedderConfig, context: EngineContext) -> AsyncIterator[Engine]:
        yield StaticEmbedder(await context.run_blocking(_load), config, context)


def _capabilities(config: StaticEmbedderConfig) -> Capabilities:
    return Capabilities(
        embed=EmbedCapability(
            dimension=DIMENSION,
            identity=IDENTITY,
            batch_limit=config.batch_limit,
            normalized=True,
            modalities=("text",),
        )
    )


def _load() -> _Model:
    """Reads the two files: 0.3 s. Raises ``PluginError`` if a package is missing or another release lies there."""
    try:
        import numpy
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError as error:
        raise PluginError(_missing(error.name or "a package")) from None
    folder = _folder()
    try:
        table: Any = load_file(folder / _TABLE)[_TENSOR]
        tokenizer: Any = Tokenizer.from_file(str(folder / _TOKENIZER))
    except Exception as error:  # noqa: BLE001  # both libraries raise bare Exceptions
        raise PluginError(
            f"the files of the installed {_PACKAGE} cannot be read ({type(error).__name__}): "
            'install the release that this gateway knows with pip install "rcp-gateway[local]"'
        ) from None
    if table.ndim != 2 or table.shape[1] != DIMENSION:
        raise PluginError(f"the table of the installed {_PACKAGE} is not {DIMENSION} wide: another release lies there")

    def embed(text: str) -> tuple[float, ...]:
        tokens = tokenizer.encode(mend(text), add_special_tokens=False).ids
        if not tokens:
            return _BLANK
        mean = table[tokens].mean(axis=0, dtype=numpy.float32)
        length = float(numpy.sqrt(mean @ mean))
        return tuple((mean / length).tolist()) if length > 0 else _BLANK

    return embed


def _folder() -> Path:
    """Where the wheel's files are. ``find_spec`` of a top-level package looks for it without running it."""
    spec = find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise PluginError(_missing(_PACKAGE))
    return Path(places[0])


def _missing(package: str) -> str:
    return f'the static embedder needs {package}, which is not installed: pip install "rcp-gateway[local]"'
