"""What the copies of one document have to say together: metadata, trust, the merged hit.

Called for winners only: this is where members are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.fusion.ranking import TRUST_LEVELS, Copy, Fused
from gateway.model import PROVENANCE, UPSTREAM, Hit, member, meta_of

__all__ = ["PROVENANCE", "UPSTREAM", "configured_level", "merged_hit", "merged_meta", "merged_trust", "trust_level"]

Meta = dict[str, Any]

CITATIONS = "citations"
"""Under identity by URI or content: the citation of every document that was joined, best rank first."""


_NULL = msgspec.Raw(b"null")
_LEVELS = {level: place for place, level in enumerate(TRUST_LEVELS)}
_RESERVED = frozenset({*PROVENANCE, UPSTREAM})
_RESERVED_TOO = _RESERVED | {CITATIONS}


def merged_meta(fused: Fused, keep: Callable[[Meta], bool] | None = None) -> Meta:
    """Metadata of all copies, where the best rank (then the plan's order) wins a conflict, and provenance.

    If ``keep``, the caller's filter, refuses what several copies make together, the best-ranked copy's is used alone.
    """
    best = fused.copies[0]
    citations = _citations(fused)
    reserved = _RESERVED_TOO if citations else _RESERVED
    meta = _own(best.hit, reserved)
    if len(fused.copies) > 1:
        alone, meta = meta, {}
        encoded = best.hit.members.get("meta")
        for copy in reversed(fused.copies[1:]):
            # The same document in two engines usually has the same metadata, as can be seen while it is encoded.
            if copy.hit.members.get("meta") != encoded:
                meta.update(_own(copy.hit, reserved))
        meta.update(alone)
        if keep is not None and not keep(meta):
            meta = alone
    if citations:
        meta[CITATIONS] = citations
    meta["engine"] = best.engine
    meta["bodyEngine"] = fused.copies[fused.body].engine
    meta["engines"] = [copy.engine for copy in fused.copies]
    meta["engineRank"] = best.rank
    if best.hit.score is not None:
        meta["engineScore"] = best.hit.score
    meta["fusedScore"] = fused.score
    return meta


def merged_trust(fused: Fused) -> dict[str, Any]:
    """The lowest level and score, any suspicion of injection, and the body copy's word on being sanitised."""
    if not [copy for copy in fused.copies if "trust" in copy.hit.members]:
        return {"level": TRUST_LEVELS[min([_LEVELS.get(copy.trust, 0) for copy in fused.copies])]}
    stated = [_trust(copy.hit) for copy in fused.copies]
    trust: dict[str, Any] = {
        "level": TRUST_LEVELS[min(trust_level(copy.hit, copy.trust) for copy in fused.copies)],
    }
    scores = [score for own in stated if (score := _unit(own.get("score"))) is not None]
    if scores:
        trust["score"] = min(scores)
    suspicions = [value for own in stated if isinstance(value := own.get("injectionSuspected"), bool)]
    if suspicions:
        trust["injectionSuspected"] = any(suspicions)
    sanitized = stated[fused.body].get("sanitized")
    if isinstance(sanitized, bool):
        trust["sanitized"] = sanitized
    return trust


def merged_hit(fused: Fused, keep: Callable[[Meta], bool] | None = None, *, vectors: bool = True) -> Hit:
    """The document as one hit with the fused score: the body copy's members, with what all copies make together.

    ``scores``, the raw parts of ``meta.engineScore``, are those of the best-ranked copy that has some. A body without
    a vector has that of the best-ranked copy with one, whose engine ``meta.vectorEngine`` names; not if ``vectors`` are
    not wanted.
    """
    members = dict(fused.copies[fused.body].hit.members.items())
    if len(fused.copies) > 1:
        members.pop("scores", None)
        scored = next((copy.hit for copy in fused.copies if "scores" in copy.hit.members), None)
        if scored is not None:
            members["scores"] = scored.members["scores"]
    members["meta"] = meta = merged_meta(fused, keep)
    if vectors and len(fused.copies) > 1 and not _has_vector(fused.copies[fused.body]):
        lender = next(filter(_has_vector, fused.copies), None)
        if lender is not None:
            members["vector"] = lender.hit.members["vector"]
            meta["vectorEngine"] = lender.engine
    if len(fused.copies) == 1 and "trust" not in members:  # the usual case, without a look at the hit again
        members["trust"] = {"level": TRUST_LEVELS[configured_level(fused.copies[0].trust)]}
    else:
        members["trust"] = merged_trust(fused)
    return Hit(fused.id, fused.score, fused.confidence, members)


def _has_vector(copy: Copy) -> bool:
    vector = copy.hit.members.get("vector")
    return vector is not None and not (isinstance(vector, msgspec.Raw) and vector == _NULL)


def configured_level(trust: str) -> int:
    """The index of an engine's configured level; an unknown one is the lowest."""
    return _LEVELS.get(trust, 0)


def trust_level(hit: Hit, configured: str) -> int:
    """The hit's level, as an index of ``TRUST_LEVELS``: the upstream's word, capped by its engine's configured level.

    An absent or unknown word is the configured level; an unknown configured level is the lowest.
    """
    cap = configured_level(configured)
    level = _trust(hit).get("level")
    return min(cap, TRUST_LEVELS.index(level)) if isinstance(level, str) and level in TRUST_LEVELS else cap


def _trust(hit: Hit) -> Mapping[str, Any]:
    if "trust" not in hit.members:
        return {}
    value = member(hit, "trust")
    return value if isinstance(value, Mapping) else {}


def _own(hit: Hit, reserved: frozenset[str]) -> Meta:
    meta = meta_of(hit)
    if not reserved.isdisjoint(meta):
        moved = {key: meta.pop(key) for key in list(meta) if key in reserved}
        meta[UPSTREAM] = moved
    return meta


def _citations(fused: Fused) -> list[Any]:
    """Distinct citations, where documents of different ids were joined; else none, since the body has its own."""
    if not fused.ids:
        return []
    found: list[Any] = []
    for copy in sorted((*fused.copies, *fused.repeats), key=lambda copy: (copy.rank, copy.order)):
        citation = member(copy.hit, "citation")
        if isinstance(citation, Mapping) and citation not in found:
            found.append(citation)
    return found if len(found) > 1 else []


def _unit(value: object) -> float | None:
    """The value if it is a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= 1 else None
