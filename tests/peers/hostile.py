"""An RCP peer that misbehaves on demand: over stdio, or over HTTP with ``--http``. Standard library only.

    python hostile.py BEHAVIOUR[,BEHAVIOUR…] [--http] [--report PATH]

``ok`` is no misbehaviour. What it receives and does is reported as JSON lines to the Unix socket ``--report``, so that
a test can wait for it; over HTTP the first report says on which port it listens.
"""

import argparse
import json
import os
import select
import socket
import sys
import threading

HITS = [
    {"id": "a", "score": 3.0, "text": "alpha", "meta": {"lang": "en"}},
    {"id": "b", "score": 2.0, "text": "beta", "meta": {"lang": "fr"}},
    {"id": "c", "score": 1.0, "text": "gamma"},
]
CAPABILITIES = {
    "retrieve": {"maxK": 50, "modes": ["sparse"], "rerankBuiltin": True},
    "rerank": {"methods": ["cross-encoder"], "maxCandidates": 100},
    "embed": {"dimension": 2, "identity": "toy", "batchLimit": 2},
    "index": {"writable": True},
    "filter": {
        "fields": {"lang": "keyword", "year": "int", "spot": "geo", "odd": "colour"},
        "operators": ["eq", "gt", "exists"],
    },
    "streaming": {},
    "somethingNew": {"deep": [1]},
    "transform": {"methods": ["rewrite"]},
}
# What it has beside that with `more`.
MORE = {
    "graph": {"ops": ["local", "neighbors", "communities", "own"]},
    "feedback": {},
    "memory": {"scopes": ["global", "odd"]},
    "multiVector": {"dimension": 2},
    "index": {"writable": True, "chunking": True, "contextual": True},
    "log": {"levels": ["info"]},
    "x-acme": {"dances": ["waltz"]},
    "x-gateway": {"guaranteed": {"everything": {}}},
}
ODD = {
    "graph": '{"hits":[{"id":7,"score":NaN,"text":"\\ud800"},3,{"id":null}],"communities":1,"summary":5,'
    '"followups":["x",3],'
    '"nodes":[{"id":"n","score":1e400,"label":"L"},"n"],"usage":{"notes":["odd"]},'
    '"edges":[{"src":1,"dst":"n","weight":NaN,"label":"e"},{"src":"n"},[1]]}',
    "graphnothing": '{"answer":42}',
    "feedback": '{"accepted":"many"}',
    "build": '{"tokens":5}',
    "recall": '{"clues":["why",{"seedIds":[1,null,"b"],"weight":"x"},{"query":"who","weight":0.5},7],'
    '"hits":[{"id":"h"}]}',
    "recallnothing": "{}",
    "multi": '{"matrices":[["AACAPwAAAEA=","AABAQAAAgEA="]],"encoding":"f32-base64","dimension":2}',
    "multiwhole": '{"matrices":["AACAPwAAAEAAAEBAAACAQA=="],"dimension":2}',
    "multiblind": '{"matrices":["AACAPwAAAEAAAEBAAACAQA=="]}',
    "multicut": '{"matrices":[["AACAPwAA"]],"dimension":2}',
    "multishort": '{"matrices":[]}',
    "multinan": '{"matrices":[[[NaN,1]]]}',
    "vendorarray": "[1]",
    "vendornan": '{"a":NaN,"b":"\\ud800"}',
}
FURTHER = {
    "graph": ("graph", '{"hits":[]}'),
    "feedback": ("feedback", '{"accepted":1}'),
    "memory/build": ("build", '{"memoryId":"m"}'),
    "memory/recall": ("recall", '{"clues":[]}'),
    "embed/multi": ("multi", '{"matrices":[]}'),
    "query/transform": ("transform", '{"queries":["one","two",3],"hypothetical":"h"}'),
    "x-acme/dance": ("vendor", '{"danced":true}'),
}
# What `retrieve` answers, written as it goes over the wire: much of it is no JSON.
RESULTS = {
    "ok": json.dumps({"hits": HITS, "usage": {"candidates": 3, "notes": ["all is well"], "reranked": False}}),
    "nan": '{"hits":[{"id":"a","score":NaN,"text":"alpha"},{"id":"b","score":Infinity},{"id":"c","score":-Infinity},'
    '{"id":"d","score":1.5}]}',
    "overflow": '{"hits":[{"id":"a","score":1e400,"confidence":7},{"id":"b","score":1}]}',
    "surrogate": '{"hits":[{"id":"a","score":1,"text":"x\\ud800y"}]}',
    "badids": '{"hits":[{"score":1},{"id":null,"score":1},{"id":true,"score":1},{"id":[1],"score":1},'
    '{"id":{},"score":1},"hit",null,3,{"id":"good","score":1}]}',
    "numberids": '{"hits":[{"id":7,"score":3},{"id":8.0,"score":2},{"id":9007199254740993,"score":1}]}',
    "stringscores": '{"hits":[{"id":"a","score":"0.9"},{"id":"b","score":true},{"id":"c"},{"id":"d","score":0.1}]}',
    "duplicates": '{"hits":[{"id":"a","score":3},{"id":"a","score":2},{"id":"b","score":1}]}',
    "toomany": json.dumps({"hits": [{"id": f"h{n}", "score": 100 - n} for n in range(100)]}),
    "array": json.dumps(HITS),
    "nullresult": "null",
    "nohits": '{"documents":[]}',
    "hitsobject": '{"hits":{"a":1}}',
    "deep": '{"hits":[{"id":"a","score":1,"meta":' + '{"x":' * 100_000 + "1" + "}" * 100_000 + "}]}",
    "unknown": '{"hits":[{"id":"a","score":1,"new":{"b":[1]},"gone":null}],"extra":{"x":1}}',
    "notes": json.dumps({"hits": [], "usage": {"notes": [*(f"n{i}" * 300 for i in range(40)), 7, None, "a\nb"]}}),
    "cursor": '{"hits":[{"id":"a","score":1}],"nextCursor":"more"}',
    "degraded": '{"hits":[{"id":"a","score":1}],"_meta":{"degraded":["x"]}}',
    "degradedoddly": '{"hits":[{"id":"a","score":1}],"_meta":{"degraded":[7,null,"x\\ny",{"a":1}]}}',
    "uncited": '{"hits":[{"id":"a","score":1,"meta":{"federation":{"depth":99},"_meta":{"x":1}}}],"indexVersion":"v7"}',
    "seps": '{"hits":[{"id":"a","score":1,"text":"one\u2028two\u2029three\u0085four"}]}',
    "large": json.dumps({"hits": [{"id": "a", "score": 1, "text": "x" * 300_000}]}),
}
ERRORS = {
    "refused": {"code": -32602, "message": "bad query secret", "data": {"field": "filter.year"}},
    "optionrefused": {"code": -32005, "message": "no", "data": {"option": "gte"}},
    "missing": {"code": -32003, "message": "no"},
    "unknownmethod": {"code": -32601, "message": "no"},
    "unauthorized": {"code": -32012, "message": "who are you"},
    "ratelimited": {"code": -32011, "message": "slow down", "data": {"retryAfterMs": 500}},
    "unavailable": {"code": -32010, "message": "index gone", "data": {"retryable": False}},
    "conflict": {"code": -32016, "message": "that index is gone"},
    "timedout": {"code": -32014, "message": "late"},
    "internal": {"code": -32603, "message": "KeyError: 'secret'"},
    "unknowncode": {"code": -31999, "message": "?", "data": [1, 2]},
    "stringcode": {"code": "E_FAIL", "message": 7},
    "errortext": "it broke",
}
# What may stand beside another behaviour.
MODIFIERS = {"more", "snapshots", "already", "token", "forgets", "noise", "bom", "stderr", "ignoresshutdown"}
STATUSES = {"http302": 302, "http401": 401, "http404": 404, "http429": 429, "http500": 500, "http503": 503}


