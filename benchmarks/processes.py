"""Processes of a measurement: started, watched through /proc, ended by their own id."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["GATEWAY", "ROOT", "Child", "child"]

ROOT = Path(__file__).resolve().parents[1]
GATEWAY = [sys.executable, "-c", "import sys; from gateway.cli import main; sys.exit(main())"]

_TICK = os.sysconf("SC_CLK_TCK")
_SERVING = re.compile(r"https?://[^\s]+")


class Child:
    """One process. It says on stdout or stderr where it serves; ``url`` is that."""

    def __init__(self, argv: Sequence[str], *, cpu: int | None, cwd: Path, env: Mapping[str, str], wait: float) -> None:
        self.began = time.monotonic()
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pid = self._process.pid
        if cpu is not None:
            os.sched_setaffinity(self.pid, {cpu})
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.urls = self._where(wait)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return self.urls[0]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _where(self, wait: float) -> list[str]:
        said: list[str] = []
        try:
            while (line := self._lines.get(timeout=max(0.0, self.began + wait - time.monotonic()))) is not None:
                if "serving" in line:
                    return _SERVING.findall(line)
                said.append(line)
        except queue.Empty:
            said.append(f"it said nothing within {wait:g} s")
        raise RuntimeError("a process did not start: " + "".join(said[-5:]))

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def mebibytes(self, what: str = "VmRSS") -> float:
        """Its resident memory, or the most that it ever was (``VmHWM``)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what)) / 1024

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def child(
    argv: Sequence[str],
    *,
    cpu: int | None = None,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    wait: float = 30.0,
) -> Iterator[Child]:
    """Runs until the block ends; pinned to one processor if ``cpu`` is given."""
    running = Child(argv, cpu=cpu, cwd=cwd, env=env or {}, wait=wait)
    try:
        yield running
    finally:
        running.stop()


def processors() -> tuple[int | None, int | None]:
    """One for the process under test, one for all others; none are pinned where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)
