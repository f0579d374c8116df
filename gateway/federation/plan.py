"""From a request to the legs that will serve it. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.errors import BackendUnavailable, RcpError, invalid_params, option_unsupported
from gateway.federation.capability import Snapshot, View
from gateway.federation.leg import Leg, LegBuilder, offer_of
from gateway.federation.loss import Loss, Reason, said
from gateway.federation.options import covers_hybrid, unsupported, wanted_options
from gateway.federation.profile import EVERYTHING, Profile, within
from gateway.federation.route import asked_here
from gateway.federation.select import Selection, by_priority, select
from gateway.federation.stages import Own, Stages, staged
from gateway.federation.version import parse as parse_version
from gateway.filters import Filter, Op, parse
from gateway.fusion import MIX, Convex, LegOffer, Rrf, Scale, Strategy, choose, leg_weights
from gateway.fusion.weights import LEG_KINDS
from gateway.model import FusionOptions, RetrieveRequest, text_of
from gateway.spi.call import Route
from gateway.spi.versions import version_gone

__all__ = ["DEFAULT_K", "Defaults", "Quorum", "RetrievePlan", "plan"]

DEFAULT_K = 10
"""Hits in an answer, or on a page, where the client names no number (DECISIONS D2)."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Enough engines: once ``answers`` have answered, the others have ``grace`` seconds left."""

    answers: int
    grace: float


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the configuration decides for every call; see ``config.schema`` for the meaning of each."""

    identity: str
    strategies: Mapping[str, Strategy]
    method: str = "rrf"
    across: str = "rrf"
    mix: float = MIX
    scorer: str | None = None
    window: int = 50
    document_identity: str = "id"
    select: str = "all"
    depth: int = 3
    verify: bool = True
    max_k: int = 1000
    max_query: int = 65_536
    deadline: float = 30.0
    reserve: float = 0.05
    transform: str | None = None
    quorum: Quorum | None = None
    per_document: int | None = None
    undated: float = 0.5
    own: Own = field(default_factory=Own)
    profile: Profile = EVERYTHING


class RetrievePlan(msgspec.Struct, frozen=True):
    """``turns`` are asked one after the other, until one has an answer; usually there is a single turn.

    ``depth`` is how deep the fused window goes, ``k`` and ``budget`` (tokens) what of it makes one answer. ``mix`` is
    the share of the passages where several corpora are scored together, ``None`` where they are not;
    ``scorer`` is the engine that scores them, by words if there is none.
    """

    k: int
    depth: int
    turns: tuple[tuple[Leg, ...], ...]
    reasons: tuple[Reason, ...]
    losses: tuple[Loss, ...]
    strategy: Strategy
    scale: Scale
    stages: Stages
    filter: Filter | None
    query: str
    include_text: bool
    include_vectors: bool
    encoding: str | None
    min_score: float | None
    budget: int | None
    quorum: Quorum | None = None
    pinned: Mapping[str, str] = {}
    """The index versions to serve, by engine; empty if none is pinned."""
    versioned: bool = False
    """Whether this call may pin a version: each engine that it asks keeps them."""
    mix: float | None = None
    scorer: View | None = None

    @property
    def scored_by(self) -> str:
        """What sets the scale of the scores."""
        return self.strategy.name if self.mix is None else "rescore"

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
    seen: int = 0,
) -> RetrievePlan:
    """Decides who is asked what. Raises :class:`~gateway.errors.RcpError` for what must not run at all.

    Everything that can be wrong with the request is found here, before any engine hears of it. ``seen`` is how many
    hits the client's session has been given already: it is asked so much deeper.
    """
    assert request.query is not None
    if len(text_of(request.query)) > defaults.max_query:
        raise invalid_params(f"a query has at most {defaults.max_query} characters", field="query")
    offered = snapshot.capabilities.retrieve
    limit = min(defaults.max_k, (offered.max_k if offered else None) or defaults.max_k)
    filter = within(_filter(request.filter, snapshot), defaults.profile.filter, snapshot)
    losses = _unknown_method(request, defaults)
    wanted, degraded = wanted_options(request, snapshot)
    losses += degraded
    losses += _clamped(request, limit)
    if request.seed is not None and not (offered and offered.deterministic):
        losses.append(Loss(kind="note", message="the seed is not honoured by every engine: results may differ"))
    selection = select(snapshot, meta, default=defaults.select, listed=defaults.profile.engines)
    weights = _weights(request, snapshot, selection)
    versionless = [
        view.id for view in selection.chosen if not _unreachable(view, weights, route, cycle) and not _keeps(view)
    ]
    pinned = _pinned(request, snapshot, versionless)
    told = _told(request)
    depth = min(max(told, 0 if request.candidate_k else defaults.window) + seen, limit)
    builder = LegBuilder(
        request=request,
        wanted=wanted,
        filter=filter,
        depth=depth,
        told=told,
        limit=defaults.max_k,
        weights=weights,
        losses=losses,
        joint=request.mode == "hybrid" and covers_hybrid(selection.chosen),
        vectors=request.include_vectors is True,
        pinned=pinned,
    )
    legs, reasons, planned = _legs(builder, selection, route, cycle)
    stages, legs, unsupplied = staged(
        request,
        snapshot,
        legs,
        meta,
        depth=depth,
        own=defaults.own,
        named=defaults.transform,
        per_document=defaults.per_document,
        alone=len(planned) == 1 and pinned is None,
        by_rank=_method(request, defaults) == "rrf",
    )
    losses += unsupplied
    turns, spared = _turns(legs, reasons, selection)
    by_id = {leg.id: leg.offer for leg in legs}
    offers = [by_id[view.id] if view.id in by_id else offer_of(view, request.mode) for view in planned]
    strategy, notes = _strategy(request, defaults, offers)
    losses += [Loss(kind="degraded", message=note) for note in notes]
    losses += _unread(request, strategy)
    min_score = _threshold(request, losses, fell_back=bool(notes))
    shares = [weights[view.id] for view in planned]
    return RetrievePlan(
        k=min(_wanted_k(request, depth), limit),
        depth=depth,
        turns=turns,
        reasons=(*reasons, *spared),
        losses=tuple(losses),
        strategy=strategy,
        scale=Scale(max(shares, default=1.0), math.fsum(shares) or 1.0),
        stages=stages,
        filter=filter,
        query=text_of(request.query),
        include_text=request.include_text is not False,
        include_vectors=request.include_vectors is True,
        encoding=request.encoding,
        min_score=min_score,
        budget=request.token_budget,
        quorum=defaults.quorum,
        pinned=pinned or {},
        versioned=not versionless,
        mix=_mix(meta, defaults, planned),
        scorer=None if defaults.scorer is None else snapshot.view(defaults.scorer),
    )


def _legs(
    builder: LegBuilder, selection: Selection, route: Route, cycle: bool
) -> tuple[list[Leg], list[Reason], list[View]]:
    """The legs, why others have none, and the engines that count as planned.

    One that is down counts as one that will fail: neither changes the method nor the others' scores.
    """
    legs: list[Leg] = []
    reasons = _left_out(selection)
    planned: list[View] = []
    for view in selection.chosen:
        outcome = _unreachable(view, builder.weights, route, cycle) or builder.leg(view)
        if isinstance(outcome, Leg):
            legs.append(outcome)
        else:
            reasons.append(outcome)
        if isinstance(outcome, Leg) or outcome.state == "failed":
            planned.append(view)
    return legs, reasons, planned


def _threshold(request: RetrieveRequest, losses: list[Loss], *, fell_back: bool) -> float | None:
    """The client's ``minScore``; ``None``, with a loss, where what would have set its scale is not used."""
    left_out = {loss.option for loss in losses if loss.kind == "degraded"}
    if request.min_score is None or not (fell_back or left_out.intersection(_scorers(request))):
        return request.min_score
    losses.append(Loss(kind="degraded", message="minScore was not applied: the scores are not on the scale asked for"))
    return None


