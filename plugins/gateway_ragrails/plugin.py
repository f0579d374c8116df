"""What this plugin registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.spi import EngineKind, FacadeKind, hookimpl
from gateway_ragrails.engine import RagrailsKind
from gateway_ragrails.facade import RagrailsFacadeKind

__all__ = ["gateway_engine_kinds", "gateway_facades"]


@hookimpl
def gateway_engine_kinds() -> Sequence[EngineKind[Any]]:
    return [RagrailsKind()]


@hookimpl
def gateway_facades() -> Sequence[FacadeKind[Any]]:
    return [RagrailsFacadeKind()]
