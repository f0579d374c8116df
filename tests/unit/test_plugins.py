"""Plugins: found through entry points, loaded once, and what happens when one of them is not as it should be."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from gateway.errors import PluginError
from gateway.model import Capabilities, RetrieveCapability
from gateway.plugins import Plugins, load_plugins
from gateway.spi import EngineConfig, EngineKind, hookimpl
from gateway.spi.engine import Engine, EngineContext
from gateway_memory.engine import MemoryKind


class Distribution:
    """As much of importlib.metadata's class as the loader uses."""

    def __init__(self, name: str, version: str = "1.0") -> None:
        self.name = name
        self.version = version


class Config(EngineConfig, frozen=True):
    size: int = 1


def kind(name: str) -> EngineKind[Config]:
    class Kind(EngineKind[Config]):
        config = Config

        def offers(self, config: Config) -> Capabilities:
            return Capabilities(retrieve=RetrieveCapability())

        def open(self, config: Config, context: EngineContext) -> AbstractAsyncContextManager[Engine]:
            raise NotImplementedError

    Kind.name = name
    return Kind()


def plugin(*kinds: object) -> types.ModuleType:
    module = types.ModuleType("stranger")

    @hookimpl
    def gateway_engine_kinds() -> Sequence[Any]:
        return kinds

    module.gateway_engine_kinds = gateway_engine_kinds  # type: ignore[attr-defined]
    return module


