"""``explain``: who would be asked what, per engine, without asking anybody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway import _json
from gateway.app import open_gateway
from gateway.caller import ANONYMOUS
from gateway.cli.render import console, say, table
from gateway.config import GatewayConfig
from gateway.protocol.methods import decode
from gateway.telemetry.log import redact

__all__ = ["run_explain"]


async def run_explain(config: GatewayConfig, params: Mapping[str, Any], *, as_json: bool) -> int:
    """Opens the engines, since what they can do is known only then, plans the request and stops there.

    Raises the error that the request itself would get.
    """
    async with open_gateway(config) as gateway:
        rows, losses = gateway.service.explain(decode("retrieve", _json.encode(params)), ANONYMOUS)
    if as_json:
        print(json.dumps({"engines": rows, "losses": losses}, ensure_ascii=False, indent=2, default=str))  # noqa: T201
        return 0
    console().print(table(None, ("engine", "state", "fields", "native", "checked here"), [_cells(row) for row in rows]))
    for loss in losses:
        say(f"note: {loss}")
    return 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["state"] != "asked":
        return (row["engine"], row["state"], "", row["reason"], "")
    fields = ", ".join(f"{name}: {kind}" for name, kind in row["fields"].items())
    native, residual = row["native"], row["residual"]
    return (
        row["engine"],
        "asked",
        fields,
        "" if native is None else redact(json.dumps(native, ensure_ascii=False, default=str)),
        "" if residual is None else json.dumps(residual, ensure_ascii=False),
    )
