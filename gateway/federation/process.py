"""Child processes for stdio engines: no shell, a group of their own, and none left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gateway.errors import BackendUnavailable

__all__ = ["ChildProcess", "spawn"]

_CHUNK = 256 * 1024
_STDERR_LINE = 2000
_STDERR_SECONDS = 0.5
_NESTED = "RCP_GATEWAY_NESTED"
_MOST_NESTED = 4
"""Two gateways that have each other as children would start processes until the machine is full."""
# Enough to find an interpreter and to speak UTF-8; secrets in the gateway's own environment stay there.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "SYSTEMROOT")


class ChildProcess:
    """A running child; see ``gateway.spi.engine.Process`` for what the methods promise."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._buffer = bytearray()
        self._scanned = 0
        self._discarding = False
        self._ended = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read_line(self, limit: int) -> bytes | None:
        """The next line of stdout without its newline, ``None`` at the end, ``b""`` in place of one over ``limit``."""
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._scanned = 0
                if self._discarding or len(line) > limit:
                    self._discarding = False
                    return b""
                return line
            if len(self._buffer) > limit:
                # The rest of an overlong line is thrown away as it comes, so that it cannot fill the memory.
                self._discarding = True
            if self._discarding:
                self._buffer.clear()
            self._scanned = len(self._buffer)
            if self._ended:
                return None
            chunk = await self._stdout.read(_CHUNK)
            if not chunk:
                self._ended = True
                if self._buffer and not self._discarding:
                    self._buffer += b"\n"
                    continue
                return None
            self._buffer += chunk

    async def write(self, data: bytes) -> None:
        """Raises :class:`~gateway.errors.BackendUnavailable` if the child has gone."""
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except (OSError, RuntimeError) as error:
            raise BackendUnavailable("the engine's process has ended") from error

    async def wait(self) -> int:
        return await self._process.wait()

    @property
    def status(self) -> int | None:
        """The exit status, ``None`` while the child runs; negative if a signal ended it."""
        return self._process.returncode

    async def end(self, grace: float) -> bool:
        """Closes stdin, then asks, then insists; the whole group goes. Cancelled, it insists at once.

        True if it took a signal.
        """
        with suppress(OSError, RuntimeError):
            self._stdin.close()
        try:
            signalled = await self._leave(grace)
        finally:
            # A child of the child may have outlived its parent.
            self._signal(signal.SIGKILL)
        # asyncio keeps a pipe open until it has been read to its end, also when nobody wants what is in it.
        with suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(1.0):
                while await self._stdout.read(_CHUNK):
                    pass
        return signalled

    async def _leave(self, grace: float) -> bool:
        for number, seconds in ((None, grace / 2), (signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            if number is not None:
                self._signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
                    return number is not None
        return True

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


@asynccontextmanager
async def spawn(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    logger: logging.Logger,
    grace: float = 2.0,
) -> AsyncIterator[ChildProcess]:
    """Starts ``argv`` and ends it, with all its descendants, on the way out.

    ``env`` is added to a minimal environment. stderr is drained line by line into ``logger`` at debug level;
    if the child ends by itself with an error, what it said last is a warning.
    Raises :class:`~gateway.errors.BackendUnavailable` if the program cannot be started.
    """
    if not argv:
        raise BackendUnavailable("cannot start an empty command", retryable=False)
    if any("\0" in part for part in argv):  # uvloop would cut the argument there
        raise BackendUnavailable("cannot start a command that holds a NUL", retryable=False)
    if _nested() >= _MOST_NESTED:
        raise BackendUnavailable("gateways start each other as children without end", retryable=False)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env=_environment(env or {}),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise BackendUnavailable(f"cannot start {argv[0]}: {_reason(error, cwd)}") from error
    child = ChildProcess(process)
    assert process.stderr is not None
    last_words: deque[str] = deque(maxlen=1)
    drain = asyncio.create_task(_drain(process.stderr, logger, last_words))
    try:
        yield child
    finally:
        ending = asyncio.create_task(_end(child, drain, grace))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            # Even a cancelled host leaves no child behind.
            await ending
            raise
        if not ending.result() and child.status:
            said = "".join(last_words) or "it said nothing"
            logger.warning("the process ended with status %d: %s", child.status, said)


async def _end(child: ChildProcess, drain: asyncio.Task[None], grace: float) -> bool:
    """Ends the child; true if it took a signal."""
    try:
        signalled = await child.end(grace)
        await asyncio.wait({drain}, timeout=_STDERR_SECONDS)  # what it said last often says why
        return signalled
    finally:
        drain.cancel()
        await asyncio.wait({drain})


def _reason(error: Exception, cwd: Path | None) -> str:
    if cwd is not None and not cwd.is_dir():  # the system says "no such file" for both
        return f"there is no folder {cwd}"
    return error.strerror if isinstance(error, OSError) and error.strerror else "not a valid command"


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # `python` in a command is the interpreter that runs the gateway, whether or not its environment is activated.
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", os.defpath)])
    return {**environment, **added, _NESTED: str(_nested() + 1)}


def _nested() -> int:
    """How many gateways stand above this process, each the child of the next."""
    said = os.environ.get(_NESTED, "")
    return int(said) if said.isdecimal() and said.isascii() and len(said) < 4 else 0


async def _drain(stderr: asyncio.StreamReader, logger: logging.Logger, last_words: deque[str]) -> None:
    """Reads stderr so that a chatty child never blocks on it."""
    rest = b""
    while chunk := await stderr.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_STDERR_LINE:]
        _note(lines, logger, last_words)
    _note([rest], logger, last_words)


def _note(lines: Sequence[bytes], logger: logging.Logger, last_words: deque[str]) -> None:
    spoken = [line for line in lines if line.strip()]
    for line in spoken if logger.isEnabledFor(logging.DEBUG) else spoken[-1:]:
        text = line[-_STDERR_LINE:].decode("utf-8", "replace").strip()
        last_words.append(text)
        logger.debug("stderr: %s", text)
