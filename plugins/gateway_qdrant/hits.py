"""Points to hits, and documents to points. Both wires speak of points as the REST interface does, in plain values."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

from gateway.errors import invalid_params
from gateway.model import Document, Hit, hit
from gateway.spi import chunk_of, citation_of
from gateway_qdrant.collection import Binding
from gateway_qdrant.settings import Distance, PayloadSettings

__all__ = ["HitReader", "payload_of", "point_id"]

_NAMESPACE = uuid.UUID("7db93745-21f8-525d-9a1d-95ed2b07f55f")
"""Fixed for ever: a document's point is found again by it."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UNSIGNED = re.compile(r"0|[1-9][0-9]{0,19}")
_LOWER_IS_BETTER: frozenset[Distance] = frozenset({"euclid", "manhattan"})


def point_id(id: str) -> int | str:
    """The point that holds a document. Qdrant knows UUIDs and unsigned integers only.

    An id that is one of these, spelt as Qdrant spells it, is kept, so that points which somebody else wrote can be
    replaced and deleted by the id their hits have; any other becomes a UUID made from it.
    """
    if _UUID.fullmatch(id):
        return id
    if _UNSIGNED.fullmatch(id) and int(id) < 2**64:
        return int(id)
    return str(uuid.uuid5(_NAMESPACE, id))


def payload_of(document: Document, id: str, layout: PayloadSettings) -> dict[str, Any]:
    """A document's payload. A metadata key that means something else in a flat payload is refused, not overwritten."""
    own = {layout.id: id, layout.text[0]: document.text}
    meta = document.meta or {}
    if layout.meta:
        return {**own, layout.meta: meta}
    if taken := meta.keys() & {layout.id, *layout.text}:
        name = min(taken)
        raise invalid_params(f"the metadata key {name!r} is taken by this engine's payload", field=f"meta.{name}")
    return {**meta, **own}


class HitReader:
    """Reads one collection's points."""

    def __init__(
        self, layout: PayloadSettings, bindings: Mapping[str, Binding], vector: str | None, distance: Distance | None
    ) -> None:
        self._layout = layout
        self._projected = [(name, field.path) for name, field in bindings.items() if field.path is not None]
        self._vector = vector
        self._negated = distance in _LOWER_IS_BETTER

    def read(self, point: Mapping[str, Any], *, is_distance: bool, include_text: bool = True) -> Hit:
        """One scored point. ``is_distance`` if its score is the distance of the dense vector, as the engine has it.

        A payload may hold anything, so whatever does not fit is left out and the hit stays.
        """
        layout = self._layout
        payload = _payload(point)
        given = self._id(point)
        meta = self._meta(payload)
        cited = {**meta, **{name: meta.get(key) for name, key in layout.citation.items()}} if layout.citation else meta
        return hit(
            given,
            self._score(point.get("score"), is_distance),
            text=self._text(payload) if include_text else None,
            meta=meta or None,
            citation=citation_of(given, cited),
            chunk=chunk_of(cited),
            vector=self._dense(point.get("vector")),
        )

    def ordered(self, points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Points of merged lists by score, those of one score by the document's id."""
        return sorted(points, key=lambda point: (-self._rank(point), self._id(point), str(point["id"])))

    def cuts_a_tie(self, points: Sequence[Mapping[str, Any]], k: int) -> bool:
        """Whether the last of these points has the score of the ``k``-th: others of that score may be missing."""
        return len(points) > k and self._rank(points[k - 1]) == self._rank(points[-1])

    def _rank(self, point: Mapping[str, Any]) -> float:
        score = self._score(point.get("score"), is_distance=False)
        return -inf if score is None else score

    def _id(self, point: Mapping[str, Any]) -> str:
        """The document's own id, that of the point if there is none."""
        own = _payload(point).get(self._layout.id)
        return str(own if isinstance(own, str | int) and not isinstance(own, bool) else point["id"])

    def _score(self, score: Any, is_distance: bool) -> float | None:
        """Higher is better, whatever the engine thinks."""
        if isinstance(score, bool) or not isinstance(score, int | float) or not isfinite(score):
            return None
        # Not -0.0, which an exact match would have.
        return 0.0 - score if is_distance and self._negated else float(score)

    def _text(self, payload: Mapping[str, Any]) -> str | None:
        return next((payload[key] for key in self._layout.text if isinstance(payload.get(key), str)), None)

    def _meta(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        layout = self._layout
        if layout.meta:
            found = payload.get(layout.meta)
            meta = dict(found) if isinstance(found, Mapping) else {}
        else:
            reserved = {layout.id, *layout.text}
            meta = {key: value for key, value in payload.items() if key not in reserved}
        for name, path in self._projected:
            value = _at(payload, path)
            if value is not None:
                meta[name] = value
        return meta

    def _dense(self, vector: Any) -> Sequence[float] | None:
        if isinstance(vector, Mapping):
            vector = vector.get(self._vector or "")
        return vector if isinstance(vector, list) and vector and isinstance(vector[0], int | float) else None


def _payload(point: Mapping[str, Any]) -> Mapping[str, Any]:
    payload = point.get("payload")
    return payload if isinstance(payload, Mapping) else {}


def _at(payload: Mapping[str, Any], path: Sequence[str]) -> Any:
    """The value at a path through objects; arrays on the way end it, as they do for Qdrant."""
    value: Any = payload
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
