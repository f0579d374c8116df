"""The real RAGRails server as a child process of a test, on a free loopback port."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

__all__ = ["missing", "ragrails_api"]

_ROOT = Path(__file__).parents[2]
_PLACE = _ROOT / ".e2e"
_PYTHON = _PLACE / "ragrails" / "bin" / "python"
_RUNNING = re.compile(r"Uvicorn running on (http://127\.0\.0\.1:\d+)")


def missing() -> str | None:
    """Why the server cannot be run here; ``None`` if it can."""
    told = _PLACE / "unavailable"
    if told.exists():
        return f"ragrails could not be installed: {told.read_text().strip()}"
    return None if _PYTHON.exists() else "ragrails is not installed: make e2e"


@contextmanager
def ragrails_api(*, voyage: str, key: str, home: Path) -> Iterator[str]:
    """The address of a running server that reaches Voyage at ``voyage``. Ends with the block."""
    # Nothing of this process' environment: no proxy, no key, no settings file.
    env = {"VOYAGE_ADDRESS": voyage, "VOYAGE_API_KEY": key, "HOME": str(home), "PYTHONUNBUFFERED": "1"}
    launcher = Path(__file__).with_name("launch_ragrails.py")
    argv = [str(_PYTHON), "-P", str(launcher), "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=home, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        rest = Thread(target=lambda: sys.stderr.writelines(said))
        try:
            address = _address(said)
            rest.start()  # somebody has to read on, or the server waits
            yield address
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if rest.ident is not None:
                rest.join()


def _address(lines: Iterable[str]) -> str:
    said: list[str] = []
    for line in lines:
        said.append(line)
        if found := _RUNNING.search(line):
            return found[1]
    raise RuntimeError("the RAGRails server did not start: " + "".join(said)[-2000:])
