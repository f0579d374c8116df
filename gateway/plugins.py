"""Plugins: found through entry points, loaded once, asked once.

Built-ins come through the same door as anybody's. A plugin that does not load is a warning, unless the configuration
uses a kind that is then missing: the error names the distributions that did not load.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from gateway.config.walk import nearest
from gateway.errors import PluginError
from gateway.fusion import Strategy
from gateway.spi.engine import EngineKind
from gateway.spi.hooks import ENTRY_POINT_GROUP, Hooks

__all__ = ["Plugin", "Plugins", "load_plugins"]

logger = logging.getLogger("gateway.plugins")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin as found: its entry point's name, its distribution, what it brought or why it did not load."""

    name: str
    distribution: str
    version: str
    kinds: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class Plugins:
    """Everything that was loaded. Lives on the application object; nothing here is global."""

    found: list[Plugin] = field(default_factory=list)
    kinds: dict[str, EngineKind[Any]] = field(default_factory=dict)
    strategies: dict[str, Strategy] = field(default_factory=dict)

    def kind(self, name: str, *, path: str) -> EngineKind[Any]:
        """The kind of that name. Raises :class:`~gateway.errors.PluginError` saying what there is and what failed."""
        if name in self.kinds:
            return self.kinds[name]
        broken = [plugin for plugin in self.found if plugin.error is not None]
        told = f"there is no engine kind {name!r}{nearest(name, self.kinds)} (known: {', '.join(sorted(self.kinds))})"
        if broken:
            told += "; plugins that did not load: " + "; ".join(f"{one.distribution}: {one.error}" for one in broken)
        raise PluginError(told, path=path, distribution=broken[0].distribution if len(broken) == 1 else None)


def load_plugins(extra: Sequence[object] = (), *, found: Sequence[EntryPoint] | None = None) -> Plugins:
    """Loads every plugin of the entry-point group, and ``extra`` ones given as objects (for tests and embedding)."""
    points = list(entry_points(group=ENTRY_POINT_GROUP)) if found is None else list(found)
    plugins = Plugins()
    for point in sorted(points, key=lambda point: point.name):
        distribution = point.dist.name if point.dist is not None else "unknown"
        version = point.dist.version if point.dist is not None else ""
        try:
            module = point.load()
            plugins.found.append(_register(plugins, module, point.name, distribution, version))
        except Exception as error:  # noqa: BLE001  # one of the five boundaries: a stranger's import may fail in any way
            logger.warning("plugin %s of %s did not load: %s", point.name, distribution, error)
            plugins.found.append(Plugin(point.name, distribution, version, error=f"{type(error).__name__}: {error}"))
    for plugin in extra:
        name = getattr(plugin, "__name__", type(plugin).__name__)
        plugins.found.append(_register(plugins, plugin, name, name, ""))
    return plugins


def _register(plugins: Plugins, plugin: object, name: str, distribution: str, version: str) -> Plugin:
    """Asks one plugin for what it brings. Each has a manager of its own, so that its values are known to be its."""
    manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(plugin, name)
    kinds = [kind for kinds in manager.hook.gateway_engine_kinds() for kind in kinds]
    strategies = [strategy for group in manager.hook.gateway_strategies() for strategy in group]
    for kind in kinds:
        _add(plugins.kinds, kind.name, kind, "engine kind")
    for strategy in strategies:
        _add(plugins.strategies, strategy.name, strategy, "fusion strategy")
    return Plugin(
        name, distribution, version, tuple(kind.name for kind in kinds), tuple(one.name for one in strategies)
    )


def _add(known: dict[str, Any], name: str, value: Any, what: str) -> None:
    if name in known:
        raise PluginError(f"a second plugin brings the {what} {name!r}")
    known[name] = value
