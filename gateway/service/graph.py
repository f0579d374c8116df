"""``graph``: the engines that have the operation are asked at once, and their answers become one (RCP section 7.9)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from gateway.errors import invalid_params, option_unsupported
from gateway.federation.capability import View
from gateway.federation.graph import (
    edges_of,
    errands,
    followups_of,
    summaries_of,
)
from gateway.federation.loss import Loss, listed, notes_as_losses
from gateway.federation.offers import GRAPH_OPS
from gateway.federation.origins import Origins
from gateway.federation.plan import DEFAULT_K, Defaults
from gateway.federation.profile import within
from gateway.federation.reading import ranking_of
from gateway.federation.select import by_priority, named, prioritised
from gateway.federation.several import Answers, Errand, ask_several
from gateway.filters import compiled
from gateway.fusion import Rrf, fuse, read_identity
from gateway.model import GraphRequest, GraphResult
from gateway.refine.candidate import candidates
from gateway.refine.pack import sealed
from gateway.service.account import account
from gateway.service.limits import bounded, journey_for, session_for
from gateway.spi.call import ClientCall
from gateway.spi.methods import GraphOp, GraphQuery, GraphReply

__all__ = ["Graph"]

_MAIN = {"local": "hits", "drift": "hits", "global": "communities", "communities": "communities", "neighbors": "nodes"}
"""What an operation always answers with, if only with an empty list."""

Replies = Sequence[tuple[View, GraphReply]]


class Graph:
    """Holds no request. ``origins`` remembers whose the hits are that were given out."""

    def __init__(self, defaults: Defaults, origins: Origins) -> None:
        self._defaults = defaults
        self._origins = origins
        self._identity = read_identity(defaults.document_identity)
        self._strategy = defaults.strategies.get("rrf", Rrf())

    async def graph(self, request: GraphRequest, call: ClientCall) -> GraphResult:
        started = time.perf_counter()
        journey = journey_for(call, self._defaults)
        query, seeds = self._query(request, call), request.seed_ids or ()
        asked, reasons = errands(call.snapshot, query, seeds, named(call.snapshot, call.meta))
        answers = await ask_several(self._turns(asked, call), journey, reasons=reasons)
        losses = [loss for view, reply in answers.replies for loss in notes_as_losses(view.id, reply.notes)]
        several = sum(bool(view.capabilities.graph) for view in call.snapshot.views) > 1
        return self._merged(
            call, query, _nodes_of(query.op, answers.replies), answers, losses, started, several=several
        )

    def _query(self, request: GraphRequest, call: ClientCall) -> GraphQuery:
        if request.op not in GRAPH_OPS:
            known = call.snapshot.capabilities.graph
            told = f"that operation is not offered{listed((known and known.ops) or ())}"
            raise option_unsupported(told, option=str(request.op), field="op")
        bounded(request.query, self._defaults)
        if not request.query and not request.seed_ids and request.op != "communities":
            field = "seedIds" if request.op == "neighbors" else "query"
            raise invalid_params(f"{request.op} needs a query or seeds to start from", field=field)
        k = min(request.k, self._defaults.max_k) if request.k is not None else None
        if k is None and _MAIN[request.op] == "hits":
            k = min(DEFAULT_K, self._defaults.max_k)
        return GraphQuery(
            op=cast("GraphOp", request.op),
            text=request.query,
            k=k,
            hops=request.hops,
            level=request.level,
            session=session_for(call, request.session_id),
        )

    def _turns(self, asked: list[Errand[GraphReply]], call: ClientCall) -> list[list[Errand[GraphReply]]]:
        if not prioritised(call.meta, self._defaults.select):
            return [asked]
        turns = by_priority([errand.view for errand in asked])
        return [[errand for errand in asked if errand.view in views] for views in turns]

    def _merged(
        self,
        call: ClientCall,
        query: GraphQuery,
        replies: Replies,
        answers: Answers[GraphReply],
        losses: Sequence[Loss],
        started: float,
        *,
        several: bool,
    ) -> GraphResult:
        limit = query.k or self._defaults.max_k
        at = list(enumerate(replies))
        standing = within(None, self._defaults.profile.filter, call.snapshot)
        hits, notes = fuse(
            [ranking_of(view, n, one.hits, filter=standing) for n, (view, one) in at], self._strategy, self._identity
        )
        nodes, _ = fuse([ranking_of(view, n, one.nodes) for n, (view, one) in at], self._strategy)
        communities, _ = fuse(
            [ranking_of(view, n, one.communities, namespace=several) for n, (view, one) in at], self._strategy
        )
        if call.snapshot.capabilities.feedback is not None:
            self._origins.remember(call.caller.id, [*hits[:limit], *nodes[:limit]])
        edges = edges_of(replies, {one.id for one in nodes[limit:]})
        summaries = summaries_of(replies)
        usage, meta = account(
            answers,
            candidates=len(hits) + len(nodes) + len(communities),
            started=started,
            losses=[*losses, *(Loss(kind="note", message=note.text) for note in notes)],
            scale=self._strategy.name,
            summaries=summaries if len(summaries) > 1 else None,
        )
        main = _MAIN[query.op]
        parts = {
            name: sealed(candidates(fused[:limit]), include_text=True, include_vectors=False, keep=keep)
            for name, fused, keep in (
                ("hits", hits, None if standing is None else compiled(standing)),
                ("communities", communities, None),
                ("nodes", nodes, None),
            )
            if fused or name == main
        }
        return GraphResult(
            **parts,
            edges=tuple(edges) if edges or main == "nodes" else None,
            followups=followups_of(replies) or None,
            summary="\n\n".join(summaries.values()) or None,
            usage=usage,
            meta=meta,
        )


def _nodes_of(op: str, replies: Replies) -> Replies:
    """Some servers answer ``neighbors`` with hits (DECISIONS D30): those are its nodes."""
    if op != "neighbors":
        return replies
    return [(view, reply if reply.nodes else replace(reply, nodes=reply.hits, hits=())) for view, reply in replies]
