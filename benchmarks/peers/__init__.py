"""What the gateway is measured against, and the environment that it is installed into.

The peers are no dependencies of ours: they live in a virtual environment of their own under the cache folder, made at
the first run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["BOUND", "PEERS", "command", "environment"]

BOUND = "Python bound"
PEERS: dict[str, tuple[str, ...]] = {
    BOUND: ("bound.py",),
    "rcp-protocol in threads": ("sdk.py",),
    "LangChain + aiohttp": ("langchain.py", "aiohttp"),
    "LangChain + httpx": ("langchain.py", "httpx"),
}

_PACKAGES = (
    "rcp-protocol==1.0.1",
    "langchain-classic==1.0.8",
    "langchain-core==1.8.3",
    "httpx==0.28.1",
    "aiohttp==3.14.5",
    "orjson>=3.10",
    "uvicorn>=0.32",
    "uvloop>=0.21",
    "httptools>=0.6",
)


def environment() -> Path | str:
    """The interpreter of the peers' environment, which is made if it is not there; or why there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    named = hashlib.sha256(" ".join((*_PACKAGES, sys.version)).encode()).hexdigest()[:12]
    folder = cache / "rcp-gateway" / f"peers-{named}"
    python, done = folder / "bin" / "python", folder / "done"
    if not done.exists():
        print(f"installing the peers into {folder} (once)", flush=True)
        try:
            venv.create(folder, with_pip=True, clear=True)
            install = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", *_PACKAGES]
            subprocess.run(install, check=True, timeout=300, capture_output=True, text=True)
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            return f"cannot be installed: {said[-1] if said else error}"
        done.touch()
    return python


def command(name: str, python: Path | str, urls: list[str]) -> list[str]:
    """How to start a peer on these engines. The bound runs in our own environment."""
    script, *arguments = PEERS[name]
    run = sys.executable if name == BOUND else str(python)
    return [run, str(Path(__file__).parent / script), *arguments, *urls]
