"""Plugins: found through entry points, loaded once, asked once.

Built-ins come through the same door as anybody's. A plugin that does not load is a warning, unless the configuration
uses a kind that is then missing: the error names the distributions that did not load.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from gateway.config.walk import nearest
from gateway.errors import ConfigError, PluginError
from gateway.fusion import Strategy
from gateway.model import Capabilities
from gateway.spi.engine import EngineKind
from gateway.spi.facade import FacadeKind
from gateway.spi.hooks import ENTRY_POINT_GROUP, Hooks

__all__ = ["Plugin", "Plugins", "load_plugins"]

_ERROR_LIMIT = 300
_HOOKS = tuple(name for name in vars(Hooks) if name.startswith("gateway_"))

logger = logging.getLogger("gateway.plugins")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin as found: its entry point's name, its distribution, what it brought or why it did not load."""

    name: str
    distribution: str
    version: str
    kinds: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    facades: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """What it brought and another plugin brought as well."""
    error: str | None = None


@dataclass(slots=True)
class Plugins:
    """Everything that was loaded. Lives on the application object; nothing here is global."""

    found: list[Plugin] = field(default_factory=list)
    kinds: dict[str, EngineKind[Any]] = field(default_factory=dict)
    strategies: dict[str, Strategy] = field(default_factory=dict)
    facades: dict[str, FacadeKind[Any]] = field(default_factory=dict)

    def facade(self, name: str, *, path: str) -> FacadeKind[Any]:
        """The facade of that name. Raises :class:`~gateway.errors.PluginError` saying what there is."""
        if name in self.facades:
            return self.facades[name]
        known = ", ".join(sorted(self.facades)) or "none is installed"
        raise PluginError(f"there is no facade {name!r}{nearest(name, self.facades)} (known: {known})", path=path)

    def kind(self, name: str, *, path: str) -> EngineKind[Any]:
        """The kind of that name. Raises :class:`~gateway.errors.PluginError` saying what there is and what failed."""
        if name in self.kinds:
            return self.kinds[name]
        rivals = [plugin.distribution for plugin in self.found if name in plugin.refused]
        if rivals:
            told = f"the engine kind {name!r} is brought by {' and by '.join(rivals)}; uninstall all but one"
            raise PluginError(told, path=path)
        close = nearest(name, self.kinds)
        told = f"there is no engine kind {name!r}{close} (known: {', '.join(sorted(self.kinds))})"
        broken = [plugin for plugin in self.found if plugin.error is not None]
        if broken and not close:
            told += "; plugins that did not load: " + "; ".join(f"{one.distribution}: {one.error}" for one in broken)
        raise PluginError(told, path=path, distribution=broken[0].distribution if len(broken) == 1 else None)

    def ask(self, kind: EngineKind[Any], question: str, config: Any, *, engine: str) -> Any:
        """What a kind says of an engine from its settings alone: ``offers``, ``embedders`` or ``requires``.

        Raises :class:`~gateway.errors.PluginError`, whatever the kind raises, naming the engine and the distribution.
        """
        brought = self.distribution_of(kind.name)
        about = f"engine {engine!r}: the kind {kind.name} of {brought} failed in {question}()"
        try:
            answer = getattr(kind, question)(config)
            if question != "offers":
                return tuple(map(str, answer))
            if not isinstance(answer, Capabilities):
                raise TypeError(f"{type(answer).__name__} is not an instance of Capabilities")
            return answer
        except ConfigError:
            raise
        except Exception as error:  # a boundary: a stranger's code
            told = _one_line(f"{type(error).__name__}: {error}")
            raise PluginError(f"{about}: {told}", distribution=brought) from error

    def distribution_of(self, kind: str) -> str:
        """The package that brings a kind."""
        return next((plugin.distribution for plugin in self.found if kind in plugin.kinds), "unknown")