class Reports:
    def __init__(self, path):
        self._lock = threading.Lock()
        self._socket = None
        if path:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(path)

    def __call__(self, event, **members):
        if self._socket is not None:
            line = json.dumps({"event": event, **members}) + "\n"
            with self._lock:
                self._socket.sendall(line.encode())


class Peer:
    """What is the same over both transports: what to answer a request with. ``None`` is: nothing, for ever."""

    def __init__(self, behaviours, report):
        self.does = set(behaviours)
        self.report = report
        self.sessions = 0
        self.forgotten = False
        self.held = []

    def answer(self, frame):
        """The frames to send, as text, for one that came in."""
        method, id = frame.get("method"), frame.get("id")
        if "id" not in frame:
            return []
        name = {"initialize": "initialize", "info": "info"}.get(method)
        if name is not None:
            return self.handshake(method, id)
        if method == "shutdown":
            return [ok(id, "{}")]
        if "forgets" in self.does and not self.forgotten:
            self.forgotten = True
            return [fault(id, {"code": -32001, "message": "who are you"})]
        if method == "retrieve":
            return self.retrieve(frame, id)
        if method in FURTHER:
            return self.further(method, frame, id)
        if method in ("embed", "rerank", "index/add", "index/delete"):
            return [getattr(self, method.replace("/", "_"))(frame.get("params", {}), id)]
        return [ok(id, "{}")]

    def handshake(self, method, id):
        if "handshakehangs" in self.does:
            return None
        if "already" in self.does and method == "initialize":
            return [fault(id, {"code": -32600, "message": "already initialized"})]
        if "tooold" in self.does:
            return [fault(id, {"code": -32002, "message": "no common version"})]
        if "handshakearray" in self.does:
            return [ok(id, "[1]")]
        offered = {**CAPABILITIES, **MORE} if "more" in self.does else CAPABILITIES
        result = {"protocolVersion": 1, "server": {"name": "hostile"}, "capabilities": offered}
        if "version0" in self.does:
            result["protocolVersion"] = 0
        if "versiontext" in self.does:
            result["protocolVersion"] = "1"
        if "noversion" in self.does:
            del result["protocolVersion"]
        if "oddcapabilities" in self.does:
            result["capabilities"] = {
                "retrieve": {"maxK": "many", "modes": [1]},
                "embed": True,
                "rerank": {"maxCandidates": -1},
                "filter": {"fields": 3},
            }
        if "snapshots" in self.does:
            offer = {**CAPABILITIES["retrieve"], "snapshots": True, "deterministic": True}
            result["capabilities"] = {**CAPABILITIES, "retrieve": offer}
        if "token" in self.does and method == "initialize":
            self.sessions += 1
            result["_meta"] = {"session": f"session-{self.sessions}"}
        return [ok(id, json.dumps(result))]

    def retrieve(self, frame, id):  # noqa: C901
        for name in self.does & RESULTS.keys():
            return [ok(id, RESULTS[name])]
        for name in self.does & ERRORS.keys():
            return [fault(id, ERRORS[name])]
        params = frame.get("params", {})
        token = params.get("_meta", {}).get("progressToken")
        match sorted(self.does - MODIFIERS):
            case ["hang"]:
                return None
            case ["die"]:
                os._exit(9)
            case ["wrongid"]:
                return [ok(f"{id}", RESULTS["ok"]), ok(id + 1000, RESULTS["ok"])]
            case ["latethenright"]:
                return [ok(id - 1, '{"hits":[{"id":"late","score":1}]}'), ok(id, RESULTS["ok"])]
            case ["nullid"]:
                return [fault(None, {"code": -32700, "message": "cannot parse"})]
            case ["nullresponse"]:
                return ["null"]
            case ["neither"]:
                return [json.dumps({"jsonrpc": "2.0", "id": id})]
            case ["batch"]:
                return ["[" + ok(id, RESULTS["ok"]) + "]"]
            case ["longline"]:
                return [ok(id, '{"hits":[],"x":"' + "y" * 200_000_000 + '"}')]
            case ["broken"]:
                return [ok(id, RESULTS["ok"])[:-20]]
            case ["brokenwithoutid"]:
                return ['{"jsonrpc": "2.0", "result": ' + RESULTS["ok"][:-9]]
            case ["brokenonce" | "brokenamongmany"]:  # once two wait: the first one's answer is broken, or is twice
                self.held.append(id)
                if len(self.held) < 2:
                    return []
                whole = [ok(held, RESULTS["ok"]) for held in self.held]
                if "brokenonce" in self.does:
                    return [whole[0][:-20], whole[1]]
                return ['{"jsonrpc":"2.0","result":{"hits":[', *whole]
            case ["echo"]:
                return [ok(id, json.dumps({"hits": [{"id": params.get("query"), "score": 1}]}))]
            case ["reorder"]:
                self.held.append(ok(id, json.dumps({"hits": [{"id": params.get("query"), "score": 1}]})))
                if len(self.held) < 3:
                    return []
                frames, self.held = self.held[::-1], []
                return frames
            case ["halfway", *_]:
                return [progress(token, 0.5, "recall")]
            case ["progress"]:
                return [
                    progress(token, 0.25, "recall"),
                    progress("not ours", 0.3, "x"),
                    progress(token, 7, "fuse"),
                    progress(token, "half", "x"),
                    '{"jsonrpc":"2.0","method":"notifications/log","params":{"level":"info","message":"hello"}}',
                    '{"jsonrpc":"2.0","method":"notifications/brand-new","params":{}}',
                    '{"jsonrpc":"2.0","method":"sampling/ask","id":1,"params":{}}',
                    ok(id, RESULTS["ok"]),
                    progress(token, 0.9, "too late"),
                ]
        return [ok(id, RESULTS["ok"])]

    def further(self, method, frame, id):
        """A plain answer; with ``odd`` or a behaviour of ``ODD`` one that is not."""
        name, plain = FURTHER[method]
        for error in self.does & ERRORS.keys():
            return [fault(id, ERRORS[error])]
        odd = next((one for one in ODD if one in self.does), name if "odd" in self.does else None)
        frames = []
        if "logs" in self.does:
            token = frame["params"]["_meta"].get("progressToken")
            for own in (token, "not ours", None):
                params = {"level": "warning", "message": f"of {own == token}", "_meta": {"progressToken": own}}
                frames.append(json.dumps({"jsonrpc": "2.0", "method": "notifications/log", "params": params}))
        return [*frames, ok(id, ODD.get(odd, plain))]

    def embed(self, params, id):
        wanted = next((key for key in ("input", "texts") if f"embed{key}" in self.does), "inputs")
        texts = params.get(wanted)
        if not isinstance(texts, list):
            return fault(id, {"code": -32602, "message": "missing", "data": {"field": wanted}})
        if "embedbase64" in self.does:
            return ok(id, json.dumps({"vectors": ["AACAPwAAAEA="] * len(texts), "encoding": "base64", "dimension": 2}))
        if "embednan" in self.does:
            return ok(id, '{"vectors":[' + ",".join(["[NaN,1]"] * len(texts)) + "]}")
        if "embedshort" in self.does:
            return ok(id, '{"vectors":[[1,2]]}')
        return ok(id, json.dumps({"vectors": [[len(text), 1] for text in texts]}))

    def rerank(self, params, id):
        if "rerankresults" in self.does:
            if "passages" in params:
                return fault(id, {"code": -32602, "message": "unknown", "data": {"field": "passages"}})
            count = len(params["documents"])
            return ok(id, json.dumps({"results": [{"index": n, "score": n / 10} for n in range(count - 1, 0, -1)]}))
        if "reranknan" in self.does:
            return ok(id, '{"scores":[NaN,0.5,"x"]}')
        return ok(id, json.dumps({"scores": [len(text) for text in params["passages"]]}))

    def index_add(self, params, id):
        if "addfails" in self.does:
            return fault(id, {"code": -32010, "message": "busy"})
        given = [document.get("id") for document in params["documents"]]
        if "addsilent" in self.does:
            return ok(id, '{"added":1}')
        return ok(id, json.dumps({"ids": [one or f"new{n}" for n, one in enumerate(given)], "chunks": len(given)}))

    def index_delete(self, params, id):
        return ok(id, json.dumps({"deleted": len(params["ids"]) - 1}))


