"""The ``with:`` part of an engine of kind ``qdrant``; README.md has them as a table."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Literal, get_args

import msgspec

from gateway.errors import ConfigError
from gateway.secret import Secret
from gateway.spi import EngineConfig, Mode

__all__ = [
    "DenseSettings",
    "Distance",
    "FieldSettings",
    "FieldType",
    "HybridSettings",
    "PayloadSettings",
    "QdrantConfig",
    "SearchSettings",
    "SparseSettings",
    "VectorSettings",
    "modes_of",
]

Distance = Literal["cosine", "dot", "euclid", "manhattan"]
_CITED = frozenset({"title", "uri", "source", "path", "start", "end", "page", "docId", "passage"})
FieldType = Literal["keyword", "text", "int", "float", "bool", "date", "geo"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A nested part of the settings: unknown keys are configuration errors here too."""


class DenseSettings(_Part, frozen=True):
    """A dense vector. ``name`` is ``""`` for a collection's unnamed vector; without it, the only one there is.

    ``dimension`` and ``distance`` are needed to create an embedded collection; of one that exists they are read, and
    compared with what is given here.
    """

    name: str | None = None
    dimension: int = 0
    distance: Distance | None = None

    def __post_init__(self) -> None:
        if self.dimension < 0:
            raise ConfigError("must not be negative", path="dimension")


class SparseSettings(_Part, frozen=True):
    """A sparse vector with BM25 weights. Without ``name`` it is the only one there is.

    ``encoder`` is who makes the weights of a text: ``local`` is the embedded engine's BM25 in this process, ``server``
    the collection's server (``qdrant/bm25``, from 1.15.2). ``auto`` is local for ``path:`` and server for ``url:``.
    The other settings must be those that the documents were indexed with. ``average_length`` counts tokens.
    """

    name: str | None = None
    encoder: Literal["auto", "local", "server"] = "auto"
    language: str = "english"
    k: float = 1.2
    b: float = 0.75
    average_length: float = 256.0

    def __post_init__(self) -> None:
        if not (isfinite(self.k) and self.k >= 0):
            raise ConfigError("must not be negative", path="k")
        if not 0 <= self.b <= 1:
            raise ConfigError("must lie in [0, 1]", path="b")
        if not (isfinite(self.average_length) and self.average_length > 0):
            raise ConfigError("must be above 0", path="average_length")
        if self.name == "":
            raise ConfigError("a sparse vector has a name", path="name")


class VectorSettings(_Part, frozen=True):
    """What can be searched: dense, sparse, or both, which offers ``hybrid`` too."""

    dense: DenseSettings | None = None
    sparse: SparseSettings | None = None


