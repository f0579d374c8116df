"""Which engine can serve which option, and what happens to one that cannot (RCP section 7.7, ``strict``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.errors import BackendUnavailable, RcpError, option_unsupported
from gateway.federation.capability import Snapshot, View
from gateway.federation.loss import Loss
from gateway.model import Content, RetrieveRequest

__all__ = ["EngineOptions", "Wanted", "check_gateway_options", "wanted_options"]

_BLOCK_MODALITY = {"image": "image", "audio": "audio", "blob": "multimodal"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One option that an engine must offer to be asked with it."""

    name: str
    value: Any

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
            case "modality":
                offered = retrieve.modalities or ("text",)
                return self.value in offered or (self.value != "text" and "multimodal" in offered)
            case _:
                raise ValueError(self.name)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What of the wanted options one engine is asked with, and what it cannot do."""

    given: dict[str, Any]
    missing: tuple[Wanted, ...]


def _modalities(request: RetrieveRequest) -> Iterator[str]:
    if request.modality is not None:
        yield request.modality
    query = request.query
    blocks = [query] if isinstance(query, Content) else query if isinstance(query, list) else []
    for block in blocks:
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
    named += [("modality", modality) for modality in dict.fromkeys(_modalities(request))]
    for option in [Wanted(name, value) for name, value in named if value is not None]:
        if any(option.offered_by(view) for view in snapshot.views):
            wanted.append(option)
        elif option.name != "modality" and request.strict is False:
            losses.append(_degraded(option.name, option.value))
        else:
            raise _refusal(option.name, option.value, snapshot)
    return wanted, losses


def options_for(view: View, wanted: Collection[Wanted]) -> EngineOptions:
    """Splits what is wanted into what this engine offers and what it does not."""
    given: dict[str, Any] = {}
    missing: list[Wanted] = []
    for option in wanted:
        if option.offered_by(view):
            given[option.name] = option.value
        else:
            missing.append(option)
    return EngineOptions(given, tuple(missing))


def check_gateway_options(request: RetrieveRequest, snapshot: Snapshot, methods: Collection[str]) -> list[Loss]:
    """Options that the gateway itself would have to supply. ``methods`` are its fusion methods."""
    asked: list[tuple[str, Any]] = []
    if request.fusion is not None and request.fusion.method is not None and request.fusion.method not in methods:
        asked.append(("fusion.method", request.fusion.method))
    if request.rerank not in (None, False):
        method = getattr(request.rerank, "method", None)
        asked.append(("rerank", method or "rerank"))
    if request.rewrite not in (None, False):
        asked.append(("rewrite", request.rewrite))
    if request.encoding not in (None, "json"):
        asked.append(("encoding", request.encoding))
    for name, value in (("mmr", request.mmr), ("recency", request.recency), ("tokenBudget", request.token_budget)):
        if value is not None:
            asked.append((name, name))
    losses: list[Loss] = []
    for name, value in asked:
        if request.strict is not False:
            raise _refusal(name, value, snapshot)
        losses.append(_degraded(name, value))
    if request.index_version is not None:
        # A pinned snapshot is served exactly or not at all, also under strict:false (section 7.7.1, DECISIONS D18).
        raise option_unsupported("index versions are not offered", option="indexVersion", field="indexVersion")
    return losses


def _degraded(name: str, value: Any) -> Loss:
    told = name if value == name else f"{name} {value!r}"
    return Loss(kind="degraded", message=f"{told} is not offered and was left out", option=str(value)[:120])


def _refusal(name: str, value: Any, snapshot: Snapshot) -> RcpError:
    if not snapshot.settled:
        return BackendUnavailable(
            f"{name} is not offered by the engines seen so far, and some have not been seen yet",
            data={"option": str(value)[:120], "field": name},
        )
    return option_unsupported(
        f"{name} {value!r} is not offered" if value != name else f"{name} is not offered", option=str(value), field=name
    )
