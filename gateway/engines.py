"""From the configuration's settings to what can be opened: engines, facades, fusion strategies. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config import (
    FAULT,
    Check,
    EngineSettings,
    FusionSettings,
    GatewayConfig,
    ProfileSettings,
    Walker,
    load,
    load_value,
    located,
    nearest,
)
from gateway.config.yaml import join
from gateway.errors import ConfigError
from gateway.federation.aliases import Aliases
from gateway.federation.context import HostContext
from gateway.federation.fleet import EngineSpec, MemberSettings
from gateway.fusion import Confidence, Convex, Rrf, Strategy, Weighted
from gateway.model import Capabilities
from gateway.plugins import Plugins
from gateway.profiles import check_profiles
from gateway.spi.engine import EngineKind
from gateway.spi.facade import Facade
from gateway.spi.http import HttpSettings

__all__ = ["config_of", "engine_specs", "facades_of", "read_config", "strategies_of"]


def read_config(path: Path, plugins: Plugins) -> GatewayConfig:
    """Loads a configuration, and with it checks every engine's own settings, so that all faults come at once.

    Raises :class:`~gateway.errors.ConfigErrors`.
    """
    return load(path, check=_check(plugins))


def config_of(value: Mapping[str, Any], base_dir: Path, plugins: Plugins) -> GatewayConfig:
    """The same from the values that a file would hold; relative paths start at ``base_dir``."""
    return load_value(value, base_dir=base_dir, check=_check(plugins))


def _check(plugins: Plugins) -> Check:
    """What is to be checked of a file beyond its own keys."""

    def check(walker: Walker, raw: Mapping[str, Any]) -> None:
        engines = raw.get("engines")
        listed = engines if isinstance(engines, list) else ()
        ids = [str(one["id"]) for one in listed if isinstance(one, Mapping) and "id" in one]
        decoded: dict[str, _Decoded] = {}
        for index, engine in enumerate(listed):
            if isinstance(engine, Mapping) and isinstance(engine.get("kind"), str):
                path = f"engines[{index}]"
                id = str(engine.get("id"))
                own = _own_settings(walker, plugins, engine["kind"], engine.get("with"), path, id)
                if own is not FAULT:
                    _check_embedders(walker, own, path, ids)
                    _check_aliases(walker, own, path, engine.get("aliases"))
                    decoded[id] = own
        fusion = raw.get("fusion")
        named = [(key, raw.get(key)) for key in ("writes", "embed", "transform")]
        named.append(("fusion.scorer", fusion.get("scorer") if isinstance(fusion, Mapping) else None))
        walker.errors.extend(_targets([(key, str(one)) for key, one in named if isinstance(one, str)], decoded))
        facades = raw.get("facades")
        made: list[Any] = []
        for index, facade in enumerate(facades if isinstance(facades, list) else ()):
            if isinstance(facade, Mapping) and isinstance(facade.get("kind"), str):
                made.append(_facade(walker, plugins, facade["kind"], facade.get("with"), f"facades[{index}]", ids))
        _check_routes(walker, made)
        if isinstance(fusion, Mapping) and isinstance(fusion.get("method"), str):
            _check_method(walker, plugins, fusion["method"])
        profiles = _sound_profiles(raw.get("profiles"), walker.base_dir)
        _check_profile_methods(walker, plugins, profiles)
        check_profiles(walker, profiles, ids)

    return check


def _sound_profiles(raw: Any, base_dir: Path) -> dict[int, ProfileSettings]:
    """Those whose shape is right, by their place; what is wrong with the others has been said."""
    read = {
        index: Walker(base_dir).struct(ProfileSettings, one, "")
        for index, one in enumerate(raw if isinstance(raw, list | tuple) else ())
        if isinstance(one, Mapping)
    }
    return {index: one for index, one in read.items() if one is not FAULT}


def _check_profile_methods(walker: Walker, plugins: Plugins, profiles: Mapping[int, ProfileSettings]) -> None:
    for index, one in profiles.items():
        if one.fusion is not None:
            _check_method(walker, plugins, one.fusion.method, f"profiles[{index}].")


@dataclass(frozen=True, slots=True)
class _Decoded:
    """An engine's kind, its settings read by it, and what it says of them."""

    kind: EngineKind[Any]
    config: Any
    offers: Capabilities
    embedders: tuple[str, ...]
    requires: tuple[str, ...]


