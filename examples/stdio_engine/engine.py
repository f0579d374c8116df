"""A whole RCP engine in one file, on stdin and stdout, with nothing but the standard library for the protocol.

It finds passages of Markdown files by their titles: how many of the question's words stand in the headings above a
passage, rare words counting more. Crude alone, useful beside others: fusion meets where engines agree.

    python examples/stdio_engine/engine.py README.md docs
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from gateway.passages import read_passages

WORD = re.compile(r"\w+")
CAPABILITIES = {
    "retrieve": {"maxK": 200, "modes": ["sparse"], "scoreFloor": 0.0},
    "filter": {"fields": {"path": "keyword", "title": "text"}, "operators": []},
    "citations": {},
}


class Titles:
    """An index of titles: which words stand in the title of which passage."""

    def __init__(self, paths: list[Path], base: Path) -> None:
        self.documents = list(read_passages(paths, base))
        self.words = [set(WORD.findall(str((one.meta or {}).get("title", "")).lower())) for one in self.documents]
        self.frequency = Counter(word for words in self.words for word in words)

    def search(self, query: str, k: int) -> list[dict[str, Any]]:
        wanted = set(WORD.findall(query.lower()))
        scored = []
        for document, words in zip(self.documents, self.words, strict=True):
            score = sum(math.log(1 + len(self.documents) / self.frequency[word]) for word in wanted & words)
            if score > 0:
                scored.append((score, str(document.id), document))
        scored.sort(key=lambda one: (-one[0], one[1]))
        return [
            {
                "id": id,
                "score": score,
                "text": document.text,
                "meta": document.meta or {},
                "citation": {"title": (document.meta or {}).get("title", ""), "source": (document.meta or {})["path"]},
            }
            for score, id, document in scored[:k]
        ]


def answer(titles: Titles, method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize" | "info":
            server = {"name": "titles", "version": "1"}
            meta = {"conformance": "L1"}
            return {"protocolVersion": 1, "server": server, "capabilities": CAPABILITIES, "_meta": meta}
        case "ping":
            return {"nonce": params["nonce"]} if "nonce" in params else {}
        case "shutdown":
            return {}
        case "retrieve":
            query = params.get("query")
            return {"hits": titles.search(query if isinstance(query, str) else "", int(params.get("k") or 10))}
        case _:
            raise LookupError(method)


def main() -> None:
    titles = Titles([Path(name) for name in sys.argv[1:]], Path.cwd())
    for line in sys.stdin:
        if not line.strip():
            continue
        request = json.loads(line)
        if "id" not in request:
            continue
        frame: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            frame["result"] = answer(titles, request["method"], request.get("params") or {})
        except LookupError:
            frame["error"] = {"code": -32004, "message": "method not found"}
        print(json.dumps(frame), flush=True)
        if request["method"] == "shutdown":
            break


if __name__ == "__main__":
    main()
