"""The handlers of the RCP methods. :meth:`Service.retrieve` is the straight line: plan, recall, fuse, refine."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway._json import Raw
from gateway.caller import Caller
from gateway.errors import CallerError, Code, InternalError, invalid_params, option_unsupported
from gateway.federation.capability import Offer, Snapshot, View, batch_limit, max_candidates, published
from gateway.federation.embeddings import Embeddings
from gateway.federation.explain import explained
from gateway.federation.fleet import Fleet
from gateway.federation.loss import Failure, Loss, notes_of
from gateway.federation.plan import Defaults, RetrievePlan, plan
from gateway.federation.probe import Found, probe
from gateway.federation.reading import Reply
from gateway.federation.recall import Outcome, recall
from gateway.federation.route import deadline_of, route_of, visited
from gateway.federation.runner import Deadline
from gateway.federation.single import (
    Single,
    embed,
    embed_sparse,
    id_text,
    index_add,
    index_delete,
    rerank,
    target,
    transform,
    transformer,
)
from gateway.federation.verdict import admit, judge
from gateway.filters import compiled
from gateway.fusion import Fused, Ranking, fuse, read_identity
from gateway.model import (
    CatalogEntry,
    CatalogResult,
    Content,
    EmbedRequest,
    EmbedResult,
    IndexAddRequest,
    IndexAddResult,
    IndexDeleteRequest,
    IndexDeleteResult,
    PeerInfo,
    RerankRequest,
    RerankResult,
    RetrieveRequest,
    RetrieveResult,
    SparseEmbedResult,
    TransformRequest,
    TransformResult,
    capabilities_to_wire,
    text_of,
)
from gateway.refine.cut import cut
from gateway.refine.lexical import MAX_CANDIDATES, METHOD, lexical_scores
from gateway.refine.pack import pack, sealed
from gateway.spi.call import ClientCall, Route
from gateway.spi.engine import RerankQuery, TransformQuery

__all__ = ["Service"]

_PROBE_SECONDS = 120.0

_TRANSFORMED = 3
_MOST_TRANSFORMED = 16
_INLINE_CHARACTERS = 10_000
"""Some 10 ms of BM25; what is longer goes to a thread, so that other calls are not held up."""

Handler = Callable[[Any, ClientCall], Awaitable[Any]]


class Service:
    """What the gateway answers. Holds no request; everything a call needs comes with it."""

    def __init__(
        self,
        fleet: Fleet,
        defaults: Defaults,
        offer: Offer,
        *,
        info: PeerInfo,
        conformance: str,
        embeddings: Embeddings,
    ) -> None:
        self.info = info
        self.conformance = conformance
        self._fleet = fleet
        self._defaults = defaults
        self._offer = offer
        self._embeddings = embeddings
        self._identity = read_identity(defaults.document_identity)
        self.handlers: Mapping[str, Handler] = {
            "retrieve": self.retrieve,
            "embed": self.embed,
            "embed/sparse": self.embed_sparse,
            "rerank": self.rerank,
            "query/transform": self.transform,
            "index/add": self.index_add,
            "index/delete": self.index_delete,
            "catalog/list": self.catalog,
        }

    def snapshot(self, caller: Caller) -> Snapshot:
        """What this caller is told at ``initialize``, and what its calls are planned against."""
        return self._fleet.snapshot(caller)

    async def retrieve(self, request: RetrieveRequest, call: ClientCall) -> RetrieveResult:
        started = time.perf_counter()
        deadline, (route, cycle) = self._deadline(call), self._route(call)
        planned = plan(request, call.snapshot, call.meta, route=route, cycle=cycle, defaults=self._defaults)
        admit(call.snapshot, planned)
        told = self._teller(planned, call)
        outcomes = await recall(
            planned,
            call.snapshot,
            call,
            deadline,
            route,
            embeddings=self._embeddings,
            verify=self._defaults.verify,
            answered=told,
        )
        losses = [*planned.losses, *judge(call.snapshot, planned, outcomes)]
        fused, notes = self._fuse(planned, outcomes)
        kept, cuts = cut(fused, planned.min_score, planned.strategy.name)
        losses += [Loss(kind="note", message=note) for note in (*notes, *cuts)]
        return self._packed(planned, kept, outcomes, losses, started)

    def explain(self, request: RetrieveRequest, caller: Caller) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """What a retrieve would do, per engine, and what it would lose. No engine is asked."""
        meta = request.meta or {}
        route = route_of(meta, identity=self._defaults.identity, limit=self._defaults.depth)
        planned = plan(
            request,
            self.snapshot(caller),
            meta,
            route=route,
            cycle=visited(meta, self._defaults.identity),
            defaults=self._defaults,
        )
        return explained(planned), notes_of(planned.losses)

    async def probe(self, id: str, caller: Caller) -> list[Found]:
        """How the engine really filters; writes scratch documents into it and removes them again."""
        snapshot = self.snapshot(caller)
        deadline = Deadline.after(_PROBE_SECONDS, client=False, reserve=self._defaults.reserve)
        route = Route(depth=self._defaults.depth, path=(self._defaults.identity,))
        single = Single(target(snapshot, "index", id).member, deadline, route, cycle=False)
        return await probe(single, snapshot)

    def _fuse(self, planned: RetrievePlan, outcomes: Sequence[Outcome]) -> tuple[list[Fused], list[str]]:
        rankings = [_ranking(order, one) for order, one in enumerate(outcomes) if isinstance(one, Reply)]
        fused, notes = fuse(
            rankings,
            planned.strategy,
            self._identity,
            planned_max_weight=planned.scale.max_weight,
            planned_total_weight=planned.scale.total_weight,
            limit=planned.k,
        )
        return fused, [note.text for note in notes]

    def _sealed(self, planned: RetrievePlan, fused: Sequence[Fused]) -> tuple[Raw, ...]:
        keep = compiled(planned.filter) if planned.filter is not None else None
        return sealed(
            fused, planned.k, include_text=planned.include_text, include_vectors=planned.include_vectors, keep=keep
        )

    def _packed(
        self,
        planned: RetrievePlan,
        fused: Sequence[Fused],
        outcomes: Sequence[Outcome],
        losses: Sequence[Loss],
        started: float,
    ) -> RetrieveResult:
        replies = [one for one in outcomes if isinstance(one, Reply)]
        degraded = dict.fromkeys(loss.engine for loss in losses if loss.kind in ("failed", "timeout") and loss.engine)
        return pack(
            self._sealed(planned, fused),
            candidates=sum(reply.scanned for reply in replies),
            started=started,
            notes=notes_of(losses),
            degraded=tuple(degraded),
            vendor={
                "scale": planned.strategy.name,
                "engines": [reply.leg.id for reply in replies],
                "losses": list(losses),
            },
        )

    def _teller(self, planned: RetrievePlan, call: ClientCall) -> Callable[[int, int, Outcome], None] | None:
        """Tells the client of each engine as it answers, with its hits as they would stand alone (section 9)."""
        if not call.wants_progress:
            return None

        def tell(done: int, of: int, outcome: Outcome) -> None:
            if isinstance(outcome, Failure):
                call.progress(0.8 * done / of, "recall", f"{outcome.engine}: failed")
                return
            fused, _ = self._fuse(planned, [outcome])
            kept, _ = cut(fused, planned.min_score, planned.strategy.name)
            message = f"{outcome.leg.id}: {len(outcome.hits)} hits"
            call.progress(0.8 * done / of, "recall", message, self._sealed(planned, kept))

        return tell

    async def embed(self, request: EmbedRequest, call: ClientCall) -> EmbedResult:
        inputs = self._texts(_either(request.inputs, request.texts, "inputs", "texts"), "inputs")
        if request.encoding not in (None, "json", "f32-base64"):
            raise option_unsupported(
                "encodings are json and f32-base64", option=request.encoding or "", field="encoding"
            )
        if request.kind not in (None, "query", "document"):
            raise invalid_params("kind is 'query' or 'document'", field="kind")
        view = target(call.snapshot, "embed", self._offer.embed)
        offered, limit = view.capabilities.embed, batch_limit(view.capabilities)
        if limit is not None and len(inputs) > limit:
            raise invalid_params(f"at most {limit} inputs at once", field="inputs")
        vectors = await embed(self._single(view, call), inputs, request.kind or "document", self._embeddings)
        dimension = len(vectors[0]) if vectors else (offered.dimension if offered else None) or 1
        if request.encoding == "f32-base64":
            return EmbedResult(vectors=tuple(map(_base64, vectors)), dimension=dimension, encoding="f32-base64")
        return EmbedResult(vectors=vectors, dimension=dimension, encoding=request.encoding)

    async def rerank(self, request: RerankRequest, call: ClientCall) -> RerankResult:
        if request.query is None:
            raise invalid_params("a query is required", field="query")
        passages = self._texts(_either(request.passages, request.documents, "passages", "documents"), "passages")
        view = self._reranker(request, call.snapshot)
        most = MAX_CANDIDATES if view is None else max_candidates(view.capabilities)
        if most is not None and len(passages) > most:
            raise invalid_params(f"at most {most} passages at once", field="passages")
        top = len(passages) if request.top_n is None else min(request.top_n, len(passages))
        if top < 1 and passages:
            raise invalid_params("topN is at least 1", field="topN")
        text = text_of(request.query)
        if view is None:
            scores = await _by_words(text, passages)
        else:
            query = RerankQuery(query=text, passages=passages, method=request.method, model=request.model, top_n=top)
            scores = await rerank(self._single(view, call), query) if passages else ()
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:top]
        results = tuple({"index": index, "score": scores[index]} for index in order)
        meta = {"x-gateway": {"method": METHOD}} if view is None else None
        return RerankResult(scores=scores, order=tuple(order), results=results, meta=meta)

    def _reranker(self, request: RerankRequest, snapshot: Snapshot) -> View | None:
        """The engine that reranks; ``None`` to do it by words here, if asked for or if no engine in scope reranks."""
        views = [view for view in snapshot.views if view.capabilities.rerank is not None]
        if request.method == METHOD or (request.method is None and not views):
            return None
        offered = views[0].capabilities.rerank if views else None
        if request.method is not None and request.method not in ((offered.methods if offered else None) or ()):
            raise option_unsupported("that rerank method is not offered", option=request.method, field="method")
        models = offered.models if offered is not None else None
        if request.model is not None and models is not None and request.model not in models:
            raise option_unsupported("that model is not offered", option=request.model, field="model")
        return target(snapshot, "rerank", None)

    async def embed_sparse(self, request: EmbedRequest, call: ClientCall) -> SparseEmbedResult:
        inputs = self._texts(_either(request.inputs, request.texts, "inputs", "texts"), "inputs")
        view = target(call.snapshot, "sparse_embed", None)
        vectors = await embed_sparse(self._single(view, call), inputs) if inputs else []
        return SparseEmbedResult(sparse=tuple({"indices": one.indices, "values": one.values} for one in vectors))

    async def transform(self, request: TransformRequest, call: ClientCall) -> TransformResult:
        if request.query is None or request.method is None:
            raise invalid_params("query and method are required", field="method" if request.query else "query")
        if not isinstance(request.query, str):
            self._texts([request.query] if isinstance(request.query, Content) else request.query, "query")
        view = transformer(call.snapshot, request.method, self._offer.transform)
        n = min(request.n or _TRANSFORMED, _MOST_TRANSFORMED)
        query = TransformQuery(text=text_of(request.query), method=request.method, n=n)
        reply = await transform(self._single(view, call), query)
        meta = {"x-gateway": {"notes": list(reply.notes)}} if reply.notes else None
        return TransformResult(queries=reply.queries, hypothetical=reply.hypothetical, meta=meta)

    async def index_add(self, request: IndexAddRequest, call: ClientCall) -> IndexAddResult:
        if request.documents is None:
            raise invalid_params("documents are required", field="documents")
        single = self._writer(call)
        for option, asked in (("chunk", request.chunk), ("contextual", request.contextual)):
            if asked:
                raise option_unsupported(f"{option} is not offered", option=option, field=option)
        if not request.documents:
            return IndexAddResult(ids=(), chunks=0)
        return await index_add(single, request.documents, call.snapshot)

    async def index_delete(self, request: IndexDeleteRequest, call: ClientCall) -> IndexDeleteResult:
        if request.filter is not None:
            raise invalid_params("documents are deleted by id only", field="filter")
        if request.ids is None:
            raise invalid_params("ids are required", field="ids")
        ids = tuple(dict.fromkeys(map(id_text, request.ids)))
        return IndexDeleteResult(deleted=await index_delete(self._writer(call), ids, call.snapshot))

    async def catalog(self, request: Any, call: ClientCall) -> CatalogResult:
        """The engines in the caller's scope. What leads to them (addresses, commands) is never told."""
        snapshot: Snapshot = call.snapshot
        entries = [
            CatalogEntry(
                id=view.id,
                server=PeerInfo(name=view.member.spec.kind.name),
                capabilities=capabilities_to_wire(published(view.capabilities)),
                meta={"x-gateway": {"open": view.member.engine is not None, "breaker": view.member.breaker.state}},
            )
            for view in snapshot.views
        ]
        return CatalogResult(engines=tuple(entries))

    def _deadline(self, call: ClientCall) -> Deadline:
        seconds, client = deadline_of(call.meta, self._defaults.deadline)
        return Deadline.after(seconds, client=client, reserve=self._defaults.reserve, limit=self._defaults.deadline)

    def _route(self, call: ClientCall) -> tuple[Any, bool]:
        identity = self._defaults.identity
        return route_of(call.meta, identity=identity, limit=self._defaults.depth), visited(call.meta, identity)

    def _single(self, view: View, call: ClientCall) -> Single:
        route, cycle = self._route(call)
        return Single(view.member, self._deadline(call), route, cycle=cycle)

    def _writer(self, call: ClientCall) -> Single:
        if not call.caller.writable:
            raise CallerError("this caller may not write", code=Code.UNAUTHORIZED)
        if self._offer.writes is None:
            raise InternalError
        return self._single(target(call.snapshot, "index", self._offer.writes), call)

    def _texts(self, inputs: Sequence[str | Content], field: str) -> tuple[str, ...]:
        texts: list[str] = []
        for index, one in enumerate(inputs):
            if isinstance(one, Content) and one.type != "text":
                raise option_unsupported(f"{one.type} is not offered", option=one.type, field=f"{field}[{index}]")
            texts.append(text_of(one))
        return tuple(texts)


