"""rcp-gateway: one Retrieval Context Protocol endpoint in front of many retrieval engines.

``Gateway`` is the gateway inside a program (:mod:`gateway.inprocess`), loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.inprocess import Gateway

__all__ = ["Gateway", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Gateway":
        from gateway.inprocess import Gateway

        return Gateway
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
