"""One index version for many engines (RCP section 7.7.1)."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import BackendUnavailable

__all__ = ["composite", "parse"]


def composite(versions: Mapping[str, str]) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted(versions.items()))


def parse(token: str) -> Mapping[str, str]:
    try:
        return dict(one.split("=", 1) for one in token.split(","))
    except ValueError:
        raise BackendUnavailable("the pinned index version is gone", retryable=False) from None
