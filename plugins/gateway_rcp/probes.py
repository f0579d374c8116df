"""What ``rcp-gateway probe`` asks another RCP server: the spec says none of it, and three settings depend on it."""

from __future__ import annotations

from typing import Any

from gateway.spi.probe import Probe, finding
from gateway_rcp.pushdown import WireFilter

__all__ = ["probes_of"]

_MOMENT = "2025-01-01T00:00:00Z"
_MILLIS = 1_735_689_600_000


def probes_of(keyword: str | None, date: str | None, operators: frozenset[str]) -> list[Probe]:
    """Questions on the fields that the server advertises, with the operators it advertises."""
    return [
        *(_negations(keyword, operators) if keyword is not None else ()),
        *(_dates(date) if date is not None and "lt" in operators else ()),
        *_metadata(keyword, date),
    ]


def _leaf(field: str, op: str, value: Any) -> WireFilter:
    return {"field": field, "op": op, "value": value}


def _negations(field: str, operators: frozenset[str]) -> list[Probe]:
    told = {"ne": _leaf(field, "ne", "alpha"), "nin": _leaf(field, "nin", ["alpha"])}
    forms = {f"`{op}`": native for op, native in told.items() if op in operators}
    if "eq" in operators:
        forms["`not eq`"] = {"not": _leaf(field, "eq", "alpha")}
    if not forms:
        return []
    asked = [
        Probe.ask(
            f"does {name} select documents without the field?",
            native,
            "same other absent",
            finding("other absent", "yes"),
            finding("other", "no"),
        )
        for name, native in forms.items()
    ]
    # One setting stands for all of them, so it is read off a filter that holds only where each of them does.
    every: WireFilter = {"and": list(forms.values())} if len(forms) > 1 else next(iter(forms.values()))
    untrusted = "trust_negation: false"
    asked.append(
        Probe.ask(
            f"do all of {', '.join(forms)}?",
            every,
            "same other absent",
            finding("other absent", "yes: a negation can be left to this server alone", "trust_negation: true"),
            finding("other", "no: a negation is sent with `exists: false` beside it, or checked here", untrusted),
            finding("", "no: they do not even agree on documents with the field", untrusted, ok=False),
            refused=finding("", "it refuses them together: leave it off", untrusted),
        )
    )
    return asked


def _dates(field: str) -> list[Probe]:
    """Text first: where both are understood, it is what the spec names first."""
    text, number = "date_encoding: rfc3339", "date_encoding: epoch_ms"
    return [
        Probe.ask(
            "does a date in RFC 3339 find documents?",
            _leaf(field, "lt", _MOMENT),
            "early late",
            finding("early", "yes, those stored as RFC 3339", text),
            finding("", "no"),
            finding("early late", "no: it lets everything through"),
            refused=finding("", "no, it is refused"),
        ),
        Probe.ask(
            "does a date in milliseconds find documents?",
            _leaf(field, "lt", _MILLIS),
            "early-ms late-ms",
            finding("early-ms", "yes, those stored as milliseconds", number),
            finding("", "no"),
            finding("early-ms late-ms", "no: it lets everything through"),
            refused=finding("", "no, it is refused"),
        ),
    ]


def _metadata(keyword: str | None, date: str | None) -> list[Probe]:
    names = "same other" if keyword is not None else "early" if date is not None else ""
    if not names:
        return []
    return [
        Probe.ask(
            "does a hit carry the metadata it was stored with?",
            None,
            names,
            finding(names, "yes: a field that is missing is absent", "meta_complete: true"),
            finding("", "no: a field that is missing is unknown, and such hits are dropped", "meta_complete: false"),
            looks_at="metadata",
        )
    ]
