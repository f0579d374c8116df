"""What README.md says to type does what it says, in a folder as a checkout has it."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from pathlib import Path

import pytest
from anyio import fail_after

from tests.end_to_end.running import COMMAND, ROOT, serving
from tests.schema import check_exchange

pytestmark = pytest.mark.anyio

README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


async def run(*argv: str, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    return out.decode()


@pytest.mark.timeout(180)
async def test_the_commands_and_the_python_of_the_readme_run_as_they_stand(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_edge")
    pytest.importorskip("tokenizers")
    for name in ("README.md", "gateway.yaml", "docs", "examples"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (asking,) = (block for block in blocks("console") if "curl" in block)
    commands = [line.strip() for line in asking.replace("\\\n", " ").split("\n") if line.startswith("$ ")]
    query, serve, curl = (
        command.removeprefix("$ ").replace(".venv/bin/rcp-gateway", str(COMMAND)) for command in commands
    )
    with fail_after(150):
        shown = await run(str(COMMAND), "demo", cwd=tmp_path)
        assert "fused" in shown
        assert "words" in await run("bash", "-c", query, cwd=tmp_path)
        (program,) = (block for block in blocks("python") if "import Gateway" in block)
        printed = await run(sys.executable, "-c", program, cwd=tmp_path)
        assert len(printed.splitlines()) == 3
        assert serve == f"{COMMAND} serve &"
        async with serving(tmp_path / "gateway.yaml") as gateway:
            # The one thing that is not as it stands: the port, which may be taken here.
            port = str(gateway.address.port)
            body = re.findall(r"-d\s+'(.*)'", curl)[0]
            answer = await run("bash", "-c", curl.replace("8787", port), cwd=tmp_path)
            hits = check_exchange(body.encode(), answer.encode())["result"]["hits"]
            assert len(hits) == 2
            assert {"engines", "engineScore"} <= hits[0]["meta"].keys()
            assert "citation" in hits[0]
            (script,) = (block for block in blocks("python") if "import rcp" in block)
            printed = await run(sys.executable, "-c", script.replace("8787", port), cwd=tmp_path)
    *rows, whole = printed.splitlines()
    scores = [float(line.split()[0]) for line in rows]
    assert not [line for line in rows if line.endswith("README.md") or "README.md#" in line], "the option took effect"
    assert whole.startswith("["), "the notes"
    assert "x-gateway" in whole
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
