"""The methods that go to exactly one engine: embedding, reranking, transforming a query, writing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.errors import CallerError, Code, InternalError, invalid_params, option_unsupported
from gateway.federation.capability import Offer, Snapshot, View, batch_limit, max_candidates
from gateway.federation.embeddings import Embeddings
from gateway.federation.plan import Defaults
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
from gateway.model import (
    Content,
    EmbedRequest,
    EmbedResult,
    IndexAddRequest,
    IndexAddResult,
    IndexDeleteRequest,
    IndexDeleteResult,
    RerankRequest,
    RerankResult,
    SparseEmbedResult,
    TransformRequest,
    TransformResult,
    text_of,
)
from gateway.refine.encoding import packed_floats
from gateway.refine.lexical import MAX_CANDIDATES, METHOD, by_words
from gateway.service.limits import deadline_for, route_for
from gateway.spi.call import ClientCall
from gateway.spi.engine import RerankQuery, TransformQuery

__all__ = ["OneEngine"]

_TRANSFORMED = 3
_MOST_TRANSFORMED = 16


class OneEngine:
    """Checks what does not depend on the engine, picks it, and asks it."""

    def __init__(self, defaults: Defaults, offer: Offer, embeddings: Embeddings) -> None:
        self._defaults = defaults
        self._offer = offer
        self._embeddings = embeddings

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
            return EmbedResult(vectors=tuple(map(packed_floats, vectors)), dimension=dimension, encoding="f32-base64")
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
            scores = await by_words(text, passages)
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

    def _single(self, view: View, call: ClientCall) -> Single:
        route, cycle = route_for(call, self._defaults)
        return Single(view.member, deadline_for(call, self._defaults), route, cycle=cycle)

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


def _either(first: Sequence[Any] | None, second: Sequence[Any] | None, name: str, other: str) -> Sequence[Any]:
    """One value that goes by two names; both are accepted, but not with different values."""
    if first is not None and second is not None and first != second:
        raise invalid_params(f"{name} and {other} differ", field=other)
    given = first if first is not None else second
    if given is None:
        raise invalid_params(f"{name} are required", field=name)
    return given
