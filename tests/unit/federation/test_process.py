"""Children of stdio engines: started without a shell, in a group of their own, and none left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest
from anyio import fail_after

from gateway.errors import BackendUnavailable
from gateway.federation.process import ChildProcess, spawn
from tests.obligations import obligation

LOGGER = logging.getLogger("gateway.engine.child")
MIB = 1024 * 1024

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: they start and watch children in entirely different ways."""
    return ("asyncio", {"use_uvloop": request.param == "uvloop"})


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-u", "-c", textwrap.dedent(code), *arguments]


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def gone(pid: int) -> None:
    with fail_after(5):
        while lives(pid):
            await asyncio.sleep(0.01)


async def line(child: ChildProcess, limit: int = MIB) -> bytes | None:
    with fail_after(15):
        return await child.read_line(limit)


ECHO = "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)"


async def test_what_is_written_is_read_by_the_child_and_its_answer_comes_back() -> None:
    async with spawn(python(ECHO), logger=LOGGER) as child:
        await child.write(b"one\ntwo\n")
        assert await line(child) == b"got one"
        assert await line(child) == b"got two"


@obligation(222)
async def test_a_secret_in_the_gateways_environment_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINECONE_API_KEY", "SECRET")
    monkeypatch.setenv("PYTHONSTARTUP", "/evil.py")
    code = "import os, sys; print(*sorted(os.environ)); print(os.environ.get('MINE'), sys.executable)"
    async with spawn(python(code), env={"MINE": "given"}, logger=LOGGER) as child:
        names = (await line(child) or b"").split()
        harmless = {b"PATH", b"HOME", b"LANG", b"LC_ALL", b"LC_CTYPE", b"TMPDIR", b"RCP_GATEWAY_NESTED"}
        assert set(names) <= {*harmless, b"MINE"}
        assert (await line(child) or b"").startswith(b"given ")


async def test_python_means_the_interpreter_that_runs_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    argv = ["python", "-c", "import sys; print(sys.prefix)"]
    async with spawn(argv, logger=LOGGER) as child:
        assert await line(child) == sys.prefix.encode()


@obligation(222)
async def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    argv = python("import sys; print(sys.argv[1:])", ";", "touch bad", "$(touch bad)", "*", "")
    async with spawn(argv, cwd=tmp_path, logger=LOGGER) as child:
        assert await line(child) == repr([";", "touch bad", "$(touch bad)", "*", ""]).encode()
    assert not list(tmp_path.iterdir())


@obligation(222)
async def test_a_child_has_a_process_group_and_a_session_of_its_own() -> None:
    code = "import os; print(os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid())"
    async with spawn(python(code), logger=LOGGER) as child:
        assert await line(child) == b"True True"
        assert os.getpgrp() != child.pid


async def test_a_relative_command_is_found_from_the_working_folder(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text(f"#!{sys.executable}\nprint('here')\n")
    program.chmod(0o755)
    async with spawn(["./engine"], cwd=tmp_path, logger=LOGGER) as child:
        assert await line(child) == b"here"


async def test_a_megabyte_on_stderr_before_the_answer_does_not_block_the_child() -> None:
    code = "import sys; sys.stderr.write('x' * 2**20); sys.stderr.write('y\\n' * 2**19); print('answer')"
    async with spawn(python(code), logger=LOGGER) as child:
        assert await line(child) == b"answer"


async def test_a_line_over_the_limit_is_skipped_and_the_next_one_is_read() -> None:
    code = "import sys; w = sys.stdout.write; w('short\\n'); w('x' * 3_000_000 + '\\n'); w('y' * 1000 + '\\nafter\\n')"
    async with spawn(python(code), logger=LOGGER) as child:
        assert await line(child, 1000) == b"short"
        assert await line(child, 1000) == b""
        assert await line(child, 1000) == b"y" * 1000, "a line of exactly the limit is fine"
        assert await line(child, 1000) == b"after"
        assert await line(child, 1000) is None


@obligation(224)
async def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    code = """
        import sys
        block = "x" * 2**20
        for _ in range(200): sys.stdout.write(block)
        sys.stdout.write("\\nafter\\n")
    """
    async with spawn(python(code), logger=LOGGER) as child:
        largest = 0
        with fail_after(30):
            reading = asyncio.create_task(child.read_line(MIB))
            while not reading.done():
                largest = max(largest, len(child._buffer))
                await asyncio.sleep(0)
        assert await reading == b""
        assert await line(child) == b"after"
        assert largest < 2 * MIB


async def test_a_large_line_arrives_whole() -> None:
    async with spawn(python("print('x' * 10_000_000)"), logger=LOGGER) as child:
        assert await line(child, 16 * MIB) == b"x" * 10_000_000


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import sys; sys.stdout.write('a\\nrest')", [b"a", b"rest", None, None]),
        ("import sys; sys.stdout.write('x' * 5000)", [None, None]),
        ("import sys; sys.stdout.write('\\n\\r\\n')", [b"", b"\r", None]),
        ("pass", [None]),
    ],
    ids=["a rest without a newline", "an overlong rest", "empty lines", "nothing"],
)
async def test_the_end_of_output_is_told_after_the_last_line(code: str, lines: list[bytes | None]) -> None:
    async with spawn(python(code), logger=LOGGER) as child:
        assert [await line(child, 1000) for _ in lines] == lines


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    code = "import sys; w = sys.stdout.write; w('ha'); sys.stdout.flush(); sys.stdin.readline(); w('lf\\nnext\\n')"
    async with spawn(python(code), logger=LOGGER) as child:
        reading = asyncio.create_task(child.read_line(100))
        with fail_after(5):
            while not child._buffer:
                await asyncio.sleep(0.005)
        reading.cancel()
        await asyncio.wait({reading})
        await child.write(b"go\n")
        assert await line(child) == b"half"
        assert await line(child) == b"next"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["/no/such/program"], "cannot start /no/such/program: No such file or directory"),
        (["no-such-program-anywhere"], "cannot start no-such-program-anywhere: No such file or directory"),
        (["/etc"], "cannot start /etc: Permission denied"),
        ([], "cannot start an empty command"),
        (["python", "nul\0"], "cannot start a command that holds a NUL"),
    ],
)
async def test_a_program_that_cannot_be_started_is_one_clear_error(argv: list[str], told: str) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        async with spawn(argv, logger=LOGGER):
            pass
    assert caught.value.message == told


