#!/usr/bin/env python3
"""deploy/supervise.sh: restarts what died, gives up where another try is useless, ends with its service.

usage: supervise_test.py ROOT
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = sys.argv.pop(1)
SECONDS_MAX = 20

# A service that says its pid and ends on SIGTERM a moment later, as one that drains does.
SERVICE = "echo started $$; trap 'echo draining; sleep 0.2; exit 0' TERM; while :; do sleep 0.05; done"


class SuperviseTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-supervise-")
        self.addCleanup(folder.cleanup)
        self.state = folder.name
        self.supervisor = None
        self.addCleanup(self.end)

    def end(self):
        if self.supervisor is None:
            return
        try:  # all at once: a supervisor that lives a moment longer would start the service again
            os.killpg(self.supervisor.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.supervisor.wait(SECONDS_MAX)

    def path(self, kind):
        return os.path.join(self.state, f"fake.{kind}")

    def read(self, kind):
        with open(self.path(kind), encoding="utf-8") as file:
            return file.read()

    def pid(self, kind):
        return int(self.read(kind).split()[0])

    def start(self, script):
        self.supervisor = subprocess.Popen(
            [os.path.join(ROOT, "deploy/supervise.sh"), self.state, "fake", "bash", "-c", script],
            start_new_session=True)

    def until(self, condition, what):
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (FileNotFoundError, IndexError, ValueError):
                pass
            time.sleep(0.02)
        self.fail(f"waited {SECONDS_MAX} s for {what}")

    def started(self):
        return self.read("log").count("started")

    def test_a_killed_service_comes_back(self):
        self.start(SERVICE)
        self.until(lambda: self.started() == 1 and self.pid("service"), "the first start")
        first = self.pid("service")
        os.kill(first, signal.SIGKILL)
        self.until(lambda: self.started() == 2 and self.pid("service") != first, "the second start")
        self.assertEqual(self.read("exit").strip(), "137")

    def test_a_service_that_fails_is_tried_ever_more_slowly(self):
        self.start("echo started $EPOCHREALTIME; exit 70")
        self.until(lambda: self.started() >= 4, "four tries")
        times = [float(line.split()[1]) for line in self.read("log").split("\n")
                 if line.startswith("started")]
        gaps = [after - before for before, after in zip(times, times[1:])]
        for gap, least in zip(gaps, (0.2, 0.4, 0.8)):
            self.assertGreaterEqual(gap, least)

    def test_useless_tries_are_not_made(self):
        for code in (64, 66, 77, 78):
            self.start(f"echo started; exit {code}")
            self.assertEqual(self.supervisor.wait(SECONDS_MAX), code)
            self.assertEqual(self.read("exit").strip(), str(code))
            self.assertEqual(self.started(), 1)
            os.unlink(self.path("log"))

    def test_term_drains_the_service_and_ends_both(self):
        self.start(SERVICE)
        self.until(lambda: self.started() == 1, "the start")
        self.supervisor.terminate()
        self.assertEqual(self.supervisor.wait(SECONDS_MAX), 0)
        self.assertIn("draining", self.read("log"))
        self.assertFalse(os.path.exists(self.path("service")))
        self.assertFalse(os.path.exists(self.path("supervisor")))

    def test_one_supervisor_per_service(self):
        self.start(SERVICE)
        self.until(lambda: self.started() == 1, "the start")
        first = self.supervisor
        self.start(SERVICE)
        self.assertEqual(self.supervisor.wait(SECONDS_MAX), 0)
        self.assertEqual(self.started(), 1)
        self.supervisor = first

    def test_a_large_log_is_put_aside(self):
        with open(self.path("log"), "wb") as file:
            file.truncate(17 << 20)
        self.start(SERVICE)
        self.until(lambda: self.started() == 1, "the start")
        self.assertLess(os.path.getsize(self.path("log")), 1000)
        self.assertEqual(os.path.getsize(self.path("log.before")), 17 << 20)


if __name__ == "__main__":
    unittest.main()
