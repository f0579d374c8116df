"""How embedding services are asked and how they answer: one row for each dialect, pure functions in it.

Sources: OpenAI API reference (embeddings), Voyage AI, Cohere v2, Jina AI, text-embeddings-inference and Ollama API
references; shapes and limits as noted in the README.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import BackendUnavailable
from gateway_models.remote import read

__all__ = ["DIALECTS", "Ask", "Dialect", "Vector", "checked", "placed"]

Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: ``type`` is the dialect's word for the side of the search, ``dimensions`` 0 for the model's own."""

    model: str
    texts: Sequence[str]
    type: str | None = None
    dimensions: int = 0


@dataclass(frozen=True, slots=True)
class Dialect:
    """``url`` is the hosted service, ``""`` if there is none; ``batch`` how many texts it takes at once.

    ``query`` and ``document`` are its words for the two sides, if it has any; ``typed`` is the member they go into,
    ``None`` if it takes none. ``over`` finds in its words that a request was too large as a whole.
    """

    path: str
    batch: int
    body: Callable[[Ask], dict[str, Any]]
    read: Callable[[bytes], Iterable[tuple[int, Vector]]]
    over: re.Pattern[str]
    url: str = ""
    version: str = ""
    typed: str | None = None
    query: str | None = None
    document: str | None = None
    shortens: str | None = None
    normalized: bool | None = None

    def request(self, ask: Ask) -> dict[str, Any]:
        body = self.body(ask)
        if self.typed is not None and ask.type:
            body[self.typed] = ask.type
        if self.shortens is not None and ask.dimensions:
            body[self.shortens] = ask.dimensions
        return body


class _Row(msgspec.Struct):
    embedding: Vector
    index: int | None = None


class _Rows(msgspec.Struct):
    data: list[_Row]


class _Lists(msgspec.Struct):
    embeddings: list[Vector]


class _Floats(msgspec.Struct):
    float: list[Vector]


class _Typed(msgspec.Struct):
    embeddings: _Floats


def _indexed(body: bytes) -> Iterable[tuple[int, Vector]]:
    """OpenAI's shape. Some servers leave the index out; then the order is the input's."""
    rows = read(body, _Rows).data
    return [(place if row.index is None else row.index, row.embedding) for place, row in enumerate(rows)]


def _listed(body: bytes) -> Iterable[tuple[int, Vector]]:
    return enumerate(read(body, _Lists).embeddings)


def _typed(body: bytes) -> Iterable[tuple[int, Vector]]:
    return enumerate(read(body, _Typed).embeddings.float)


def _bare(body: bytes) -> Iterable[tuple[int, Vector]]:
    return enumerate(read(body, list[Vector]))


def _over(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE)


DIALECTS: Mapping[str, Dialect] = {
    # 2048 are allowed, but an answer of 256 vectors of 3072 numbers is 16 MB already.
    "openai": Dialect(
        "embeddings",
        256,
        lambda ask: {"model": ask.model, "input": ask.texts, "encoding_format": "float"},
        _indexed,
        _over(r"array length|maximum length|array too long|batch|too many|max(imum)?[ _]tokens[ _]per[ _]request"),
        url="https://api.openai.com",
        version="v1",
        typed="input_type",
        shortens="dimensions",
    ),
    "voyage": Dialect(
        "embeddings",
        128,
        lambda ask: {"model": ask.model, "input": ask.texts, "truncation": True},
        _indexed,
        _over(r"batch"),
        url="https://api.voyageai.com",
        version="v1",
        typed="input_type",
        query="query",
        document="document",
        shortens="output_dimension",
        normalized=True,
    ),
    "cohere": Dialect(
        "embed",
        96,
        lambda ask: {"model": ask.model, "texts": ask.texts, "embedding_types": ["float"], "truncate": "END"},
        _typed,
        _over(r"number of (texts|inputs)|too many|at most \d+"),
        url="https://api.cohere.com",
        version="v2",
        typed="input_type",
        query="search_query",
        document="search_document",
        shortens="output_dimension",
    ),
    "jina": Dialect(
        "embeddings",
        256,
        lambda ask: {"model": ask.model, "input": ask.texts, "embedding_type": "float", "truncate": True},
        _indexed,
        _over(r"batch|too many|at most \d+|max(imum)? length"),
        url="https://api.jina.ai",
        version="v1",
        typed="task",
        query="retrieval.query",
        document="retrieval.passage",
        shortens="dimensions",
        normalized=True,
    ),
    "tei": Dialect(
        "embed",
        32,
        lambda ask: {"inputs": ask.texts, "normalize": True, "truncate": True},
        _bare,
        _over(r"batch size"),
        typed="prompt_name",
        normalized=True,
    ),
    "ollama": Dialect(
        "embed",
        64,
        lambda ask: {"model": ask.model, "input": ask.texts, "truncate": True},
        _listed,
        _over(r"batch|too many"),
        url="http://127.0.0.1:11434",
        version="api",
        shortens="dimensions",
        normalized=True,
    ),
}


def placed(found: Iterable[tuple[int, Vector]], count: int) -> tuple[Vector, ...]:
    """The vectors in the order of the texts, whatever order they came in. Raises ``BackendUnavailable``."""
    places: list[Vector | None] = [None] * count
    for index, vector in found:
        if not 0 <= index < count:
            raise BackendUnavailable(f"the service gave a vector for text {index}, and there are {count}")
        if places[index] is not None:
            raise BackendUnavailable(f"the service gave two vectors for text {index}")
        places[index] = vector
    whole = tuple(one for one in places if one is not None)
    if len(whole) < count:
        raise BackendUnavailable(f"the service gave {len(whole)} vectors for {count} texts")
    return whole


def checked(vectors: Sequence[Vector], dimension: int) -> int:
    """The one dimension all vectors have, ``dimension`` if that is not 0. Raises ``BackendUnavailable``."""
    for vector in vectors:
        dimension = dimension or len(vector)
        if len(vector) != dimension or not dimension:
            raise BackendUnavailable(
                f"the service gave a vector of {len(vector)} numbers where {dimension or 'some'} are expected: "
                "another model answers, or the dimensions in the settings are not its own",
                retryable=False,
            )
        # NaN and infinity go through a sum; only then is it worth looking at every number.
        if not abs(sum(vector)) < float("inf"):
            raise BackendUnavailable("the service gave a vector with a number that is not finite")
    return dimension
