"""Ids as the gateway emits them, and whose they are (docs/federation.md, "Identity")."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import invalid_params
from gateway.federation.capability import View
from gateway.federation.fleet import Member
from gateway.fusion import qualify

__all__ = ["emitted_id", "id_text", "own_id", "owners"]


def id_text(id: str | float) -> str:
    """An id as text: ``7`` and ``7.0`` are ``"7"`` (section 16.3)."""
    return str(int(id)) if isinstance(id, float) and id.is_integer() else str(id)


def own_id(member: Member, id: str) -> str:
    """The id inside the engine. With a corpus the qualified form is understood, and so is the plain one."""
    corpus = member.settings.corpus
    return id if corpus is None else id.removeprefix(f"{corpus}/")


def emitted_id(member: Member, id: str) -> str:
    return qualify(member.settings.corpus, id)


def owners(id: str, views: Sequence[View], field: str) -> list[View]:
    """The engines that may know an emitted id: those of the corpus it names, else those that have none.

    A plain id where all have a corpus is understood only if there is one engine; otherwise ``-32602``.
    """
    corpora = {view.member.settings.corpus for view in views}
    corpus, slash, _ = id.partition("/")
    if slash and corpus in corpora:
        return [view for view in views if view.member.settings.corpus == corpus]
    plain = [view for view in views if view.member.settings.corpus is None]
    if plain or len(views) == 1:
        return plain or list(views)
    raise invalid_params("the id names none of the corpora", field=field)
