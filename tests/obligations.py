"""Which line of the obligations checklist a test proves."""

from __future__ import annotations

import pytest

__all__ = ["obligation"]


def obligation(*numbers: int) -> pytest.MarkDecorator:
    """Marks a test as proof of these CHECKLIST items."""
    return pytest.mark.obligation(*numbers)
