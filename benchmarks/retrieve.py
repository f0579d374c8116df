"""One retrieve from the client's frame to the answer's, in process, over engines whose answers are encoded as RCP's.

``python -m benchmarks.retrieve TREE…`` holds this checkout against others of it (``git worktree add TREE COMMIT``): a
process each, which take turns, so that a busy machine slows all of them.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENGINES = (1, 3, 8)
DEPTH = 50
FRAME = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": "how are scores fused", "k": 10}}
).encode()


def _answer(draw: random.Random) -> bytes:
    """What an engine answers: of three documents the others have one, about."""
    found = [
        {
            "id": f"doc-{number}",
            "score": round(1 / (rank + 1), 6),
            "text": f"passage {number} " + "word " * 80,
            "meta": {"lang": "en", "n": number, "path": f"docs/{number}.md", "tags": ["a", "b"]},
        }
        for rank, number in enumerate(draw.sample(range(3 * DEPTH), DEPTH))
    ]
    result = {"hits": found, "usage": {"candidates": DEPTH}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}, separators=(",", ":")).encode()


def _kind() -> Any:
    """A kind of engine that decodes its answer as the adapter of RCP does, without a wire."""
    from gateway.model import read_capabilities
    from gateway.protocol.peer import Answer, Peer
    from gateway.spi import Engine, EngineConfig, EngineKind
    from gateway_rcp import replies

    offered = read_capabilities({"retrieve": {"maxK": 100}})

    class Config(EngineConfig, frozen=True):
        number: int = 0

    class Encoded(Engine):
        def __init__(self, frame: bytes) -> None:
            self._frame = frame

        def capabilities(self) -> Any:
            return offered

        async def retrieve(self, query: Any, call: Any) -> Any:
            peer = Peer()
            asked = peer.request("retrieve", {})
            answer = peer.receive(self._frame, only=asked.id)
            assert isinstance(answer, Answer)
            return replies.hits(answer, k=query.k)

    class Kind(EngineKind[Config]):
        name = "encoded"
        config = Config

        def offers(self, config: Config) -> Any:
            return offered

        @asynccontextmanager
        async def open(self, config: Config, context: Any) -> AsyncIterator[Engine]:
            yield Encoded(_answer(random.Random(config.number)))

    return Kind()


async def _work() -> None:
    """Answers each line (engines, calls) with the microseconds of CPU that one call took."""
    from gateway.app import open_gateway
    from gateway.caller import ANONYMOUS
    from gateway.cli.serve import settle
    from gateway.config import load_text
    from gateway.plugins import load_plugins
    from gateway.protocol.session import Session
    from gateway.spi import hookimpl

    class Plugin:
        @hookimpl
        def gateway_engine_kinds(self) -> list[Any]:
            return [_kind()]

    plugins = load_plugins([Plugin()], found=[])
    session = Session("implicit", ANONYMOUS)
    async with AsyncExitStack() as stack:
        gateways = {}
        for count in ENGINES:
            engines = [{"id": f"e{n}", "kind": "encoded", "with": {"number": n}} for n in range(count)]
            config = load_text(json.dumps({"name": "bench", "engines": engines}), base_dir=ROOT)
            gateways[count] = await stack.enter_async_context(open_gateway(config, plugins))
        settle()
        print("ready", flush=True)
        for line in sys.stdin:
            count, calls = map(int, line.split())
            dispatcher = gateways[count].dispatcher
            began = time.process_time()
            for _ in range(calls):
                answer = await dispatcher.answer(FRAME, session)
                assert answer is not None
            took = (time.process_time() - began) / calls * 1e6
            assert len(json.loads(answer)["result"]["hits"]) == 10
            print(took, flush=True)


class _Worker:
    def __init__(self, tree: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).resolve()), "work"],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'plugins'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._out, self._in = self._process.stdout, self._process.stdin
        if self._out.readline() != "ready\n":
            raise RuntimeError(f"{tree} did not start")

    def ask(self, engines: int, calls: int) -> float:
        print(engines, calls, file=self._in, flush=True)
        return float(self._out.readline())

    def end(self) -> None:
        self._in.close()
        self._process.wait(10)


def compare(trees: Sequence[Path], *, quick: bool = False) -> None:
    """A table of microseconds of CPU per call, the last tree = 1."""
    from benchmarks.table import show

    workers = {tree: _Worker(tree) for tree in trees}
    rounds, calls = (5, 20) if quick else (30, 40)
    rows = []
    try:
        for count in ENGINES:
            for worker in workers.values():
                worker.ask(count, 2 * calls)
            turns = [{tree: worker.ask(count, calls) for tree, worker in workers.items()} for _ in range(rounds)]
            for tree in trees:
                own = [turn[tree] for turn in turns]
                ratio = statistics.median([turn[tree] / turn[trees[-1]] for turn in turns])
                rows.append(
                    (f"{count} × {DEPTH} hits, {tree.name}", f"{statistics.median(own):.0f}", f"{min(own):.0f}")
                    + (() if len(trees) == 1 else (f"{ratio:.2f}",))
                )
    finally:
        for worker in workers.values():
            worker.end()
    columns = ("", "CPU µs", "least") + (() if len(trees) == 1 else (f"× {trees[-1].name}",))
    show("One retrieve, frame to frame, in process, k = 10, no options", columns, rows)


def main(quick: bool = False) -> None:
    compare([ROOT], quick=quick)


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        import uvloop

        uvloop.run(_work())
    else:
        compare([ROOT, *(Path(given).resolve() for given in sys.argv[1:])])
