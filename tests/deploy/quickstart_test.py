#!/usr/bin/env python3
"""deploy/quickstart.sh with the real programs: start, start again, services that come back, stop.

usage: quickstart_test.py ROOT BUILD        TANDEM_TEST_MODEL: the default model, else it is in the cache
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT, BUILD = sys.argv.pop(1), sys.argv.pop(1)
CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
MODEL = os.environ.get("TANDEM_TEST_MODEL",
                       os.path.join(CACHE, "tandem/SmolLM2-135M-Instruct.Q4_1.gguf"))
ANSWER = "The capital of France is Paris."
SECONDS_MAX = 60


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-quick-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.state = os.path.join(self.folder, "cache/tandem/quickstart")
        self.addCleanup(self.quickstart, "stop")

    def command(self, *arguments):
        return [os.path.join(ROOT, "deploy/quickstart.sh"), *arguments]

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        return {**kept, "XDG_CACHE_HOME": os.path.join(self.folder, "cache"),
                "TANDEM_BUILD": BUILD, "TANDEM_RUN_DIR": os.path.join(self.folder, "run")}

    def quickstart(self, *arguments):
        return subprocess.run(self.command(*arguments), env=self.environment(), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)

    def start(self):
        result = self.quickstart("--model", MODEL)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn(ANSWER, result.stdout)
        return result

    def recorded(self, name):
        with open(os.path.join(self.state, name), encoding="utf-8") as file:
            return int(file.read().split()[0])

    def until(self, condition, what):
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"waited {SECONDS_MAX} s for {what}")
            time.sleep(0.05)

    def alive(self, pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def test_start_again_kill_and_stop(self):
        self.start()
        pids = [self.recorded(f"{name}.{kind}") for name in ("coordinator", "worker")
                for kind in ("supervisor", "service")]
        began = time.monotonic()
        self.start()
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(pids, [self.recorded(f"{name}.{kind}")
                                for name in ("coordinator", "worker")
                                for kind in ("supervisor", "service")])
        for name in ("worker", "coordinator"):
            before = self.recorded(f"{name}.service")
            os.kill(before, signal.SIGKILL)
            self.until(lambda before=before: not self.alive(before), f"the end of the {name}")
            self.start()
            self.assertNotEqual(self.recorded(f"{name}.service"), before)
        pids = [self.recorded(f"{name}.service") for name in ("coordinator", "worker")]
        self.assertEqual(self.quickstart("status").returncode, 0)
        result = self.quickstart("stop")
        self.assertEqual((result.returncode, result.stdout), (0, "stopped\n"))
        self.assertEqual([self.alive(pid) for pid in pids], [False, False])
        self.assertEqual(self.quickstart("status").returncode, 1)

    def test_stop_ends_a_service_whose_supervisor_was_killed(self):
        self.start()
        service = self.recorded("worker.service")
        os.kill(self.recorded("worker.supervisor"), signal.SIGKILL)
        self.assertEqual(self.quickstart("stop").returncode, 0)
        self.assertFalse(self.alive(service))

    def test_stop_leaves_a_stranger_alone(self):
        self.start()
        self.quickstart("stop")
        with subprocess.Popen(["sleep", "60"]) as stranger:
            # The number of a process that ended long ago now belongs to another one.
            with open(os.path.join(self.state, "worker.service"), "w", encoding="utf-8") as file:
                file.write(f"{stranger.pid} 1\n")
            self.quickstart("stop")
            self.assertIsNone(stranger.poll())
            stranger.kill()

    def test_busy_run_directory(self):
        environment = self.environment()
        os.makedirs(environment["TANDEM_RUN_DIR"])
        with subprocess.Popen([os.path.join(BUILD, "bin/tandem-coordinator"), "--model", MODEL],
                              env=environment, stderr=subprocess.DEVNULL) as other:
            try:
                self.until(lambda: os.path.exists(os.path.join(environment["TANDEM_RUN_DIR"],
                                                               "client.ipc")), "a coordinator")
                result = self.quickstart("--model", MODEL)
                self.assertEqual(result.returncode, 78, result.stdout + result.stderr)
                self.assertIn("--run-dir", result.stderr.strip().split("\n")[-1])
                self.assertEqual(self.quickstart("status").returncode, 1)
            finally:
                other.terminate()

    def test_a_directory_is_asked_with_ids(self):
        result = self.quickstart("--model", os.path.join(BUILD, "models", "tiny-directory"))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"(?m)^> 1,2,3\n(\d+ )+\d+$")
        self.assertRegex(result.stdout, r"(?m)^  ask: .*/tandem generate.* --ids 4,5,6$")
        result = self.quickstart("--model", MODEL)
        self.assertEqual(result.returncode, 78, result.stdout + result.stderr)
        self.assertRegex(result.stderr, r"run with .*/tiny-directory: .* stop first")

    def test_a_model_that_is_none(self):
        broken = os.path.join(self.folder, "broken.gguf")
        with open(broken, "w", encoding="utf-8") as file:
            file.write("this is no model")
        result = self.quickstart("--model", broken)
        self.assertEqual(result.returncode, 66, result.stdout + result.stderr)
        self.assertIn("broken.gguf", result.stderr.strip().split("\n")[-1])
        self.assertEqual(self.quickstart("status").returncode, 1)

    def test_interrupted_start_leaves_nothing(self):
        with subprocess.Popen(self.command("--model", MODEL), env=self.environment(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True) as start:
            path = os.path.join(self.state, "coordinator.service")
            self.until(lambda: os.path.exists(path) and os.path.getsize(path) > 0, "the coordinator")
            service = self.recorded("coordinator.service")
            os.killpg(start.pid, signal.SIGINT)
            _, words = start.communicate(timeout=SECONDS_MAX)
        self.assertEqual(start.returncode, 130, words)
        self.assertIn("run it again", words)
        if "nothing was left running" in words:
            self.assertFalse(self.alive(service))


if __name__ == "__main__":
    unittest.main()
