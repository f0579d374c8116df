"""The bench as a real stdio process. With an argument, noise is made in every way that could reach stdout."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from gateway.transports.signals import stop_on_signals
from gateway.transports.stdio import claim, serve_stdio
from tests.interaction.bench import Bench


async def main() -> None:
    if sys.argv[1:]:
        print("noise: printed before", flush=False)
    stdin, stdout = claim()
    if sys.argv[1:]:
        print("noise: printed")
        sys.__stdout__.write("noise: through the original\n")  # type: ignore[union-attr]
        os.write(1, b"noise: written\n")
        # A child that writes, and one that would read the client's requests away.
        subprocess.run(["sh", "-c", "echo noise: from a child; cat"], check=True)
    bench = Bench()
    async with stop_on_signals() as stop:
        await serve_stdio(bench.dispatcher, bench.session(), stdin, stdout, stop=stop)


asyncio.run(main())
