"""``probe``: how a live engine really filters, and the settings that follow."""

from __future__ import annotations

from gateway.app import open_gateway
from gateway.caller import ANONYMOUS
from gateway.cli.add import narrowed
from gateway.cli.render import console, say
from gateway.config import GatewayConfig
from gateway.plugins import Plugins

__all__ = ["run_probe"]


async def run_probe(config: GatewayConfig, plugins: Plugins, id: str) -> int:
    """Asks the engine; exit code 1 if something was found that the configuration cannot mend."""
    async with open_gateway(narrowed(config, plugins, id), plugins) as gateway:
        found = await gateway.service.probe(id, ANONYMOUS)
    out = console()
    for one in found:
        mark = "  " if one.ok else "! "
        out.print(f"{mark}{one.question}", markup=False, soft_wrap=True)
        out.print(f"     {one.answer}", markup=False, soft_wrap=True, style=None if one.ok else "bold")
    settings: dict[str, str] = {}
    for one in found:
        if one.setting:
            settings.setdefault(one.setting.split(":")[0], one.setting)
    if settings:
        out.print(f"\nsettings for `with:` of {id}:", markup=False)
        for setting in settings.values():
            out.print(f"  {setting}", markup=False)
    wrong = sum(not one.ok for one in found)
    say(f"rcp-gateway: {len(found)} questions, {wrong} with an answer to worry about")
    return 1 if wrong else 0
