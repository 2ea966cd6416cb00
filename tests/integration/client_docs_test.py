"""What the documents show to programmers works as printed: the Python example, and the C and Python blocks
of docs/CLIENT.md. Usage: client_docs_test.py BUILD_FOLDER C_COMPILER [unittest options]"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from cli_fake import CUT, ROOT, Fake

BUILD, COMPILER, C_FLAGS = "", "", []
COURSE = [([1, 2], "The capital "), CUT, ([3], "is "), ([4], b"\xff"), ([5], "Paris 🌍.")]
TEXT = "The capital is ".encode() + b"\xff" + "Paris 🌍.".encode()


def block(language):
    with open(os.path.join(ROOT, "docs", "CLIENT.md"), encoding="utf-8") as file:
        return re.search(rf"```{language}\n(.*?)```", file.read(), re.DOTALL).group(1)


class Documents(unittest.TestCase):
    def setUp(self):
        self.example = [sys.executable, "-B",
                        os.path.join(ROOT, "client", "python", "tandem_example.py")]
        self.environment = {**os.environ,
                            "PYTHONPATH": os.path.join(ROOT, "tests", "support")}

    def run_example(self, fake, **more):
        return subprocess.Popen([*self.example, "What", "is it?"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE,
                                env={**self.environment, "TANDEM_RUN_DIR": fake.directory}, **more)

    def test_python_example_streams_over_a_cut(self):
        with Fake(COURSE) as fake:
            fake.pack_tokens = True
            process = self.run_example(fake)
            output, errors = process.communicate(timeout=30)
        self.assertEqual((process.returncode, errors), (0, b""))
        self.assertEqual(output, TEXT + b"\n[stop, 2 tokens, first after 2 ms]\n")
        self.assertEqual(fake.of_type("submit")[0]["messages"],
                         [{"role": "user", "content": "What is it?"}])

    def test_python_example_cancels(self):
        with Fake([([1], "so far"), None]) as fake:
            fake.pack_tokens = True
            process = self.run_example(fake)
            fake.wait_for("next", 2)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=30)
        self.assertEqual((process.returncode, errors), (0, b""))
        self.assertEqual(output, b"so far\n[cancelled, 2 tokens, first after 2 ms]\n")

    def test_python_example_tells_refusals(self):
        refusal = {"type": "error", "code": "overloaded", "message": "the queue is full"}
        with Fake(submit=refusal) as fake:
            process = self.run_example(fake)
            _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertEqual(errors, b"refused: the queue is full (overloaded)\n")

    def test_python_example_without_a_coordinator(self):
        """A directory that was named is the only one: another coordinator would be the wrong one."""
        with Fake([([1], "Paris.")]) as fake, tempfile.TemporaryDirectory() as directory:
            os.symlink(fake.directory, os.path.join(directory, "tandem"))
            environment = {**self.environment, "XDG_RUNTIME_DIR": directory}
            environment.pop("TANDEM_RUN_DIR", None)
            found = subprocess.run(self.example, capture_output=True, check=False, env=environment)
            done = subprocess.run(self.example, capture_output=True, check=False,
                                  env={**environment, "TANDEM_RUN_DIR": directory})
        self.assertEqual((found.returncode, found.stderr), (0, b""))
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"start tandem-coordinator", done.stderr)

    def test_python_example_refuses_what_are_no_ids(self):
        for words in ([], ["1,x"], ["1,,2"]):
            done = subprocess.run([*self.example, "--ids", *words], capture_output=True, check=False,
                                  env=self.environment)
            self.assertEqual((done.returncode, done.stderr),
                             (1, b"usage: tandem_example.py --ids 1,2,3\n"))

    def test_wire_by_hand(self):
        names = {}
        exec(block("python"), names)  # the printed text itself is under test
        with Fake([([1], "so far")]) as fake:
            tandem = names["Tandem"](fake.directory)
            self.assertTrue(tandem.ask("health")["ready"])
            self.assertEqual(tandem.ask("submit", id="a", prompt="x")["type"], "accepted")
            news = tandem.ask("next", id="a", from_token=0, from_byte=0, max_wait_ms=100)
            self.assertEqual(news["text"], "so far")
            tandem.socket.close()

    def test_c_program(self):
        libraries = [os.path.join(BUILD, folder, f"libtandem_{folder}.a")
                     for folder in ("client", "proto", "common")]
        with Fake([([1], "Paris.")]) as fake, tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
            with open(source, "w", encoding="utf-8") as file:
                file.write(block("c"))
            subprocess.run([COMPILER, "-std=c11", "-Wall", "-Wextra", "-Werror", *C_FLAGS,
                            "-I", os.path.join(ROOT, "client"), source, "-o", program, *libraries,
                            *self.link_flags()], check=True)
            environment = {**os.environ, "TANDEM_RUN_DIR": fake.directory}
            done = subprocess.run([program], capture_output=True, timeout=30, check=False,
                                  env=environment)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"Paris.", b""))
            environment["TANDEM_RUN_DIR"] = folder
            done = subprocess.run([program], capture_output=True, timeout=30, check=False,
                                  env=environment)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"no coordinator runs in", done.stderr)

    @staticmethod
    def link_flags():
        """Those that the document names, without our own archives, which have paths here."""
        with open(os.path.join(ROOT, "docs", "CLIENT.md"), encoding="utf-8") as file:
            named = re.search(r"Link with `(.*)`", file.read()).group(1).split()
        return [flag for flag in named if "tandem" not in flag]


if __name__ == "__main__":
    BUILD, COMPILER = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1)
    if sys.argv[1:] and sys.argv[1].startswith("--sanitize="):
        C_FLAGS = ["-fsanitize=" + sys.argv.pop(1).split("=", 1)[1]]
    unittest.main(verbosity=1)
