"""Questions to a live back end whose documentation does not say, or whose versions differ.

``rcp-gateway probe`` writes a few scratch documents, asks the questions, removes the documents again and prints what
was found together with the settings to put in the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Finding", "Probe", "scratch_metadata"]


class Finding(msgspec.Struct, frozen=True):
    """One possible answer: the scratch documents that match then, what that means, and the setting it calls for."""

    matches: frozenset[str]
    meaning: str
    setting: str = ""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A native filter to ask with, as ``push_down`` would return it, and what the answers would mean.

    ``among`` are the scratch documents that count; others may match or not.
    """

    question: str
    native: Any
    among: frozenset[str]
    findings: tuple[Finding, ...]


def scratch_metadata(keyword: str | None, date: str | None) -> dict[str, Mapping[str, Any]]:
    """The metadata of the scratch documents by name, for one keyword field and one date field, where there are such.

    ``same`` holds ``"a"``, ``other`` ``"b"``, ``both`` a list of the two; ``absent`` lacks the field, ``null`` and
    ``empty`` hold null and an empty list. ``early`` and ``late`` are dates of 2020 and 2030 as RFC 3339 text,
    ``early-ms`` and ``late-ms`` the same as milliseconds since 1970.
    """
    documents: dict[str, Mapping[str, Any]] = {"absent": {}}
    if keyword is not None:
        values: dict[str, Any] = {"same": "a", "other": "b", "both": ["a", "b"], "null": None, "empty": []}
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
