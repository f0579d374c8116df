from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.peers.reports import Reports, listening


@pytest.fixture
async def reports(tmp_path: Path) -> AsyncIterator[Reports]:
    """What the hostile and SDK peers that were given its path say of themselves."""
    async with listening(tmp_path) as reports:
        yield reports
