"""Peer: the Python RCP SDK as its users have it: a client an engine, a pool of threads, the SDK's ``rrf_fuse``."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import rcp
import shell

urls = sys.argv[1:]
clients = {f"e{number}": rcp.connect_http(url) for number, url in enumerate(urls)}
pool = ThreadPoolExecutor(max_workers=64)


async def retrieve(query: str, k: int) -> list[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    asked = [loop.run_in_executor(pool, one.search, query, k) for one in clients.values()]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    lists = {id: one["hits"] for id, one in zip(clients, answers, strict=True) if isinstance(one, dict)}
    return rcp.rrf_fuse(lists, k=k)


shell.serve(retrieve)
