"""What happens to a request beyond asking and fusing, and who does it: an engine for all, the one leg, or the gateway.

Every stage runs exactly once. It is handed to the engine that retrieves only where the plan has a single leg, so that
what comes back is the whole answer; otherwise it is done here, over everybody's hits. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace as restruct

from gateway.errors import invalid_params
from gateway.federation.capability import Snapshot, View, max_candidates
from gateway.federation.leg import Ask, Leg
from gateway.federation.loss import Loss
from gateway.federation.options import unsupported
from gateway.federation.route import asked_here
from gateway.federation.select import rerank_methods, rerank_models, reranker, transform_methods, transformer
from gateway.model import MmrOptions, RecencyOptions, RerankOptions, RetrieveRequest
from gateway.model.vectors import ENCODINGS

__all__ = ["Own", "Rerank", "Rewrite", "Stages", "staged"]

_LAMBDA = 0.5
"""Of MMR where the client names none (section 7.7)."""


@dataclass(frozen=True, slots=True)
class Own:
    """The gateway's own reranking: the name of its method, and how many passages it takes at once."""

    method: str = "bm25"
    candidates: int = 1000


class Rewrite(msgspec.Struct, frozen=True):
    """The engine that makes other queries of the one that was asked, and how."""

    view: View
    method: str


class Rerank(msgspec.Struct, frozen=True):
    """Scores for the first ``top_n`` of the fused list; by the gateway's own method if ``view`` is ``None``."""

    view: View | None
    method: str
    model: str | None
    top_n: int


class Stages(msgspec.Struct, frozen=True):
    """What the gateway does itself. ``pushed`` names the stages that the one leg does."""

    rewrite: Rewrite | None = None
    rerank: Rerank | None = None
    recency: RecencyOptions | None = None
    per_document: int | None = None
    mmr: float | None = None
    comparable: bool = False
    """Whether all hits' vectors come from one embedder, so that they can be held against each other."""
    pushed: tuple[str, ...] = ()


_NONE = Stages()
_NOTHING_STATED = (None,) * 6


def staged(
    request: RetrieveRequest,
    snapshot: Snapshot,
    legs: Sequence[Leg],
    meta: Mapping[str, Any],
    *,
    depth: int,
    own: Own,
    named: str | None,
    per_document: int | None,
    alone: bool,
    by_rank: bool,
) -> tuple[Stages, list[Leg], list[Loss]]:
    """Who does which stage, the legs with what is pushed into them, and what nobody can do.

    ``alone`` says that the single leg, if there is one, is all that was planned; ``by_rank`` that fusion keeps the
    order of a list, whatever its scores. Raises ``-32005`` under ``strict`` for a stage that nobody can supply.
    """
    per_document = _per_document(meta, per_document)
    stated = (request.rewrite, request.rerank, request.recency, request.mmr, request.encoding, per_document)
    if stated == _NOTHING_STATED:
        return _NONE, list(legs), []
    losses: list[Loss] = []
    only = legs[0] if alone and len(legs) == 1 else None
    pushed: dict[str, Any] = {}
    rewrite = _rewrite(request, snapshot, only, named, pushed, losses)
    rerank = _rerank(request, snapshot, only, own, depth, pushed, losses)
    plain = rerank is None and request.recency is None and request.min_score is None and per_document is None
    plain = plain and request.session_id is None and by_rank
    mmr = None if request.mmr is None else _given(request.mmr)
    if mmr is not None and only is not None and plain and _diversifies(only):
        pushed["mmr"], mmr = MmrOptions(lambda_=mmr), None
    if request.encoding not in (None, *ENCODINGS):
        losses.append(unsupported("encoding", request.encoding, strict=request.strict, offered=ENCODINGS))
    stages = Stages(
        rewrite=rewrite,
        rerank=rerank,
        recency=request.recency,
        per_document=per_document,
        mmr=mmr,
        comparable=_comparable(legs),
        pushed=tuple(pushed),
    )
    off = rerank is not None or request.rerank is False
    vectors = stages.mmr is not None and stages.comparable
    return stages, [_with(leg, pushed, depth, off=off, vectors=vectors) for leg in legs], losses


def _comparable(legs: Sequence[Leg]) -> bool:
    embedders = {leg.embedders for leg in legs}
    return len(embedders) == 1 and len(next(iter(embedders))) == 1