async def test_a_missing_working_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"cannot start python: there is no folder .*nowhere"):
        async with spawn(["python"], cwd=tmp_path / "nowhere", logger=LOGGER):
            pass


async def test_writing_to_a_child_that_has_gone_says_so() -> None:
    async with spawn(python("import os; os._exit(0)"), logger=LOGGER) as child:
        await child.wait()
        with pytest.raises(BackendUnavailable, match="process has ended"), fail_after(5):
            while True:
                await child.write(b"x" * 65536)
                await asyncio.sleep(0)


async def test_a_well_behaved_child_ends_when_its_stdin_closes() -> None:
    started = time.monotonic()
    async with spawn(python(ECHO), logger=LOGGER, grace=20) as child:
        await child.write(b"x\n")
        assert await line(child) == b"got x"
    assert child.status == 0
    assert time.monotonic() - started < 5


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    with fail_after(10):
        async with spawn(python(code), logger=LOGGER, grace=0.1) as child:
            assert await line(child) == b"deaf"
    assert child.status == -signal.SIGKILL


FAMILY = """
    import subprocess, sys
    deaf = "from signal import *; signal(SIGTERM, SIG_IGN); print('up', flush=True); pause()"
    inner = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE if {own} else None)
    if {own}: inner.stdout.readline()
    print(inner.pid, flush=True)
    {then}
"""


@pytest.mark.parametrize("then", ["sys.exit(0)", "sys.stdin.read()"], ids=["the child has gone", "the child waits"])
@pytest.mark.parametrize("own", [True, False], ids=["with pipes of its own", "holding our pipe"])
async def test_children_of_the_child_are_killed_too(then: str, own: bool) -> None:
    with fail_after(15):
        async with spawn(python(FAMILY.format(then=then, own=own)), logger=LOGGER, grace=0.2) as child:
            heard = await line(child)
            while heard == b"up":
                heard = await line(child)
            inner = int(heard or b"0")
            assert lives(inner)
        await gone(inner)


IDLE = "import time; print(1, flush=True); time.sleep(600)"


async def test_a_cancelled_host_leaves_no_child() -> None:
    pids: list[int] = []
    started = asyncio.Event()

    async def host() -> None:
        async with spawn(
            python("import time; print(1, flush=True); time.sleep(600)"), logger=LOGGER, grace=0.1
        ) as child:
            await line(child)
            pids.append(child.pid)
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(host())
    with fail_after(10):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await gone(pids[0])


async def test_a_host_that_is_cancelled_again_while_it_ends_its_child_still_leaves_none() -> None:
    pids: list[int] = []
    started = asyncio.Event()

    async def host() -> None:
        async with spawn(
            python("import time; print(1, flush=True); time.sleep(600)"), logger=LOGGER, grace=60
        ) as child:
            await line(child)
            pids.append(child.pid)
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(host())
    with fail_after(10):
        await started.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0.02)
    await gone(pids[0])


async def test_being_cancelled_while_starting_leaves_no_child(tmp_path: Path) -> None:
    """Nobody knows the process id then, so the child says it in a file."""
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    for delay in range(6):
        mark = tmp_path / str(delay)

        async def host(argv: list[str]) -> None:
            async with spawn(argv, logger=LOGGER, grace=0.05):
                await asyncio.Event().wait()

        task = asyncio.create_task(host(python(code, str(mark))))
        for _ in range(delay):
            await asyncio.sleep(0)
        task.cancel()
        with fail_after(10):
            await asyncio.wait({task})
        assert task.cancelled()
        await asyncio.sleep(0.1)
        if mark.exists() and mark.read_text():
            await gone(int(mark.read_text()))


async def test_an_error_in_the_block_ends_the_child_and_is_raised() -> None:
    with pytest.raises(LookupError):
        async with spawn(python("import time; time.sleep(600)"), logger=LOGGER, grace=0.05) as child:
            raise LookupError
    assert not lives(child.pid)


async def test_what_a_crashing_child_said_last_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER.name):
        async with spawn(python("import no_such_module"), logger=LOGGER) as child:
            assert await line(child) is None
    said = [record.getMessage() for record in caplog.records if record.name == LOGGER.name]
    assert said == ["the process ended with status 1: ModuleNotFoundError: No module named 'no_such_module'"]


async def test_stderr_is_logged_at_debug_level_only_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    code = "import sys; print('one\\n\\ntwo' + 'x' * 5000, file=sys.stderr); print('up')"
    for level, expected in ((logging.INFO, []), (logging.DEBUG, ["stderr: one", "stderr: " + "x" * 2000])):
        caplog.clear()
        with caplog.at_level(level, LOGGER.name):
            async with spawn(python(code), logger=LOGGER) as child:
                assert await line(child) == b"up"
        assert [record.getMessage() for record in caplog.records if record.name == LOGGER.name] == expected
