"""The last step of a retrieve: what fits on a page, what is kept for the next ones, and the pages after the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway._json import Raw
from gateway.errors import CallerError, Code, StateUnavailable
from gateway.federation.cursor import Binding, Frozen, Window
from gateway.federation.plan import DEFAULT_K
from gateway.federation.runner import Deadline
from gateway.model import RetrieveRequest, RetrieveResult, Usage
from gateway.refine.candidate import Candidate, text
from gateway.refine.pack import Fit, fit, pack, passed_over
from gateway.refine.tokens import Tokens, sizes
from gateway.refine.trajectory import UNKNOWN, Seen
from gateway.service.keeping import Keeping
from gateway.service.later import Later, further, held
from gateway.spi.call import ClientCall

__all__ = ["Answer", "Pages"]

_UNWAITED = "there is more, but no pages of what not all were waited for: ask for a larger k"


class Answer(msgspec.Struct, frozen=True):
    """All that was found, best first, and what is said beside it. ``whole`` is false for what may not be paged.

    With ``later`` the candidates are only those of the first page and the one after them, if there are more.
    """

    candidates: Sequence[Candidate]
    k: int
    budget: int | None
    seal: Callable[[Sequence[Candidate]], tuple[Raw, ...]]
    scanned: int
    reranked: int
    notes: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    index_version: str | None = None
    rewritten: str | None = None
    vendor: Mapping[str, Any] = {}
    whole: bool = True
    later: Later | None = None


class Pages:
    """``tokens`` measures texts for a budget; ``bound`` is what cursors hold under beside their requests."""

    def __init__(self, keeping: Keeping, tokens: Tokens, *, max_k: int, bound: str = "") -> None:
        self._cursors = keeping.cursors
        self._trajectories = keeping.trajectories
        self._tokens = tokens
        self._max_k = max_k
        self._bound = bound

    def may_wait(self, call: ClientCall) -> bool:
        """Whether pages after the first may be made later: there are none, or only this process is asked for them."""
        return self._cursors.holds or call.snapshot.capabilities.pagination is None

    async def seen(self, request: RetrieveRequest, call: ClientCall, deadline: Deadline) -> Seen:
        """What the client's session has been given before, by other requests."""
        if request.session_id is None or call.snapshot.capabilities.session is None:
            return Seen()
        session = (call.caller.id, request.session_id, Binding.of(request, call.caller, forced=self._bound).request)
        try:
            # The engines must find most of the time still there.
            async with asyncio.timeout(deadline.left() / 3):
                return await self._trajectories.seen(*session)
        except TimeoutError:
            return Seen(notes=(UNKNOWN,))

    async def first(
        self,
        request: RetrieveRequest,
        call: ClientCall,
        answer: Answer,
        started: float,
        deadline: Deadline,
    ) -> RetrieveResult:
        """The first page, and a cursor if there is more."""
        found, budget = answer.candidates, answer.budget
        counted: tuple[int, ...] = ()
        if budget is not None:
            counted = await sizes(self._tokens, [text(one) for one in found], budget, deadline.remaining())
            if len(counted) < len(found):
                told = f"time ran out while texts were measured: {len(found) - len(counted)} hits are left out"
                found, answer = found[: len(counted)], replace(answer, notes=(*answer.notes, told))
        fits = fit(counted or [0] * len(found), answer.k, budget)
        binding = Binding.of(request, call.caller, forced=self._bound)
        said = _said(answer, found, counted)
        more = fits.consumed < len(found) and call.snapshot.capabilities.pagination is not None
        kept = more and answer.whole
        cursor = await self._held(answer, said, binding, fits.consumed) if kept else None
        if kept and cursor is None:
            if answer.later is not None:
                found = answer.later.candidates()
                said = _said(answer, found, counted)
            window = replace(said, hits=answer.seal(found))
            frozen, lost = await self._frozen(window, binding, deadline)
            said = said.telling(lost)
            hits = tuple(window.hits[place] for place in fits.places)
            cursor = None if frozen is None else frozen.cursor(fits.consumed)
        else:
            hits = answer.seal([found[place] for place in fits.places])
            if more and not kept:
                said = said.telling((_UNWAITED,))
        return await self._page(request, call, binding, said, _Slice(0, fits, hits, cursor), started, deadline)

    async def _held(self, answer: Answer, said: Window, binding: Binding, end: int) -> str | None:
        """The cursor of a window that is kept unsealed; ``None`` where it is to be sealed at once."""
        window = None if answer.later is None else held(answer.later, said)
        if window is None:
            return None
        try:
            return await self._cursors.hold(window, binding, end)
        except StateUnavailable:
            return None

    async def _frozen(
        self, window: Window, binding: Binding, deadline: Deadline
    ) -> tuple[Frozen | None, tuple[str, ...]]:
        """The window as it is kept, or why it is not: a client must not take the first page for all there is."""
        try:
            async with asyncio.timeout(deadline.left() / 2):
                frozen = await self._cursors.freeze(window, binding)
        except (StateUnavailable, TimeoutError):
            return None, ("there is more, but pages cannot be kept at the moment",)
        return frozen, () if frozen is not None else ("there is more than may be kept for pages: ask for a larger k",)

    async def next(
        self, request: RetrieveRequest, call: ClientCall, started: float, deadline: Deadline
    ) -> RetrieveResult:
        """A page after the first. Everything but ``k`` was fixed with the first.

        Raises ``-32015`` for a cursor that does not hold for this request.
        """
        if request.cursor is None or call.snapshot.capabilities.pagination is None:
            raise CallerError("the cursor is not known here", code=Code.NOT_FOUND, data={"field": "cursor"})
        binding = Binding.of(request, call.caller, forced=self._bound)
        try:
            async with asyncio.timeout(deadline.left()):
                frozen = await self._cursors.resume(request.cursor, binding)
        except TimeoutError:
            raise StateUnavailable from None
        window, offset = frozen.window, frozen.offset
        left = len(frozen) - offset
        k = request.k or (DEFAULT_K if request.token_budget is None else left)
        fits = fit(window.sizes[offset:] or [0] * left, min(k, self._max_k), request.token_budget)
        hits = frozen.hits([offset + place for place in fits.places])
        page = _Slice(offset, fits, hits, frozen.cursor(offset + fits.consumed))
        return await self._page(request, call, binding, window, page, started, deadline)

    async def _page(
        self,
        request: RetrieveRequest,
        call: ClientCall,
        binding: Binding,
        window: Window,
        page: _Slice,
        started: float,
        deadline: Deadline,
    ) -> RetrieveResult:
        passed = [page.offset + place for place in page.fits.passed]
        told = passed_over(
            [window.ids[place] for place in passed], [window.sizes[place] for place in passed], request.token_budget
        )
        if request.session_id is not None and call.snapshot.capabilities.session is not None:
            part = slice(page.offset, page.offset + page.fits.consumed)
            # Which of a document's ids is emitted next time depends on the engines that answer then.
            given = [*window.ids[part], *(id for ids in window.further[part] for id in ids)]
            session = (call.caller.id, request.session_id, binding.request)
            try:
                async with asyncio.timeout(deadline.left()):
                    told += await self._trajectories.delivered(*session, given)
            except TimeoutError:
                told.append(UNKNOWN)
        window = window.telling(told)
        call.progress(1.0, "pack", f"{len(page.hits)} hits")
        usage = Usage(
            candidates=window.candidates,
            reranked=window.reranked,
            tokens=None if request.token_budget is None else page.fits.tokens,
            latency_ms=round((time.perf_counter() - started) * 1000, 1),
            notes=window.notes or None,
        )
        return pack(
            page.hits,
            usage,
            degraded=window.degraded,
            vendor=window.vendor,
            next_cursor=page.cursor,
            index_version=window.index_version,
            rewritten_query=window.rewritten_query,
            encoding=request.encoding if request.encoding != "json" else None,
        )


def _said(answer: Answer, found: Sequence[Candidate], counted: tuple[int, ...]) -> Window:
    return Window(
        hits=(),
        ids=tuple([one.fused.id for one in found]),
        further=further([one.fused for one in found]),
        sizes=counted,
        candidates=answer.scanned,
        reranked=answer.reranked,
        notes=answer.notes,
        degraded=answer.degraded,
        index_version=answer.index_version,
        rewritten_query=answer.rewritten,
        vendor=msgspec.to_builtins({name: value for name, value in answer.vendor.items() if value}),
    )


class _Slice(msgspec.Struct, frozen=True):
    """What of a window makes one page; ``fits`` counts from ``offset``."""

    offset: int
    fits: Fit
    hits: tuple[Raw, ...]
    cursor: str | None
