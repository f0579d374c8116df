"""What LlamaCloud returns, as hits. Every field finds a place; what RCP has none for stands under ``x-llamacloud``."""

from __future__ import annotations

import mimetypes
from typing import Any, Final
from urllib.parse import quote, urlencode

from gateway.model import Document, Hit, hit
from gateway.spi import chunk_of, citation_of, document_id
from gateway_llamacloud.settings import LlamaCloudConfig
from gateway_llamacloud.wire import FILE_FIELD, Attachment, Result

__all__ = ["VENDOR", "HitReader"]

VENDOR: Final = "x-llamacloud"
"""The metadata key of what RCP has no member for: ``attachments``, ``chunk_token_count``, ``page_range_end``."""

_ATTACHMENTS: Final = "/api/v1/beta/attachments/"


class HitReader:
    def __init__(self, config: LlamaCloudConfig) -> None:
        self._id_field = config.id_field
        self._root = config.base_url.rstrip("/") if config.attachment_uris else None

    def read(self, result: Result, mode: str, *, include_text: bool) -> Hit:
        static = result.static_fields
        file = static.parsed_directory_file_id
        meta = dict(result.metadata or {})
        id = self.id(result)
        citation = citation_of(file or id, meta)
        places = {
            "start": static.chunk_start_char,
            "end": static.chunk_end_char,
            "page": static.page_range_start,
        }
        citation.update({name: value for name, value in places.items() if value is not None})
        chunk = chunk_of(meta) or {}
        if file is not None:
            chunk["docId"] = file
            # The built-in field is filtered on under its own name, so it has to be there to be checked.
            meta[FILE_FIELD] = file
        if static.chunk_index is not None:
            chunk["index"] = static.chunk_index
        own = {
            "attachments": [
                {"attachment_name": one.attachment_name, "source_id": one.source_id, "type": one.type}
                for one in static.attachments
            ],
            "chunk_token_count": static.chunk_token_count,
            "page_range_end": static.page_range_end,
        }
        kept = {name: value for name, value in own.items() if value not in (None, [])}
        if kept:
            meta[VENDOR] = kept
        scores = {mode: result.score, "rerank": result.rerank_score}
        return hit(
            id,
            # After reranking that is what the results are ordered by.
            result.score if result.rerank_score is None else result.rerank_score,
            text=result.content if include_text else None,
            meta=meta or None,
            citation=citation,
            chunk=chunk or None,
            scores={name: score for name, score in scores.items() if score is not None} or None,
            content=self._content(result, include_text=include_text),
        )

    def id(self, result: Result) -> str:
        """Metadata's own id if the settings name one, else file and chunk, else one made from the content."""
        own = self._own_id(result)
        if own is not None:
            return own
        if self.is_made(result):
            return document_id(Document(text=result.content, meta=dict(result.metadata or {})))
        static = result.static_fields
        return f"{static.parsed_directory_file_id}:{static.chunk_index}"

    def is_made(self, result: Result) -> bool:
        """Whether the result has no id, and lacks file or chunk number, so that an id has to be made of the content."""
        static = result.static_fields
        lacking = static.parsed_directory_file_id is None or static.chunk_index is None
        return lacking and self._own_id(result) is None

    def _own_id(self, result: Result) -> str | None:
        own = (result.metadata or {}).get(self._id_field) if self._id_field is not None else None
        if isinstance(own, str):
            return own or None
        return str(own) if isinstance(own, int) and not isinstance(own, bool) else None

    def _content(self, result: Result, *, include_text: bool) -> list[dict[str, Any]] | None:
        """The passage and its attachments by reference, where the settings let the service's address be told."""
        attachments = result.static_fields.attachments
        if self._root is None or not attachments:
            return None
        text = [{"type": "text", "text": result.content}] if include_text and result.content else []
        return [*text, *(_block(self._root, one) for one in attachments)]


def _block(root: str, one: Attachment) -> dict[str, Any]:
    mime = mimetypes.guess_type(one.attachment_name)[0] or "application/octet-stream"
    uri = f"{root}{_ATTACHMENTS}{quote(one.attachment_name)}?{urlencode({'source_id': one.source_id})}"
    return {"type": "image" if mime.startswith("image/") else "blob", "mimeType": mime, "uri": uri}