def ok(id, result):
    return f'{{"jsonrpc":"2.0","id":{json.dumps(id)},"result":{result}}}'


def fault(id, error):
    return json.dumps({"jsonrpc": "2.0", "id": id, "error": error})


def progress(token, fraction, stage):
    partial = {"hits": [{"id": "unchecked", "score": 1}]}
    params = {"progressToken": token, "progress": fraction, "stage": stage, "partial": partial}
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def serve_stdio(peer):
    out = sys.stdout.buffer
    if "diesatonce" in peer.does:
        os._exit(3)
    for line in sys.stdin.buffer:
        frame = json.loads(line)
        peer.report("frame", frame=frame)
        if "stderr" in peer.does and frame.get("method") == "retrieve":
            sys.stderr.write(("x" * 1023 + "\n") * 1024)
            sys.stderr.flush()
        if "noise" in peer.does:
            out.write(b"\n  \nDownloading model... 100%\n{not json}\n[1,2]\n\xff\xfe\n42\n")
        frames = peer.answer(frame)
        for text in frames or ():  # None: hang, but go on reading
            out.write((b"\xef\xbb\xbf" if "bom" in peer.does else b"") + text.encode("utf-8", "surrogatepass") + b"\n")
        out.flush()
        if "stopsreading" in peer.does:
            threading.Event().wait()
        if frame.get("method") == "shutdown" and "ignoresshutdown" not in peer.does:
            break
    if "ignoresshutdown" in peer.does:
        threading.Event().wait()
    peer.report("end")


