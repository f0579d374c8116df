"""What ``rcp-gateway probe`` asks a Qdrant: its answers depend on the payload index."""

from __future__ import annotations

from typing import Any

from gateway.spi.probe import Probe, finding
from gateway_qdrant.collection import Collection, index_of
from gateway_qdrant.settings import QdrantConfig

__all__ = ["probes_of"]


def probes_of(config: QdrantConfig, found: Collection, keyword: str | None, date: str | None) -> list[Probe]:
    """Questions on a keyword field and a date field."""
    asked: list[Probe] = []
    if keyword is not None:
        asked += _keyword(config, found, keyword)
    if date is not None:
        asked += _date(config, found, date)
    return asked


def _told(index: str | None, fits: bool) -> str:
    if index is None:
        return "there is no payload index"
    return f"the payload index is of type {index}" + ("" if fits else ", which is not what the settings declare")


def _keyword(config: QdrantConfig, found: Collection, name: str) -> list[Probe]:
    key, index, fits = index_of(config, found, name)
    if key is None:
        return []
    told = _told(index, fits)
    same: dict[str, Any] = {"key": key, "match": {"value": "alpha"}}
    return [
        Probe.ask(
            f"does an equal value of {name} match under its payload index?",
            same,
            "same other",
            finding("same", f"yes; {told}" + ("" if fits else ", so the gateway checks the field on the hits")),
            finding("", f"no; {told}: the gateway checks the field on the hits; make the index anew", ok=not fits),
        ),
        Probe.ask(
            "does must_not select points without the field?",
            {"must_not": [same]},
            "same other absent",
            finding("other absent", "yes"),
        )
        if fits
        else Probe.ask(
            "does must_not tell them apart?",
            {"must_not": [same]},
            "same other absent",
            finding("other absent", "yes"),
            finding("same other absent", f"no; {told}: nothing on this field is pushed"),
        ),
        Probe.ask(
            "are null and [] empty to Qdrant?",
            {"is_empty": {"key": key}},
            "same blank absent null empty",
            finding("absent null empty", 'yes, and "" is not'),
        ),
    ]


def _date(config: QdrantConfig, found: Collection, name: str) -> list[Probe]:
    key, index, fits = index_of(config, found, name)
    declared = config.field(name)
    if key is None or (declared is not None and declared.dates == "epoch_ms"):
        return []
    return [
        Probe.ask(
            f"does a range find dates of {name} that are stored as text?",
            {"key": key, "range": {"lt": "2025-01-01T00:00:00.000000Z"}},
            "early late",
            finding("early", f"yes; {_told(index, fits)}"),
            finding(
                "",
                f"no; {_told(index, fits)}: where dates are stored as milliseconds, say so; else make a datetime index",
                f"fields: {{{name}: {{type: date, dates: epoch_ms}}}}  # if they are milliseconds",
                ok=not fits,
            ),
        )
    ]
