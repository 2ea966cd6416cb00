"""Starts real coordinators and workers in run directories of their own, talks to them as a client would, and ends
them by pid. Every wait has a limit; a failed test shows the logs of its processes.

Environment: TANDEM_BIN (folder of the programs), TANDEM_MODELS (folder of the small models)."""
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import sp_wire  # noqa: E402

BIN = os.environ.get("TANDEM_BIN", "build/release/bin")
MODELS = os.environ.get("TANDEM_MODELS", "build/release/models")
# A sanitizer build is slower; only limits grow with it, never what is demanded.
PATIENCE = float(os.environ.get("TANDEM_PATIENCE", "1"))
SANITIZER = re.compile("ThreadSanitizer|AddressSanitizer|LeakSanitizer|runtime error:|check_failed")
CLOCK_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")

EXIT_USAGE, EXIT_NO_MODEL, EXIT_INTERNAL, EXIT_SYSTEM = 64, 66, 70, 71
EXIT_TEMPORARY, EXIT_PERMISSION, EXIT_CONFIGURATION = 75, 77, 78


def model_path(name):
    directory = os.path.join(MODELS, name)
    return directory if os.path.isdir(directory) else directory + ".gguf"


def wait_for(condition, seconds, what):
    """The first true value of condition()."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"{what} did not happen in {seconds * PATIENCE:.0f} s")
        time.sleep(0.01)


class Process:
    """One program with its log in a file."""

    def __init__(self, name, arguments, log_path, environment=None):
        self.name, self.log_path = name, log_path
        self.log_file = open(log_path, "wb")
        clean = {key: value for key, value in os.environ.items()
                 if not key.startswith("TANDEM_") and key != "XDG_RUNTIME_DIR"}
        clean.update(environment or {})
        self.popen = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self.log_file,
                                      stderr=self.log_file, env=clean)
        self.pid = self.popen.pid

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def events(self, event):
        """The lines of one log event, each as a dict of its values."""
        found = []
        for line in self.log().splitlines():
            if f" event={event} " in line + " ":
                found.append(dict(part.split("=", 1) for part in line.split() if "=" in part))
        return found

    def wait_event(self, event, count=1, seconds=20):
        def enough():
            if self.popen.poll() is not None and len(self.events(event)) < count:
                raise AssertionError(f"{self.name} ended with {self.popen.returncode} before "
                                     f"{event}:\n{self.log()}")
            found = self.events(event)
            return found[count - 1] if len(found) >= count else None
        return wait_for(enough, seconds, f"{self.name}: event {event}")

    def send(self, number):
        self.popen.send_signal(number)

    def kill(self):
        """SIGKILL, and gone."""
        self.send(signal.SIGKILL)
        self.popen.wait(30)

    def exit_code(self, seconds=20):
        try:
            return self.popen.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {seconds} s:\n{self.log()}")

    def running(self):
        return self.popen.poll() is None

    def cpu_ms(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * CLOCK_TICK_MS

    def resident_bytes(self):
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def close(self):
        if self.running():
            self.send(signal.SIGCONT)
            self.kill()
        self.log_file.close()


class Answer:
    """What one request gave."""

    def __init__(self):
        self.tokens, self.text, self.finish = [], b"", None
        self.first_token_at = None  # time.monotonic()
        self.polls = 0

    def outcome(self):
        """All that must be equal between two runs of the same request."""
        return (tuple(self.tokens), self.text, self.finish["reason"],
                self.finish.get("logits_hash"))


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


class Client:
    """One connection. Asks again after a cut, as every client may."""

    def __init__(self, path, seconds=30, exchange_seconds=None):
        """`exchange_seconds`: after this a new connection is tried; `seconds`: after this it has failed."""
        self.path, self.seconds = path, seconds * PATIENCE
        self.exchange_seconds = (exchange_seconds or seconds) * PATIENCE
        self.requester = None

    def ask(self, **fields):
        end = time.monotonic() + self.seconds
        while True:
            try:
                if self.requester is None:
                    self.requester = sp_wire.Requester(self.path, timeout=self.exchange_seconds)
                return self.requester.ask(**fields)
            except (OSError, sp_wire.Closed):
                self.close()
                if time.monotonic() >= end:
                    raise
                time.sleep(0.02)

    def submit(self, identifier, **fields):
        return self.ask(type="submit", id=identifier, **fields)

    def follow(self, identifier, answer=None, seconds=120, enough=None, **poll):
        """Polls until the end, or until there are `enough` tokens; returns the Answer. `poll`: more fields of next."""
        answer = answer or Answer()
        end = time.monotonic() + seconds * PATIENCE
        while answer.finish is None and (enough is None or len(answer.tokens) < enough):
            if time.monotonic() >= end:
                raise AssertionError(f"{identifier} has no end after {seconds} s: "
                                     f"{len(answer.tokens)} tokens")
            output = self.ask(type="next", id=identifier, from_token=len(answer.tokens),
                              from_byte=len(answer.text), max_wait_ms=2000, **poll)
            answer.polls += 1
            if output["type"] != "output":
                raise AssertionError(f"{identifier}: {output}")
            assert output["from_token"] == len(answer.tokens), output
            assert output["from_byte"] == len(answer.text), output
            tokens = output["tokens"]
            if isinstance(tokens, bytes):
                tokens = [int.from_bytes(tokens[i:i + 4], "little")
                          for i in range(0, len(tokens), 4)]
            if tokens and answer.first_token_at is None:
                answer.first_token_at = time.monotonic()
            answer.tokens += tokens
            answer.text += as_bytes(output["text"])
            answer.finish = output.get("finish")
        return answer

    def generate(self, identifier, seconds=120, **fields):
        accepted = self.submit(identifier, **fields)
        if accepted["type"] != "accepted":
            raise AssertionError(f"{identifier}: {accepted}")
        return self.follow(identifier, seconds=seconds)

    def close(self):
        if self.requester is not None:
            self.requester.close()
        self.requester = None


class Streams:
    """Many requests at the same time, each followed by a thread of its own."""

    def __init__(self, system):
        self.system, self.threads = system, []
        self.answers, self.errors = {}, {}

    def start(self, identifier, **fields):
        """Submits now, in order; follows in the background."""
        client = self.system.client()
        accepted = client.submit(identifier, **fields)
        assert accepted["type"] == "accepted", accepted
        self.answers[identifier] = Answer()
        thread = threading.Thread(target=self._follow, args=(client, identifier), daemon=True)
        self.threads.append(thread)
        thread.start()
        return accepted

    def _follow(self, client, identifier):
        try:
            client.follow(identifier, self.answers[identifier])
        except Exception as error:  # shown by join()
            self.errors[identifier] = error
        client.close()

    def join(self, seconds=120):
        end = time.monotonic() + seconds * PATIENCE
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        if self.errors:
            raise AssertionError(f"streams failed: {self.errors}")
        assert not any(thread.is_alive() for thread in self.threads), "streams have no end"
        return self.answers


class System:
    """One run directory and what was started in it."""

    def __init__(self, model="tiny"):
        self.folder = tempfile.mkdtemp(prefix="tandem-")
        self.run_dir = os.path.join(self.folder, "run")
        self.model = model
        self.processes, self.clients = [], []

    def _start(self, name, program, options, environment):
        log = os.path.join(self.folder, f"{len(self.processes)}-{name}.log")
        process = Process(name, [os.path.join(BIN, program), "--run-dir", self.run_dir, *options],
                          log, environment)
        self.processes.append(process)
        return process

    def start_coordinator(self, *options, model=None, wait=True, environment=None):
        process = self._start("coordinator", "tandem-coordinator",
                              ["--model", model_path(model or self.model), "--kv-pool-bytes", "64M",
                               *options], environment)
        if wait:
            process.wait_event("coordinator_ready")
        return process

    def start_worker(self, *options, model=None, fault=None, wait=True, program=None,
                     environment=None):
        """`wait`: until it is attached. `fault`: name:count:action of the build with fault points."""
        environment = dict(environment or {})
        if fault:
            environment["TANDEM_FAULT"] = fault
        program = program or ("tandem-worker-faults" if fault else "tandem-worker")
        process = self._start("worker", program,
                              ["--model", model_path(model or self.model), "--kv-pool-bytes", "64M",
                               "--debug-logits-hash", "--threads", "1", *options], environment)
        if wait:
            process.wait_event("worker_attached")
        return process

    def client(self, seconds=30, exchange_seconds=None):
        client = Client(os.path.join(self.run_dir, "client.ipc"), seconds, exchange_seconds)
        self.clients.append(client)
        return client

    def in_background(self, function, *arguments, **fields):
        """A future of the call, on a thread of its own."""
        future = concurrent.futures.Future()

        def call():
            try:
                future.set_result(function(*arguments, **fields))
            except Exception as error:
                future.set_exception(error)
        threading.Thread(target=call, daemon=True).start()
        return future

    def stats(self):
        client = self.client()
        answer = client.ask(type="stats")
        client.close()
        return answer

    def close(self, show):
        """Ends everything; returns the names of processes in which a sanitizer found something."""
        for client in self.clients:
            client.close()
        accused = []
        for process in self.processes:
            process.close()
            if SANITIZER.search(process.log()):
                accused.append(process.name)
            show = show or bool(accused)
            if show:
                print(f"---- {process.name} {process.pid}, exit {process.popen.returncode}\n"
                      f"{process.log()[-6000:]}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)
        return accused


class TandemTest(unittest.TestCase):
    """A test with one system that is cleaned up, and shown when the test fails."""

    model = "tiny"

    def setUp(self):
        self.system = System(self.model)
        self.addCleanup(self._close)

    def _close(self):
        outcome = self._outcome
        failed = any(error for _, error in outcome.errors) if hasattr(outcome, "errors") \
            else not outcome.success
        self.assertEqual(self.system.close(failed), [], "a sanitizer found something")


def main():
    unittest.main(verbosity=2)
