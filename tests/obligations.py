"""Names the obligations of the RCP checklist that a test covers."""

from __future__ import annotations

import pytest


def obligation(*numbers: int) -> pytest.MarkDecorator:
    return pytest.mark.obligation(*numbers)
