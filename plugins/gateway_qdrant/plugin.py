"""What this plugin registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.spi import EngineKind, hookimpl
from gateway_qdrant.engine import QdrantKind

__all__ = ["gateway_engine_kinds"]


@hookimpl
def gateway_engine_kinds() -> Sequence[EngineKind[Any]]:
    return [QdrantKind()]
