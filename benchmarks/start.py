"""What starting costs: CPU of ``--version``, what an import loads, time to the first answer, memory of an idle server.

The server is the sample's ``gateway.yaml`` in a folder of its own, once filled.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.processes import GATEWAY, ROOT, child
from benchmarks.table import show

_HEAVY = ("aiohttp", "uvicorn", "httpx", "pluggy", "rich", "ruamel", "numpy", "msgspec", "orjson", "click", "ssl")


def _version_cpu(times: int) -> tuple[float, float]:
    """Median CPU and wall seconds of ``rcp-gateway --version``."""
    cpu, wall = [], []
    for _ in range(times):
        began = time.perf_counter()
        process = subprocess.Popen([*GATEWAY, "--version"], stdout=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        cpu.append(usage.ru_utime + usage.ru_stime)
        wall.append(time.perf_counter() - began)
    return statistics.median(cpu), statistics.median(wall)


def _loaded(statement: str) -> list[str]:
    """The modules that a statement loads in a fresh interpreter."""
    script = (
        f"import sys, json; before = set(sys.modules); {statement}; print(json.dumps([*set(sys.modules) - before]))"
    )
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    return json.loads(found.stdout)  # type: ignore[no-any-return]


def _sample(folder: Path) -> None:
    shutil.copy(ROOT / "gateway.yaml", folder)
    shutil.copy(ROOT / "README.md", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    if (ROOT / "examples").is_dir():
        shutil.copytree(ROOT / "examples", folder / "examples")


def _serving(folder: Path) -> tuple[float, float, float, int]:
    """Milliseconds to serving and to the first answer, MiB when idle, and the number of its hits."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with child([*GATEWAY, "serve", "--port", "0"], cwd=folder, env={"PATH": path}) as server:
        serving = (time.monotonic() - server.began) * 1000
        frame = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "how are scores fused"}}
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{server.url}/retrieve", json.dumps(frame).encode(), headers)
        with urllib.request.urlopen(asked, timeout=20) as response:
            answer = json.load(response)
        first = (time.monotonic() - server.began) * 1000
        time.sleep(0.5)
        return serving, first, server.mebibytes(), len(answer.get("result", {}).get("hits", ()))


def main(quick: bool = False) -> None:
    cpu, wall = _version_cpu(3 if quick else 7)
    imports = [(name, _loaded(name)) for name in ("import gateway", "import gateway.cli", "import gateway.app")]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _sample(folder)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            [*GATEWAY, "add", "README.md", "docs"],
            cwd=folder, env={**os.environ, "PATH": path}, check=True, capture_output=True,
        )  # fmt: skip
        serving, first, idle, hits = _serving(folder)
    show(
        "Start",
        ("", "measured", "goal"),
        [
            ("rcp-gateway --version, CPU", f"{cpu:.2f} s", "< 0.3 s"),
            ("rcp-gateway --version, wall", f"{wall:.2f} s", ""),
            ("sample: serving", f"{serving:.0f} ms", ""),
            (f"sample: first answer ({hits} hits)", f"{first:.0f} ms", ""),
            ("sample: idle server, RSS", f"{idle:.0f} MiB", "< 150 MiB"),
        ],
    )
    rows = []
    for statement, names in imports:
        heavy = [name for name in _HEAVY if name in names]
        rows.append((statement, len(names), ", ".join(heavy) or "none of those watched"))
    show("Modules", ("", "loaded", "of the heavy ones"), rows)


if __name__ == "__main__":
    main()
