"""A real Redis or Valkey server for a test: on a free port of loopback, keeping nothing on disk.

Its time can be made to pass (:meth:`Server.pass_time`), it can be stopped and continued, and killed.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis

__all__ = ["Server", "redis_server"]


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    arguments: Sequence[str] = ()
    _stopped: bool = field(default=False)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def connect(self) -> Redis:
        return Redis(port=self.port, protocol=2)

    def empty(self) -> None:
        with self.connect() as client:
            client.flushall()

    def pass_time(self, seconds: float) -> None:
        """Everything that expires does so that much earlier, which is all that tells time to what is kept there."""
        with self.connect() as client:
            for key in client.keys("*"):
                left = client.pttl(key)
                if left >= 0:
                    client.pexpire(key, left - int(seconds * 1000))
                if key.endswith(b":due"):
                    for member, due in client.zrange(key, 0, -1, withscores=True):
                        client.zadd(key, {member: due - seconds * 1_000_000})

    def stop(self) -> None:
        """The process answers nothing any more; the kernel goes on accepting its connections."""
        self._stopped = True
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._stopped = False
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._stopped:
            self.go_on()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def start_again(self) -> None:
        """A new process, which knows nothing, on the same port."""
        self.process = _started(self.port, self.folder, self.arguments)


@contextmanager
def redis_server(folder: Path, *arguments: str) -> Iterator[Server]:
    """Starts one and waits until it answers; skips the test where there is none to start."""
    port = _free_port()
    server = Server(_started(port, folder, arguments), port, folder, arguments)
    try:
        yield server
    finally:
        server.kill()


def _started(port: int, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        pytest.skip("no redis-server or valkey-server is installed")
    listening = ["--port", "0", "--tls-port", str(port)] if "--tls-cert-file" in arguments else ["--port", str(port)]
    command = [binary, *listening, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    said = []
    for line in process.stdout:  # after this hardly anything more is said
        said.append(line)
        if b"Ready to accept connections" in line:
            return process
    process.wait()
    raise AssertionError(b"".join(said).decode("utf-8", "replace"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
