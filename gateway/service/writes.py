"""``index/add`` and ``index/delete``: one configured engine, documents cut up where that is asked for (7.10, 7.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gateway import cutting
from gateway._json import decode, encode
from gateway.errors import CallerError, Code, InternalError, RateLimited, RcpError, invalid_params, option_unsupported
from gateway.federation.capability import Offer, View
from gateway.federation.ids import id_text
from gateway.federation.offers import cuts_itself
from gateway.federation.plan import Defaults
from gateway.federation.single import Single, target
from gateway.federation.writes import index_add, index_delete
from gateway.model import (
    Document,
    IndexAddRequest,
    IndexAddResult,
    IndexDeleteRequest,
    IndexDeleteResult,
    MemoryBuildRequest,
    Message,
)
from gateway.service.limits import journey_for
from gateway.spi.call import ClientCall
from gateway.spi.methods import Cutting
from gateway.spi.passage import passage_id
from gateway.state import Idempotency, digest

__all__ = ["Writes", "written"]

R = TypeVar("R", bound=Message)

_KEY_FIELD = "_meta.idempotencyKey"
_KEY_LENGTH = 256
_INLINE_CHARACTERS = 10_000
"""What is longer is cut up in a thread, so that other calls are not held up."""
_REFUSALS = frozenset(
    {
        Code.INVALID_REQUEST,
        Code.INVALID_PARAMS,
        Code.NOT_INITIALIZED,
        Code.VERSION_UNSUPPORTED,
        Code.CAPABILITY_UNSUPPORTED,
        Code.METHOD_NOT_FOUND,
        Code.OPTION_UNSUPPORTED,
        Code.RATE_LIMITED,
        Code.UNAUTHORIZED,
        Code.PAYLOAD_TOO_LARGE,
    }
)
"""With these an engine says that it has not begun."""


class Writes:
    """``idempotency`` remembers writes by their keys."""

    def __init__(self, defaults: Defaults, offer: Offer, idempotency: Idempotency) -> None:
        self._defaults = defaults
        self._offer = offer
        self._idempotency = idempotency

    async def index_add(self, request: IndexAddRequest, call: ClientCall) -> IndexAddResult:
        if request.documents is None:
            raise invalid_params("documents are required", field="documents")
        documents = request.documents
        view = self._target(call)
        cutting = _cutting(view, request)
        if not documents:
            return IndexAddResult(ids=(), chunks=0)
        cut = _cut if request.chunk and cutting is None else None

        async def add(single: Single) -> IndexAddResult:
            return await index_add(single, documents, call.snapshot, cut=cut, cutting=cutting)

        return await self._written("index/add", request, view, call, add, IndexAddResult)

    async def index_delete(self, request: IndexDeleteRequest, call: ClientCall) -> IndexDeleteResult:
        if request.filter is not None:
            raise invalid_params("documents are deleted by id only", field="filter")
        if request.ids is None:
            raise invalid_params("ids are required", field="ids")
        ids = tuple(dict.fromkeys(map(id_text, request.ids)))
        view = self._target(call)

        async def delete(single: Single) -> IndexDeleteResult:
            pieces = not cuts_itself(view)
            return IndexDeleteResult(deleted=await index_delete(single, ids, call.snapshot, pieces=pieces))

        return await self._written("index/delete", request, view, call, delete, IndexDeleteResult)

    def _target(self, call: ClientCall) -> View:
        if not call.caller.writable:
            raise CallerError("this caller may not write", code=Code.UNAUTHORIZED)
        if self._offer.writes is None:
            raise InternalError
        return target(call.snapshot, "index", self._offer.writes)

    async def _written(
        self,
        method: str,
        request: IndexAddRequest | IndexDeleteRequest,
        view: View,
        call: ClientCall,
        write: Callable[[Single], Awaitable[R]],
        result: type[R],
    ) -> R:
        single = Single.on(journey_for(call, self._defaults), view)
        return await written(self._idempotency, method, request, single, call, lambda: write(single), result)


async def written(
    idempotency: Idempotency,
    method: str,
    request: IndexAddRequest | IndexDeleteRequest | MemoryBuildRequest,
    single: Single,
    call: ClientCall,
    write: Callable[[], Awaitable[R]],
    result: type[R],
) -> R:
    """The write's answer; under an idempotency key the first call's, however often it is asked for."""
    key = _key(call)
    if key is None:
        return await write()

    async def operation() -> bytes:
        return encode(await write())

    def untouched(error: RcpError) -> bool:
        return not single.asked or (not single.wrote and _refused(error))

    asked = digest(replace(request, meta=None))
    return decode(await idempotency.once(call.caller.id, method, key, asked, operation, untouched=untouched), result)


def _key(call: ClientCall) -> str | None:
    key = call.meta.get("idempotencyKey")
    if key is None:
        return None
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_LENGTH:
        raise invalid_params(f"an idempotency key is a text of 1 to {_KEY_LENGTH} characters", field=_KEY_FIELD)
    return key


def _refused(error: RcpError) -> bool:
    return isinstance(error, CallerError | RateLimited) or error.data.get("upstreamCode", error.code) in _REFUSALS


def _cutting(view: View, request: IndexAddRequest) -> Cutting | None:
    """How the engine itself is to cut up; ``None`` if it is not asked to. Raises ``-32005`` for what it cannot."""
    given = view.capabilities.index
    engine = view.member.engine
    native = cuts_itself(view) and (engine is None or engine.document_need() is None)
    if request.contextual and not (given is not None and given.contextual):
        raise option_unsupported("contextual is not offered", option="contextual", field="contextual")
    if request.contextual and request.chunk and not native:
        raise option_unsupported(
            "the engine does not cut up what it tells the context of", option="chunk", field="chunk"
        )
    if request.contextual or (request.chunk and native):
        return Cutting(chunk=bool(request.chunk), contextual=bool(request.contextual))
    return None


async def _cut(documents: Sequence[Document]) -> list[list[Document]]:
    if sum(len(document.text) for document in documents) <= _INLINE_CHARACTERS:
        return [_pieces(document) for document in documents]
    return await asyncio.to_thread(lambda: [_pieces(document) for document in documents])


def _pieces(document: Document) -> list[Document]:
    """The document's passages, named as those of files are; one that cannot be cut is its own first passage."""
    id, text, meta = str(document.id), document.text, document.meta or {}
    found = cutting.split(text) or [cutting.Passage(0, len(text), "")]
    return [
        Document(
            id=passage_id(id, number),
            text=text[one.start : one.end],
            meta={
                **({"title": one.title} if one.title else {}),
                **meta,
                "docId": id,
                "passage": number,
                "start": one.start,
                "end": one.end,
            },
        )
        for number, one in enumerate(found)
    ]
