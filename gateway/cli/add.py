"""``add`` and ``delete``: files become passages, passages become documents of a writable engine, and go again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gateway.app import engine_specs
from gateway.cli.client import Client, here, remote
from gateway.cli.render import say
from gateway.config import GatewayConfig, nearest
from gateway.errors import ConfigError
from gateway.model import Document
from gateway.passages import Skipped, read_passages
from gateway.plugins import Plugins
from gateway.spi.http import redacted

__all__ = [
    "add_documents",
    "add_here",
    "add_remotely",
    "delete_here",
    "delete_remotely",
    "narrowed",
    "read_documents",
]

_BATCH = 64


def read_documents(paths: Sequence[Path], base: Path) -> list[Document]:
    """All passages of the files; what could not be read is told."""
    skipped: list[Skipped] = []
    documents = list(read_passages(paths, base, skipped=skipped.append))
    for one in skipped:
        say(f"skipped {one.path}: {one.reason}")
    return documents


def narrowed(config: GatewayConfig, plugins: Plugins, target: str) -> GatewayConfig:
    """The configuration with only the engine that is written to, and the embedders it needs.

    Raises :class:`~gateway.errors.ConfigError` if there is no such engine or it cannot be written to.
    """
    specs = {spec.settings.id: spec for spec in engine_specs(config, plugins)}
    if target not in specs:
        raise ConfigError(f"there is no engine {target!r}{nearest(target, specs)} (there are {', '.join(specs)})")
    spec = specs[target]
    index = spec.offers.index
    if (index is None or not index.writable) and not spec.kind.federates:
        told = "; set `writable: true` in its settings" if hasattr(spec.config, "writable") else ""
        raise ConfigError(f"engine {target!r} (kind {spec.kind.name}) cannot be written to{told}")
    wanted = {target, *spec.embedders}
    engines = tuple(engine for engine in config.engines if engine.id in wanted)
    return msgspec.structs.replace(config, engines=engines, facades=(), profiles=(), writes=target, embed=None)


async def add_here(
    paths: Sequence[Path], config: GatewayConfig, plugins: Plugins, *, targets: Sequence[str], base: Path
) -> int:
    """Adds the files' passages to each target, or to what the configuration writes to."""
    configurations = _targets(config, plugins, targets)
    documents = read_documents(paths, base)
    for target, only in configurations.items() if documents else ():
        async with here(only, plugins) as client:
            await add_documents(client, documents, target)
    return _outcome(documents)


def _targets(config: GatewayConfig, plugins: Plugins, targets: Sequence[str]) -> dict[str, GatewayConfig]:
    """What to open for each engine that is written to. All of them are checked before anything is written."""
    chosen = list(targets) or ([config.writes] if config.writes else [])
    if not chosen:
        raise ConfigError("name the engine to write to with --to, or set `writes:` in the configuration")
    return {target: narrowed(config, plugins, target) for target in chosen}


async def delete_here(ids: Sequence[str], config: GatewayConfig, plugins: Plugins, *, targets: Sequence[str]) -> int:
    """Deletes passages by id from each target, or from what the configuration writes to."""
    for target, only in _targets(config, plugins, targets).items():
        async with here(only, plugins) as client:
            await _delete(client, ids, target)
    return 0


async def delete_remotely(ids: Sequence[str], url: str) -> int:
    """Deletes passages by id from the engine that a running gateway writes to."""
    async with remote(url) as client:
        await _delete(client, ids, redacted(url))
    return 0


async def _delete(client: Client, ids: Sequence[str], target: str) -> None:
    result = await client.call("index/delete", {"ids": list(ids)})
    say(f"deleted {result.get('deleted', 0)} of {len(set(ids))} from {target}")


async def add_remotely(paths: Sequence[Path], url: str, base: Path) -> int:
    """Adds the files' passages to the engine that a running gateway writes to."""
    documents = read_documents(paths, base)
    if documents:
        async with remote(url) as client:
            await add_documents(client, documents, redacted(url))
    return _outcome(documents)


def _outcome(documents: Sequence[Document]) -> int:
    if not documents:
        say("rcp-gateway: nothing to add")
    return 0 if documents else 1


async def add_documents(client: Client, documents: Sequence[Document], target: str) -> None:
    """Adds in batches, with a progress bar on a terminal. Adding the same passages again replaces them."""
    with _progress(len(documents), f"adding to {target}") as advance:
        for start in range(0, len(documents), _BATCH):
            batch = documents[start : start + _BATCH]
            await client.call("index/add", {"documents": [_wire(document) for document in batch]})
            advance(len(batch))
    say(f"added {len(documents)} passages to {target}")


def _wire(document: Document) -> dict[str, Any]:
    wire: dict[str, Any] = msgspec.to_builtins(document)
    return wire


@contextmanager
def _progress(total: int, what: str) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
