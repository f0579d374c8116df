"""What is searched with in the place of the query: the first step of recall (RCP section 7.8)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from gateway.federation.loss import Failure, Loss, notes_as_losses, said
from gateway.federation.plan import RetrievePlan
from gateway.federation.replies import sound_transform
from gateway.federation.runner import Deadline, EngineCall, run_alone
from gateway.model import Content
from gateway.spi.call import Call, Route
from gateway.spi.engine import Engine, EngineQuery, TransformQuery, TransformReply

__all__ = ["VARIANTS", "Form", "Forms", "transformed"]

VARIANTS = 3
"""How many queries ``multi-query`` and ``decompose`` are asked to make, where the client names no number."""


class Form(msgspec.Struct, frozen=True):
    """One query to search with. ``passage`` is embedded in its place where vectors are needed (HyDE)."""

    text: str
    passage: str | None = None

    @property
    def embedded(self) -> str:
        return self.text if self.passage is None else self.passage

    @property
    def kind(self) -> str:
        """The side of a search that the embedded text stands on: a hypothetical passage is a document."""
        return "query" if self.passage is None else "document"

    def asked(self, query: EngineQuery) -> EngineQuery:
        """The query in this form; blocks that are not text stay as they are."""
        if self.text == query.text:
            return query
        others = tuple(block for block in query.content if block.type != "text")
        content = (Content(type="text", text=self.text), *others) if query.content else ()
        return replace(query, text=self.text, content=content)


class Forms(msgspec.Struct, frozen=True):
    """The queries to search with, the first of them ``told`` to the client if it is another than it asked."""

    forms: tuple[Form, ...]
    told: str | None = None
    losses: tuple[Loss, ...] = ()


async def transformed(plan: RetrievePlan, deadline: Deadline, route: Route) -> Forms:
    """The query as the plan's rewriting makes it; as it was, with a note, where there is none or it fails.

    ``multi-query`` and ``step-back`` search with the original too; ``decompose`` with its parts; ``hyde`` with the
    original's words and the hypothetical passage's vector (Gao et al. 2022).
    """
    original = Form(plan.query)
    rewrite = plan.stages.rewrite
    if rewrite is None:
        return Forms((original,))
    query = TransformQuery(text=plan.query, method=rewrite.method, n=VARIANTS)

    async def ask(engine: Engine, call: Call) -> TransformReply:
        return sound_transform(await engine.transform(query, call), VARIANTS + 1)

    reply = await run_alone(rewrite.view.member, ask, EngineCall(route), deadline)
    if isinstance(reply, Failure):
        why = f"the query was not transformed: {said(reply.error.message)}"
        loss = Loss(kind="degraded", message=why, engine=reply.engine, code=reply.error.code, option="rewrite")
        return Forms((original,), losses=(loss,))
    losses = tuple(notes_as_losses(rewrite.view.id, reply.notes))
    if rewrite.method == "hyde":
        return Forms((Form(plan.query, reply.hypothetical),), reply.hypothetical, losses)
    texts = _texts(plan.query, reply.queries, original=rewrite.method in ("multi-query", "step-back"))
    others = "\n".join(text for text in texts if text != plan.query)
    return Forms(tuple(map(Form, texts)), others or None, losses)


def _texts(query: str, made: Sequence[str], *, original: bool) -> list[str]:
    given = [query, *made] if original or not made else made
    return list(dict.fromkeys(given))
