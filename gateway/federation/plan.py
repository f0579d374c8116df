"""From a request to the legs that will serve it. Pure: no I/O, no clock."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from gateway.errors import BackendUnavailable, CallerError, Code, InternalError, RcpError, invalid_params
from gateway.federation.capability import Snapshot, View, max_k
from gateway.federation.loss import Loss, Reason, said
from gateway.federation.options import Wanted, check_gateway_options, options_for, wanted_options
from gateway.federation.profile import EVERYTHING, Profile, within
from gateway.federation.select import Selection, by_priority, select
from gateway.filters import FALSE, TRUE, Filter, Op, Pushdown, fields_of, fold, parse, push_folded
from gateway.fusion import Convex, LegOffer, Rrf, Scale, Strategy, choose, leg_weights
from gateway.fusion.weights import LEG_KINDS
from gateway.model import Content, FusionOptions, RetrieveCapability, RetrieveRequest, text_of
from gateway.spi.call import Route
from gateway.spi.engine import Engine, EngineQuery, VectorNeed

__all__ = ["Defaults", "Leg", "RetrievePlan", "plan"]

logger = logging.getLogger("gateway.plan")

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
    max_query: int = 65_536
    deadline: float = 30.0
    reserve: float = 0.05
    profile: Profile = EVERYTHING


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
    sparse: VectorNeed | None = None

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
    scale: Scale
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
    if len(text_of(request.query)) > defaults.max_query:
        raise invalid_params(f"a query has at most {defaults.max_query} characters", field="query")
    if request.cursor is not None:
        raise CallerError("the cursor is not known here", code=Code.NOT_FOUND, data={"field": "cursor"})
    offered = snapshot.capabilities.retrieve
    limit = min(defaults.max_k, (offered.max_k if offered else None) or defaults.max_k)
    wanted_k = request.k if request.k is not None else _default_k(request)
    k = min(wanted_k, limit)
    filter = within(_filter(request.filter, snapshot), defaults.profile.filter, snapshot)
    losses = check_gateway_options(request, defaults.strategies)
    left_out = {loss.option for loss in losses}
    wanted, degraded = wanted_options(request, snapshot)
    losses += degraded
    losses += _clamped(request, limit)
    if request.seed is not None and not (offered and offered.deterministic):
        losses.append(Loss(kind="note", message="the seed is not honoured by every engine: results may differ"))
    selection = select(snapshot, meta, default=defaults.select, listed=defaults.profile.engines)
    weights = _weights(request, snapshot, selection)
    depth = min(max(k, request.candidate_k or max(defaults.window, k)), limit)

    builder = _Builder(
        request, wanted, filter, depth, max(k, request.candidate_k or 0), defaults.max_k, weights, losses
    )
    reasons = _left_out(selection)
    legs: list[Leg] = []
    planned: list[View] = []
    for view in selection.chosen:
        outcome = _unreachable(view, weights, route, cycle) or builder.leg(view)
        if isinstance(outcome, Leg):
            legs.append(outcome)
        else:
            reasons.append(outcome)
        # One that is down counts as one that will fail: neither changes the method nor the others' scores.
        if isinstance(outcome, Leg) or outcome.state == "failed":
            planned.append(view)
    turns, spared = _turns(legs, reasons, selection)
    strategy, notes = _strategy(request, defaults, [_offer(view, request.mode) for view in planned])
    losses += [Loss(kind="degraded", message=note) for note in notes]
    losses += _unread(request, strategy)
    min_score = request.min_score
    if min_score is not None and (notes or left_out.intersection(_scorers(request))):
        losses.append(
            Loss(kind="degraded", message="minScore was not applied: the scores are not on the scale asked for")
        )
        min_score = None
    shares = [weights[view.id] for view in planned]
    return RetrievePlan(
        k=k,
        turns=turns,
        reasons=(*reasons, *spared),
        losses=tuple(losses),
        strategy=strategy,
        scale=Scale(max(shares, default=1.0), math.fsum(shares) or 1.0),
        filter=filter,
        query=text_of(request.query),
        include_text=request.include_text is not False,
        include_vectors=request.include_vectors is True,
        min_score=min_score,
    )


def _default_k(request: RetrieveRequest) -> int:
    """10, or less if the client's own funnel is narrower (DECISIONS D10)."""
    bounds = [DEFAULT_K, request.candidate_k or DEFAULT_K]
    top_n = getattr(request.rerank, "top_n", None)
    return min([*bounds, top_n or DEFAULT_K])


