"""Questions to a live back end whose documentation does not say, or whose versions differ.

``rcp-gateway probe`` writes a few scratch documents, asks the questions, removes the documents again and prints what
was found together with the settings to put in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = ["Finding", "Probe", "finding", "scratch_metadata"]


class Finding(msgspec.Struct, frozen=True):
    """One possible answer: the scratch documents that match then, what that means, and the setting it calls for.

    ``setting`` is a line for the engine's ``with:``. Where several answers set the same key, the first one counts.
    ``ok`` is false where no setting helps and filters on such fields cannot be relied on.
    """

    matches: frozenset[str]
    meaning: str
    setting: str = ""
    ok: bool = True


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A native filter to ask with, as ``push_down`` would return it, and what the answers would mean.

    ``among`` are the scratch documents that count; others may match or not. Looked at are the documents that came
    back, or, for ``metadata``, those of them that came with all the metadata they had been stored with. ``refused`` is
    what it means that the back end refuses such a filter; without it a refusal is an answer to worry about.
    """

    question: str
    native: Any
    among: frozenset[str]
    findings: tuple[Finding, ...]
    looks_at: Literal["hits", "metadata"] = "hits"
    refused: Finding | None = None

    @classmethod
    def ask(
        cls,
        question: str,
        native: Any,
        among: str,
        *findings: Finding,
        looks_at: Literal["hits", "metadata"] = "hits",
        refused: Finding | None = None,
    ) -> Probe:
        """The same with the names of ``among`` in one string."""
        names = frozenset(among.split())
        return cls(question=question, native=native, among=names, findings=findings, looks_at=looks_at, refused=refused)


def finding(matches: str, meaning: str, setting: str = "", *, ok: bool = True) -> Finding:
    """A finding with the names of the documents in one string."""
    return Finding(frozenset(matches.split()), meaning, setting, ok)


def scratch_metadata(keyword: str | None, date: str | None) -> dict[str, Mapping[str, Any]]:
    """The metadata of the scratch documents by name, for one keyword field and one date field, where there are such.

    ``same`` holds ``"alpha"``, ``other`` ``"beta"``, ``both`` a list of the two, ``blank`` an empty text; ``absent``
    lacks the field, ``null`` and ``empty`` hold null and an empty list. ``early`` and ``late`` are dates of 2020 and
    2030 as RFC 3339 text, ``early-ms`` and ``late-ms`` the same as milliseconds since 1970.
    """
    documents: dict[str, Mapping[str, Any]] = {"absent": {}}
    if keyword is not None:
        values: dict[str, Any] = {
            "same": "alpha",
            "other": "beta",
            "both": ["alpha", "beta"],
            "blank": "",
            "null": None,
            "empty": [],
        }
        documents |= {name: {keyword: value} for name, value in values.items()}
    if date is not None:
        dates: dict[str, Any] = {
            "early": "2020-01-01T00:00:00Z",
            "late": "2030-01-01T00:00:00Z",
            "early-ms": 1_577_836_800_000,
            "late-ms": 1_893_456_000_000,
        }
        documents |= {name: {date: value} for name, value in dates.items()}
    return documents
