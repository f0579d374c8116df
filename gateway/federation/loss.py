"""What a caller should know was lost: structured first, prose second."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.errors import RcpError
from gateway.model import Message
from gateway.spi.codec import mend

__all__ = ["LEFT_BEHIND", "NOTES", "Failure", "Loss", "Reason", "listed", "notes_as_losses", "notes_of", "said"]

LossKind = Literal["failed", "timeout", "skipped", "clamped", "degraded", "scanned", "partial", "dropped", "note"]

NOTES = 8
"""Sentences of one engine about one answer, as many as anybody reads."""
_NOTE_LIMIT = 300
_LISTED = 12
_LISTED_NAME = 60
# Line breaks and terminal controls, and what turns the direction of a text or hides in it.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")


def said(text: object, limit: int = _NOTE_LIMIT) -> str:
    """What somebody else wrote, fit to be shown: one line of sound Unicode, cut to ``limit`` characters."""
    return _CONTROL.sub(" ", mend(str(text)[: 4 * limit])).strip()[:limit]


def listed(names: Iterable[object]) -> str:
    """`` (offered: a, b and 3 more)`` for the end of a refusal, in bounded length; nothing if nothing is offered."""
    known = list(dict.fromkeys(said(name, _LISTED_NAME) for name in names))
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f" (offered: {', '.join(known[:_LISTED])}{more})" if known else ""


class Loss(Message, frozen=True):
    """One thing that went missing or was changed; ``engine`` is ``None`` where it concerns the whole answer."""

    kind: LossKind
    message: str
    engine: str | None = None
    code: int | None = None
    option: str | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """One engine's part that ended in an error. A value, so that it can be neither forgotten nor surprising.

    ``client_deadline`` is true for a time-out that came early because the client gave so little time; ``late`` for an
    engine that was left behind once enough others had answered.
    """

    engine: str
    error: RcpError
    timed_out: bool = False
    client_deadline: bool = False
    late: bool = False

    def loss(self) -> Loss:
        return Loss(
            kind="timeout" if self.timed_out else "failed",
            message=said(self.error.message),
            engine=self.engine,
            code=self.error.code,
        )


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an engine was not asked.

    ``left-out``: scope, selection, priority, depth or cycle. ``unable``: it cannot serve an option or the filter.
    ``proved-empty``: its declared fields show that nothing of it can match. ``failed``: it is not open, or its adapter
    cannot take the request.
    """

    engine: str
    state: Literal["left-out", "unable", "proved-empty", "failed"]
    message: str
    option: str | None = None
    field: str | None = None
    error: RcpError | None = None

    def loss(self) -> Loss:
        message = said(self.message)
        if self.state == "failed":
            code = self.error.code if self.error else None
            return Loss(kind="failed", message=message, engine=self.engine, code=code)
        return Loss(kind="skipped", message=message, engine=self.engine, option=self.option, field=self.field)


def notes_as_losses(engine: str, notes: Sequence[str]) -> list[Loss]:
    """What an engine has to say of its answer."""
    return [Loss(kind="note", message=said(note), engine=engine) for note in notes[:NOTES]]


LEFT_BEHIND = "left behind: enough engines had answered"

_VERBS: dict[str, str] = {"failed": " failed", "timeout": " timed out", "skipped": " was not asked"}


def notes_of(losses: Iterable[Loss]) -> tuple[str, ...]:
    """The losses as sentences for ``usage.notes``, each once, in order."""
    notes: dict[str, None] = {}
    for loss in losses:
        verb = " was " if loss.message == LEFT_BEHIND else f"{_VERBS.get(loss.kind, '')}: "
        who = f"engine {loss.engine}{verb}" if loss.engine else ""
        notes[f"{who}{loss.message}"[:_NOTE_LIMIT]] = None
    return tuple(notes)