def _own_settings(walker: Walker, plugins: Plugins, name: str, value: Any, path: str, engine: str) -> Any:
    """What becomes of an engine's settings, ``_Decoded`` or ``FAULT``."""
    try:
        kind = plugins.kind(name, path=f"{path}.kind")
    except ConfigError as error:
        walker.errors.append(error)
        return FAULT
    own = walker.struct(kind.config, value, f"{path}.with")
    if own is FAULT:
        return FAULT
    try:
        said = {
            question: plugins.ask(kind, question, own, engine=engine)
            for question in ("offers", "embedders", "requires")
        }
    except ConfigError as error:
        error.path = f"{path}.with{f'.{error.path}' if error.path else ''}"
        walker.errors.append(error)
        return FAULT
    return _Decoded(kind, own, **said)


def engine_specs(config: GatewayConfig, plugins: Plugins) -> list[EngineSpec]:
    """Decodes every engine's own settings with its kind. Raises ``ConfigErrors`` with all faults; does no I/O."""
    walker = Walker(config.base_dir)
    specs: list[EngineSpec] = []
    known = [engine.id for engine in config.engines]
    for index, settings in enumerate(config.engines):
        path = f"engines[{index}]"
        own = _own_settings(walker, plugins, settings.kind, settings.settings, path, settings.id)
        if own is FAULT:
            continue
        _check_embedders(walker, own, path, known)
        _check_aliases(walker, own, path, settings.aliases)
        specs.append(_spec(settings, own, config))
    named = (
        ("writes", config.writes),
        ("embed", config.embed),
        ("transform", config.transform),
        ("fusion.scorer", config.fusion.scorer),
    )
    known_specs = {spec.settings.id: spec for spec in specs}
    walker.errors.extend(_targets([(key, target) for key, target in named if target is not None], known_specs))
    if len(specs) == len(config.engines):
        walker.errors.extend(_corpora(specs))
    _check_method(walker, plugins, config.fusion.method)
    _check_profile_methods(walker, plugins, dict(enumerate(config.profiles)))
    if walker.errors:
        raise located(walker.errors, config.source, config.lines)
    return specs


def _spec(settings: EngineSettings, own: _Decoded, config: GatewayConfig) -> EngineSpec:
    context = _context(settings, config)
    return EngineSpec(_member(settings), own.kind, own.config, context, own.offers, own.embedders, own.requires)


def facades_of(config: GatewayConfig, plugins: Plugins) -> list[Facade]:
    """The configured facades. Raises ``ConfigErrors`` with all faults."""
    walker = Walker(config.base_dir)
    ids = [engine.id for engine in config.engines]
    made = [
        _facade(walker, plugins, section.kind, section.settings, f"facades[{index}]", ids)
        for index, section in enumerate(config.facades)
    ]
    _check_routes(walker, made)
    if walker.errors:
        raise located(walker.errors, config.source, config.lines)
    return made


def _check_routes(walker: Walker, facades: Sequence[Any]) -> None:
    """Two facades cannot answer at one path; of two, one would never be heard."""
    taken: set[tuple[str, str]] = set()
    for index, facade in enumerate(facades):
        routes = set() if facade is FAULT else set(facade.routes())
        for method, path in sorted(routes & taken):
            walker.fault(f"facades[{index}]", f"another facade already answers {method} {path}")
        taken |= routes


def _facade(walker: Walker, plugins: Plugins, name: str, value: Any, path: str, engines: Sequence[str]) -> Any:
    """One facade, or ``FAULT``."""
    try:
        kind = plugins.facade(name, path=f"{path}.kind")
    except ConfigError as error:
        walker.errors.append(error)
        return FAULT
    own = walker.struct(kind.config, value, f"{path}.with")
    if own is FAULT:
        return FAULT
    try:
        return kind.make(own, engines)
    except ConfigError as error:
        below = f".{error.path}" if error.path else ""
        return walker.fault(f"{path}.with{below}", error.message)


