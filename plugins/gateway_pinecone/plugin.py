"""What this plugin registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.spi.engine import EngineKind
from gateway.spi.hooks import hookimpl
from gateway_pinecone.engine import PineconeKind

__all__ = ["gateway_engine_kinds"]


@hookimpl
def gateway_engine_kinds() -> Sequence[EngineKind[Any]]:
    return [PineconeKind()]
