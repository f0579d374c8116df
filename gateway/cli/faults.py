"""What went wrong, as one clear line for a person, and the exit code it makes."""

from __future__ import annotations

import traceback

import click

from gateway.cli.render import print_json, say
from gateway.errors import ConfigError, ConfigErrors, GatewayError, PluginError, RcpError
from gateway.telemetry.log import redact

__all__ = ["report"]


def report(error: Exception, *, debug: bool, as_json: bool) -> int:
    """Says what went wrong, to whoever reads JSON as well; the exit code it makes."""
    if debug:
        traceback.print_exception(error)
    code, lines = _told(error)
    for line in lines:
        # A configuration error quotes no value that could be a secret, and speaks of secrets by name.
        say(line if isinstance(error, ConfigError) else redact(line))
    if as_json:
        told = error.to_wire() if isinstance(error, RcpError) else {"message": redact("\n".join(lines))}
        print_json({"error": told})
    return code


def _told(error: Exception) -> tuple[int, list[str]]:
    match error:
        case click.exceptions.NoArgsIsHelpError():
            return 2, error.format_message().splitlines()
        case click.UsageError():
            asked = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
            return 2, [f"rcp-gateway: {_one_line(error.format_message())}{asked}"]
        case click.ClickException():
            return 2, [f"rcp-gateway: {_one_line(error.format_message())}"]
        case ConfigErrors():
            return 2, [_config_line(one) for one in error.errors]
        case ConfigError():
            return 2, [_config_line(error)]
        case RcpError():
            about = error.data.get("field") or error.data.get("option")
            told = f"{error.message}: {about}" if about and str(about) not in error.message else error.message
            return 1, [f"rcp-gateway: {_one_line(told)} ({error.code})", *_engine_lines(error)]
        case GatewayError():
            return 1, [f"rcp-gateway: {_one_line(error)}"]
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return 1, [f"rcp-gateway: {_one_line(f'{where}{error.strerror or error}')}"]
        case ExceptionGroup() if len(error.exceptions) == 1:
            return _told(error.exceptions[0])
        case _:
            return 1, [f"rcp-gateway: internal error ({type(error).__name__}); rcp-gateway --debug … shows it"]


def _config_line(error: ConfigError) -> str:
    """``gateway.yaml:12: engines[0].timout: …``, as compilers have it."""
    line = _one_line(error if error.place else f"rcp-gateway: {error}")
    return redact(line) if isinstance(error, PluginError) else line  # it may quote what a plugin said


def _engine_lines(error: RcpError) -> list[str]:
    """What each engine had to say, where the error tells."""
    engines = error.data.get("engines")
    if not isinstance(engines, dict):
        return []
    told = {id: one.get("message") if isinstance(one, dict) else one for id, one in engines.items()}
    return [f"  {_one_line(f'{id}: {message}')}" for id, message in told.items()]


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
