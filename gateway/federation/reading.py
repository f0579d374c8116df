"""Reading one engine's answer: as many pages as it takes, every hit made sound and held against the filter.

Nothing an engine returns is trusted: what fusion and sealing rest on (an id that is text, numbers that are numbers) is
made so here, and what cannot be is left out with a word.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gateway.federation.capability import View
from gateway.federation.leg import Leg
from gateway.federation.loss import NOTES, Loss, said
from gateway.federation.profile import held
from gateway.filters import Filter, judged
from gateway.fusion import Ranking
from gateway.model import Hit, member
from gateway.spi.call import Call
from gateway.spi.codec import finite_float, mend
from gateway.spi.engine import Engine, EngineQuery

__all__ = ["Reply", "ranking_of", "read", "sound"]

logger = logging.getLogger("gateway.recall")

_REFILLS = 4
_NAME = 64
_LONGEST = 65_536
"""Characters of an index version or of a rewritten query."""


@dataclass(slots=True)
class Reply:
    """One engine's hits, best first, after residual and verification. What was read stays if time runs out later."""

    leg: Leg
    hits: list[Hit] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    scanned: int = 0
    pages: int = 0
    version: str | None = None
    """The index version that was served, if the engine says."""
    rewritten: str | None = None
    """What the engine made of the query, if it rewrote it."""
    degraded: bool = False
    """Whether the engine said itself that its answer is partial."""

    def tell(self, kind: Any, message: str) -> None:
        """Adds a loss of this engine, each once: a refill or a retry meets the same again."""
        loss = Loss(kind=kind, message=message, engine=self.leg.id)
        if loss not in self.losses:
            self.losses.append(loss)


async def read(
    leg: Leg,
    query: EngineQuery,
    engine: Engine,
    call: Call,
    reply: Reply,
    *,
    verify: bool,
) -> None:
    """Asks for the window, and for more while a residual filter leaves it unfilled. ``query`` carries its vectors."""
    accept = _acceptance(leg, verify=verify, complete=engine.meta_complete, reply=reply)
    residual = leg.pushdown.residual is not None
    k = leg.depth
    exhausted = False
    for _ in range(_REFILLS + 1):
        answer = await engine.retrieve(query if k == query.k else replace(query, k=k), call)
        if len(answer.hits) > k:
            reply.tell("dropped", f"it gave more than the {k} hits asked for")
        given = answer.hits[:k]
        hits = sound(given)
        if len(hits) < len(given):
            reply.tell("dropped", "hits without a usable id were dropped")
        for note in answer.notes[:NOTES]:
            reply.tell("note", said(note))
        if answer.partial is not None:
            reply.degraded = True
            reply.tell("partial", _without(answer.partial))
        reply.hits = [hit for hit in hits if accept(hit)] if accept is not None else hits
        reply.scanned = len(given)
        reply.version = _text(answer.index_version)
        reply.rewritten = _text(answer.rewritten_query)
        reply.pages += 1
        exhausted = answer.exhausted or len(given) < k
        if not residual or len(reply.hits) >= leg.depth or exhausted or k >= leg.most:
            break
        k = min(k * 2, leg.most)
    if residual and len(reply.hits) < leg.depth and not exhausted:
        told = f"the filter was applied here: scanned {reply.scanned}, kept {len(reply.hits)}, may be incomplete"
        reply.tell("scanned", told)


def sound(hits: Sequence[Hit]) -> list[Hit]:
    """The hits as the types promise them; what has no members, or no id, is left out."""
    kept = []
    mappings: set[type] = set()
    hit: Any  # whatever an engine put there
    for hit in hits:
        if not isinstance(hit, Hit):
            continue
        kind = type(hit.members)
        if kind not in mappings:  # asking that of a type is dear, and hits of one answer are of one
            if not issubclass(kind, Mapping):
                continue
            mappings.add(kind)
        score, confidence = hit.score, hit.confidence
        if (
            type(hit.id) is str
            and hit.id
            and hit.id.isascii()
            and (score is None or (type(score) is float and math.isfinite(score)))
            and (confidence is None or type(confidence) is float)
        ):
            kept.append(hit)
        elif (id := _id(hit.id)) is not None:
            kept.append(Hit(id, finite_float(score), finite_float(confidence), hit.members))
    return kept


def _without(names: Sequence[Any]) -> str:
    shown = ", ".join(name for name in (said(one, _NAME) for one in names[:NOTES]) if name)
    return said(f"its answer is partial, without {shown}" if shown else "its answer is partial")


def _text(value: Any) -> str | None:
    """A text that says something, of a length that is meant."""
    return mend(value[:_LONGEST]) or None if isinstance(value, str) else None


def _id(id: Any) -> str | None:
    """The id as text (section 16.3): what an adapter took over as a number is a number's text."""
    if isinstance(id, bool) or not isinstance(id, str | int | float):
        return None
    if isinstance(id, float):
        if not math.isfinite(id):
            return None
        id = int(id) if id.is_integer() else id
    return mend(str(id)) or None


def ranking_of(
    view: View, order: int, hits: Sequence[Hit], *, namespace: bool = False, filter: Filter | None = None
) -> Ranking:
    """One engine's part of an answer, made sound. With ``namespace`` its ids are its own, and told apart as such.

    ``filter`` is what the hits must satisfy.
    """
    settings = view.member.settings
    found = held(sound(hits), view, filter)
    if namespace:
        found = [replace(hit, id=f"{view.id}/{hit.id}") for hit in found]
    return Ranking(
        engine=view.id,
        hits=found,
        order=order,
        weight=settings.weight or 1.0,
        corpus=None if namespace else settings.corpus,
        trust=settings.trust,
    )


def _acceptance(leg: Leg, *, verify: bool, complete: bool, reply: Reply) -> Callable[[Hit], bool] | None:
    """The check of one hit: the engine's own threshold, the residual, which must hold, and the rest of the filter.

    Of the rest only a definite contradiction counts. A field that is missing where the engine does not return all its
    metadata, or whose metadata cannot be read, is unknown.
    """
    floor = leg.view.member.settings.min_score
    if leg.filter is None and floor is None:
        return None
    residual = leg.pushdown.residual
    must = _judges(residual, complete) if residual is not None else None
    whole = _judges(leg.filter, complete) if verify and leg.filter is not None else None
    lied = False

    def accept(hit: Hit) -> bool:
        nonlocal lied
        if floor is not None and hit.score is not None and hit.score < floor:
            return False
        if must is None and whole is None:
            return True
        meta = member(hit, "meta")
        readable = isinstance(meta, Mapping) or "meta" not in hit.members
        known = dict(meta) if isinstance(meta, Mapping) else {}
        if must is not None:
            holds = must[readable](known)
            if holds is None:
                reply.tell("dropped", "hits without the metadata that the filter needs were dropped")
            if holds is not True:
                return False
        if whole is not None and whole[readable](known) is False:
            if not lied:
                lied = True
                logger.error("engine %s returned a hit that the filter excludes; it was dropped", leg.id)
            reply.tell("dropped", "hits that the filter excludes were dropped")
            return False
        return True

    return accept


def _judges(filter: Any, complete: bool) -> Mapping[bool, Callable[[dict[str, Any]], bool | None]]:
    """By whether the metadata could be read: only then may a missing field be an absent one."""
    return {True: judged(filter, complete), False: judged(filter, False)}
