from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the gateway runs on."""
    return "asyncio", {"use_uvloop": True}
