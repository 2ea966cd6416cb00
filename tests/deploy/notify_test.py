#!/usr/bin/env python3
"""What a service manager hears from both services: ready, signs of life, stopping; and that they leave with 0.

usage: notify_test.py ROOT BUILD MODEL
"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BUILD, MODEL = sys.argv[2], sys.argv[3]
SECONDS_MAX = 60
WATCHDOG_SECONDS = 0.5


class Service:
    """A service with a manager of its own, in the run directory `folder`."""

    def __init__(self, folder, name):
        path = os.path.join(folder, name + ".notify")
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(path)
        self.manager.settimeout(SECONDS_MAX)
        self.heard = []
        environment = {**os.environ, "NOTIFY_SOCKET": path,
                       "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6))}
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "bin/tandem-" + name), "--run-dir", folder, "--model", MODEL,
             "--kv-pool-bytes", "16M", "--slots", "4"],
            env=environment, stderr=subprocess.DEVNULL)

    def hear(self):
        word = self.manager.recv(4096).decode()
        self.heard.append(word)
        return word

    def wait_for(self, word):
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            if self.hear() == word:
                return
        raise AssertionError(f"no {word} within {SECONDS_MAX} s, but {self.heard}")

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS_MAX)
        self.manager.close()


class NotifyTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-notify-")
        self.addCleanup(folder.cleanup)
        self.services = []
        for name in ("coordinator", "worker"):
            self.services.append(Service(folder.name, name))
            self.addCleanup(self.services[-1].end)

    def test_ready_alive_stopping(self):
        for service in self.services:
            service.wait_for("READY=1")
        for service in self.services:
            # Systemd kills after one interval; signs come at least twice as often, also when idle.
            began = time.monotonic()
            for _ in range(4):
                service.wait_for("WATCHDOG=1")
            self.assertLess(time.monotonic() - began, 4 * WATCHDOG_SECONDS)
        for service in reversed(self.services):
            service.process.send_signal(signal.SIGTERM)
            service.wait_for("STOPPING=1")
            self.assertEqual(service.process.wait(SECONDS_MAX), 0)
            self.assertTrue(any(word.startswith("STATUS=") for word in service.heard))
            self.assertEqual(service.heard.count("READY=1"), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
