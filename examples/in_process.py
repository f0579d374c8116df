"""A gateway inside a program: two engines, one filter, one fused ranking, and no server.

Run it: ``python examples/in_process.py "rank fusion"``.
"""

import asyncio
import sys

from gateway import Gateway
from gateway.errors import CallerError

CONFIG = {
    "name": "in-process",
    "engines": [
        {
            "id": "notes",
            "kind": "memory",
            "with": {
                "fields": {"year": "int"},
                "documents": [
                    {"id": "rrf", "text": "Reciprocal rank fusion adds up ranks.", "meta": {"year": 2009}},
                    {"id": "bm25", "text": "BM25 weighs words by how rare they are.", "meta": {"year": 1994}},
                ],
            },
        },
        {
            "id": "papers",
            "kind": "memory",
            "with": {
                "fields": {"year": "int"},
                "documents": [
                    {"id": "rrf", "text": "Reciprocal rank fusion adds up ranks.", "meta": {"year": 2009}},
                    {"id": "fusion", "text": "Fusion of rank lists beats each of them.", "meta": {"year": 1994}},
                ],
            },
        },
    ],
    "profiles": [{"name": "recent", "filter": {"field": "year", "op": "gte", "value": 2000}}],
}


async def main(question: str) -> None:
    async with Gateway(CONFIG) as gateway:
        answer = await gateway.retrieve(question, k=3, on_progress=lambda told: print("…", told.message or told.stage))
        for hit in answer.hits:
            print(f"{hit.score:.4f}  {hit.id:8}{', '.join(hit.meta['engines']):15}{hit.text}")
        recent = await gateway.profile("recent").retrieve(question)
        print("recent:", ", ".join(hit.id for hit in recent.hits))
        try:
            await gateway.retrieve(question, filter={"field": "yaer", "op": "eq", "value": 2009})
        except CallerError as error:
            print(f"refused: {error}")


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "rank fusion"))
