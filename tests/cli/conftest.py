from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.cli import main

CONFIG = """
name: test
engines:
  - id: first
    kind: memory
    with:
      fields: {lang: keyword}
      documents:
        - {id: fusion, text: "ranks are fused by reciprocal rank", meta: {title: Rank fusion, lang: en}}
        - {id: filters, text: "a filter is never lost, whatever its rank", meta: {title: Filters, lang: de}}
  - id: second
    kind: memory
    with:
      documents:
        - {id: fusion, text: "ranks are fused by reciprocal rank", meta: {title: Rank fusion}}
writes: first
"""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]
"""Runs ``rcp-gateway`` with these arguments, in this process."""

PROGRAM = [sys.executable, "-c", "from gateway.cli import main; main()"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, with a configuration of two engines, which is also where commands run."""
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    root, gateway = logging.getLogger(), logging.getLogger("gateway")
    before = root.handlers[:], root.level, gateway.level
    yield
    root.handlers[:], root.level, gateway.level = before


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it as a process of its own, its output piped."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
