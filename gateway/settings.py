"""From the configuration to what the layers below are given: the defaults of every call, limits, what is kept."""

from __future__ import annotations

import math
from dataclasses import replace

from gateway.config import FusionSettings, GatewayConfig
from gateway.engines import strategies_of
from gateway.federation.capability import Offer
from gateway.federation.cursor import Cursors
from gateway.federation.plan import Defaults, Quorum
from gateway.federation.profile import Profile
from gateway.federation.stages import Own
from gateway.plugins import Plugins
from gateway.protocol.dispatch import Limits
from gateway.refine.lexical import MAX_CANDIDATES, METHOD
from gateway.refine.trajectory import Trajectories
from gateway.service.keeping import Keeping
from gateway.state import Idempotency, Rate, Store

__all__ = ["bounds_of", "defaults_of", "keeping_of", "offer_of", "profile_defaults"]


def defaults_of(config: GatewayConfig, plugins: Plugins, identity: str) -> Defaults:
    """``identity`` is this gateway's name in federation paths."""
    limits, federation = config.limits, config.federation
    plain = Defaults(
        identity=identity,
        strategies={},
        select=federation.select,
        depth=federation.depth,
        verify=federation.verify,
        max_k=limits.max_k,
        max_query=limits.query,
        deadline=limits.deadline,
        reserve=limits.reserve,
        transform=config.transform,
        quorum=None if federation.quorum is None else Quorum(federation.quorum, federation.grace),
        own=Own(METHOD, MAX_CANDIDATES),
    )
    return _fusing(plain, config.fusion, plugins)


def profile_defaults(defaults: Defaults, profile: Profile, config: GatewayConfig, plugins: Plugins) -> Defaults:
    """What the configuration decides for calls under a profile."""
    fusion = next(one.fusion for one in config.profiles if one.name == profile.name)
    own = replace(defaults, profile=profile)
    return own if fusion is None else _fusing(own, fusion, plugins)


def _fusing(defaults: Defaults, fusion: FusionSettings, plugins: Plugins) -> Defaults:
    return replace(
        defaults,
        strategies=strategies_of(fusion, plugins),
        method=fusion.method,
        window=fusion.window,
        document_identity=fusion.identity,
        per_document=fusion.per_document,
        across=fusion.across,
        mix=fusion.mix,
        undated=fusion.undated,
        scorer=fusion.scorer,
    )


def offer_of(config: GatewayConfig, defaults: Defaults, keeping: Keeping) -> Offer:
    return Offer(
        config.limits.max_k,
        config.writes,
        config.embed,
        tuple(defaults.strategies),
        transform=config.transform,
        rerank={"methods": [METHOD], "maxCandidates": MAX_CANDIDATES},
        pagination=keeping.cursors.offered,
        session_ttl=math.ceil(config.sessions.ttl),
    )


def keeping_of(config: GatewayConfig, store: Store) -> Keeping:
    pages, sessions = config.pagination, config.sessions
    return Keeping(
        Cursors(
            store,
            ttl=pages.ttl,
            size=pages.bytes,
            caller_size=pages.caller_bytes,
            key=pages.key,
            processes=config.state.processes,
        ),
        Trajectories(store, ttl=sessions.ttl, cap=sessions.ids),
        # No write outlasts the deadline of the call it is part of, and what it leaves behind not twice that.
        Idempotency(store, ttl=config.idempotency.ttl, lease=2 * config.limits.deadline),
        None if config.limits.rate is None else Rate(store, config.limits.rate),
    )


def bounds_of(config: GatewayConfig) -> Limits:
    limits = config.limits
    return Limits(
        frame_bytes=max(limits.body, limits.line), batch=limits.batch, concurrent_per_session=limits.concurrency
    )