def _wanted_k(request: RetrieveRequest, depth: int) -> int:
    """What the client asks for; under a token budget alone the budget decides, and the window bounds it."""
    if request.k is not None:
        return request.k
    return depth if request.token_budget is not None else _default_k(request)


def _told(request: RetrieveRequest) -> int:
    """How deep the client lets the engines be asked, or needs them to be, by what it says itself."""
    k = request.k if request.k is not None else _default_k(request)
    return max(k, request.candidate_k or 0, getattr(request.rerank, "top_n", None) or 0)


def _keeps(view: View) -> bool:
    """Whether the engine keeps index versions."""
    retrieve = view.capabilities.retrieve
    return retrieve is not None and bool(retrieve.snapshots)


def _pinned(request: RetrieveRequest, snapshot: Snapshot, versionless: Sequence[str]) -> Mapping[str, str] | None:
    """The index versions to serve, by engine: exactly those or none, also under ``strict: false`` (DECISIONS D18).

    ``versionless`` are the engines of the call that keep none.
    """
    if request.index_version is None:
        return None
    if versionless:
        told = f"index versions are not offered by {', '.join(versionless)}"
        reasons = dict.fromkeys(versionless, "it keeps no index versions")
        raise option_unsupported(said(told), option="indexVersion", field="indexVersion", reasons=reasons)
    versions = parse_version(request.index_version)
    if any(snapshot.view(id) is None for id in versions):
        raise version_gone()
    return versions


