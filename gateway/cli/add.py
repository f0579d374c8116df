"""``add``: files become passages, passages become documents of a writable engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gateway.app import engine_specs
from gateway.cli.client import Client, here, remote
from gateway.cli.render import say
from gateway.config import GatewayConfig
from gateway.errors import ConfigError
from gateway.model import Document
from gateway.passages import Skipped, read_passages
from gateway.plugins import load_plugins

__all__ = ["add_documents", "narrowed", "read_documents", "run_add"]

_BATCH = 64


def read_documents(paths: Sequence[Path], base: Path) -> list[Document]:
    """All passages of the files; what could not be read is told."""
    skipped: list[Skipped] = []
    documents = list(read_passages(paths, base, skipped=skipped.append))
    for one in skipped:
        say(f"skipped {one.path}: {one.reason}")
    return documents


def narrowed(config: GatewayConfig, target: str) -> GatewayConfig:
    """The configuration with only the engine that is written to, and the embedders it needs.

    Raises :class:`~gateway.errors.ConfigError` if there is no such engine or it cannot be written to.
    """
    specs = {spec.settings.id: spec for spec in engine_specs(config, load_plugins())}
    if target not in specs:
        raise ConfigError(f"there is no engine {target!r} (there are {', '.join(specs)})")
    spec = specs[target]
    index = spec.kind.offers(spec.config).index
    if (index is None or not index.writable) and not spec.kind.federates:
        raise ConfigError(f"engine {target!r} (kind {spec.kind.name}) cannot be written to")
    wanted = {target, *spec.kind.embedders(spec.config)}
    engines = tuple(engine for engine in config.engines if engine.id in wanted)
    return msgspec.structs.replace(config, engines=engines, writes=target, embed=None)


async def run_add(
    paths: Sequence[Path], config: GatewayConfig | None, *, url: str | None, targets: Sequence[str], base: Path | None
) -> int:
    """Adds the files' passages to each target, or to what a running gateway writes to."""
    root = base or (config.base_dir if config is not None else Path.cwd())
    documents = read_documents(paths, root.absolute())
    if not documents:
        say("nothing to add")
        return 1
    if config is None:
        async with remote(url or "") as client:
            await add_documents(client, documents, url or "")
        return 0
    chosen = list(targets) or ([config.writes] if config.writes else [])
    if not chosen:
        raise ConfigError("name the engine to add to with --to, or set `writes:` in the configuration")
    for target in chosen:
        async with here(narrowed(config, target)) as client:
            await add_documents(client, documents, target)
    return 0


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
