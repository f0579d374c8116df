"""A server made with the public ``rcp-protocol`` SDK: over stdio, or over HTTP with ``--http``.

Reports what it receives like ``hostile.py`` does. ``--stream`` adds a streaming handler (SSE).
"""

import argparse
import json
import os
import socket
import sys
import types

import rcp
import rcp._server
from rcp import _filter

DOCUMENTS = [
    {"id": "d1", "text": "Paris is the capital of France", "meta": {"lang": "en", "year": 2020}},
    {"id": "d2", "text": "Paris est la capitale de la France", "meta": {"lang": "fr", "year": 2021}},
    {"id": "d3", "text": "Paris, Texas is a film", "meta": {"year": 1984}},
    {"id": "d4", "text": "Berlin ist die Hauptstadt", "meta": {"lang": "de", "year": 2020}},
]
FIELDS = {"lang": "keyword", "year": "int"}
OPERATORS = ["eq", "ne", "gt", "exists"]


def holds(node, meta):
    """Three-valued, as SQL is: a comparison with a missing field is neither true nor false."""
    if "and" in node:
        parts = [holds(part, meta) for part in node["and"]]
        return False if False in parts else None if None in parts else True
    if "or" in node:
        parts = [holds(part, meta) for part in node["or"]]
        return True if True in parts else None if None in parts else False
    if "not" in node:
        part = holds(node["not"], meta)
        return None if part is None else not part
    value, wanted = meta.get(node["field"]), node["value"]
    if node["op"] == "exists":
        return (value is not None) == wanted
    if value is None:
        return None
    return {"eq": value == wanted, "ne": value != wanted, "gt": node["op"] == "gt" and value > wanted}[node["op"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--report")
    arguments = parser.parse_args()
    link = socket.socket(socket.AF_UNIX)
    if arguments.report:
        link.connect(arguments.report)

    def report(event, **members):
        if arguments.report:
            link.sendall((json.dumps({"event": event, **members}) + "\n").encode())

    report("start", pid=os.getpid())
    server = rcp.Server()
    server.set_info("sdk-example", "1.0")
    server.advertise("retrieve", {"maxK": 3, "modes": ["sparse"]})
    server.advertise("filter", {"fields": FIELDS, "operators": OPERATORS})
    server.advertise("embed", {"dimension": 2})
    server.advertise("rerank", {"methods": ["cross-encoder"]})

    def retrieve(params):
        report("frame", frame={"method": "retrieve", "params": params})
        chosen = DOCUMENTS
        if "filter" in params:
            tree = _filter.validate(params["filter"], FIELDS, OPERATORS)
            chosen = [document for document in DOCUMENTS if holds(tree, document["meta"]) is True]
        words = params["query"].lower().split()
        scored = [(sum(word in document["text"].lower() for word in words), document) for document in chosen]
        scored = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
        hits = [{**document, "score": float(score)} for score, document in scored[: params["k"]]]
        return {"hits": hits, "usage": {"candidates": len(scored), "mode": "sparse"}}

    def stream(params):
        yield rcp.Progress(0.5, "recall", partial={"hits": [{"id": "unchecked", "score": 1.0}]})
        yield rcp.Progress(0.75, "rank")
        return retrieve(params)

    if arguments.stream:
        server.advertise("streaming", {})
        server.stream("retrieve", stream)
    else:
        server.on("retrieve", retrieve)
    server.on("embed", lambda params: {"vectors": [[float(len(text)), 1.0] for text in params["inputs"]]})
    server.on(
        "rerank",
        lambda params: {
            "results": [{"index": n, "score": float(len(text))} for n, text in enumerate(params["documents"])]
        },
    )
    if not arguments.http:
        server.serve_stdio()
        return

    class Listening(socket.socket):
        def listen(self, *backlog):
            super().listen(*backlog)
            report("listening", port=self.getsockname()[1])

    rcp._server.socket = types.SimpleNamespace(**{**vars(socket), "socket": Listening})
    server.serve_http(0)


if __name__ == "__main__":
    sys.exit(main())