def _unknown_method(request: RetrieveRequest, defaults: Defaults) -> list[Loss]:
    method = request.fusion.method if request.fusion is not None else None
    if method is None or method in defaults.strategies:
        return []
    return [unsupported("fusion.method", method, strict=request.strict, offered=defaults.strategies)]


def _mix(meta: Mapping[str, Any], defaults: Defaults, planned: Sequence[View]) -> float | None:
    """Whether corpora are scored together is decided here, failed engines counted in, and never from replies."""
    across = asked_here(meta).get("across")
    across = defaults.across if across is None else across
    if across not in ("rrf", "rescore"):
        raise invalid_params("across is 'rrf' or 'rescore'", field="_meta.x-gateway.across")
    several = len({view.member.settings.corpus for view in planned}) > 1
    return defaults.mix if across == "rescore" and several else None


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
            told = "so far: some engines have not been seen yet, so the field may be theirs, or misspelt"
            raise BackendUnavailable(f"{error.message} {told}", data=error.data) from error
        raise


def _weights(request: RetrieveRequest, snapshot: Snapshot, selection: Selection) -> dict[str, float]:
    """The weight of every chosen engine in this call; 0 means that it is not asked."""
    given = (request.fusion.weights if request.fusion else None) or {}
    offers = [offer_of(view, request.mode) for view in selection.chosen]
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
    name = _method(request, defaults)
    strategy = ranks if name == "rrf" else defaults.strategies[name]
    if isinstance(strategy, Convex):
        alpha = strategy.alpha if fusion.alpha is None else fusion.alpha
        if fusion.alpha is None and not _one_of_each(offers):
            # The share that the configuration sets has a meaning only where there are two to share.
            alpha = None
        strategy = Convex(alpha=alpha, fallback=ranks)
    strategy, notes = choose(strategy, offers, ranks)
    return strategy, [note.text for note in notes]


def _method(request: RetrieveRequest, defaults: Defaults) -> str:
    """The fusion that the client asks for, if there is such a one, else the configured one."""
    given = None if request.fusion is None else request.fusion.method
    return given if given is not None and given in defaults.strategies else defaults.method


def _one_of_each(offers: Sequence[LegOffer]) -> bool:
    return sorted(offer.mode or "" for offer in offers) == sorted(LEG_KINDS)
