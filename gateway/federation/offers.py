"""What several engines offer beside ``retrieve``, as one: the parts of a merged advertisement (RCP section 16.4)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.errors import BackendUnavailable, RcpError, option_unsupported
from gateway.federation.loss import listed, said
from gateway.model import (
    Capabilities,
    Empty,
    GraphCapability,
    IndexCapability,
    MemoryCapability,
    RerankCapability,
    TransformCapability,
)
from gateway.spi.codec import encode, sound

if TYPE_CHECKING:
    from gateway.federation.capability import Snapshot, View

__all__ = [
    "GRAPH_OPS",
    "RERANK_METHODS",
    "SCOPES",
    "TRANSFORMS",
    "bound",
    "cuts_itself",
    "feedback",
    "graph",
    "index",
    "memory",
    "not_offered",
    "own_rerank",
    "rerank",
    "transform",
    "union",
    "vendor_members",
    "vendors",
]

GRAPH_OPS = ("local", "global", "drift", "communities", "neighbors")
RERANK_METHODS = ("cross-encoder", "colbert", "llm")
SCOPES = ("global", "session")
TRANSFORMS = ("rewrite", "hyde", "multi-query", "decompose", "step-back")

_VENDOR_NAME = re.compile(r"x-[a-z0-9-]{1,60}\Z")
_OURS = "x-gateway"
_VENDOR_DEPTH = 16
_VENDOR_BYTES = 16_384
_VENDORS = 32


def bound(value: int | None) -> int | None:
    """A bound below 1 says nothing that could be meant, like none at all."""
    return value if value is not None and value > 0 else None


def union(values: Iterable[Sequence[str] | None]) -> tuple[str, ...] | None:
    """All there are, each once, in order; ``None`` if there is none."""
    return tuple(dict.fromkeys(item for value in values for item in value or ())) or None


def not_offered(snapshot: Snapshot, what: str, *, option: str, field: str, offered: Iterable[str] = ()) -> RcpError:
    """``-32005``, saying what is ``offered`` in its place.

    But while an engine in scope has never been seen it may yet offer it, which is ``-32010``.
    """
    if snapshot.settled:
        told = f"{what} is not offered{listed(offered)}"
        return option_unsupported(told, option=option, field=field)
    told = f"{what} is not offered by the engines seen so far; some are still unseen"
    return BackendUnavailable(told, data={"option": said(option, 120), "field": field})


def _known(offered: Collection[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for one in known if one in (offered or ()))


def graph(views: Sequence[View]) -> GraphCapability | None:
    """Every operation that an engine has; each goes to those that have it."""
    ops = _known(union(one.ops for view in views if (one := view.capabilities.graph) is not None), GRAPH_OPS)
    return GraphCapability(ops=ops) if ops else None


def feedback(views: Sequence[View]) -> Empty | None:
    return Empty() if any(view.capabilities.feedback is not None for view in views) else None


def memory(views: Sequence[View]) -> MemoryCapability | None:
    each = [one for view in views if (one := view.capabilities.memory) is not None]
    if not each:
        return None
    scopes = _known(union(one.scopes for one in each), SCOPES)
    return MemoryCapability(scopes=scopes or None, clues=True if any(one.clues for one in each) else None)


def transform(views: Sequence[View], named: str | None) -> TransformCapability | None:
    """Each method goes to one engine, but different ones may go to different engines."""
    asked = [view for view in views if named is None or view.id == named]
    methods = _known(
        union(one.methods for view in asked if (one := view.capabilities.transform) is not None), TRANSFORMS
    )
    return TransformCapability(methods=methods) if methods else None


def rerank(views: Sequence[View], own: Mapping[str, Any]) -> RerankCapability | None:
    """All methods and models, within what the most modest engine takes, as any of them may be the one.

    Without an engine, the gateway's own way under a method that the schema has no name for.
    """
    each = _rerankers(views)
    if not each:
        return RerankCapability(max_candidates=own.get("maxCandidates")) if own else None
    bounds = [most for one in each if (most := bound(one.max_candidates)) is not None]
    return RerankCapability(
        methods=_known(union(one.methods for one in each), RERANK_METHODS) or None,
        max_candidates=min(bounds, default=None),
        models=union(one.models for one in each),
    )


def own_rerank(views: Sequence[View], own: Mapping[str, Any]) -> dict[str, Any]:
    """What goes under ``x-gateway``: the gateway's own method, and those of engines that the schema cannot name."""
    found = union(one.methods for one in _rerankers(views)) or ()
    further = [method for method in found if method not in RERANK_METHODS]
    return {**own, "methods": [*own.get("methods", ()), *further]} if own or further else {}


def _rerankers(views: Sequence[View]) -> list[RerankCapability]:
    return [one for view in views if (one := view.capabilities.rerank) is not None]


def index(view: View | None) -> IndexCapability | None:
    """That of the engine that is written to. Documents are cut up by it if it can, else by the gateway."""
    given = view.capabilities.index if view is not None else None
    if given is None or not given.writable:
        return None
    return IndexCapability(writable=True, chunking=True, contextual=True if given.contextual else None)


def cuts_itself(view: View) -> bool:
    """True if the engine takes whole documents and cuts them up."""
    given = view.capabilities.index
    return given is not None and bool(given.chunking)


def vendor_members(capabilities: Capabilities) -> dict[str, Any]:
    """The ``x-…`` members of an engine that may be told and called (section 6.2): sound, and of a size that is meant.

    ``x-gateway`` is ours, whoever says it.
    """
    found: dict[str, Any] = {}
    for name, value in capabilities.vendor.items():
        if name == _OURS or not _VENDOR_NAME.match(name) or not isinstance(value, Mapping) or len(found) == _VENDORS:
            continue
        try:
            plain = sound(value, _VENDOR_DEPTH)
            if len(encode(plain)) <= _VENDOR_BYTES:
                found[name] = plain
        except (ValueError, OverflowError, RecursionError):
            continue
    return found


def vendors(views: Sequence[View]) -> dict[str, Any]:
    """What vendors add to engines that answer methods of theirs; of several the first engine's, which is the one asked.

    Other engines say in such members what they are, which the catalog tells.
    """
    found: dict[str, Any] = {}
    for view in views:
        for name, value in vendor_members(view.capabilities).items() if view.member.own_methods else ():
            found.setdefault(name, value)
    return found