async def _by_words(query: str, passages: Sequence[str]) -> tuple[float, ...]:
    if len(query) + sum(map(len, passages)) <= _INLINE_CHARACTERS:
        return lexical_scores(query, passages)
    return await asyncio.to_thread(lexical_scores, query, passages)


def _base64(vector: Sequence[float]) -> str:
    """A vector as 32-bit floats (section 7.3.1); a number beyond their range becomes the largest of them."""
    most = 3.4028234663852886e38
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *(max(-most, min(one, most)) for one in vector))).decode()


def _either(first: Sequence[Any] | None, second: Sequence[Any] | None, name: str, other: str) -> Sequence[Any]:
    """One value that goes by two names; both are accepted, but not with different values."""
    if first is not None and second is not None and first != second:
        raise invalid_params(f"{name} and {other} differ", field=other)
    given = first if first is not None else second
    if given is None:
        raise invalid_params(f"{name} are required", field=name)
    return given


def _ranking(order: int, reply: Reply) -> Ranking:
    leg = reply.leg
    settings = leg.view.member.settings
    return Ranking(
        engine=leg.id,
        hits=reply.hits,
        order=order,
        weight=leg.weight,
        corpus=settings.corpus,
        trust=settings.trust,
        mode=leg.offer.mode,
        floor=leg.offer.floor,
    )
