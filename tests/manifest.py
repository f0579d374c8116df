"""CHECKLIST items that no test proves yet, each with the reason. ``tests/test_manifest.py`` holds this to the tests."""

from __future__ import annotations

__all__ = ["LATER"]

_CURSORS = "pagination is not offered: no cursor is ever given out"
_NOT_OFFERED = "the method is not offered: it is refused with -32003 (item 59)"

LATER: dict[int, str] = {
    114: "waits for access control: no caller is limited to some of the documents yet",
    156: _CURSORS,
    157: _CURSORS,
    179: _NOT_OFFERED,
    184: _NOT_OFFERED,
    185: _NOT_OFFERED,
    260: _CURSORS,
}
