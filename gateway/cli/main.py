"""``rcp-gateway serve · stdio · query · check · plugins · catalog · explain · probe · add · delete · demo``.

Every error is one clear line on stderr: exit code 2 for usage and configuration, 1 for failure, never a traceback
(``--debug`` shows it). Heavy imports happen inside the commands, so that ``--version`` is quick.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway import __version__
from gateway.cli.options import retrieve_options, retrieve_params

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from gateway.cli.client import Client
    from gateway.config import GatewayConfig
    from gateway.plugins import Plugins

__all__ = ["main"]

_DEFAULT = "gateway.yaml"

_config = click.option(
    "--config", "-c", "path", type=click.Path(path_type=Path), default=_DEFAULT, show_default=True,
    help="gateway.yaml, or an rcp.json registry.",
)  # fmt: skip
_url = click.option("--url", help="Ask the gateway that runs there (http://127.0.0.1:8787/rcp) instead of opening one.")
_profile = click.option("--profile", metavar="NAME", help="Ask under this profile of the configuration.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rcp-gateway")
@click.option("--debug", is_flag=True, help="Show tracebacks and log at debug level.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """One Retrieval Context Protocol endpoint in front of many retrieval engines."""
    context.obj = debug


def _load(path: Path) -> tuple[GatewayConfig, Plugins]:
    """The configuration, checked together with what its plugins make of it."""
    from gateway.app import read_config
    from gateway.plugins import load_plugins

    if str(path) == _DEFAULT and not path.exists():
        raise click.UsageError(f"there is no {_DEFAULT} here; name a configuration with --config")
    plugins = load_plugins()
    return read_config(path, plugins), plugins


def _run(work: Coroutine[Any, Any, int | None]) -> int:
    """Runs one command's coroutine on the fastest loop there is."""
    try:
        import uvloop
    except ImportError:
        import asyncio

        return asyncio.run(work) or 0
    return uvloop.run(work) or 0


def _client(path: Path, url: str | None, profile: str | None = None) -> AbstractAsyncContextManager[Client]:
    from gateway.cli.client import here, remote

    return remote(url, profile=profile) if url else here(*_load(path), profile)


def _logging(level: str, format: Any = "text") -> None:
    from gateway.telemetry.log import configure_logging

    debug = bool(click.get_current_context().find_root().obj)
    configure_logging("debug" if debug else level, format)


@cli.command()
@_config
@click.option("--host", help="Listen on this address instead of the configured one.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port instead; 0 picks a free one.")
@click.option("--sessions", type=click.Choice(["stateless", "token", "peer"]), help="How HTTP clients hold sessions.")
def serve(path: Path, host: str | None, port: int | None, sessions: str | None) -> int:
    """Serve RCP over HTTP, with SSE, until SIGTERM or SIGINT."""
    from gateway.cli.serve import serve_http

    _logging("warning")
    config, plugins = _load(path)
    _logging(config.log.level, config.log.format)
    return _run(serve_http(config, plugins, host=host, port=port, sessions=sessions))


@cli.command()
@_config
@_profile
def stdio(path: Path, profile: str | None) -> int:
    """Serve RCP over stdin and stdout until the end of the input."""
    from gateway.cli.serve import serve_on_stdio

    _logging("warning")
    config, plugins = _load(path)
    _logging(config.log.level, config.log.format)
    return _run(serve_on_stdio(config, plugins, profile=profile))


@cli.command()
@click.argument("text")
@_config
@_url
@_profile
@_as_json
@retrieve_options
@click.option("--filter", "filter_", metavar="JSON", help="An RCP filter tree.")
def query(
    text: str, path: Path, url: str | None, profile: str | None, as_json: bool, filter_: str | None, **options: Any
) -> int:
    """Ask one question and print the fused ranking."""
    from gateway.cli.client import here, remote
    from gateway.cli.render import print_hits, print_json

    given = {**options, "filter": None if filter_ is None else _json_option(filter_, "--filter")}
    params = retrieve_params(text, given)
    _logging("error")

    if url:
        opening, paged = remote(url, profile=profile), True
    else:
        config, plugins = _load(path)
        # What is kept in this process ends with it, and so would the cursor that is printed.
        opening, paged = here(config, plugins, profile), config.state.kind != "memory"

    async def work() -> None:
        async with opening as client:
            result = await client.call("retrieve", params)
        print_json(result) if as_json else print_hits(result, paged=paged)

    return _run(work())


def _json_option(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=option) from error


@cli.command()
@_config
@click.option("--open", "open_", is_flag=True, help="Open every engine too, and say what each offers.")
@_as_json
def check(path: Path, open_: bool, as_json: bool) -> int:
    """Check a configuration without starting anything."""
    from gateway.cli.check import run_check

    _logging("error")
    return run_check(*_load(path), open_=open_, as_json=as_json, run=_run)


