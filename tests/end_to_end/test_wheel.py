"""The wheel alone, in an environment that has nothing else."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.end_to_end.running import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.nightly, pytest.mark.timeout(600)]


async def run(*argv: str, cwd: Path) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def done(*argv: str, cwd: Path) -> str:
    code, out = await run(*argv, cwd=cwd)
    assert code == 0, out
    return out


async def test_the_wheel_alone_checks_the_sample_and_says_which_extra_is_missing(tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    await done(sys.executable, "-m", "venv", str(fresh), cwd=tmp_path)
    pip = [str(fresh / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    await done(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT), cwd=tmp_path)
    (wheel,) = tmp_path.glob("rcp_gateway-*.whl")
    await done(*pip, "install", "-c", str(ROOT / "constraints.txt"), str(wheel), cwd=tmp_path)
    gateway = str(fresh / "bin" / "rcp-gateway")
    code, told = await run(gateway, "check", "-c", str(ROOT / "gateway.yaml"), cwd=tmp_path)
    assert code == 0, told
    assert "rcp-gateway[local]" in " ".join(told.split())
    plugins = await done(gateway, "plugins", cwd=tmp_path)
    for kind in ("memory", "sqlite", "rcp", "qdrant", "static-embedder"):
        assert kind in plugins
    # Starting what cannot work is refused in one line, with the way out.
    code, told = await run(gateway, "query", "how are scores fused", cwd=ROOT)
    assert code == 2
    assert "rcp-gateway[local]" in told
    assert "Traceback" not in told
    config = tmp_path / "small.yaml"
    config.write_text("engines: [{id: a, kind: memory, with: {documents: [{id: d1, text: Paris}]}}]")
    assert "d1" in await done(gateway, "query", "Paris", "--json", "-c", str(config), cwd=tmp_path)
