"""A coordinator for the tests of the command line: one request, whose course a test writes down."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import msgpack

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sp_wire  # noqa: E402
from sp_wire import CUT, SILENCE  # noqa: E402,F401

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
REQUEST_NAMES = ["", "submit", "next", "cancel", "status", "stats", "health", "models", "tokenize",
                 "detokenize"]


def read_field_names():
    """{message: {number: name}} from the message tables, the one place where they stand."""
    with open(os.path.join(ROOT, "proto", "client_messages.h"), encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    tables = {}
    for name, body in re.findall(r"#define (\w+)_FIELDS\(X[^)]*\) (.*)", text):
        fields = {int(key): field for key, field in re.findall(r"\bX\((?:T, )?(\d+), (\w+),", body)}
        tables[name.lower().replace("client_", "")] = fields
    return tables


FIELD_NAMES = read_field_names()


def named(message, table):
    fields = {**FIELD_NAMES[table], 1: "type", 2: "version"}
    if table == "chat_message":
        fields = FIELD_NAMES[table]
    found = {fields[key]: value for key, value in message.items()}
    if "messages" in found:
        found["messages"] = [named(item, "chat_message") for item in found["messages"]]
    for key in ("id", "text"):
        if isinstance(found.get(key), bytes):
            found[key] = found[key].decode("utf-8", "surrogateescape")
    return found


def decode(body):
    message = msgpack.unpackb(body, raw=False, strict_map_key=False)
    if "type" in message:  # a client that spells the names out
        return {**message, "type": REQUEST_NAMES.index(message["type"])}
    return named(message, REQUEST_NAMES[message[1]])


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
TIMINGS = {"first_token_ns": 2_000_000, "total_ns": 5_000_000}


def finish(reason="stop", **more):
    return {"reason": reason, "usage": USAGE, "timings": TIMINGS, **more}


class Fake:
    """`course`: a list of news. Each is (tokens, text) or a dict of `output` fields, or CUT, or SILENCE;
    `None` parks the poll until the request is cancelled. After the last one the request is finished.
    `answers` overrides the answer to a type: a dict, or a function of the request."""

    def __init__(self, course=(), **answers):
        self.directory = tempfile.mkdtemp(prefix="tandem-cli-")
        self.course = list(course)
        self.answers = answers
        self.seen = []
        self.cancelled = threading.Event()
        self.index = 0
        self.tokens = self.bytes = 0
        self.lock = threading.Lock()
        self.pack_tokens = False  # as the coordinator does: a bin of four bytes each
        self.replier = sp_wire.Replier(os.path.join(self.directory, "client.ipc"), self.handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cancelled.set()
        self.replier.close()
        shutil.rmtree(self.directory)

    def of_type(self, name):
        with self.lock:
            return [request for request in self.seen if request["type_name"] == name]

    def wait_for(self, name, count=1, seconds=10):
        end = time.monotonic() + seconds
        while len(self.of_type(name)) < count:
            assert time.monotonic() < end, f"no {name} came; seen: {self.seen}"
            time.sleep(0.005)

    def handle(self, body):
        try:
            answer = self.answer(body)
        except Exception as error:  # a mistake of the test must not look like a silent coordinator
            answer = {"type": "error", "code": "internal", "message": f"the test failed: {error!r}"[:400]}
        return answer if answer in (CUT, SILENCE) else msgpack.packb(answer)

    def answer(self, body):
        request = decode(body)
        request["type_name"] = REQUEST_NAMES[request["type"]]
        with self.lock:
            self.seen.append(request)
        answer = self.answers.get(request["type_name"])
        answer = answer(request) if callable(answer) else answer
        if answer is None:
            answer = getattr(self, "on_" + request["type_name"])(request)
        return answer

    def on_submit(self, request):
        with self.lock:
            self.index = self.tokens = self.bytes = 0
            self.cancelled.clear()
        return {"type": "accepted", "id": request["id"], "sequence": 1,
                "seed": request.get("seed", 2 ** 64 - 1), "prompt_tokens": 3, "queue_position": 0,
                "durability": "none", "state": "queued", "instance": b"i" * 16}

    def output(self, request, fields):
        return {"type": "output", "id": request["id"], "from_token": self.tokens,
                "from_byte": self.bytes, "tokens": [], "text": "", "state": "running",
                "prompt_tokens": 3, "prompt_tokens_done": 3, "worker_ready": True, **fields}

    def on_next(self, request):
        assert (request["from_token"], request["from_byte"]) == (self.tokens, self.bytes), request
        if self.cancelled.is_set():
            return self.output(request, {"state": "finished", "finish": finish("cancelled")})
        if self.index == len(self.course):
            return self.output(request, {"state": "finished", "finish": finish()})
        news = self.course[self.index]
        if news is None:
            if self.cancelled.wait(request["max_wait_ms"] / 1000):
                return self.on_next(request)
            return self.output(request, {})
        self.index += 1
        if news in (CUT, SILENCE):
            return news
        fields = news if isinstance(news, dict) else {"tokens": news[0], "text": news[1]}
        answer = self.output(request, fields)
        text = fields.get("text", "")
        self.tokens += len(fields.get("tokens", []))
        self.bytes += len(text if isinstance(text, bytes) else text.encode())
        if self.pack_tokens:
            answer["tokens"] = b"".join(token.to_bytes(4, "little") for token in answer["tokens"])
        return answer

    def on_cancel(self, request):
        self.cancelled.set()
        return self.output(request, {"state": "finished", "finish": finish("cancelled")})

    def on_health(self, _):
        return {"type": "health", "live": True, "ready": True, "instance": b"i" * 16, "epoch": 1}


class Runner:
    """Runs the program under test."""

    def __init__(self, program):
        self.program = program

    def environment(self, **more):
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                                                 "TSAN_OPTIONS") if key in os.environ}
        return {**kept, "TERM": "xterm", **more}

    def run(self, *words, directory=None, stdin=b"", env=None, **more):
        command = [self.program, *words]
        if directory is not None:
            command[2:2] = ["--run-dir", directory]
        more.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(command, input=stdin, stderr=subprocess.PIPE, timeout=60,
                              env=self.environment(**(env or {})), check=False, **more)
