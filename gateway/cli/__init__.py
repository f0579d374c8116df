"""The command line: ``rcp-gateway``."""

from gateway.cli.main import main

__all__ = ["main"]