def _clamped(request: RetrieveRequest, limit: int) -> list[Loss]:
    asked = {"k": request.k, "candidateK": request.candidate_k}
    return [
        Loss(kind="clamped", message=f"{name} is at most {limit}", option=name)
        for name, value in asked.items()
        if value is not None and value > limit
    ]


def _unread(request: RetrieveRequest, strategy: Strategy) -> list[Loss]:
    """Constants that the client gives for a method that is not the one in use."""
    fusion = request.fusion or FusionOptions()
    unread = {
        "fusion.alpha": fusion.alpha is not None and not isinstance(strategy, Convex),
        "fusion.rrfK": fusion.rrf_k is not None and not isinstance(strategy, Rrf),
    }
    return [
        Loss(kind="note", message=f"{name} says nothing to fusion by {strategy.name}", option=name)
        for name, given in unread.items()
        if given
    ]


def _scorers(request: RetrieveRequest) -> list[str]:
    """What of the request would have set the scale of the scores."""
    scorers = [] if request.fusion is None or request.fusion.method is None else [request.fusion.method]
    if request.rerank not in (None, False):
        scorers.append(getattr(request.rerank, "method", None) or "rerank")
    return scorers


def _filter(given: Any, snapshot: Snapshot) -> Filter | None:
    try:
        offered = snapshot.capabilities.filter
        return parse(given, snapshot.fields, None if offered is None else frozenset(map(Op, offered.operators)))
    except RcpError as error:
        field, path = error.data.get("field"), error.data.get("path", "")
        undeclared = path.endswith(".field") and field != path and field not in snapshot.fields
        if undeclared and not snapshot.settled:
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
    unselected = [view for view in selection.left_out if view.member.settings.weight > 0]
    return [
        *(Reason(view.id, "left-out", "it does not offer retrieve") for view in selection.unfit),
        *(Reason(view.id, "left-out", "it was not selected") for view in unselected),
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
    """Builds legs of one request. ``told`` is the depth that the client knows of, ``limit`` what it may ask for."""

    request: RetrieveRequest
    wanted: Sequence[Wanted]
    filter: Filter | None
    depth: int
    told: int
    limit: int
    weights: Mapping[str, float]
    losses: list[Loss]

    def leg(self, view: View) -> Leg | Reason:
        """The leg of one engine, or why there is none."""
        options = options_for(view, self.wanted)
        for option in options.missing:
            told = f"it does not offer {option.name} {option.told!r}"
            if not option.droppable or self.request.strict is not False:
                return Reason(view.id, "unable", told, option=option.told)
            self.losses.append(Loss(kind="degraded", message=told, engine=view.id, option=option.told))
        engine = view.member.engine
        if engine is None:
            return self._failed(view, view.member.fault or BackendUnavailable("it is not open"))
        try:
            pushed = self._pushed(view, engine)
            mode = options.given.get("mode")
            need, sparse = engine.vector_need(mode), engine.sparse_need(mode)
        except RcpError as error:
            return self._failed(view, error)
        except Exception as error:  # the boundary of the legs: an adapter may fail in any way
            logger.error("engine %s failed unexpectedly", view.id, exc_info=error)
            return self._failed(view, InternalError("the engine failed unexpectedly"))
        if isinstance(pushed, Reason):
            return pushed
        filter, pushdown = pushed
        most = max_k(view.capabilities) or max(self.limit, self.depth)
        if most < min(self.told, self.limit):
            self.losses.append(Loss(kind="clamped", message=f"it gives at most {most} hits", engine=view.id))
        return Leg(
            view=view,
            query=self._query(view, options.given, pushdown),
            depth=min(self.depth, most),
            most=most,
            weight=self.weights[view.id],
            offer=_offer(view, mode),
            filter=filter,
            pushdown=pushdown,
            need=need,
            sparse=sparse,
        )

    def _failed(self, view: View, error: RcpError) -> Reason:
        return Reason(view.id, "failed", error.message, error=error)

    def _pushed(self, view: View, engine: Engine) -> tuple[Filter | None, Pushdown[Any]] | Reason:
        """The filter as this engine's documents must satisfy it, and its two halves."""
        if self.filter is None:
            return None, Pushdown(native=None, residual=None)
        undeclared = view.member.settings.undeclared
        folded = fold(self.filter, view.fields, undeclared)
        pushdown = push_folded(folded, engine.push_down)
        if folded.filter is FALSE or pushdown.nothing:
            return self._nothing(view, folded.undeclared)
        if folded.undeclared and undeclared == "skip":
            told = f"it does not declare {', '.join(folded.undeclared)}: no document of it matches there"
            self.losses.append(Loss(kind="degraded", message=said(told), engine=view.id))
        return None if folded.filter is TRUE else folded.filter, pushdown

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
        told = self._fusion(retrieve)
        return query if told is None else replace(query, fusion=told)

    def _fusion(self, retrieve: RetrieveCapability) -> FusionOptions | None:
        """What an engine that fuses dense and sparse inside itself is told: never of other engines' weights."""
        fusion = self.request.fusion
        if fusion is None or (fusion.method or "rrf") not in (retrieve.fusion or ()):
            return None
        inner = {name: weight for name, weight in (fusion.weights or {}).items() if name in LEG_KINDS}
        told = FusionOptions(method=fusion.method, weights=inner or None, rrf_k=fusion.rrf_k)
        return None if told == FusionOptions() else told


def _blocks(query: str | Content | list[Content]) -> tuple[Content, ...]:
    if isinstance(query, str):
        return ()
    return (query,) if isinstance(query, Content) else tuple(query)


def _turns(
    legs: Sequence[Leg], reasons: Sequence[Reason], selection: Selection
) -> tuple[tuple[tuple[Leg, ...], ...], list[Reason]]:
    """The legs in turns, and those that need not be asked: nothing found by proof ends the asking as by answer."""
    if not legs or not selection.priority:
        return ((tuple(legs),) if legs else ()), []
    empty = {reason.engine for reason in reasons if reason.state == "proved-empty"}
    enough = max((view.member.settings.priority for view in selection.chosen if view.id in empty), default=None)
    asked = [leg for leg in legs if enough is None or leg.view.member.settings.priority >= enough]
    by_id = {leg.id: leg for leg in asked}
    turns = tuple(tuple(by_id[view.id] for view in turn) for turn in by_priority([leg.view for leg in asked]))
    spared = [leg.id for leg in legs if leg.id not in by_id]
    return turns, [Reason(id, "left-out", "engines of a higher priority answered") for id in spared]


def _strategy(request: RetrieveRequest, defaults: Defaults, offers: Sequence[LegOffer]) -> tuple[Strategy, list[str]]:
    """The method the client asks for, or the configured one, and what falls short of what was asked.

    It is chosen here and never from replies.
    """
    fusion = request.fusion or FusionOptions()
    ranks = defaults.strategies["rrf"]
    if fusion.rrf_k is not None and isinstance(ranks, Rrf):
        ranks = Rrf(fusion.rrf_k)
    name = fusion.method if fusion.method is not None and fusion.method in defaults.strategies else defaults.method
    strategy = ranks if name == "rrf" else defaults.strategies[name]
    if isinstance(strategy, Convex):
        alpha = strategy.alpha if fusion.alpha is None else fusion.alpha
        if fusion.alpha is None and not _one_of_each(offers):
            # The share that the configuration sets has a meaning only where there are two to share.
            alpha = None
        strategy = Convex(alpha=alpha, fallback=ranks)
    strategy, notes = choose(strategy, offers, ranks)
    return strategy, [note.text for note in notes]


def _one_of_each(offers: Sequence[LegOffer]) -> bool:
    return sorted(offer.mode or "" for offer in offers) == sorted(LEG_KINDS)


def _offer(view: View, mode: str | None) -> LegOffer:
    """What fusion may rely on: the mode the engine will serve, the least score of it, whether hits carry confidence.

    An engine that does not offer the ``mode`` serves its own.
    """
    retrieve = view.capabilities.retrieve
    assert retrieve is not None
    mode = mode if mode in (retrieve.modes or ()) else None
    only = retrieve.modes[0] if retrieve.modes and len(retrieve.modes) == 1 else None
    return LegOffer(
        engine=view.id,
        mode=mode or retrieve.default_mode or only,
        floor=retrieve.score_floor,
        confidence=bool(retrieve.confidence),
    )
