"""From a request to the legs that will serve it. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gateway.errors import BackendUnavailable, CallerError, Code, RcpError
from gateway.federation.capability import Snapshot, View
from gateway.federation.loss import Loss, Reason
from gateway.federation.options import Wanted, check_gateway_options, options_for, wanted_options
from gateway.federation.select import Selection, by_priority, select
from gateway.filters import FALSE, TRUE, Filter, Op, Pushdown, fields_of, fold, parse, push_folded
from gateway.fusion import Convex, LegOffer, Rrf, Strategy, choose, leg_weights
from gateway.model import Content, FusionOptions, RetrieveRequest, text_of
from gateway.spi.call import Route
from gateway.spi.engine import EngineQuery, VectorNeed

__all__ = ["Defaults", "Leg", "RetrievePlan", "plan"]

DEFAULT_K = 10
_NO_FILTER: Pushdown[Any] = Pushdown(native=None, residual=None)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the configuration decides for every call; see ``config.schema`` for the meaning of each."""

    identity: str
    strategies: Mapping[str, Strategy]
    method: str = "rrf"
    window: int = 50
    document_identity: str = "id"
    select: str = "all"
    depth: int = 3
    verify: bool = True
    max_k: int = 1000
    deadline: float = 30.0
    reserve: float = 0.05


@dataclass(frozen=True, slots=True)
class Leg:
    """One engine's part. ``pushdown.residual`` and, in verify mode, ``filter`` are checked here on every hit.

    ``depth`` is how many kept hits are wanted; ``most`` how many the engine gives at once.
    """

    view: View
    query: EngineQuery
    depth: int
    most: int
    weight: float
    offer: LegOffer
    filter: Filter | None = None
    pushdown: Pushdown[Any] = _NO_FILTER
    need: VectorNeed | None = None

    @property
    def id(self) -> str:
        return self.view.id


@dataclass(frozen=True, slots=True)
class RetrievePlan:
    """``turns`` are asked one after the other, until one has an answer; usually there is a single turn."""

    k: int
    turns: tuple[tuple[Leg, ...], ...]
    reasons: tuple[Reason, ...]
    losses: tuple[Loss, ...]
    strategy: Strategy
    filter: Filter | None
    query: str
    include_text: bool
    include_vectors: bool
    min_score: float | None

    @property
    def legs(self) -> tuple[Leg, ...]:
        return tuple(leg for turn in self.turns for leg in turn)


def plan(
    request: RetrieveRequest,
    snapshot: Snapshot,
    meta: Mapping[str, Any],
    *,
    route: Route,
    cycle: bool,
    defaults: Defaults,
) -> RetrievePlan:
    """Decides who is asked what. Raises :class:`~gateway.errors.RcpError` for what must not run at all.

    Everything that can be wrong with the request is found here, before any engine hears of it.
    """
    assert request.query is not None
    if request.cursor is not None:
        raise CallerError("the cursor is not known here", code=Code.NOT_FOUND, data={"field": "cursor"})
    offered = snapshot.capabilities.retrieve
    limit = min(defaults.max_k, (offered.max_k if offered else None) or defaults.max_k)
    k = min(request.k if request.k is not None else _default_k(request), limit)
    filter = _filter(request.filter, snapshot)
    losses = check_gateway_options(request, snapshot, defaults.strategies)
    wanted, degraded = wanted_options(request, snapshot)
    losses += degraded
    if request.seed is not None and not (
        snapshot.capabilities.retrieve and snapshot.capabilities.retrieve.deterministic
    ):
        losses.append(Loss(kind="note", message="the seed is not honoured by every engine: results may differ"))
    selection = select(snapshot, meta, default=defaults.select)
    weights = _weights(request, snapshot, selection)
    depth = min(max(k, request.candidate_k or max(defaults.window, k)), limit)

    builder = _Builder(request, wanted, filter, depth, weights, losses)
    reasons = _left_out(selection)
    legs: list[Leg] = []
    for view in selection.chosen:
        reason = _unreachable(view, weights, route, cycle)
        outcome = reason or builder.leg(view)
        if isinstance(outcome, Leg):
            legs.append(outcome)
        else:
            reasons.append(outcome)
    strategy, fallback = choose(_strategy(request, defaults), [leg.offer for leg in legs])
    losses += [Loss(kind="degraded", message=note.text) for note in fallback]
    return RetrievePlan(
        k=k,
        turns=_turns(legs, selection),
        reasons=tuple(reasons),
        losses=tuple(losses),
        strategy=strategy,
        filter=filter,
        query=text_of(request.query),
        include_text=request.include_text is not False,
        include_vectors=request.include_vectors is True,
        min_score=request.min_score,
    )


