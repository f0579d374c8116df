"""Which engine can serve which option, and what happens to one that cannot (RCP section 7.7, ``strict``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from gateway.errors import BackendUnavailable, RcpError, option_unsupported
from gateway.federation.capability import Snapshot, View
from gateway.federation.loss import Loss, listed, said
from gateway.filters import nearest
from gateway.model import Content, RetrieveRequest
from gateway.spi.engine import Mode

__all__ = ["EngineOptions", "Wanted", "covers_hybrid", "options_for", "unsupported", "wanted_options"]

_BLOCK_MODALITY = {"image": "image", "audio": "audio", "blob": "multimodal"}
_FIELDS = {"content": "query"}
_SHOWN = 120
_HALVES: tuple[Mode, ...] = ("dense", "sparse")


class Wanted(msgspec.Struct, frozen=True):
    """One option that an engine must offer to be asked with it. ``content`` is the modality of a block of the query."""

    name: str
    value: Any

    @property
    def droppable(self) -> bool:
        """Whether an engine may be asked without it under ``strict: false``: the query itself is not an option."""
        return self.name not in ("modality", "content")

    @property
    def told(self) -> str:
        """The value as it may be shown: a client's text may be long, and anything."""
        return _text(self.value)

    def offered(self, snapshot: Snapshot) -> tuple[str, ...]:
        """All values of this option that there are."""
        retrieve = snapshot.capabilities.retrieve
        if retrieve is None:
            return ()
        match self.name:
            case "mode":
                return tuple(retrieve.modes or ())
            case "unit":
                return tuple(retrieve.units or ())
            case "level":
                return (f"0 to {retrieve.levels - 1}",) if retrieve.levels else ()
            case _:
                return tuple(retrieve.modalities or ("text",))

    def offered_by(self, view: View) -> bool:
        retrieve = view.capabilities.retrieve
        if retrieve is None:
            return False
        match self.name:
            case "mode":
                return self.value in (retrieve.modes or ())
            case "unit":
                return self.value in (retrieve.units or ())
            case "level":
                return retrieve.levels is not None and self.value < retrieve.levels
            case "modality" | "content":
                offered = retrieve.modalities or ("text",)
                return self.value in offered or (self.value != "text" and "multimodal" in offered)
            case _:
                raise ValueError(self.name)


_HYBRID = Wanted("mode", "hybrid")


class EngineOptions(msgspec.Struct, frozen=True):
    """What of the wanted options one engine is asked with, and what it cannot do.

    ``modes`` are those it is asked in, each with a question of its own; ``None`` is the engine's default.
    """

    given: dict[str, Any]
    missing: tuple[Wanted, ...]
    modes: tuple[Mode | None, ...] = (None,)


def _blocks(request: RetrieveRequest) -> Iterator[str]:
    query = request.query
    for block in [query] if isinstance(query, Content) else query if isinstance(query, list) else []:
        if block.type in _BLOCK_MODALITY:
            yield _BLOCK_MODALITY[block.type]


def wanted_options(request: RetrieveRequest, snapshot: Snapshot) -> tuple[list[Wanted], list[Loss]]:
    """The engine options of a request that some engine offers.

    An option that no engine offers is ``-32005`` under ``strict`` (the default), and a note otherwise; content of a
    modality nobody reads is always an error, since dropping the block would change the question.
    """
    wanted: list[Wanted] = []
    losses: list[Loss] = []
    named: list[tuple[str, Any]] = [("mode", request.mode), ("unit", request.unit), ("level", request.level)]
    named.append(("modality", request.modality))
    named += [("content", modality) for modality in dict.fromkeys(_blocks(request))]
    for option in [Wanted(name, value) for name, value in named if value is not None]:
        joint = option == _HYBRID and covers_hybrid(snapshot.views)
        if joint or any(option.offered_by(view) for view in snapshot.views):
            wanted.append(option)
        elif option.droppable and request.strict is False:
            losses.append(_degraded(option.name, option.value))
        else:
            raise _refusal(option, snapshot)
    return wanted, losses


def covers_hybrid(views: Iterable[View]) -> bool:
    """True if these engines together serve both halves of ``hybrid``, dense and sparse."""
    modes = {mode for view in views if view.capabilities.retrieve for mode in view.capabilities.retrieve.modes or ()}
    return "hybrid" in modes or modes.issuperset(_HALVES)


def options_for(view: View, wanted: Collection[Wanted], *, joint: bool = False) -> EngineOptions:
    """Splits what is wanted into what this engine offers and what it does not.

    With ``joint`` an engine that has only the halves of ``hybrid``, or one of them, is asked in what it has.
    """
    given: dict[str, Any] = {}
    missing: list[Wanted] = []
    modes: tuple[Mode | None, ...] = (None,)
    for option in wanted:
        halves = _halves(view) if joint and option == _HYBRID else ()
        if option.name == "mode" and (option.offered_by(view) or halves):
            modes = (option.value,) if option.offered_by(view) else halves
        elif not option.offered_by(view):
            missing.append(option)
        elif option.name != "content":
            given[option.name] = option.value
    return EngineOptions(given, tuple(missing), modes)


def _halves(view: View) -> tuple[Mode, ...]:
    retrieve = view.capabilities.retrieve
    return tuple(half for half in _HALVES if retrieve is not None and half in (retrieve.modes or ()))


def unsupported(name: str, value: Any, *, strict: bool | None, offered: Iterable[object] = ()) -> Loss:
    """What a stage that nobody can supply costs: a loss under ``strict: false``, else ``-32005`` is raised.

    The error says what is ``offered`` in its place.
    """
    if strict is not False:
        raise _unsupported(name, value, offered)
    return _degraded(name, value)


def _degraded(name: str, value: Any) -> Loss:
    return Loss(kind="degraded", message=f"{_named(name, value)} is not offered and was left out", option=_text(value))


def _refusal(option: Wanted, snapshot: Snapshot) -> RcpError:
    if snapshot.settled:
        return _unsupported(option.name, option.value, option.offered(snapshot))
    named, there = _named(option.name, option.value), option.offered(snapshot)
    meant = nearest(option.value, there) if isinstance(option.value, str) else ""
    why = "others may offer it, or it is misspelt" if isinstance(option.value, str) else "others may offer it"
    told = f"{named}{meant} is not offered by the engines seen so far{listed(there)}: {why}"
    return BackendUnavailable(told, data={"option": option.told, "field": _FIELDS.get(option.name, option.name)})


def _unsupported(name: str, value: Any, offered: Iterable[object]) -> RcpError:
    told = f"{_named(name, value)} is not offered{listed(offered)}"
    return option_unsupported(told, option=_text(value), field=_FIELDS.get(name, name))


def _named(name: str, value: Any) -> str:
    return name if value == name else f"{name} {_text(value)!r}"


def _text(value: Any) -> str:
    return said(value, _SHOWN)