class HybridSettings(_Part, frozen=True):
    """How Qdrant fuses the two lists. ``rrf`` sums 1/(rrf_k + rank/weight), ranks counted from 1.

    That is Qdrant's own way to weigh, found by experiment: it divides the rank where others multiply the share.
    """

    fusion: Literal["rrf", "dbsf"] = "rrf"
    rrf_k: int = 60
    dense_weight: float = 1.0
    sparse_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.rrf_k < 0:
            raise ConfigError("must not be negative", path="rrf_k")
        for name in ("dense_weight", "sparse_weight"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError("must be above 0", path=name)


class FieldSettings(_Part, frozen=True):
    """A metadata field that can be filtered on.

    ``path`` is where it stands in the payload, dotted, if not under the metadata by its own name. ``dates`` is how
    dates are stored: RFC 3339 text or milliseconds since 1970. ``clean`` promises that every stored value is of the
    declared type: integers are whole, dates are spelt as RFC 3339 has it. Without it, conditions that Qdrant answers
    otherwise for values that are not are checked by the gateway too, and their negations are checked only there.
    """

    type: FieldType
    path: str | None = None
    dates: Literal["rfc3339", "epoch_ms"] = "rfc3339"
    clean: bool = False

    def __post_init__(self) -> None:
        if self.path is not None and not all(self.path.split(".")):
            raise ConfigError("must be names joined by dots", path="path")


class PayloadSettings(_Part, frozen=True):
    """Where things stand in a point's payload.

    ``id`` holds the document's own id (the point's id where it is missing), ``text`` lists the keys that may hold the
    text, first come first served; the first is written by ``index/add``. ``meta`` is the key of the metadata, ``""`` if
    all other keys of the payload are the metadata. ``citation`` says what other writers call what
    ``gateway/spi/passage.py`` makes a citation from, as in ``{uri: url, source: file_name}``.
    """

    id: str = "id"
    text: tuple[str, ...] = ("text",)
    meta: str = "meta"
    citation: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if not self.id:
            raise ConfigError("must not be empty", path="id")
        if not self.text or not all(self.text):
            raise ConfigError("needs at least one key", path="text")
        if self.id in self.text or self.meta in (self.id, *self.text):
            raise ConfigError("id, text and meta must be different keys")
        for name in self.citation:
            if name not in _CITED:
                raise ConfigError(f"is none of {', '.join(sorted(_CITED))}", path=f"citation.{name}")


class SearchSettings(_Part, frozen=True):
    """The engine's own search parameters; ``exact`` looks at every vector instead of walking the index."""

    exact: bool = False
    hnsw_ef: int | None = None
    indexed_only: bool = False


class QdrantConfig(EngineConfig, frozen=True, kw_only=True):
    """Exactly one of ``path`` and ``url``. See the nested parts.

    ``embedder`` is the id of the engine that makes dense vectors, ``embedder_identity`` whose vectors the collection
    holds; an embedded collection remembers that by itself. ``max_k`` bounds ``k``. ``native`` lists what the
    server does instead of the gateway when it is the only engine asked. ``manage_indexes`` keeps the payload indexes of
    an embedded collection in step with ``fields``. ``batch`` is how many points one write holds.
    """

    path: Path | None = None
    url: str | None = None
    collection: str | None = None
    api_key: Secret | None = None
    embedder: str | None = None
    embedder_identity: str | None = None
    vectors: VectorSettings = VectorSettings()
    default_mode: Mode | None = None
    hybrid: HybridSettings = HybridSettings()
    fields: Mapping[str, str | FieldSettings] = {}
    payload: PayloadSettings = PayloadSettings()
    search: SearchSettings = SearchSettings()
    native: tuple[Literal["mmr", "recency"], ...] = ()
    max_k: int = 1_000
    writable: bool | None = None
    manage_indexes: bool = True
    batch: int = 128

    def __post_init__(self) -> None:
        if (self.path is None) == (self.url is None):
            raise ConfigError("give either path (embedded) or url (a server)")
        if self.url is not None and not self.collection:
            raise ConfigError("is required with url", path="collection")
        if self.path is not None and (self.collection or self.api_key):
            raise ConfigError("an embedded engine has neither collection nor api_key")
        if self.vectors.dense is None and self.vectors.sparse is None:
            raise ConfigError("needs dense, sparse or both", path="vectors")
        if self.vectors.dense is not None and not self.embedder:
            raise ConfigError("a dense vector needs the id of an engine that embeds", path="embedder")
        if self.embedder_identity is not None and not (self.embedder_identity and self.embedder):
            raise ConfigError("names whose vectors the store holds; needs an embedder", path="embedder_identity")
        if self.path is not None and self.vectors.sparse is not None and self.vectors.sparse.encoder == "server":
            raise ConfigError("an embedded engine has no server to encode text", path="vectors.sparse.encoder")
        if self.default_mode is not None and self.default_mode not in modes_of(self):
            raise ConfigError(f"must be one of {', '.join(modes_of(self))}", path="default_mode")
        if "mmr" in self.native and modes_of(self) != ("dense",):
            raise ConfigError("mmr works on dense search alone: leave the sparse vector out", path="native")
        for name, declared in self.fields.items():
            if isinstance(declared, str) and declared not in get_args(FieldType):
                raise ConfigError(f"must be one of {', '.join(get_args(FieldType))}", path=f"fields.{name}")
        if self.max_k < 1:
            raise ConfigError("must be at least 1", path="max_k")
        if not 1 <= self.batch <= 1_000:
            raise ConfigError("must lie in [1, 1000]", path="batch")

    @property
    def is_writable(self) -> bool:
        """An embedded collection is ours and writable unless said otherwise; a server's is not unless said so."""
        return self.writable if self.writable is not None else self.path is not None

    def field(self, name: str) -> FieldSettings | None:
        """The declared field, in its long form."""
        declared = self.fields.get(name)
        return FieldSettings(type=declared) if isinstance(declared, str) else declared  # type: ignore[arg-type]


def modes_of(config: QdrantConfig) -> tuple[Mode, ...]:
    """The modes that the configured vectors allow, the best one last."""
    modes: list[Mode] = []
    if config.vectors.dense is not None:
        modes.append("dense")
    if config.vectors.sparse is not None:
        modes.append("sparse")
    if len(modes) == 2:
        modes.append("hybrid")
    return tuple(modes)