def serve_http(peer):  # noqa: C901
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # slow to import, and most runs are stdio

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            frame = json.loads(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            peer.report("frame", frame=frame, path=self.path, headers=headers)
            if "id" not in frame:
                return self.whole(204, b"")
            if frame["method"] != "initialize" and self.sessionless(headers):
                return self.whole(200, fault(frame["id"], {"code": -32001, "message": "no session"}).encode())
            if frame["method"] == "retrieve":
                for name in peer.does & STATUSES.keys():
                    return self.status(STATUSES[name])
                if "die" in peer.does:
                    self.close_connection = True
                    return self.connection.shutdown(socket.SHUT_RDWR)
            frames = peer.answer(frame)
            if frames is None:
                return self.hang()
            if "text/event-stream" in headers.get("accept", "") and frame["method"] != "initialize":
                return self.events(frames)
            mark = b"\xef\xbb\xbf" if "bom" in peer.does else b""
            return self.whole(200, mark + frames[-1].encode("utf-8", "surrogatepass"))

        def sessionless(self, headers):
            return "token" in peer.does and headers.get("rcp-session") != f"session-{peer.sessions}"

        def whole(self, status, body, **headers):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def status(self, status):
            if status == 302:
                return self.whole(status, b"", Location=f"http://127.0.0.1:{self.server.server_port}/elsewhere")
            if status in (429, 503):
                return self.whole(status, b"<html>no</html>", Retry_After="2")
            return self.whole(status, b"<html>no</html>")

        def events(self, frames):
            self.close_connection = True
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.end_headers()
            end = "\r\n" if "ssecrlf" in peer.does else "\n"
            if "ssetruncated" in peer.does:
                frames = frames[:-1]
            text = "".join(f": comment{end}event: message{end}data: {frame}{end}{end}" for frame in frames)
            if "ssemultiline" in peer.does:
                text = "".join(f"data: {frame.replace('{', '{' + chr(10) + 'data: ', 1)}\n\n" for frame in frames)
            data = text.encode("utf-8", "surrogatepass")
            size = 1 if "ssechopped" in peer.does else len(data) or 1
            for start in range(0, len(data), size):
                self.wfile.write(data[start : start + size])
            if "ssehangs" in peer.does:
                self.hang()

        def hang(self):
            peer.report("hanging")
            select.select([self.connection], [], [])
            peer.report("gone")
            self.close_connection = True

        def log_message(self, *args):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    peer.report("listening", port=server.server_port)
    server.serve_forever()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviours")
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--report")
    arguments = parser.parse_args()
    report = Reports(arguments.report)
    report("start", pid=os.getpid(), environment=sorted(os.environ), arguments=sys.argv[1:])
    peer = Peer(arguments.behaviours.split(","), report)
    (serve_http if arguments.http else serve_stdio)(peer)


if __name__ == "__main__":
    main()
