"""The methods that go to exactly one engine: embedding, reranking, transforming a query, a vendor's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway._json import sound
from gateway.errors import CallerError, Code, invalid_params, option_unsupported
from gateway.federation.capability import Offer, View, batch_limit, max_candidates
from gateway.federation.embeddings import Embeddings
from gateway.federation.loss import NOTES, said
from gateway.federation.plan import Defaults
from gateway.federation.select import named
from gateway.federation.single import (
    Single,
    embed,
    embed_multi,
    embed_sparse,
    rerank,
    reranking,
    target,
    transform,
    transforming,
    vendor,
    vendors,
)
from gateway.federation.transform import VARIANTS
from gateway.model import (
    Content,
    EmbedRequest,
    EmbedResult,
    MultiVectorResult,
    RerankRequest,
    RerankResult,
    SparseEmbedResult,
    TransformRequest,
    TransformResult,
    VendorRequest,
    text_of,
)
from gateway.model.vectors import ENCODINGS, F32_BASE64, packed_floats
from gateway.refine.lexical import MAX_CANDIDATES, METHOD, by_words
from gateway.service.limits import journey_for
from gateway.spi.call import ClientCall
from gateway.spi.engine import RerankQuery, TransformQuery

__all__ = ["OneEngine"]

_MOST_TRANSFORMED = 16
_VENDOR_DEPTH = 64


class OneEngine:
    """Checks what does not depend on the engine, picks it, and asks it."""

    def __init__(self, defaults: Defaults, offer: Offer, embeddings: Embeddings) -> None:
        self._defaults = defaults
        self._offer = offer
        self._embeddings = embeddings

    async def embed(self, request: EmbedRequest, call: ClientCall) -> EmbedResult:
        inputs = self._texts(_either(request.inputs, request.texts, "inputs", "texts"), "inputs")
        self._embedding(request)
        view = target(call.snapshot, "embed", self._offer.embed)
        offered, limit = view.capabilities.embed, batch_limit(view.capabilities)
        if limit is not None and len(inputs) > limit:
            raise invalid_params(f"at most {limit} inputs at once", field="inputs")
        vectors = await embed(self._single(view, call), inputs, request.kind or "document", self._embeddings)
        dimension = len(vectors[0]) if vectors else (offered.dimension if offered else None) or 1
        if request.encoding == F32_BASE64:
            return EmbedResult(vectors=tuple(map(packed_floats, vectors)), dimension=dimension, encoding=F32_BASE64)
        return EmbedResult(vectors=vectors, dimension=dimension, encoding=request.encoding)

    async def rerank(self, request: RerankRequest, call: ClientCall) -> RerankResult:
        if request.query is None:
            raise invalid_params("a query is required", field="query")
        passages = self._texts(_either(request.passages, request.documents, "passages", "documents"), "passages")
        asked = request.method, request.model
        view = None if request.method == METHOD else reranking(call.snapshot, *asked, own=METHOD)
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

    async def embed_multi(self, request: EmbedRequest, call: ClientCall) -> MultiVectorResult:
        inputs = self._texts(_either(request.inputs, request.texts, "inputs", "texts"), "inputs")
        self._embedding(request)
        view = target(call.snapshot, "multi_vector", None)
        offered = view.capabilities.multi_vector
        found = await embed_multi(self._single(view, call), inputs, request.kind or "document") if inputs else []
        given = next((len(row) for matrix in found for row in matrix), None)
        dimension = given or (offered.dimension if offered else None) or 1
        if request.encoding == F32_BASE64:
            packed = tuple(tuple(map(packed_floats, matrix)) for matrix in found)
            return MultiVectorResult(matrices=packed, dimension=dimension, encoding=F32_BASE64)
        return MultiVectorResult(matrices=tuple(found), dimension=dimension, encoding=request.encoding)

    def _embedding(self, request: EmbedRequest) -> None:
        if request.encoding not in (None, *ENCODINGS):
            raise option_unsupported(
                "encodings are json and f32-base64", option=request.encoding or "", field="encoding"
            )
        if request.kind not in (None, "query", "document"):
            raise invalid_params("kind is 'query' or 'document'", field="kind")

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
        view = transforming(call.snapshot, request.method, self._offer.transform)
        n = min(request.n or VARIANTS, _MOST_TRANSFORMED)
        query = TransformQuery(text=text_of(request.query), method=request.method, n=n)
        reply = await transform(self._single(view, call), query)
        meta = {"x-gateway": {"notes": [said(note) for note in reply.notes[:NOTES]]}} if reply.notes else None
        return TransformResult(queries=reply.queries, hypothetical=reply.hypothetical, meta=meta)

    async def vendor(self, request: VendorRequest, call: ClientCall) -> dict[str, Any]:
        """A vendor's method (section 6.2): it may write, as far as anybody knows."""
        if not call.caller.writable:
            raise CallerError("this caller may not call what may write", code=Code.UNAUTHORIZED)
        try:
            params = sound(request.params, _VENDOR_DEPTH)
        except ValueError:
            raise invalid_params("the parameters nest too deep", field="params") from None
        view = vendors(call.snapshot, request.method, named(call.snapshot, call.meta))
        return await vendor(self._single(view, call), request.method, params)

    def _single(self, view: View, call: ClientCall) -> Single:
        return Single.on(journey_for(call, self._defaults), view)

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
