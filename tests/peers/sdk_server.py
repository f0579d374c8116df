"""A server made with the public ``rcp-protocol`` SDK: over stdio, or over HTTP with ``--http``.

Reports what it receives like ``hostile.py`` does. ``--stream`` adds a streaming handler (SSE), which with
``--gated`` waits for a byte on the report socket after each of its frames.

With ``--writable`` it takes documents, and has a date field and more operators; then ``--two-valued`` counts a document
without the field among those that a negation selects, ``--milliseconds`` compares dates as numbers and refuses text,
``--bare`` keeps the metadata out of the hits, and ``--slow N`` shows a document only from the Nth search after.
"""

import argparse
import json
import operator
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


ORDERS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


def holds(node, meta, missing=None):
    """Three-valued, as SQL is: a comparison with a missing field is neither true nor false. Two-valued with
    ``missing=False``: then it is false, and its negation true."""
    if "and" in node:
        parts = [holds(part, meta, missing) for part in node["and"]]
        return False if False in parts else None if None in parts else True
    if "or" in node:
        parts = [holds(part, meta, missing) for part in node["or"]]
        return True if True in parts else None if None in parts else False
    if "not" in node:
        part = holds(node["not"], meta, missing)
        return None if part is None else not part
    value, wanted = meta.get(node["field"]), node["value"]
    value = None if value == [] else value
    items = value if isinstance(value, list) else [value]
    match node["op"]:
        case "exists":
            return (value is not None) == wanted
        case "ne" | "nin":
            part = holds({**node, "op": {"ne": "eq", "nin": "in"}[node["op"]]}, meta, missing)
            return None if part is None else not part
        case _ if value is None:
            return missing
        case "eq":
            return wanted in items
        case "in":
            return any(item in wanted for item in items)
    return any(type(item) is type(wanted) and ORDERS[node["op"]](item, wanted) for item in items)


def refuse_text(node):
    for part in node.get("and") or node.get("or") or ([node["not"]] if "not" in node else []):
        refuse_text(part)
    if node.get("field") == "made" and isinstance(node["value"], str):
        raise rcp.RcpError(-32602, "dates are milliseconds here", {"field": "filter.value"})


class Shelf:
    """Documents that were added, and how many searches ago."""

    def __init__(self, slow):
        self.slow, self.documents, self.age = slow, {}, {}

    def add(self, params):
        for document in params["documents"]:
            self.documents[document["id"]] = document
            self.age[document["id"]] = 0
        return {"ids": [document["id"] for document in params["documents"]], "chunks": len(params["documents"])}

    def delete(self, params):
        return {"deleted": sum(self.documents.pop(id, None) is not None for id in params["ids"])}

    def seen(self):
        for id in self.age:
            self.age[id] += 1
        return [document for id, document in self.documents.items() if self.age[id] > self.slow]


def gate(link, closed):
    if closed:
        link.recv(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--report")
    for name in ("--gated", "--writable", "--two-valued", "--milliseconds", "--bare"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--slow", type=int, default=0)
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
    shelf = Shelf(arguments.slow)
    fields, operators, most = FIELDS, OPERATORS, 3
    if arguments.writable:
        fields, operators, most = {**FIELDS, "made": "date"}, [*OPERATORS, "in", "nin", "gte", "lt", "lte"], 50
        server.advertise("index", {"writable": True})
        server.on("index/add", shelf.add)
        server.on("index/delete", shelf.delete)
    missing = False if arguments.two_valued else None
    server.advertise("retrieve", {"maxK": most, "modes": ["sparse"]})
    server.advertise("filter", {"fields": fields, "operators": operators})
    server.advertise("embed", {"dimension": 2})
    server.advertise("rerank", {"methods": ["cross-encoder"]})

    def retrieve(params):
        report("frame", frame={"method": "retrieve", "params": params})
        chosen = [*DOCUMENTS, *shelf.seen()]
        if "filter" in params:
            tree = _filter.validate(params["filter"], fields, operators)
            if arguments.milliseconds:
                refuse_text(tree)
            chosen = [document for document in chosen if holds(tree, document.get("meta") or {}, missing) is True]
        words = params["query"].lower().split()
        scored = [(sum(word in document["text"].lower() for word in words), document) for document in chosen]
        scored = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
        hits = [{**document, "score": float(score)} for score, document in scored[: params["k"]]]
        if arguments.bare:
            hits = [{name: value for name, value in hit.items() if name != "meta"} for hit in hits]
        return {"hits": hits, "usage": {"candidates": len(scored), "mode": "sparse"}}

    def stream(params):
        yield rcp.Progress(0.5, "recall", partial={"hits": [{"id": "unchecked", "score": 1.0}]})
        gate(link, arguments.gated)
        yield rcp.Progress(0.75, "rank")
        gate(link, arguments.gated)
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
