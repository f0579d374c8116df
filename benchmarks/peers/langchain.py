"""Peer: LangChain's EnsembleRetriever over one HTTP client an engine: ``langchain.py httpx|aiohttp URL …``."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import shell
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

library, *urls = sys.argv[1:]


class Httpx:
    def __init__(self) -> None:
        import httpx

        self._client = httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=64))

    async def post(self, url: str, body: bytes) -> bytes:
        answer = await self._client.post(url, content=body, headers={"Content-Type": "application/json"})
        return answer.content


class Aiohttp:
    def __init__(self) -> None:
        import aiohttp

        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64))

    async def post(self, url: str, body: bytes) -> bytes:
        async with self._session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
            return await answer.read()


class Remote(BaseRetriever):
    url: str
    client: Any

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        raise NotImplementedError

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        frame = {"jsonrpc": "2.0", "id": 1, "method": "retrieve", "params": {"query": query, "k": 10}}
        answer = orjson.loads(await self.client.post(f"{self.url}/retrieve", orjson.dumps(frame)))
        return [
            Document(page_content=hit["text"], metadata={**hit["meta"], "id": hit["id"]})
            for hit in answer["result"]["hits"]
        ]


ensembles: list[EnsembleRetriever] = []


def ensemble() -> EnsembleRetriever:
    """Made at the first call, because the clients want to know the running loop."""
    if not ensembles:
        make = Httpx if library == "httpx" else Aiohttp
        retrievers = [Remote(url=url, client=make()) for url in urls]
        ensembles.append(EnsembleRetriever(retrievers=retrievers, weights=[1.0] * len(urls), id_key="id"))
    return ensembles[0]


async def retrieve(query: str, k: int) -> list[dict[str, Any]]:
    found = await ensemble().ainvoke(query)
    return [{"id": one.metadata["id"], "text": one.page_content, "meta": one.metadata} for one in found[:k]]


shell.serve(retrieve)