def _rewrite(
    request: RetrieveRequest,
    snapshot: Snapshot,
    only: Leg | None,
    named: str | None,
    pushed: dict[str, Any],
    losses: list[Loss],
) -> Rewrite | None:
    method = request.rewrite
    if not isinstance(method, str):
        return None
    if only is not None and method in (_retrieve(only).rewrite or ()):
        pushed["rewrite"] = method
        return None
    view = transformer(snapshot, method, named)
    if view is None:
        known = (*transform_methods(snapshot, named), *((only and _retrieve(only).rewrite) or ()))
        losses.append(unsupported("rewrite", method, strict=request.strict, offered=known))
        return None
    return Rewrite(view, method)


def _rerank(
    request: RetrieveRequest,
    snapshot: Snapshot,
    only: Leg | None,
    own: Own,
    depth: int,
    pushed: dict[str, Any],
    losses: list[Loss],
) -> Rerank | None:
    wanted = request.rerank
    if not isinstance(wanted, RerankOptions):
        return None
    method, model = wanted.method, wanted.model
    top_n = depth if wanted.top_n is None else min(wanted.top_n, depth)
    view = None if method == own.method else reranker(snapshot, method, model)
    supplied = view is not None or method == own.method or (method is None and model is None)
    if only is not None and _reranks(only, wanted, supplied=supplied):
        pushed["rerank"] = RerankOptions(method=method, model=model, top_n=top_n)
        return None
    if not supplied:
        lacks_model = method is None or reranker(snapshot, method, None) is not None
        if lacks_model:
            option, value, known = "rerank.model", model, rerank_models(snapshot, method)
        else:
            option, value, known = "rerank", method, [*rerank_methods(snapshot), own.method]
        losses.append(unsupported(option, value, strict=request.strict, offered=known))
        return None
    if view is None:
        return Rerank(None, own.method, None, min(top_n, own.candidates))
    offered = view.capabilities.rerank
    told = method or next(iter((offered.methods if offered else None) or ()), "rerank")
    most = max_candidates(view.capabilities) or top_n
    if wanted.top_n is not None and most < top_n:
        losses.append(
            Loss(kind="clamped", message=f"rerank.topN is at most {most}", engine=view.id, option="rerank.topN")
        )
    return Rerank(view, told, model, min(top_n, most))


def _reranks(only: Leg, wanted: RerankOptions, *, supplied: bool) -> bool:
    """Whether the one engine that retrieves reranks by itself, and is the one to do it.

    What it names is its own; what it does not name goes to it only if nobody else can.
    """
    if not _retrieve(only).rerank_builtin:
        return False
    offered = only.view.capabilities.rerank
    methods, models = (offered.methods or (), offered.models or ()) if offered is not None else ((), ())
    named = (wanted.method is None or wanted.method in methods) and (wanted.model is None or wanted.model in models)
    return named or (not supplied and offered is None)


def _diversifies(only: Leg) -> bool:
    return bool(_retrieve(only).mmr) and only.pushdown.residual is None


def _retrieve(leg: Leg) -> Any:
    assert leg.view.capabilities.retrieve is not None
    return leg.view.capabilities.retrieve


def _given(mmr: MmrOptions) -> float:
    return _LAMBDA if mmr.lambda_ is None else mmr.lambda_


def _per_document(meta: Mapping[str, Any], default: int | None) -> int | None:
    """``_meta["x-gateway"].perDocument``: at most so many passages of one document; ``null`` leaves the default."""
    given = asked_here(meta).get("perDocument")
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise invalid_params("perDocument is an integer of at least 1", field="_meta.x-gateway.perDocument")
    return given


def _with(leg: Leg, pushed: Mapping[str, Any], depth: int, *, off: bool, vectors: bool) -> Leg:
    """The leg with what it does itself. Its engine must not rerank where that is done here, or not wanted."""
    given = dict(pushed)
    if vectors:
        given["include_vectors"] = True
    k = leg.depth
    if "rerank" in given:
        # The funnel of section 3.3: what is reranked bounds what comes back, so all that comes back is reranked.
        k = min(k, given["rerank"].top_n)
        given["candidate_k"] = depth
    elif off and _retrieve(leg).rerank_builtin:
        given["rerank"] = False
    if not given:
        return leg
    asks = tuple(Ask(restruct(ask.query, k=k, **given), ask.need, ask.sparse) for ask in leg.asks)
    offer = restruct(leg.offer, floor=None) if "rerank" in pushed else leg.offer
    return Leg(leg.view, asks, k, leg.most, leg.weight, offer, leg.filter, leg.pushdown)
