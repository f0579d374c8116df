"""A server made with the public ``rcp-protocol`` SDK: over stdio, or over HTTP with ``--http``.

Reports what it receives like ``hostile.py`` does. ``--stream`` adds a streaming handler (SSE), which with
``--gated`` waits for a byte on the report socket after each of its frames.

With ``--writable`` it takes documents, and has a date field and more operators; then ``--two-valued`` counts a document
without the field among those that a negation selects, ``--milliseconds`` compares dates as numbers and refuses text,
``--bare`` keeps the metadata out of the hits, and ``--slow N`` shows a document only from the Nth search after.

With ``--whole`` it has a graph (of words and the documents they are in), memories, feedback and vectors by the word.
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


def graph(params):
    """Documents are nodes; two are neighbours by every word of five letters that they share."""
    words = {one["id"]: {word for word in one["text"].lower().split() if len(word) > 4} for one in DOCUMENTS}
    match params["op"]:
        case "local":
            wanted = params["query"].lower()
            found = [one for one in DOCUMENTS if wanted in one["text"].lower()]
            return {"hits": [{**one, "score": 1.0, "unit": "node"} for one in found], "followups": ["and then?"]}
        case "neighbors":
            seeds = [id for id in params["seedIds"] if id in words]
            edges = [
                {"src": seed, "dst": id, "weight": 1.0, "word": word}
                for seed in seeds
                for id in words
                for word in sorted(words[id] & words[seed])
                if id != seed
            ]
            return {"nodes": [{"id": id} for id in dict.fromkeys(edge["dst"] for edge in edges)], "edges": edges}
    return {"communities": [{"id": 0, "summary": "All about capitals", "level": 0}], "usage": {"notes": ["one"]}}


class Memories:
    def __init__(self):
        self.texts = {}

    def build(self, params):
        id = params.get("memoryId") or f"memory-{len(self.texts)}"
        self.texts.setdefault(id, []).extend(document["text"] for document in params.get("documents") or DOCUMENTS)
        return {"memoryId": id, "tokens": sum(len(text.split()) for text in self.texts[id])}

    def recall(self, params):
        id = params.get("memoryId")
        if id is not None and id not in self.texts:
            raise rcp.RcpError(-32015, "no such memory", {"field": "memoryId"})
        wanted = list(self.texts) if id is None else [id]
        texts = [text for one in wanted for text in self.texts[one]]
        clues = [{"query": text, "seedIds": ["d1"], "weight": 1.0} for text in texts]
        return {"clues": clues[: params.get("n") or 10], "hits": [{"id": "d1", "score": 1.0}]}


def whole(server, report):
    memories = Memories()

    def answering(method, handler):
        def handle(params):
            report("frame", frame={"method": method, "params": params})
            return handler(params)

        server.on(method, handle)

    def embed_multi(params):
        matrices = [[[float(len(word)), 1.0] for word in text.split()] for text in params["inputs"]]
        return {"matrices": matrices, "dimension": 2}

    server.advertise("multiVector", {"dimension": 2, "identity": "sdk-words"})
    server.advertise("graph", {"ops": ["local", "neighbors", "communities"]})
    server.advertise("feedback", {})
    server.advertise("memory", {"scopes": ["global"], "clues": True})
    server.advertise("transform", {"methods": ["rewrite"]})
    answering("embed/multi", embed_multi)
    answering("graph", graph)
    answering("feedback", lambda params: {"accepted": len(params["signals"])})
    answering("memory/build", memories.build)
    answering("memory/recall", memories.recall)
    answering("query/transform", lambda params: {"queries": [params["query"].upper()]})


def read_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--report")
    for name in ("--gated", "--writable", "--two-valued", "--milliseconds", "--bare", "--whole"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--slow", type=int, default=0)
    return parser.parse_args()


def main():
    arguments = read_arguments()
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
    if arguments.whole:
        whole(server, report)
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