def _default_k(request: RetrieveRequest) -> int:
    """10, or less if the client's own funnel is narrower (DECISIONS D10)."""
    bounds = [DEFAULT_K, request.candidate_k or DEFAULT_K]
    top_n = getattr(request.rerank, "top_n", None)
    return min([*bounds, top_n or DEFAULT_K])


def _filter(given: Any, snapshot: Snapshot) -> Filter | None:
    try:
        offered = snapshot.capabilities.filter
        return parse(given, snapshot.fields, None if offered is None else frozenset(map(Op, offered.operators)))
    except RcpError as error:
        unknown_yet = error.data.get("field") not in snapshot.fields and not snapshot.settled
        if unknown_yet and error.data.get("field"):
            raise BackendUnavailable(
                "the field is not declared by the engines seen so far, and some have not been seen yet", data=error.data
            ) from error
        raise


def _weights(request: RetrieveRequest, snapshot: Snapshot, selection: Selection) -> dict[str, float]:
    """The weight of every chosen engine in this call; 0 means that it is not asked."""
    given = (request.fusion.weights if request.fusion else None) or {}
    offers = [_offer(view, request.mode) for view in selection.chosen]
    # An engine that is named in the call is asked for, whatever weight the configuration gives it.
    defaults = {view.id: view.member.settings.weight or 1.0 for view in selection.chosen}
    return leg_weights(given, offers, known=[view.id for view in snapshot.views], defaults=defaults)


def _left_out(selection: Selection) -> list[Reason]:
    return [
        Reason(view.id, "left-out", "it was not selected")
        for view in selection.left_out
        if view.member.settings.weight > 0
    ]


