"""The whole way: load client → process under test → N engines → fusion → answer, for the gateway and for its peers.

The process under test has one processor, the engines and the load client share another. CPU time is what the kernel
says of the process under test; at 64 clients it is told whether any answer lacks an engine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import load, peers
from benchmarks.processes import GATEWAY, Child, child, processors
from benchmarks.table import show

OURS = "rcp-gateway"
ENGINES = (1, 3, 8)
CLIENTS = 16
FAST, SLOW = "how are scores fused", "20 ms: how are scores fused"


@contextmanager
def gateway(urls: list[str], *, cpu: int | None = None, **settings: object) -> Iterator[Child]:
    """A gateway in front of these engines, on a free port; ``settings`` are sections of its configuration."""
    config = {
        "name": "bench",
        "http": {"port": 0},
        "engines": [
            {"id": f"e{n}", "kind": "rcp", "concurrency": 64, "with": {"url": url}} for n, url in enumerate(urls)
        ],
        **settings,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gateway.yaml")
        path.write_text(json.dumps(config))
        with child([*GATEWAY, "serve", "--config", str(path), "--port", "0"], cpu=cpu) as running:
            yield running


def _contestants(python: Path | str) -> list[str]:
    return [OURS, *(name for name in peers.PEERS if name == peers.BOUND or isinstance(python, Path))]


def _started(name: str, python: Path | str, urls: list[str], cpu: int | None, stack: ExitStack) -> tuple[Child, float]:
    """The process, and the milliseconds from its start to its first answer."""
    if name == OURS:
        running = stack.enter_context(gateway(urls, cpu=cpu))
    else:
        running = stack.enter_context(child(peers.command(name, python, urls), cpu=cpu))
    if not load.ask(running.url, FAST, len(urls)):
        raise RuntimeError(f"{name} gave an incomplete answer with nothing else to do")
    return running, (time.monotonic() - running.began) * 1000


def _cpu_and_rate(one: Child, engines: int, seconds: float) -> tuple[float, float]:
    before = one.cpu_seconds()
    done = load.run(one.url, FAST, engines=engines, clients=CLIENTS, seconds=seconds)
    return (one.cpu_seconds() - before) / done.answers * 1e6, done.per_second


def _measured(count: int, urls: list[str], python: Path | str, cpu: int | None, quick: bool) -> None:
    rows = []
    ours: list[float] = []
    with ExitStack() as stack:
        running = {name: _started(name, python, urls, cpu, stack) for name in _contestants(python)}
        for one, _ in running.values():
            load.run(one.url, FAST, engines=count, clients=CLIENTS, seconds=0.1 if quick else 0.4)
        rounds = [
            {name: _cpu_and_rate(one, count, 0.3 if quick else 0.8) for name, (one, _) in running.items()}
            for _ in range(1 if quick else 3)
        ]
        for name, (one, first) in running.items():
            cpu_us = statistics.median(turn[name][0] for turn in rounds)
            rate = statistics.median(turn[name][1] for turn in rounds)
            alone = load.run(one.url, SLOW, engines=count, clients=1, seconds=0.3 if quick else 1.0)
            crowd = load.run(one.url, SLOW, engines=count, clients=64, seconds=0.5 if quick else 1.5)
            figures = [cpu_us, rate, statistics.median(alone.latencies) * 1e3 - 20, first, one.mebibytes("VmHWM")]
            ours = ours or figures
            rows.append(
                (
                    name,
                    f"{cpu_us:.0f}",
                    f"{cpu_us / ours[0]:.2f}",
                    f"{rate:.0f}",
                    f"{figures[2]:.2f}",
                    f"{crowd.completeness:.1%}",
                    f"{crowd.per_second:.0f}",
                    f"{first:.0f}",
                    f"{first / ours[3]:.2f}",
                    f"{figures[4]:.0f}",
                    f"{figures[4] / ours[4]:.2f}",
                )
            )
    show(
        f"Fan-out to {count} engine{'s' * (count > 1)}, 10 hits each, k = 10; engines of 20 ms where it says so",
        (
            "",
            "CPU µs",
            "× ours",
            "req/s",
            "added ms at 20 ms",
            "complete, 64 clients",
            "req/s at 20 ms",
            "first answer ms",
            "× ours",
            "peak MiB",
            "× ours",
        ),
        rows,
    )


def main(quick: bool = False) -> None:
    python = peers.environment()
    if isinstance(python, str):
        print(f"\npeers are left out: they {python}")
    tested, others = processors()

    allowed = os.sched_getaffinity(0)
    try:
        if others is not None:
            os.sched_setaffinity(0, {others})

        with child([sys.executable, "-m", "benchmarks.engines", str(max(ENGINES))], cpu=others) as engines:
            with gateway(engines.urls[:1]):
                pass  # the first start compiles, which no installed gateway does
            for count in ENGINES:
                _measured(count, engines.urls[:count], python, tested, quick)
    finally:
        os.sched_setaffinity(0, allowed)