def load_plugins(extra: Sequence[object] = (), *, found: Sequence[EntryPoint] | None = None) -> Plugins:
    """Loads every plugin of the entry-point group, and ``extra`` ones given as objects (for tests and embedding).

    A kind or strategy that two of them bring is nobody's: which one is meant must not depend on their names.
    """
    points = list(entry_points(group=ENTRY_POINT_GROUP)) if found is None else list(found)
    brought: list[_Brought] = []
    broken: list[Plugin] = []
    for point in sorted(points, key=lambda point: point.name):
        plugin = Plugin(point.name, *(("unknown", "") if point.dist is None else (point.dist.name, point.dist.version)))
        try:
            brought.append(_ask(plugin, point.load()))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a boundary: a stranger's import
            told = _one_line(f"{type(error).__name__}: {error}")
            logger.warning("plugin %s of %s did not load: %s", plugin.name, plugin.distribution, told)
            broken.append(replace(plugin, error=told))
    for module in extra:
        name = getattr(module, "__name__", type(module).__name__)
        brought.append(_ask(Plugin(name, name, ""), module))
    return _gather(brought, broken)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_ERROR_LIMIT]


@dataclass(frozen=True, slots=True)
class _Brought:
    plugin: Plugin
    kinds: tuple[EngineKind[Any], ...]
    strategies: tuple[Strategy, ...]
    facades: tuple[FacadeKind[Any], ...]

    def names(self) -> list[str]:
        """What it brings; a kind and a facade may share a name, since they are two directions of one protocol."""
        engines = [*(kind.name for kind in self.kinds), *(strategy.name for strategy in self.strategies)]
        return [*engines, *(f"facade {facade.name}" for facade in self.facades)]


def _ask(plugin: Plugin, module: object) -> _Brought:
    """Asks one plugin for what it brings. Each has a manager of its own, so that its values are known to be its."""
    manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
    manager.add_hookspecs(Hooks)
    manager.register(module, plugin.name)
    manager.check_pending()  # a hook of a misspelt name would never be called
    for name in _HOOKS:
        if callable(getattr(module, name, None)) and manager.parse_hookimpl_opts(module, name) is None:
            raise TypeError(f"{name} is not marked with @hookimpl, so it is not called")
    kinds = tuple(kind for kinds in manager.hook.gateway_engine_kinds() for kind in kinds)
    strategies = tuple(strategy for group in manager.hook.gateway_strategies() for strategy in group)
    facades = tuple(facade for group in manager.hook.gateway_facades() for facade in group)
    brought: tuple[tuple[type[Any], tuple[Any, ...]], ...]
    brought = ((EngineKind, kinds), (Strategy, strategies), (FacadeKind, facades))
    for type_, values in brought:
        for value in values:
            if not isinstance(value, type_):
                name = getattr(value, "__name__", type(value).__name__)
                raise TypeError(f"{name} is not an instance of {type_.__name__}")
    return _Brought(plugin, kinds, strategies, facades)


def _gather(brought: Sequence[_Brought], broken: Sequence[Plugin]) -> Plugins:
    counts = Counter(name for each in brought for name in each.names())
    plugins = Plugins(found=list(broken))
    for each in brought:
        kinds = {kind.name: kind for kind in each.kinds if counts[kind.name] == 1}
        strategies = {one.name: one for one in each.strategies if counts[one.name] == 1}
        facades = {one.name: one for one in each.facades if counts[f"facade {one.name}"] == 1}
        refused = tuple(name for name in each.names() if counts[name] > 1)
        error = f"another plugin brings {', '.join(refused)} as well" if refused else None
        if error:
            logger.warning("plugin %s of %s: %s", each.plugin.name, each.plugin.distribution, error)
        plugins.kinds |= kinds
        plugins.strategies |= strategies
        plugins.facades |= facades
        plugins.found.append(
            replace(
                each.plugin,
                kinds=tuple(kinds),
                strategies=tuple(strategies),
                facades=tuple(facades),
                refused=refused,
                error=error,
            )
        )
    plugins.found.sort(key=lambda plugin: plugin.name)
    return plugins
