"""What a stored passage says about itself: the metadata keys that every engine of ours reads alike.

A passage is a :class:`~gateway.model.Document` whose ``meta`` may carry these keys, all optional:

=================  ==============================================================  =======================
key                meaning                                                         becomes
=================  ==============================================================  =======================
``title``          what a reader would call it                                     ``citation.title``
``uri``            where it can be opened                                          ``citation.uri``
``source``         what it was taken from, in words or as a path                   ``citation.source``
``path``           the file it was taken from, relative, with forward slashes      ``citation.source`` if there
                                                                                   is no ``source``
``start, end``     its place in that file, in characters; ``end`` is exclusive     ``citation.start, .end``
``page``           the page of that file, the first being 1                        ``citation.page``
``docId``          the document it is a part of; ``path`` if there is none         ``chunk.docId``
``passage``        its number within that document, the first being 0              ``chunk.index``
=================  ==============================================================  =======================

The keys stay in ``meta`` too, so that they can be filtered on. A value of another type is left where it is and makes
no citation. ``gateway.passages`` writes these keys; ids are ``path#passage``, the same whatever engine stores them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from gateway import _json
from gateway.model import Document

__all__ = ["chunk_of", "citation_of", "document_id", "passage_id"]


def citation_of(id: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The hit's ``citation``. Where the metadata gives nothing to cite, the id is the source: it is all there is."""
    citation: dict[str, Any] = {name: meta[name] for name in ("source", "uri", "title") if _text(meta.get(name))}
    if "source" not in citation and _text(meta.get("path")):
        citation["source"] = meta["path"]
    if not citation:
        return {"source": id}
    for name in ("start", "end", "page"):
        if _count(meta.get(name)):
            citation[name] = meta[name]
    return citation


def chunk_of(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """The hit's ``chunk``, ``None`` if the metadata does not say of which document it is a part."""
    chunk: dict[str, Any] = {}
    document = meta.get("docId", meta.get("path"))
    if _text(document):
        chunk["docId"] = document
    if _count(meta.get("passage")):
        chunk["index"] = meta["passage"]
    return chunk or None


def passage_id(path: str, number: int) -> str:
    """The id of a file's passage: ``docs/a.md#3``."""
    return f"{path}#{number}"


def document_id(document: Document) -> str:
    """The id to store a document under: its own, as text, else one made from its text and metadata.

    The made one never depends on a position, so that the same document gets the same id from every call and engine.
    """
    given = document.id
    if given is None:
        seal = hashlib.sha256(_json.mend(document.text).encode())
        seal.update(repr(sorted((document.meta or {}).items())).encode("utf-8", "replace"))
        return f"sha256:{seal.hexdigest()[:32]}"
    if isinstance(given, float) and given.is_integer():
        given = int(given)  # JSON does not tell 7 from 7.0
    return _json.mend(str(given))


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
