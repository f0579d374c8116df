"""The program as a process of its own: imports, pipes, terminals, signals, a running gateway."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Run, program

SDKS = [
    "qdrant_client",
    "qdrant_edge",
    "weaviate",
    "pinecone",
    "numpy",
    "tokenizers",
    "safetensors",
    "aiohttp",
    "httpx",
]
HEAVY = [*SDKS, "starlette", "uvicorn", "rich", "ruamel", "msgspec", "orjson", "pluggy"]


def loaded(code: str, names: list[str]) -> str:
    """Which of the names a program has imported at its end."""
    asked = f"import sys; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{asked}"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import gateway",
        "import gateway.errors",
        "import gateway.cli",
        "from gateway.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass",
        "from gateway.cli import main\ntry: main(['query', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str) -> None:
    assert loaded(code, HEAVY) == "[]"


def test_loading_the_plugins_loads_no_vendor_sdk() -> None:
    assert loaded("from gateway.plugins import load_plugins; assert load_plugins().kinds", SDKS) == "[]"


def test_the_version_is_told_in_less_than_three_tenths_of_a_second_of_cpu() -> None:
    def cpu() -> float:
        before = os.times()
        assert program("--version").stdout == "rcp-gateway, version 0.1.0\n"
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(cpu() for _ in range(3)) < 0.3


def test_the_installed_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("rcp-gateway")
    assert subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout.startswith(
        "rcp-gateway"
    )


def test_a_pipe_gets_no_colours_and_a_terminal_does() -> None:
    assert "\x1b" not in program("query", "rank").stdout
    shown = on_terminal("query", "rank")
    assert "\x1b[" in shown
    assert "Rank fusion" in re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_the_progress_bar_is_shown_on_a_terminal(folder: Path) -> None:
    (folder / "store.yaml").write_text("engines: [{id: w, kind: sqlite, with: {path: w.sqlite}}]\nwrites: w\n")
    (folder / "a.md").write_text("# A\n\ntext\n")
    assert "adding to w" in on_terminal("add", "a.md", "-c", "store.yaml")
    assert program("add", "a.md", "-c", "store.yaml").stderr == "added 1 passages to w\n"


def on_terminal(*arguments: str, **environment: str) -> str:
    """What the program shows on a terminal 120 columns wide."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**env, "TERM": "xterm-256color", "COLUMNS": "120", **environment},
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 1.0)[0]:
                chunk = os.read(ours, 65536)
                if not chunk:
                    break
                shown += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
        assert process.wait(timeout=30) == 0
    return shown.decode()


def test_letters_that_the_output_cannot_hold_are_no_error(folder: Path) -> None:
    document = {"id": "ä", "text": "rank \u4e2d \U0001f600"}
    config = {"engines": [{"id": "a", "kind": "memory", "with": {"documents": [document]}}]}
    (folder / "letters.yaml").write_text(json.dumps(config))
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = program("query", "rank", "-c", "letters.yaml", **ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    done = program("query", "rank", "-c", "letters.yaml", "--json", **ascii_only)
    assert json.loads(done.stdout)["hits"][0]["text"] == document["text"]
    done = program("query", "rank", "-c", "letters.yaml", "--json", PYTHONIOENCODING="utf-8")
    assert "\u4e2d" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = " ".join(f"'{part}'" for part in [*PROGRAM, "query", "rank", "--json"])
    done = subprocess.run(["bash", "-c", f"{command} | true"], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen([*PROGRAM, "serve", "--port", "0", *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "serving http" in line:
                yield process, line.split()[-1]
                break
        else:
            raise AssertionError("it did not start")
    finally:
        process.terminate()
        rest = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=30) == 0, rest


def test_the_cursor_of_a_running_gateway_is_printed_and_gives_the_next_page(run: Run, folder: Path) -> None:
    with serving() as (_, url):
        first = run("query", "rank", "-k", "1", "--url", url)
        told = first.err.strip()
        assert told.startswith("more: --cursor ")
        second = run("query", "rank", "-k", "1", "--url", url, "--cursor", told.split()[-1])
    assert second.code == 0
    assert first.out.splitlines()[1] != second.out.splitlines()[1]
    assert second.err == ""


def test_query_catalog_and_add_work_on_a_running_gateway(run: Run, folder: Path) -> None:
    (folder / "a.md").write_text("# Quinces\n\nQuinces are yellow.\n")
    with serving() as (_, url):
        done = run("query", "rank", "--url", url)
        assert "Rank fusion" in done.out
        assert (done.code, done.err) == (0, "")
        assert "first" in run("catalog", "--url", url + "/").out
        assert run("add", "a.md", "--url", url).err == f"added 1 passages to {url}\n"
        hits = json.loads(run("query", "quinces", "--url", url, "--json").out)["hits"]
        assert [hit["id"] for hit in hits] == ["a.md#0"]

        wrong = run("query", "rank", "--url", url.removesuffix("/rcp"))
        assert wrong.code == 1
        assert "is not an RCP gateway (HTTP 404)" in wrong.err
        refused = run("query", "rank", "--url", url, "--engine", "nope")
        assert (refused.code, refused.err.count("\n")) == (1, 1)
        assert refused.err.startswith("rcp-gateway: there is no such engine")


def test_serve_ends_at_sigterm_with_success_and_says_so() -> None:
    with serving() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    with serving() as (_, url):
        port = url.split(":")[-1].split("/")[0]
        done = program("serve", "--port", port)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"rcp-gateway: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert "Traceback" not in done.stderr


def test_stdio_answers_on_stdout_and_logs_on_stderr() -> None:
    frames = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1, "client": {"name": "t"}}},
        {"jsonrpc": "2.0", "id": 2, "method": "retrieve", "params": {"query": "rank", "k": 1}},
    ]
    done = subprocess.run(
        [*PROGRAM, "stdio"],
        input="".join(json.dumps(frame) + "\n" for frame in frames),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert answers[2]["result"]["hits"][0]["id"] == "fusion"
    assert "engine first is open" in done.stderr
