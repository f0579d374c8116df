"""A hit as the schema has it, read in one pass and left encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from gateway.spi.codec import Raw

__all__ = ["ABSENT", "EncodedHit"]

ABSENT = Raw(b"")
_NULL = Raw(b"null")


class EncodedHit(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """At once a hit's head and the mapping of its members, so that most hits, which never win, cost no dict.

    What the schema does not have (a member of a vendor, a confidence above 1) is refused, to be read otherwise.
    """

    id: str | int | float
    score: float | None = None
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    text: Raw = ABSENT
    meta: Raw = ABSENT
    citation: Raw = ABSENT
    chunk: Raw = ABSENT
    content: Raw = ABSENT
    modality: Raw = ABSENT
    unit: Raw = ABSENT
    level: Raw = ABSENT
    vector: Raw = ABSENT
    scores: Raw = ABSENT
    provenance: Raw = ABSENT
    trust: Raw = ABSENT

    def get(self, name: str, default: Any = None) -> Any:
        if name in _NAMES:
            raw = getattr(self, name)
            if raw is not ABSENT and raw != _NULL:
                return raw
        return default

    def __getitem__(self, name: str) -> Raw:
        raw: Raw | None = self.get(name)
        if raw is None:
            raise KeyError(name)
        return raw

    def __contains__(self, name: str) -> bool:
        raw = getattr(self, name) if name in _NAMES else ABSENT
        return raw is not ABSENT and raw != _NULL

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:
        return [name for name, _ in self.items()]

    def items(self) -> list[tuple[str, Raw]]:
        members = zip(_NAMES, _members(self))  # noqa: B905  # as many as there are names
        return [(name, raw) for name, raw in members if raw is not ABSENT and raw != _NULL]


Mapping.register(EncodedHit)  # a struct cannot inherit it

_HEAD = 3
_NAMES = dict.fromkeys(EncodedHit.__struct_fields__[_HEAD:])  # a set that keeps its order
_members = attrgetter(*_NAMES)
