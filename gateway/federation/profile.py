"""What a named profile changes about a retrieve: engines in scope, options a request leaves out, a standing filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gateway.caller import Caller
from gateway.errors import BackendUnavailable, RcpError
from gateway.federation.capability import Snapshot, View
from gateway.filters import FALSE, Filter, conjunction, fold, judged, parse
from gateway.model import Hit, RerankOptions, RetrieveRequest, member

__all__ = ["EVERYTHING", "Profile", "filled", "held", "narrowed", "within"]


@dataclass(frozen=True, slots=True)
class Profile:
    """``engines``: the ids in scope, ``None`` for all. ``filter`` is wire JSON that holds for every request.

    ``options`` are members of a :class:`RetrieveRequest`, by their Python name, for requests that leave them out.
    """

    name: str = ""
    engines: frozenset[str] | None = None
    filter: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


EVERYTHING = Profile()
"""What the base path serves: every engine, no filter, no options."""


def narrowed(caller: Caller, profile: Profile) -> Caller:
    """The caller with only those engines in sight that the profile has too."""
    if profile.engines is None:
        return caller
    seen = profile.engines if caller.engines is None else caller.engines & profile.engines
    return replace(caller, engines=seen)


def filled(request: RetrieveRequest, profile: Profile) -> RetrieveRequest:
    """The request with the profile's options where it says nothing itself; ``false`` is something said.

    An option is taken whole, never mixed member by member. The funnel's numbers were checked on what the client said
    alone, so the profile's numbers bend to the client's and never make its request invalid.
    """
    taken = {name: value for name, value in profile.options.items() if getattr(request, name) is None}
    if not taken:
        return request
    return _funnelled(msgspec.structs.replace(request, **taken), taken)


def _funnelled(request: RetrieveRequest, taken: Mapping[str, Any]) -> RetrieveRequest:
    """candidateK ≥ rerank.topN ≥ k (section 3.3), by moving only what the profile gave."""
    k, candidate_k = request.k, request.candidate_k
    rerank = request.rerank if isinstance(request.rerank, RerankOptions) else None
    top_n = rerank.top_n if rerank is not None else None
    if "k" in taken and k is not None:
        # Numbers of the profile alone are in order already; only the client's can be too small for its k.
        asked = [None if "candidate_k" in taken else candidate_k, None if "rerank" in taken else top_n]
        k = min([k, *(one for one in asked if one is not None)])
    if "rerank" in taken and rerank is not None and top_n is not None:
        top_n = max(top_n, k or 0)
        if candidate_k is not None and "candidate_k" not in taken:
            top_n = min(top_n, candidate_k)
        rerank = msgspec.structs.replace(rerank, top_n=top_n)
    if "candidate_k" in taken and candidate_k is not None:
        candidate_k = max(candidate_k, top_n or 0, k or 0)
    return msgspec.structs.replace(
        request, k=k, candidate_k=candidate_k, rerank=rerank if rerank is not None else request.rerank
    )


def within(asked: Filter | None, standing: Any, snapshot: Snapshot) -> Filter | None:
    """The client's filter under the profile's: both hold, whatever the client's says.

    Raises ``-32010`` where the profile's filter cannot be read against the fields in sight: that is no fault of the
    client, and without it nothing may be returned.
    """
    if standing is None:
        return asked
    try:
        own = parse(standing, snapshot.fields)
    except RcpError as error:
        fault = BackendUnavailable("the filter of this profile cannot be applied", retryable=not snapshot.settled)
        fault.detail = f"{error.message}: {error.data.get('field')}"
        raise fault from error
    parts = [one for one in (own, asked) if one is not None]
    return conjunction(parts) if parts else None


def held(hits: Sequence[Hit], view: View, filter: Filter | None) -> list[Hit]:
    """The hits of an engine that surely satisfy the profile's filter, where the engine was not asked to apply it."""
    if filter is None:
        return list(hits)
    own = fold(filter, view.fields, view.member.settings.undeclared).filter
    if own is FALSE or view.member.engine is None:
        return []
    holds, unread = judged(own, view.member.engine.meta_complete), judged(own, False)
    kept = []
    for hit in hits:
        meta = member(hit, "meta")
        readable = isinstance(meta, Mapping) or "meta" not in hit.members
        if (holds if readable else unread)(dict(meta) if isinstance(meta, Mapping) else {}) is True:
            kept.append(hit)
    return kept
