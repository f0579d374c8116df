"""``check``, ``plugins`` and ``catalog``: what is configured, installed and offered."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from gateway.app import engine_specs, open_gateway
from gateway.cli.render import console, print_json, say, table
from gateway.config import GatewayConfig
from gateway.federation.fleet import EngineSpec
from gateway.model import Capabilities, capabilities_to_wire
from gateway.plugins import Plugins, load_plugins
from gateway.telemetry.log import redact

__all__ = ["print_catalog", "run_check", "run_plugins"]

_UNCHECKED = "; whether an engine has the fields of its profiles' filters is seen when they are open: check --open"


def _told(capabilities: Mapping[str, Any]) -> str:
    """What an engine offers, in one cell: ``retrieve (dense, hybrid), index, filter (lang, year)``."""
    parts = []
    for name, value in capabilities.items():
        if name in ("citations", "streaming", "log", "catalog") or name.startswith("x-"):
            continue
        details: list[str] = []
        if isinstance(value, Mapping):
            details = [str(item) for item in value.get("modes") or value.get("fields") or ()]
        parts.append(f"{name} ({', '.join(details)})" if details else name)
    return ", ".join(parts)


def _missing(spec: EngineSpec) -> list[str]:
    """Modules an engine needs and that are not installed."""
    return [name for name in spec.requires if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package that a dotted name lies in
        return False


def _advice(spec: EngineSpec, plugins: Plugins) -> str:
    missing = _missing(spec)
    if not missing:
        return ""
    extra = f"[{spec.kind.extra}]" if spec.kind.extra else ""
    install = f"; pip install '{plugins.distribution_of(spec.kind.name)}{extra}'" if extra else ""
    return f"needs {', '.join(missing)}{install}"


def run_check(
    config: GatewayConfig,
    plugins: Plugins,
    *,
    open_: bool,
    as_json: bool,
    run: Callable[[Coroutine[Any, Any, int | None]], int],
) -> int:
    """Says what the configuration means. Faults were raised before; what is only missing here is told beside it."""
    specs = engine_specs(config, plugins)
    states: dict[str, tuple[Capabilities, str]] = {
        spec.settings.id: (spec.offers, _advice(spec, plugins)) for spec in specs
    }

    async def look() -> None:
        async with open_gateway(config, plugins) as gateway:
            for id, member in gateway.fleet.members.items():
                states[id] = (member.capabilities, "open" if member.engine is not None else redact(member.reason))

    if open_:
        run(look())
    rows = [
        (
            spec.settings.id,
            spec.kind.name,
            _told(capabilities_to_wire(states[spec.settings.id][0])),
            states[spec.settings.id][1],
        )
        for spec in specs
    ]
    if as_json:
        print_json([dict(zip(("id", "kind", "offers", "state"), row, strict=True)) for row in rows])
    else:
        console().print(table(None, ("engine", "kind", "offers", "state"), rows))
    for plugin in plugins.found:
        if plugin.error is not None:
            say(f"rcp-gateway: warning: plugin {plugin.name} of {plugin.distribution}: {plugin.error}")
    failed = open_ and any(row[3] != "open" for row in rows)
    say(
        f"rcp-gateway: {config.source or 'the configuration'} is valid"
        + ("; not every engine opened" if failed else "")
        + ("" if open_ or not any(one.filter for one in config.profiles) else _UNCHECKED)
    )
    return 1 if failed else 0


def run_plugins(*, as_json: bool) -> int:
    """Lists what is installed; a plugin that did not load is shown with the reason."""
    rows = [
        (
            plugin.name,
            f"{plugin.distribution} {plugin.version}".strip(),
            ", ".join(brought),
            plugin.error or ("" if brought else "brings nothing: is no function of it marked with @hookimpl?"),
        )
        for plugin in load_plugins().found
        for brought in [(*plugin.kinds, *plugin.strategies, *(f"facade {name}" for name in plugin.facades))]
    ]
    if as_json:
        print_json([dict(zip(("name", "distribution", "brings", "error"), row, strict=True)) for row in rows])
    else:
        console().print(table(None, ("plugin", "distribution", "brings", "error"), rows))
    return 0


def print_catalog(result: Mapping[str, Any], *, as_json: bool) -> None:
    """The answer of ``catalog/list``."""
    if as_json:
        print_json(result)
        return
    rows = []
    for entry in result.get("engines") or []:
        told = str(((entry.get("_meta") or {}).get("x-gateway") or {}).get("state") or "")
        rows.append((str(entry["id"]), str(entry["server"]["name"]), _told(entry["capabilities"]), told))
    console().print(table(None, ("engine", "server", "offers", "state"), rows))
