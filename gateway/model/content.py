"""Queries and passages: text or content blocks (RCP section 4.8)."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.model.base import Message

__all__ = ["Content", "Query", "text_of"]


class Content(Message, frozen=True):
    """One block. A body is inline (``data``, base64) or by reference (``uri``), never both."""

    type: str
    text: str | None = None
    mime_type: str | None = None
    data: str | None = None
    uri: str | None = None


Query = str | Content | list[Content]
"""A bare string, one block, or several (schema ``QueryInput``)."""


def text_of(query: str | Content | Sequence[Content]) -> str:
    """The text of a query; several text blocks are joined by a newline, other blocks say nothing here."""
    if isinstance(query, str):
        return query
    blocks = [query] if isinstance(query, Content) else query
    return "\n".join(block.text for block in blocks if block.text is not None)
