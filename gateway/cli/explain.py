"""``explain``: who would be asked what, per engine, without asking anybody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway import _json
from gateway.app import open_gateway
from gateway.caller import ANONYMOUS
from gateway.cli.render import console, print_json, say
from gateway.config import GatewayConfig
from gateway.plugins import Plugins
from gateway.protocol.methods import decode
from gateway.telemetry.log import redact

__all__ = ["run_explain"]


async def run_explain(config: GatewayConfig, plugins: Plugins, params: Mapping[str, Any], *, as_json: bool) -> int:
    """Opens the engines, since what they can do is known only then, plans the request and stops there.

    Raises the error that the request itself would get.
    """
    async with open_gateway(config, plugins) as gateway:
        told = gateway.service.explain(decode("retrieve", _json.encode(params)), ANONYMOUS)
    if as_json:
        print_json({"engines": told.engines, "stages": told.stages, "losses": told.losses})
        return 0
    for row in told.engines:
        _print(row)
    console().print("stages", style="bold", markup=False)
    for stage in told.stages:
        given = [
            f"{name} {value}" for name, value in stage.items() if name not in ("stage", "by") and value is not None
        ]
        _line(stage["stage"], ", ".join([stage["by"], *given]))
    for loss in told.losses:
        say(f"note: {loss}")
    return 0


def _print(row: Mapping[str, Any]) -> None:
    out = console()
    out.print(f"{row['engine']}  {row['state']}", style="bold", markup=False)
    if row["state"] != "asked":
        _line("because", row["reason"])
        return
    _line("fields", ", ".join(f"{name} {kind}" for name, kind in row["fields"].items()) or "none")
    native, residual = row["native"], row["residual"]
    _line("native", "nothing" if native is None else redact(json.dumps(native, ensure_ascii=False, default=str)))
    _line("checked here", "nothing" if residual is None else json.dumps(residual, ensure_ascii=False))
    if row["embedder"]:
        _line("vector from", row["embedder"])


def _line(name: str, value: str) -> None:
    console().print(f"  {name:13}{value}", markup=False, soft_wrap=True)
