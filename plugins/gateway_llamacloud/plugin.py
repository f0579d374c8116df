"""What this plugin registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.spi import EngineKind, FacadeKind, hookimpl
from gateway_llamacloud.engine import LlamaCloudKind
from gateway_llamacloud.facade import LlamaCloudFacadeKind

__all__ = ["gateway_engine_kinds", "gateway_facades"]


@hookimpl
def gateway_engine_kinds() -> Sequence[EngineKind[Any]]:
    return [LlamaCloudKind()]


@hookimpl
def gateway_facades() -> Sequence[FacadeKind[Any]]:
    return [LlamaCloudFacadeKind()]
