"""The hooks of a plugin: synchronous, called once at start-up, returning values. None runs during a request.

A plugin is a module (or object) under the entry-point group ``rcp_gateway``; it implements the hooks it needs::

    from gateway.spi import hookimpl

    @hookimpl
    def gateway_engine_kinds():
        return [MyKind()]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pluggy

from gateway.fusion import Strategy
from gateway.spi.engine import EngineKind
from gateway.spi.facade import FacadeKind

__all__ = ["ENTRY_POINT_GROUP", "Hooks", "hookimpl", "hookspec"]

ENTRY_POINT_GROUP = "rcp_gateway"

hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)


class Hooks:
    """The specifications; plugins implement them as plain functions of the same names."""

    @hookspec
    def gateway_engine_kinds(self) -> Sequence[EngineKind[Any]]:
        """Kinds of engine that this plugin brings."""
        raise NotImplementedError  # a specification, never called

    @hookspec
    def gateway_strategies(self) -> Sequence[Strategy]:
        """Ways of fusing ranked lists that this plugin brings."""
        raise NotImplementedError  # a specification, never called

    @hookspec
    def gateway_facades(self) -> Sequence[FacadeKind[Any]]:
        """Foreign protocols that this plugin serves."""
        raise NotImplementedError  # a specification, never called
