"""What peers in other processes say of themselves (``--report``), in order, and a way to wait for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

DEADLINE = 20.0


class Reports:
    def __init__(self, path: str) -> None:
        self.path = path
        self.seen: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._writers: list[asyncio.StreamWriter] = []

    def release(self) -> None:
        """Lets a peer that waits (``--gated``) take its next step."""
        for writer in self._writers:
            writer.write(b".")

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        while line := await reader.readline():
            async with self._news:
                self.seen.append(json.loads(line))
                self._news.notify_all()
        self._writers.remove(writer)
        writer.close()

    async def until(self, event: str, count: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE), self._news:
            await self._news.wait_for(lambda: len(self.all(event)) >= count)
        return self.all(event)[count - 1]

    async def frame(self, method: str, count: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE), self._news:
            await self._news.wait_for(lambda: len(self.frames(method)) >= count)
        return self.frames(method)[count - 1]

    def all(self, event: str) -> list[dict[str, Any]]:
        return [report for report in self.seen if report["event"] == event]

    def frames(self, method: str) -> list[dict[str, Any]]:
        return [report["frame"] for report in self.all("frame") if report["frame"].get("method") == method]


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[Reports]:
    """Reports of peers that were given its ``path``."""
    reports = Reports(str(folder / "reports"))
    server = await asyncio.start_unix_server(reports.listen, reports.path, limit=2**24)
    async with server:
        yield reports
