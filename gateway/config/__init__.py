"""``gateway.yaml`` → :class:`GatewayConfig`."""

from gateway.config.load import load, load_text
from gateway.config.schema import (
    EngineSettings,
    FederationSettings,
    FusionSettings,
    GatewayConfig,
    HttpSection,
    LimitSettings,
    LogSettings,
    RetrySettings,
    StdioSection,
)
from gateway.config.walk import FAULT, Walker, nearest

__all__ = [
    "FAULT",
    "EngineSettings",
    "FederationSettings",
    "FusionSettings",
    "GatewayConfig",
    "HttpSection",
    "LimitSettings",
    "LogSettings",
    "RetrySettings",
    "StdioSection",
    "Walker",
    "load",
    "load_text",
    "nearest",
]
