"""Documents as Pinecone stores them.

Metadata there is flat: strings, numbers (doubles), booleans and lists of strings, 40 KB a record, keys without a ``$``
in front. Null and ``[]`` are absent in the gateway's meaning and are left out; whatever else cannot be stored is
refused with its place, before anything is written. Nothing is changed on the way but dates of a field that is declared
to hold milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, Final

from gateway.errors import UpstreamError, invalid_params
from gateway.filters import MAX_SAFE_INTEGER, Instant, read_rfc3339
from gateway.model import Document
from gateway.spi.codec import dumps, mend
from gateway.spi.passage import document_id
from gateway_pinecone.settings import FieldSettings, PineconeConfig

__all__ = ["Record", "Records", "batches", "is_id"]

Record = dict[str, Any]

_ID_LENGTH: Final = 512
_METADATA_BYTES: Final = 40 * 1024
_REQUEST_BYTES: Final = 2_000_000
"""Pinecone takes 2 MB; what stands around the records needs a little."""


def is_id(id: str) -> bool:
    """Whether Pinecone can have a record of this id at all."""
    return 0 < len(id) <= _ID_LENGTH and id.isascii() and "\0" not in id


class Records:
    """Makes the records of one index: vectors with metadata, or flat ones that Pinecone embeds itself."""

    def __init__(self, config: PineconeConfig) -> None:
        self._config = config
        self._text = config.text_fields[0]

    def read(self, documents: Sequence[Document]) -> tuple[list[str], list[Record]]:
        """The documents' ids, one each, and the records: of documents with one id the last one stays."""
        ids = [document_id(document) for document in documents]
        latest = {id: (index, document) for index, (id, document) in enumerate(zip(ids, documents, strict=True))}
        return ids, [self._record(id, index, document) for id, (index, document) in latest.items()]

    def _record(self, id: str, index: int, document: Document) -> Record:
        path = f"documents[{index}]"
        if not is_id(id):
            raise invalid_params(f"Pinecone takes ids of 1 to {_ID_LENGTH} ASCII characters", field=f"{path}.id")
        metadata = self._metadata(document, path)
        size = len(dumps(metadata))
        if size > _METADATA_BYTES:
            raise invalid_params(
                f"text and metadata take {size} bytes and Pinecone stores {_METADATA_BYTES} of a record: "
                "cut the text into passages",
                field=f"{path}.text",
            )
        if self._config.inference:
            return {"_id": id, **metadata}
        vector, dimension = document.vector or [], self._config.dimension
        if not vector or (dimension and len(vector) != dimension):
            raise UpstreamError(
                f"a document's vector has {len(vector)} dimensions and the index {dimension or 'at least one'}: use "
                "the embedder that the index was filled with"
            )
        return {"id": id, "values": [float(number) for number in vector], "metadata": metadata}

    def _metadata(self, document: Document, path: str) -> dict[str, Any]:
        reserved = {self._text, "_id", "id"} if self._config.inference else {self._text}
        stored: dict[str, Any] = {}
        for name, value in (document.meta or {}).items():
            where = f"{path}.meta.{name}"
            if value is None or (isinstance(value, list | tuple) and not value):
                continue
            if name in reserved:
                raise invalid_params(f"the metadata key {name!r} is taken by this engine's records", field=where)
            if name.startswith("$"):
                raise invalid_params("Pinecone keeps keys that start with $ for itself", field=where)
            stored[name] = self._value(name, value, where)
        stored[self._text] = mend(document.text)
        return stored

    def _value(self, name: str, value: Any, where: str) -> Any:
        field = self._config.field(name)
        if field is not None:
            value = _kept(field, value, where)
        match value:
            case bool():
                return value
            case str():
                return mend(value)
            case int():
                if abs(value) > MAX_SAFE_INTEGER:
                    raise invalid_params("Pinecone stores doubles, which cannot hold this integer", field=where)
                return value
            case float() if isfinite(value):
                return value
            case list() | tuple() if all(isinstance(item, str) for item in value):
                return [mend(item) for item in value]
            case _:
                raise invalid_params(
                    "Pinecone stores strings, numbers, booleans and lists of strings; put nested values into keys of "
                    "their own",
                    field=where,
                )


def _kept(field: FieldSettings, value: Any, where: str) -> Any:
    """What the declaration says of a field has to stay true: filters are translated by it."""
    if isinstance(value, list | tuple) and not field.multi:
        raise invalid_params("this field is not declared to hold lists (multi: true)", field=where)
    if field.type == "date" and field.dates == "epoch_ms" and isinstance(value, str):
        micros = read_rfc3339(value)
        whole = None if micros is None else Instant(micros).epoch_ms()
        if whole is None:
            raise invalid_params("this field holds dates to the millisecond (dates: epoch_ms)", field=where)
        return whole
    if field.clean and not all(_fits(field, item) for item in (value if isinstance(value, list | tuple) else [value])):
        raise invalid_params(f"this field is declared to hold {field.type} and nothing else (clean: true)", field=where)
    return value


def _fits(field: FieldSettings, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match field.type:
        case "keyword" | "text":
            return isinstance(value, str)
        case "int":
            return number and float(value).is_integer()
        case "float":
            return number
        case "bool":
            return isinstance(value, bool)
        case "date" if field.dates == "epoch_ms":
            return number and float(value).is_integer()
        case "date":
            return isinstance(value, str) and read_rfc3339(value) is not None
        case _:
            return True


def batches(records: Sequence[Record], most: int) -> Iterator[list[Record]]:
    """The records in requests of at most ``most`` and 2 MB; one that is larger goes alone, for Pinecone to judge."""
    batch: list[Record] = []
    size = 0
    for record in records:
        length = len(dumps(record)) + 1
        if batch and (len(batch) == most or size + length > _REQUEST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += length
    if batch:
        yield batch