def _member(settings: EngineSettings) -> MemberSettings:
    return MemberSettings(
        id=settings.id,
        weight=settings.weight,
        priority=settings.priority,
        required=settings.required,
        corpus=settings.corpus,
        trust=settings.trust,
        timeout=settings.timeout,
        concurrency=settings.concurrency,
        queue=settings.queue,
        undeclared=settings.undeclared,
        min_score=settings.min_score,
        attempts=settings.retry.attempts,
        backoff=settings.retry.base,
        aliases=Aliases(settings.aliases),
    )


def _context(settings: EngineSettings, config: GatewayConfig) -> Callable[[], HostContext]:
    http = HttpSettings(client=config.http.client, pool_size=settings.concurrency)
    return lambda: HostContext(settings.id, config.base_dir, http=http)


def _check_embedders(walker: Walker, own: _Decoded, path: str, known: Sequence[str]) -> None:
    """An engine takes its vectors from engines that there are."""
    for embedder in own.embedders:
        if embedder not in known:
            told = f"there is no engine {embedder!r}{nearest(embedder, known)} to take vectors from"
            walker.fault(f"{path}.with", told)


def _check_aliases(walker: Walker, own: _Decoded, path: str, given: Any) -> None:
    """Every name means one field, as far as the engine's settings tell which fields there are."""
    if isinstance(given, Mapping) and all(isinstance(one, str) for pair in given.items() for one in pair):
        filter = own.offers.filter
        for name, told in Aliases(given).faults(filter.fields if filter is not None else {}):
            walker.fault(join(f"{path}.aliases", name), told)


_ABILITIES = {"writes": "index", "embed": "embed", "transform": "transform", "fusion.scorer": "rerank"}
"""Keys of the configuration that name an engine, and the capability it must have."""


def _targets(
    named: Sequence[tuple[str, str]], engines: Mapping[str, EngineSpec] | Mapping[str, _Decoded]
) -> Iterator[ConfigError]:
    """The keys that name an engine for something must name one that can do it, as far as its settings tell."""
    for key, target in named:
        if target not in engines:
            continue
        kind, offers = engines[target].kind, engines[target].offers
        able = getattr(offers, _ABILITIES[key]) is not None
        if key == "writes":
            able = bool(offers.index and offers.index.writable)
        # A server of unknown abilities tells only when it is open.
        if not able and not kind.federates:
            yield ConfigError(f"engine {target!r} (kind {kind.name}) cannot serve that", path=key)


def _corpora(specs: Sequence[EngineSpec]) -> Iterator[ConfigError]:
    """Once one engine names a corpus, every engine that is asked for hits must."""
    asked = {
        index: spec.settings.corpus
        for index, spec in enumerate(specs)
        if spec.settings.weight > 0 and spec.offers.retrieve is not None
    }
    if any(corpus is not None for corpus in asked.values()):
        for index, corpus in asked.items():
            if corpus is None:
                message = "once one engine names a corpus, all must: otherwise ids of unrelated documents could meet"
                yield ConfigError(message, path=f"engines[{index}].corpus")


def strategies_of(fusion: FusionSettings, plugins: Plugins) -> dict[str, Strategy]:
    """Every way of fusing there is, by name, with the configuration's constants."""
    built_in: list[Strategy] = [Rrf(fusion.k), Weighted(), Convex(alpha=fusion.alpha), Confidence()]
    return {strategy.name: strategy for strategy in built_in} | plugins.strategies


def _check_method(walker: Walker, plugins: Plugins, method: str, above: str = "") -> None:
    methods = strategies_of(FusionSettings(), plugins)
    if method not in methods:
        walker.fault(f"{above}fusion.method", f"must be one of {', '.join(methods)}{nearest(method, methods)}")
