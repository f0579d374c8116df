"""``python -m benchmarks [NAME…] [--quick]``: all of them, or those named.

Loopback only, free ports, and no process is left behind. Absolute figures are this machine's; quote ratios of one run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

from benchmarks import cancellation, codec, fan_out, fusion, in_process, refine, retrieve, start

MEASUREMENTS: dict[str, Callable[[bool], None]] = {
    "start": start.main,
    "fan-out": fan_out.main,
    "codec": codec.main,
    "fusion": fusion.main,
    "in-process": in_process.main,
    "retrieve": retrieve.main,
    "refine": refine.main,
    "cancellation": cancellation.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds: to see that it runs")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"no measurement is called {', '.join(sorted(unknown))}")
    began = time.monotonic()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    for name in chosen.names or MEASUREMENTS:
        MEASUREMENTS[name](chosen.quick)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