def _unreachable(view: View, weights: Mapping[str, float], route: Route, cycle: bool) -> Reason | None:
    if weights[view.id] == 0:
        return Reason(view.id, "left-out", "its weight is 0 in this call")
    if cycle:
        return Reason(view.id, "left-out", "the request has passed this gateway before: a cycle")
    if view.member.federates and route.depth < 0:
        return Reason(view.id, "left-out", "the request may not be forwarded any further (depth 0)")
    return None


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds legs of one request."""

    request: RetrieveRequest
    wanted: Sequence[Wanted]
    filter: Filter | None
    depth: int
    weights: Mapping[str, float]
    losses: list[Loss]

    def leg(self, view: View) -> Leg | Reason:
        """The leg of one engine, or why there is none."""
        options = options_for(view, self.wanted)
        for option in options.missing:
            told = f"it does not offer {option.name} {option.value!r}"
            if option.name == "modality" or self.request.strict is not False:
                return Reason(view.id, "unable", told, option=str(option.value))
            self.losses.append(Loss(kind="degraded", message=told, engine=view.id, option=str(option.value)))
        engine = view.member.engine
        if engine is None:
            error = view.member.fault or BackendUnavailable("it is not open")
            return Reason(view.id, "failed", error.message, error=error)
        settings = view.member.settings
        filter: Filter | None = None
        pushdown = _NO_FILTER
        if self.filter is not None:
            folded = fold(self.filter, view.fields, settings.undeclared)
            pushdown = push_folded(folded, engine.push_down)
            if folded.filter is FALSE or pushdown.nothing:
                return self._nothing(view, folded.undeclared)
            if folded.undeclared and settings.undeclared == "skip":
                told = f"it does not declare {', '.join(folded.undeclared)}: no document of it matches there"
                self.losses.append(Loss(kind="degraded", message=told, engine=view.id))
            filter = None if folded.filter is TRUE else folded.filter
        retrieve = view.capabilities.retrieve
        assert retrieve is not None
        most = retrieve.max_k or self.depth
        if most < self.request_k:
            self.losses.append(Loss(kind="clamped", message=f"it gives at most {most} hits", engine=view.id))
        query = self._query(view, options.given, pushdown)
        need = engine.vector_need(query.mode)
        return Leg(
            view=view,
            query=query,
            depth=min(self.depth, most),
            most=most,
            weight=self.weights[view.id],
            offer=_offer(view, query.mode),
            filter=filter,
            pushdown=pushdown,
            need=need,
        )

    @property
    def request_k(self) -> int:
        return self.request.k if self.request.k is not None else _default_k(self.request)

    def _nothing(self, view: View, undeclared: Sequence[str]) -> Reason:
        if undeclared and view.member.settings.undeclared == "skip":
            names = ", ".join(undeclared)
            return Reason(view.id, "unable", f"it does not declare {names}", option="filter", field=undeclared[0])
        return Reason(view.id, "proved-empty", "nothing of it can match the filter")

    def _query(self, view: View, given: Mapping[str, Any], pushdown: Pushdown[Any]) -> EngineQuery:
        request = self.request
        retrieve = view.capabilities.retrieve
        assert retrieve is not None
        assert request.query is not None
        needed = frozenset[str]() if self.filter is None else fields_of(self.filter)
        query = EngineQuery(
            text=text_of(request.query),
            content=_blocks(request.query),
            k=self.depth,
            filter=pushdown.native,
            fields=needed,
            include_vectors=request.include_vectors is True,
            mode=given.get("mode"),
            modality=given.get("modality"),
            unit=given.get("unit"),
            level=given.get("level"),
            seed=request.seed if retrieve.deterministic else None,
        )
        fusion = request.fusion
        if fusion is not None and (fusion.method or "rrf") in (retrieve.fusion or ()):
            inner = {name: weight for name, weight in (fusion.weights or {}).items() if name in ("dense", "sparse")}
            told = FusionOptions(method=fusion.method, weights=inner or None, rrf_k=fusion.rrf_k)
            query = replace(query, fusion=told)
        return query


def _blocks(query: str | Content | list[Content]) -> tuple[Content, ...]:
    if isinstance(query, str):
        return ()
    return (query,) if isinstance(query, Content) else tuple(query)


def _turns(legs: Sequence[Leg], selection: Selection) -> tuple[tuple[Leg, ...], ...]:
    if not legs:
        return ()
    if not selection.priority:
        return (tuple(legs),)
    by_id = {leg.id: leg for leg in legs}
    return tuple(tuple(by_id[view.id] for view in turn) for turn in by_priority([leg.view for leg in legs]))


def _strategy(request: RetrieveRequest, defaults: Defaults) -> Strategy:
    """The method the client asks for, or the configured one; chosen here and never from replies."""
    fusion = request.fusion
    asked = fusion.method if fusion is not None else None
    strategy = defaults.strategies.get(asked or "", defaults.strategies[defaults.method])
    if fusion is not None and fusion.rrf_k is not None and isinstance(strategy, Rrf):
        return Rrf(fusion.rrf_k)
    if fusion is not None and fusion.alpha is not None and isinstance(strategy, Convex):
        return Convex(alpha=fusion.alpha)
    return strategy


def _offer(view: View, mode: str | None) -> LegOffer:
    """What fusion may rely on: the mode the engine will serve, the least score of it, whether hits carry confidence."""
    retrieve = view.capabilities.retrieve
    assert retrieve is not None
    only = retrieve.modes[0] if retrieve.modes and len(retrieve.modes) == 1 else None
    return LegOffer(
        engine=view.id,
        mode=mode or retrieve.default_mode or only,
        floor=retrieve.score_floor,
        confidence=bool(retrieve.confidence),
    )
