"""``feedback``, ``memory/build`` and ``memory/recall``: what clients tell engines, and what engines remember."""

from __future__ import annotations

import time

from msgspec.structs import replace

from gateway.errors import BackendUnavailable, CallerError, Code, invalid_params
from gateway.federation import feedback, memory
from gateway.federation.loss import Loss, notes_as_losses, notes_of
from gateway.federation.origins import Origins
from gateway.federation.plan import Defaults
from gateway.federation.profile import within
from gateway.federation.reading import ranking_of
from gateway.federation.replies import shaped
from gateway.federation.select import named
from gateway.federation.several import Answers, ask_several
from gateway.federation.single import Single
from gateway.filters import compiled
from gateway.fusion import Rrf, fuse, read_identity
from gateway.model import (
    FeedbackRequest,
    FeedbackResult,
    MemoryBuildRequest,
    MemoryBuildResult,
    MemoryRecallRequest,
    MemoryRecallResult,
)
from gateway.refine.candidate import candidates
from gateway.refine.pack import sealed
from gateway.service.account import account
from gateway.service.limits import bounded, journey_for, session_for
from gateway.service.writes import written
from gateway.spi.call import Call, ClientCall
from gateway.spi.codec import mend
from gateway.spi.engine import Engine
from gateway.spi.methods import FeedbackQuery, MemoryBuilt, MemoryRecall, MemoryReply, MemoryWrite
from gateway.state import Idempotency

__all__ = ["Advice"]

_SIGNALS = 1000
_DOCUMENTS = 1000


class Advice:
    """Holds no request. ``origins`` knows whose the hits were that a caller was given."""

    def __init__(self, defaults: Defaults, origins: Origins, idempotency: Idempotency) -> None:
        self._defaults = defaults
        self._idempotency = idempotency
        self._origins = origins
        self._identity = read_identity(defaults.document_identity)
        self._strategy = defaults.strategies.get("rrf", Rrf())

    async def feedback(self, request: FeedbackRequest, call: ClientCall) -> FeedbackResult:
        signals = tuple(request.signals or ())
        if len(signals) > _SIGNALS:
            raise invalid_params(f"at most {_SIGNALS} signals at once", field="signals")
        bounded(request.query, self._defaults)
        journey = journey_for(call, self._defaults)
        query = FeedbackQuery(signals=signals, text=request.query, session=session_for(call, request.session_id))
        asked, reasons = feedback.errands(
            call.snapshot,
            query,
            lambda id: self._origins.of(call.caller.id, id),
            named(call.snapshot, call.meta),
        )
        answers: Answers[int] = Answers(losses=[reason.loss() for reason in reasons])
        if asked:
            answers = await ask_several([asked], journey, reasons=reasons, once=True)
        # A signal on a hit that several engines returned goes to each of them, and is still one signal.
        accepted = min(len(signals), sum(taken for _, taken in answers.replies))
        meta = {"degraded": answers.degraded} if answers.degraded else {}
        notes = notes_of(answers.losses)
        told = {**meta, "x-gateway": {"notes": list(notes)}} if notes else None
        return FeedbackResult(accepted=accepted, meta=told)

    async def memory_build(self, request: MemoryBuildRequest, call: ClientCall) -> MemoryBuildResult:
        if not call.caller.writable:
            raise CallerError("this caller may not write", code=Code.UNAUTHORIZED)
        documents = request.documents
        if documents is not None and len(documents) > _DOCUMENTS:
            raise invalid_params(f"at most {_DOCUMENTS} documents at once", field="documents")
        if request.scope not in (None, "global", "session"):
            raise invalid_params("scope is 'global' or 'session'", field="scope")
        view, own = memory.builder(call.snapshot, request.memory_id, request.scope, named(call.snapshot, call.meta))
        write = MemoryWrite(documents=None if documents is None else tuple(documents), id=own, scope=request.scope)

        async def build(engine: Engine, inner: Call) -> MemoryBuilt:
            built = shaped(await engine.memory_build(write, inner), MemoryBuilt)
            if not built.id:
                raise BackendUnavailable("it did not name the memory it built", retryable=False)
            return replace(built, id=mend(built.id))

        single = Single.on(journey_for(call, self._defaults), view)

        async def result() -> MemoryBuildResult:
            built = await single.ask(build, write=True, also=(Code.NOT_FOUND,) if own is not None else ())
            tokens = built.tokens if built.tokens is not None and built.tokens >= 0 else None
            return MemoryBuildResult(memory_id=memory.emitted_memory(view, built.id), tokens=tokens)

        return await written(self._idempotency, "memory/build", request, single, call, result, MemoryBuildResult)

    async def memory_recall(self, request: MemoryRecallRequest, call: ClientCall) -> MemoryRecallResult:
        started = time.perf_counter()
        bounded(request.query, self._defaults)
        journey = journey_for(call, self._defaults)
        query = MemoryRecall(
            text=request.query or "",
            id=request.memory_id or None,
            session=session_for(call, request.session_id),
            n=min(request.n, 100) if request.n is not None else None,
        )
        asked = memory.recallers(call.snapshot, query, named(call.snapshot, call.meta))
        if query.id is not None:
            # One engine's memory: what it says of the id is the answer.
            single = Single.on(journey, asked[0].view)
            reply: MemoryReply = await single.ask(asked[0].ask, also=(Code.NOT_FOUND,))
            answers: Answers[MemoryReply] = Answers(replies=[(asked[0].view, reply)])
        else:
            answers = await ask_several([asked], journey)
        return self._recalled(answers, query, call, started)

    def _recalled(
        self, answers: Answers[MemoryReply], query: MemoryRecall, call: ClientCall, started: float
    ) -> MemoryRecallResult:
        standing = within(None, self._defaults.profile.filter, call.snapshot)
        rankings = [
            ranking_of(view, order, reply.hits, filter=standing) for order, (view, reply) in enumerate(answers.replies)
        ]
        fused, notes = fuse(rankings, self._strategy, self._identity, limit=self._defaults.window)
        if call.snapshot.capabilities.feedback is not None:
            self._origins.remember(call.caller.id, fused)
        losses = [loss for view, reply in answers.replies for loss in notes_as_losses(view.id, reply.notes)]
        losses += [Loss(kind="note", message=note.text) for note in notes]
        count = sum(len(ranking.hits) for ranking in rankings)
        usage, meta = account(answers, candidates=count, started=started, losses=losses)
        keep = None if standing is None else compiled(standing)
        hits = sealed(candidates(fused), include_text=True, include_vectors=False, keep=keep)
        return MemoryRecallResult(
            clues=tuple(memory.clues_of(answers.replies, query.n)), hits=hits or None, usage=usage, meta=meta
        )
