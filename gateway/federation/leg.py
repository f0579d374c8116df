"""One engine's part of a plan: what it will be asked, and what the gateway checks itself. Pure: no I/O, no clock."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.errors import BackendUnavailable, InternalError, RcpError
from gateway.federation.capability import View, max_k
from gateway.federation.loss import Loss, Reason, said
from gateway.federation.options import Wanted, options_for
from gateway.filters import FALSE, TRUE, Filter, Pushdown, fields_of, fold, push_folded
from gateway.fusion import LegOffer
from gateway.fusion.weights import LEG_KINDS
from gateway.model import Content, FusionOptions, RetrieveCapability, RetrieveRequest, text_of
from gateway.spi.engine import Engine, EngineQuery, VectorNeed

__all__ = ["Ask", "Leg", "LegBuilder", "offer_of"]

logger = logging.getLogger("gateway.plan")

_NO_FILTER: Pushdown[Any] = Pushdown(native=None, residual=None)


class Ask(msgspec.Struct, frozen=True):
    """One question to an engine, and the vectors it needs. A leg has several only where one mode is made of two."""

    query: EngineQuery
    need: VectorNeed | None = None
    sparse: VectorNeed | None = None


class Leg(msgspec.Struct, frozen=True):
    """One engine's part. ``pushdown.residual`` and, in verify mode, ``filter`` are checked here on every hit.

    ``depth`` is how many kept hits are wanted; ``most`` how many the engine gives at once.
    """

    view: View
    asks: tuple[Ask, ...]
    depth: int
    most: int
    weight: float
    offer: LegOffer
    filter: Filter | None = None
    pushdown: Pushdown[Any] = _NO_FILTER

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def embedders(self) -> tuple[str, ...]:
        """The engines that this leg takes dense vectors from, each once."""
        return tuple(dict.fromkeys(ask.need.embedder for ask in self.asks if ask.need is not None))


class LegBuilder(msgspec.Struct, frozen=True):
    """Builds the legs of one request. ``told`` is the depth the client knows of, ``limit`` what it may ask for.

    ``joint`` allows an engine to serve its half of ``hybrid`` where the engines together have both halves.
    ``vectors`` asks for the hits' vectors. ``pinned`` are the index versions to serve, by engine.
    """

    request: RetrieveRequest
    wanted: Sequence[Wanted]
    filter: Filter | None
    depth: int
    told: int
    limit: int
    weights: Mapping[str, float]
    losses: list[Loss]
    joint: bool = False
    vectors: bool = False
    pinned: Mapping[str, str] | None = None

    def leg(self, view: View) -> Leg | Reason:
        """The leg of one engine, or why there is none."""
        options = options_for(view, self.wanted, joint=self.joint)
        for option in options.missing:
            told = f"it does not offer {option.name} {option.told!r}"
            if not option.droppable or self.request.strict is not False:
                return Reason(view.id, "unable", told, option=option.told)
            self.losses.append(Loss(kind="degraded", message=told, engine=view.id, option=option.told))
        if self.pinned is not None and view.id not in self.pinned:
            return Reason(view.id, "left-out", "the pinned index version does not hold it")
        engine = view.member.engine
        if engine is None:
            return _failed(view, view.member.fault or BackendUnavailable("it is not open"))
        try:
            pushed = self._pushed(view, engine)
            needs = [(mode, engine.vector_need(mode), engine.sparse_need(mode)) for mode in options.modes]
        except RcpError as error:
            return _failed(view, error)
        except Exception as error:  # the boundary of the legs: an adapter may fail in any way
            logger.error("engine %s failed unexpectedly", view.id, exc_info=error)
            return _failed(view, InternalError("the engine failed unexpectedly"))
        if isinstance(pushed, Reason):
            return pushed
        filter, pushdown = pushed
        most = max_k(view.capabilities) or max(self.limit, self.depth)
        if most < min(self.told, self.limit):
            self.losses.append(Loss(kind="clamped", message=f"it gives at most {most} hits", engine=view.id))
        query = self._query(view, options.given, pushdown)
        return Leg(
            view=view,
            asks=tuple(
                [
                    Ask(query if mode is None else replace(query, mode=mode), need, sparse)
                    for mode, need, sparse in needs
                ]
            ),
            depth=min(self.depth, most),
            most=most,
            weight=self.weights[view.id],
            offer=offer_of(view, *options.modes),
            filter=filter,
            pushdown=pushdown,
        )

    def _pushed(self, view: View, engine: Engine) -> tuple[Filter | None, Pushdown[Any]] | Reason:
        """The filter as this engine's documents must satisfy it, and its two halves."""
        if self.filter is None:
            return None, _NO_FILTER
        undeclared = view.member.settings.undeclared
        folded = fold(self.filter, view.fields, undeclared)
        pushdown = push_folded(folded, engine.push_down)
        if folded.filter is FALSE or pushdown.nothing:
            return _nothing(view, folded.undeclared)
        if folded.undeclared and undeclared == "skip":
            told = f"it does not declare {', '.join(folded.undeclared)}: no document of it matches there"
            self.losses.append(Loss(kind="degraded", message=said(told), engine=view.id))
        return None if folded.filter is TRUE else folded.filter, pushdown

    def _query(self, view: View, given: Mapping[str, Any], pushdown: Pushdown[Any]) -> EngineQuery:
        request = self.request
        retrieve = view.capabilities.retrieve
        assert retrieve is not None
        assert request.query is not None
        needed = frozenset[str]() if self.filter is None else fields_of(self.filter)
        if request.recency is not None and request.recency.field is not None:
            needed |= {request.recency.field}
        query = EngineQuery(
            text=text_of(request.query),
            content=_blocks(request.query),
            k=self.depth,
            filter=pushdown.native,
            fields=needed,
            include_vectors=self.vectors,
            modality=given.get("modality"),
            unit=given.get("unit"),
            level=given.get("level"),
            candidate_k=None if request.candidate_k is None else max(request.candidate_k, self.depth),
            seed=request.seed if retrieve.deterministic else None,
            index_version=None if self.pinned is None else self.pinned.get(view.id),
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


def _failed(view: View, error: RcpError) -> Reason:
    return Reason(view.id, "failed", error.message, error=error)


def _nothing(view: View, undeclared: Sequence[str]) -> Reason:
    if undeclared and view.member.settings.undeclared == "skip":
        names = ", ".join(undeclared)
        return Reason(view.id, "unable", f"it does not declare {names}", option="filter", field=undeclared[0])
    return Reason(view.id, "proved-empty", "nothing of it can match the filter")


def _blocks(query: str | Content | list[Content]) -> tuple[Content, ...]:
    if isinstance(query, str):
        return ()
    return (query,) if isinstance(query, Content) else tuple(query)


def offer_of(view: View, *modes: str | None) -> LegOffer:
    """What fusion may rely on: the mode the engine will serve, the least score of it, whether hits carry confidence.

    An engine that does not offer the mode serves its own. One that is asked in several has no scale of its own left.
    """
    retrieve = view.capabilities.retrieve
    assert retrieve is not None
    if len(modes) > 1:
        return LegOffer(engine=view.id, mode="hybrid", floor=None, confidence=bool(retrieve.confidence))
    mode = next((mode for mode in modes if mode in (retrieve.modes or ())), None)
    only = retrieve.modes[0] if retrieve.modes and len(retrieve.modes) == 1 else None
    return LegOffer(
        engine=view.id,
        mode=mode or retrieve.default_mode or only,
        floor=retrieve.score_floor,
        confidence=bool(retrieve.confidence),
    )
