"""The entry point that ``rcp_gateway`` plugins are found by; see ``gateway.spi.hooks`` for the other hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.spi.engine import EngineKind
from gateway.spi.hooks import hookimpl
from gateway_weaviate.engine import WeaviateKind


@hookimpl
def gateway_engine_kinds() -> Sequence[EngineKind[Any]]:
    return [WeaviateKind()]
