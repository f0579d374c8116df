"""What Pinecone returns, as hits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.filters import MAX_SAFE_INTEGER
from gateway.model import Hit, hit
from gateway.spi.passage import chunk_of, citation_of
from gateway_pinecone.settings import FieldSettings

__all__ = ["HitReader", "best_first"]

_PLACES: Final = ("start", "end", "page", "passage")
"""Metadata that becomes whole numbers in a citation or a chunk, declared or not (``gateway.spi.passage``)."""


class HitReader:
    """Reads one index's matches. ``negated`` if a lower score is a better one there."""

    def __init__(
        self,
        fields: Iterable[str],
        field: Callable[[str], FieldSettings | None],
        text_fields: Sequence[str],
        *,
        negated: bool,
    ) -> None:
        declared = {name: settings for name in fields if (settings := field(name)) is not None}
        self._whole = frozenset(
            name
            for name, settings in declared.items()
            if settings.type == "int" or (settings.type == "date" and settings.dates == "epoch_ms")
        )
        self._declared = frozenset(declared)
        self._text_fields = tuple(text_fields)
        self._negated = negated

    def read(
        self,
        id: str,
        score: float,
        metadata: Mapping[str, Any] | None,
        vector: Sequence[float] | None = None,
        *,
        is_distance: bool = True,
        include_text: bool = True,
    ) -> Hit:
        """One match. ``is_distance`` is false for scores of a reranker, which are never distances."""
        found = metadata or {}
        key = self.text_key(found)
        # A text that can be filtered on has to stay in the metadata, where filters are checked.
        hidden = key if key is not None and key not in self._declared else None
        meta = {name: self._restored(name, value) for name, value in found.items() if name != hidden}
        places = {name: _whole(value) if name in _PLACES else value for name, value in meta.items()}
        return hit(
            id,
            # Not -0.0, which an exact match would have.
            0.0 - score if self._negated and is_distance else score,
            text=found[key] if key is not None and include_text else None,
            meta=meta or None,
            citation=citation_of(id, places),
            chunk=chunk_of(places),
            vector=list(vector) if vector else None,
        )

    def text_key(self, metadata: Mapping[str, Any]) -> str | None:
        """Where this record has its text, ``None`` if it has none."""
        return next((name for name in self._text_fields if isinstance(metadata.get(name), str)), None)

    def _restored(self, name: str, value: Any) -> Any:
        """Pinecone keeps every number as a double; one that was declared to be whole is given back as it was."""
        return _whole(value) if name in self._whole else value


def best_first(hits: Iterable[Hit]) -> list[Hit]:
    """By score, then id: filtered matches may come in any order, and fusion takes ranks from it."""
    return sorted(hits, key=lambda one: (-(one.score if one.score is not None else 0.0), one.id))


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_SAFE_INTEGER:
        return int(value)
    return value
