"""What is asked of an upstream: parameters made of checked values, within what it advertises, never of client JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.errors import option_unsupported
from gateway.model import Capabilities, Content, Document, RecencyOptions, RerankOptions, RetrieveCapability
from gateway.spi.codec import mend
from gateway.spi.engine import EngineQuery, RerankQuery

__all__ = ["add_params", "clamp", "mended", "rerank_params", "retrieve_params"]

_TEXT_ONLY = ("text",)


def clamp(wanted: int, bound: int | None) -> int:
    return wanted if bound is None else min(wanted, bound)


def retrieve_params(query: EngineQuery, capabilities: Capabilities) -> dict[str, Any]:
    """The parameters of ``retrieve`` (RCP section 7.7). What the upstream does not advertise is not in them.

    ``k`` is always sent, within the upstream's ``maxK``; ``candidateK >= rerank.topN >= k`` holds (section 3.3).
    """
    offered = capabilities.retrieve or RetrieveCapability()
    k = clamp(query.k, offered.max_k)
    params: dict[str, Any] = {"query": _query(query, offered), "k": k}
    if query.filter is not None:
        params["filter"] = query.filter
    if not query.include_text:
        params["includeText"] = False
    if query.include_vectors:
        params["includeVectors"] = True
    params.update(_choices(query, offered))
    if query.mmr is not None and offered.mmr:
        params["mmr"] = _plain(query.mmr)
    if query.recency is not None and _ages(query.recency, capabilities):
        params["recency"] = _plain(query.recency)
    funnel = k
    if query.rerank is not None and offered.rerank_builtin:
        params["rerank"] = _rerank(query.rerank, capabilities, k)
        funnel = params["rerank"].get("topN", k) if isinstance(params["rerank"], dict) else k
    if query.candidate_k is not None:
        params["candidateK"] = max(funnel, clamp(query.candidate_k, offered.max_k))
    return params


def _query(query: EngineQuery, offered: RetrieveCapability) -> str | list[dict[str, Any]]:
    foreign = any(block.type != "text" for block in query.content)
    if not foreign:
        return mend(query.text)
    if set(offered.modalities or _TEXT_ONLY) <= set(_TEXT_ONLY):
        raise option_unsupported("the engine reads text only", option="modality", field="query")
    return [_block(block) for block in query.content]


def _block(block: Content) -> dict[str, Any]:
    return {name: mend(value) for name, value in _plain(block).items()}


def _choices(query: EngineQuery, offered: RetrieveCapability) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if query.mode is not None and query.mode in (offered.modes or ()):
        chosen["mode"] = query.mode
    if query.modality is not None and query.modality in (offered.modalities or _TEXT_ONLY):
        chosen["modality"] = query.modality
    if query.unit is not None and query.unit in (offered.units or ()):
        chosen["unit"] = query.unit
    if query.level is not None and offered.levels is not None and query.level < offered.levels:
        chosen["level"] = query.level
    if query.seed is not None and offered.deterministic:
        chosen["seed"] = query.seed
    if query.index_version is not None and offered.snapshots:
        chosen["indexVersion"] = mend(query.index_version)
    if query.fusion is not None and query.fusion.method in (offered.fusion or ()):
        chosen["fusion"] = _plain(query.fusion)
    return chosen


def _rerank(wanted: RerankOptions | bool, capabilities: Capabilities, k: int) -> dict[str, Any] | bool:
    if isinstance(wanted, bool):
        return {} if wanted else False
    offered = capabilities.rerank
    chosen: dict[str, Any] = {}
    if wanted.method is not None and offered is not None and wanted.method in (offered.methods or ()):
        chosen["method"] = wanted.method
    if wanted.model is not None and offered is not None and wanted.model in (offered.models or ()):
        chosen["model"] = wanted.model
    if wanted.top_n is not None:
        top = clamp(wanted.top_n, offered.max_candidates if offered is not None else None)
        retrieve = capabilities.retrieve
        chosen["topN"] = max(k, clamp(top, retrieve.max_k if retrieve is not None else None))
    return chosen


def _ages(recency: RecencyOptions, capabilities: Capabilities) -> bool:
    fields = capabilities.filter.fields if capabilities.filter is not None else {}
    return recency.field is not None and recency.field in fields


def rerank_params(query: RerankQuery, capabilities: Capabilities, keys: Sequence[str]) -> dict[str, Any]:
    """The parameters of ``rerank``, the passages under each of ``keys`` (DECISIONS D4), within ``maxCandidates``."""
    offered = capabilities.rerank
    passages = [mend(passage) for passage in query.passages]
    if offered is not None and offered.max_candidates is not None:
        passages = passages[: offered.max_candidates]
    params: dict[str, Any] = {"query": mend(query.query), **dict.fromkeys(keys, passages)}
    if query.method is not None and offered is not None and query.method in (offered.methods or ()):
        params["method"] = query.method
    if query.model is not None and offered is not None and query.model in (offered.models or ()):
        params["model"] = query.model
    if query.top_n is not None:
        params["topN"] = max(1, clamp(query.top_n, len(passages) or None))
    return params


def add_params(documents: Sequence[Document]) -> dict[str, Any]:
    """The parameters of ``index/add``. Ids go as text; a vector is ours and stays here."""
    return {"documents": [_document(document) for document in documents]}


def _document(document: Document) -> dict[str, Any]:
    wire: dict[str, Any] = {"text": mend(document.text)}
    if document.id is not None:
        wire["id"] = mend(str(document.id))
    if document.meta is not None:
        wire["meta"] = mended(document.meta)
    return wire


def mended(value: Any) -> Any:
    """Plain JSON with its texts mended."""
    match value:
        case str():
            return mend(value)
        case dict():
            return {mend(str(name)): mended(item) for name, item in value.items()}
        case list() | tuple():
            return [mended(item) for item in value]
        case _:
            return value


def _plain(struct: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(struct)
    return found