class Found:
    """Entry points whose modules exist in this test only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.points: list[EntryPoint] = []

    def add(self, name: str, distribution: str, module: types.ModuleType | Callable[[], Any] | None) -> None:
        path = f"fake_{distribution}_{name}".replace("-", "_")
        point = EntryPoint(name, path, "rcp_gateway")
        vars(point)["dist"] = Distribution(distribution)
        if isinstance(module, types.ModuleType):
            self._monkeypatch.setitem(sys.modules, path, module)
        elif module is not None:
            vars(point)["load"] = module
        self.points.append(point)

    def load(self) -> Plugins:
        return load_plugins(found=self.points)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    return Found(monkeypatch)


def by_name(plugins: Plugins, name: str) -> Any:
    (one,) = (plugin for plugin in plugins.found if plugin.name == name)
    return one


def test_the_built_ins_come_through_entry_points_like_everybody() -> None:
    plugins = load_plugins()
    assert {"memory", "sqlite", "rcp", "qdrant", "static-embedder"} <= set(plugins.kinds)
    ours = [one for one in plugins.found if one.distribution == "rcp-gateway"]  # a stranger may be installed too
    assert {"memory", "sqlite", "rcp", "qdrant", "models"} <= {one.name for one in ours}
    assert all(one.error is None and one.version for one in ours)
    assert plugins.distribution_of("memory") == "rcp-gateway"


def test_a_stranger_brings_kinds_of_its_own(found: Found) -> None:
    found.add("mine", "rcp-mine", plugin(kind("mine"), kind("mine-too")))
    plugins = found.load()
    assert sorted(plugins.kinds) == ["mine", "mine-too"]
    assert by_name(plugins, "mine").kinds == ("mine", "mine-too")
    assert plugins.kind("mine", path="x").config is Config
    assert plugins.distribution_of("mine") == "rcp-mine"


def raising(error: BaseException) -> Callable[[], Any]:
    def load() -> Any:
        raise error

    return load


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (None, "ModuleNotFoundError: No module named 'fake_rcp_broken_broken'"),
        (raising(ZeroDivisionError("division by zero")), "ZeroDivisionError: division by zero"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(ImportError("first line\nsecond line " + "x" * 1000)), "ImportError: first line second line x"),
        (plugin(None), "TypeError: NoneType is not an instance of EngineKind"),
        (plugin(MemoryKind), "TypeError: MemoryKind is not an instance of EngineKind"),
        (plugin("memory"), "TypeError: str is not an instance of EngineKind"),
    ],
)
def test_a_broken_plugin_is_a_warning_and_the_others_load(
    found: Found, broken: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    found.add("broken", "rcp-broken", broken)
    found.add("good", "rcp-good", plugin(kind("good")))
    plugins = found.load()
    assert sorted(plugins.kinds) == ["good"]
    error = by_name(plugins, "broken").error
    assert error.startswith(told)
    assert len(error) <= 300
    assert "\n" not in error
    (record,) = caplog.records
    assert record.getMessage() == f"plugin broken of rcp-broken did not load: {error}"


def test_a_hook_of_a_misspelt_name_is_an_error_of_its_plugin(found: Found) -> None:
    module = types.ModuleType("stranger")

    @hookimpl
    def gateway_engine_kindz() -> Sequence[Any]:
        return [kind("never")]

    module.gateway_engine_kindz = gateway_engine_kindz  # type: ignore[attr-defined]
    found.add("typo", "rcp-typo", module)
    assert "gateway_engine_kindz" in by_name(found.load(), "typo").error


def test_a_hook_without_its_mark_is_an_error_of_its_plugin(found: Found) -> None:
    module = types.ModuleType("stranger")
    module.gateway_engine_kinds = lambda: [kind("never")]  # type: ignore[attr-defined]
    found.add("unmarked", "rcp-unmarked", module)
    told = by_name(found.load(), "unmarked").error
    assert told == "TypeError: gateway_engine_kinds is not marked with @hookimpl, so it is not called"


def test_a_plugin_that_brings_nothing_is_fine(found: Found) -> None:
    found.add("empty", "rcp-empty", types.ModuleType("empty"))
    assert by_name(found.load(), "empty").error is None


def test_using_the_kind_of_a_broken_plugin_is_an_error_that_names_its_distribution(found: Found) -> None:
    found.add("broken", "rcp-broken", raising(RuntimeError("no licence")))
    found.add("good", "rcp-good", plugin(kind("good")))
    with pytest.raises(PluginError) as caught:
        found.load().kind("fancy", path="engines[0].kind")
    assert str(caught.value) == (
        "engines[0].kind: there is no engine kind 'fancy' (known: good); "
        "plugins that did not load: rcp-broken: RuntimeError: no licence"
    )
    assert caught.value.distribution == "rcp-broken"


def test_a_misspelt_kind_is_told_the_nearest_one_and_nothing_of_broken_plugins(found: Found) -> None:
    found.add("broken", "rcp-broken", raising(RuntimeError("no licence")))
    found.add("good", "rcp-good", plugin(kind("sqlite")))
    with pytest.raises(PluginError) as caught:
        found.load().kind("sqlte", path="p")
    assert str(caught.value) == "p: there is no engine kind 'sqlte' (did you mean 'sqlite'?) (known: sqlite)"


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_kind_that_two_plugins_bring_belongs_to_neither(found: Found, order: tuple[str, str]) -> None:
    """Which one is meant must not depend on how they are called, and a stranger must not take a built-in's place."""
    for name in order:
        found.add(name, f"rcp-{name}", plugin(kind("same"), kind(f"own-{name}")))
    plugins = found.load()
    assert sorted(plugins.kinds) == ["own-a", "own-b"]
    assert by_name(plugins, "a").error == by_name(plugins, "b").error == "another plugin brings same as well"
    with pytest.raises(PluginError) as caught:
        plugins.kind("same", path="engines[0].kind")
    assert str(caught.value) == (
        "engines[0].kind: the engine kind 'same' is brought by rcp-a and by rcp-b; uninstall all but one"
    )


def test_plugins_may_be_given_as_objects() -> None:
    assert "mine" in load_plugins([plugin(kind("mine"))], found=[]).kinds


def test_one_load_leaves_nothing_behind_for_the_next(found: Found) -> None:
    found.add("mine", "rcp-mine", plugin(kind("mine")))
    assert "mine" in found.load().kinds
    assert "mine" not in load_plugins().kinds