@cli.command()
@_as_json
def plugins(as_json: bool) -> int:
    """List the plugins that are installed and what each brings."""
    from gateway.cli.check import run_plugins

    _logging("error")
    return run_plugins(as_json=as_json)


@cli.command()
@_config
@_url
@_profile
@_as_json
def catalog(path: Path, url: str | None, profile: str | None, as_json: bool) -> int:
    """List the engines behind a gateway and what they offer."""
    from gateway.cli.check import print_catalog

    _logging("error")

    async def work() -> None:
        async with _client(path, url, profile) as client:
            result = await client.call("catalog/list")
        print_catalog(result, as_json=as_json)

    return _run(work())


@cli.command()
@click.argument("request_file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_config
@_as_json
@click.option("--filter", "filter_", metavar="JSON", help="An RCP filter tree, instead of a request file.")
@click.option("--mode", help="dense, sparse or hybrid.")
def explain(request_file: Path | None, path: Path, as_json: bool, filter_: str | None, mode: str | None) -> int:
    """Say who would be asked what, and why others would not; asks no engine.

    REQUEST_FILE holds the params of a retrieve, or a whole JSON-RPC request, as JSON.
    """
    from gateway.cli.explain import run_explain

    _logging("error")
    params: dict[str, Any] = {"query": ""}
    if request_file is not None:
        given = _json_option(request_file.read_text("utf-8"), "REQUEST_FILE")
        if not isinstance(given, dict):
            raise click.BadParameter("not a JSON object", param_hint="REQUEST_FILE")
        method, inner = given.get("method", "retrieve"), given.get("params", given)
        if method != "retrieve" or not isinstance(inner, dict):
            raise click.BadParameter("not a retrieve with an object for its params", param_hint="REQUEST_FILE")
        params |= inner
    if filter_ is not None:
        params["filter"] = _json_option(filter_, "--filter")
    if mode:
        params["mode"] = mode
    return _run(run_explain(*_load(path), params, as_json=as_json))


@cli.command()
@click.argument("engine")
@_config
def probe(engine: str, path: Path) -> int:
    """Find out how a live ENGINE filters and print the settings for it.

    Writes a few scratch documents into it and removes them again: point it at a collection made for that.
    """
    from gateway.cli.probe import run_probe

    _logging("error")
    return _run(run_probe(*_load(path), engine))


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@_config
@_url
@click.option("--to", "targets", multiple=True, metavar="ENGINE", help="Add to this engine instead of `writes:`.")
@click.option("--base", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Ids are paths from here; by default the configuration's folder.")  # fmt: skip
def add(paths: tuple[Path, ...], path: Path, url: str | None, targets: tuple[str, ...], base: Path | None) -> int:
    """Split Markdown and text files into passages and add them to a writable engine."""
    from gateway.cli.add import add_here, add_remotely

    _logging("error")
    if url and targets:
        raise click.UsageError("--to names an engine of a configuration; a running gateway writes where it is told to")
    if url:
        return _run(add_remotely(paths, url, base or Path.cwd()))
    config, plugins = _load(path)
    return _run(add_here(paths, config, plugins, targets=targets, base=base or config.base_dir))


@cli.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@_config
@_url
@click.option("--to", "targets", multiple=True, metavar="ENGINE", help="Delete there instead of from `writes:`.")
def delete(ids: tuple[str, ...], path: Path, url: str | None, targets: tuple[str, ...]) -> int:
    """Delete passages by id (docs/filters.md#3) from a writable engine."""
    from gateway.cli.add import delete_here, delete_remotely

    _logging("error")
    if url and targets:
        raise click.UsageError("--to names an engine of a configuration; a running gateway writes where it is told to")
    if url:
        return _run(delete_remotely(ids, url))
    return _run(delete_here(ids, *_load(path), targets=targets))


@cli.command()
@_config
@click.argument("question", required=False)
def demo(path: Path, question: str | None) -> int:
    """Fill the sample's engines, serve them on loopback, ask one question and show what each engine said."""
    from gateway.cli.demo import run_demo

    _logging("error")
    return _run(run_demo(*_load(path), question))


def _debug_first(arguments: list[str]) -> list[str]:
    """The arguments with ``--debug``, which holds for every command, before the command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = [one for one in arguments[:end] if one != "--debug"]
    return [*(["--debug"] if len(rest) < end else []), *rest, *arguments[end:]]


def main(argv: list[str] | None = None) -> None:
    """The entry point of the ``rcp-gateway`` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a hit may hold what the terminal cannot show
    given = _debug_first(sys.argv[1:] if argv is None else argv)
    try:
        code = cli.main(args=given, prog_name="rcp-gateway", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has seen enough. The interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except Exception as error:  # noqa: BLE001  # a boundary: a person gets a line, not a traceback
        from gateway.cli.faults import report

        code = report(error, debug="--debug" in given, as_json="--json" in given)
    sys.exit(code if isinstance(code, int) else 0)
