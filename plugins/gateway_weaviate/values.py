"""Objects to hits, and documents to objects."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

from gateway.errors import invalid_params
from gateway.filters import Instant, stored_micros
from gateway.model import Document, Hit, hit
from gateway.spi.engine import Mode
from gateway.spi.passage import chunk_of, citation_of
from gateway_weaviate.schema import Property
from gateway_weaviate.settings import WeaviateConfig

__all__ = ["HitReader", "object_id", "plain", "properties_of"]

_NAME: Final = re.compile(r"[_A-Za-z][_0-9A-Za-z]{0,230}")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
_RESERVED: Final = frozenset({"id", "vector"})
_EARLIEST: Final = Instant(-(2**63) // 1000 + 1)
_LATEST: Final = Instant(2**63 // 1000 - 1)


def object_id(id: str) -> str:
    """The UUID that a document is stored under: its own id if that is one, else ``generate_uuid5`` of it.

    So objects that somebody else wrote can be replaced and deleted by the id that their hits have.
    """
    return id if _UUID.fullmatch(id) else str(uuid.uuid5(uuid.NAMESPACE_DNS, id))


def plain(value: Any) -> Any:
    """A property's value as JSON has it: dates in RFC 3339, UUIDs as text, coordinates as ``{lat, lon}``."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, datetime):
        return _rfc3339(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, uuid.UUID):
        return str(value)
    latitude, longitude = getattr(value, "latitude", None), getattr(value, "longitude", None)
    if isinstance(latitude, float) and isinstance(longitude, float):
        return {"lat": latitude, "lon": longitude}
    number = getattr(value, "international_formatted", None) or getattr(value, "number", None)
    return number if isinstance(number, str) else str(value)


def _rfc3339(value: datetime) -> str:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    try:
        return aware.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:  # the first and the last hours of the calendar, in another zone
        return aware.isoformat()


class HitReader:
    """Reads the objects of one collection. ``distance`` is the metric of the vector that is searched by."""

    def __init__(
        self, config: WeaviateConfig, properties: Mapping[str, Property], vector: str | None, distance: str | None
    ) -> None:
        self._config = config
        self._vector = vector or "default"
        self._distance = distance
        own = {config.id_field, *config.text_fields}
        # A field that can be filtered on has to be seen by whoever checks the hits.
        self._hidden = {name for name in own if name not in properties or properties[name].type is None}

    def read(self, found: Any, mode: Mode, *, include_text: bool, wanted: frozenset[str] = frozenset()) -> Hit:
        config = self._config
        properties: dict[str, Any] = {
            name: value for name, one in found.properties.items() if (value := plain(one)) is not None
        }
        given = properties.get(config.id_field)
        id_ = given if isinstance(given, str) and given else str(found.uuid)
        meta = {name: value for name, value in properties.items() if name not in self._hidden or name in wanted}
        score = self._score(found.metadata, mode)
        cited = {
            **meta,
            **{
                member: properties[name]
                for member, name in (("title", config.title_field), ("uri", config.uri_field))
                if isinstance(properties.get(name), str)
            },
        }
        return hit(
            id_,
            score,
            text=self.text(properties) if include_text else None,
            meta=meta or None,
            citation=citation_of(id_, cited),
            chunk=chunk_of(meta),
            vector=self._vector_of(found.vector),
            scores=None if score is None else {mode: score},
        )

    def text(self, properties: Mapping[str, Any]) -> str | None:
        return next(
            (properties[name] for name in self._config.text_fields if isinstance(properties.get(name), str)), None
        )

    def _score(self, metadata: Any, mode: Mode) -> float | None:
        """Higher is better; ``None`` where Weaviate gave none, which is not the same as zero."""
        if mode != "dense":
            return _finite(metadata.score)
        distance = _finite(metadata.distance)
        if distance is not None:
            return 1.0 - distance if self._distance == "cosine" else 0.0 - distance
        certainty = _finite(metadata.certainty)
        return None if certainty is None or self._distance != "cosine" else 2.0 * certainty - 1.0

    def _vector_of(self, vectors: Any) -> list[float] | None:
        found = vectors.get(self._vector) if isinstance(vectors, Mapping) else None
        if not isinstance(found, Sequence) or not found or not isinstance(found[0], int | float):
            return None
        return [float(one) for one in found]


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def properties_of(
    document: Document, id: str, config: WeaviateConfig, properties: Mapping[str, Property], where: str
) -> dict[str, Any]:
    """A document's properties, each spelt as its type wants it. ``where`` is the document's path in the request.

    Raises ``-32602`` for what Weaviate could not hold, so that nothing comes back as something else.
    """
    found: dict[str, Any] = {}
    for name, value in (document.meta or {}).items():
        if value is None:
            continue
        path = f"{where}.meta.{name}"
        if name in _RESERVED or name == config.id_field or name == config.text_fields[0]:
            raise invalid_params(f"the metadata key {name[:80]!r} is taken by this engine", field=path)
        if not _NAME.fullmatch(name):
            raise invalid_params("not a name that Weaviate takes: letters, digits and _ only", field=path)
        known = properties.get(name)
        if isinstance(value, list):
            if any(item is None for item in value):
                raise invalid_params("Weaviate stores no null in a list", field=path)
            found[name] = [_stored(item, known, path) for item in value]
        else:
            found[name] = _stored(value, known, path)
    return {**found, config.text_fields[0]: document.text, config.id_field: id}


def _stored(value: Any, known: Property | None, path: str) -> Any:
    match None if known is None else known.base:
        case "int" if isinstance(value, float) and value.is_integer():
            return int(value)
        case "number" if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        case "date":
            return _date(value, path)
        case _:
            return value


def _date(value: Any, path: str) -> str:
    """RFC 3339 with an offset. What has one is kept digit for digit; a date alone, a naive time or milliseconds are
    written as the instants that they are for a filter."""
    micros = stored_micros(value)
    if micros is None or not _EARLIEST.micros <= micros <= _LATEST.micros:
        raise invalid_params("not a date that Weaviate can store", field=path)
    return value if isinstance(value, str) and _DATE.fullmatch(value) else Instant(micros).rfc3339()
