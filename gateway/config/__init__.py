"""``gateway.yaml`` → :class:`GatewayConfig`."""

from gateway.config.load import Check, load, load_text, load_value, located
from gateway.config.schema import (
    EngineSettings,
    FederationSettings,
    FusionSettings,
    GatewayConfig,
    HttpSection,
    IdempotencySettings,
    LimitSettings,
    LogSettings,
    PaginationSettings,
    ProfileSettings,
    RetrySettings,
    SessionSettings,
    StateSettings,
    StdioSection,
)
from gateway.config.walk import FAULT, Walker, nearest

__all__ = [
    "FAULT",
    "Check",
    "EngineSettings",
    "FederationSettings",
    "FusionSettings",
    "GatewayConfig",
    "HttpSection",
    "IdempotencySettings",
    "LimitSettings",
    "LogSettings",
    "PaginationSettings",
    "ProfileSettings",
    "RetrySettings",
    "SessionSettings",
    "StateSettings",
    "StdioSection",
    "Walker",
    "load",
    "load_text",
    "load_value",
    "located",
    "nearest",
]
