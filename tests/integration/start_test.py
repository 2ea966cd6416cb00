"""Everything that can be wrong before a service serves: one sentence that says what to do, and an exit code."""
import os
import signal
import subprocess
import tempfile

from tandem_harness import (BIN, EXIT_CONFIGURATION, EXIT_NO_MODEL, EXIT_PERMISSION, EXIT_SYSTEM,
                            EXIT_USAGE, TandemTest, main, model_path)

PROGRAMS = ("tandem-coordinator", "tandem-worker")
NOBODY = 65534


def run(program, *options, prefix=(), environment=None):
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith("TANDEM_") and key != "XDG_RUNTIME_DIR"}
    clean.update(environment or {})
    done = subprocess.run([*prefix, os.path.join(BIN, program), *options], env=clean, timeout=60,
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Start(TandemTest):
    def assert_sentence(self, outcome, code, *words):
        exit_code, _, errors = outcome
        self.assertEqual(exit_code, code, errors)
        sentences = [line for line in errors.splitlines() if not line.startswith("t=")]
        self.assertEqual(len(sentences), 1, errors)
        for word in words:
            self.assertIn(word, sentences[0])

    def test_help_version_and_sample(self):
        for program in PROGRAMS:
            code, output, _ = run(program, "--help")
            self.assertEqual(code, 0)
            self.assertIn("--kv-pool-bytes", output)
            code, output, _ = run(program, "--version")
            self.assertEqual((code, output.split()[0]), (0, program))
            code, output, _ = run(program, "--print-config")
            self.assertEqual(code, 0)
            self.assertIn("#kv-pool-bytes = 2G", output)

    def test_check_prints_what_the_options_lead_to(self):
        fingerprints = set()
        for program in PROGRAMS:
            code, output, errors = run(program, "--check", "--model", model_path("tiny"),
                                       "--run-dir", self.system.run_dir, "--kv-pool-bytes=64M",
                                       environment={"TANDEM_SLOTS": "8"})
            self.assertEqual(code, 0, errors)
            self.assertIn("kv-pool-bytes = 64M  (command line)", output)
            self.assertIn("slots = 8  (environment)", output)
            self.assertIn("8 slots, context 4096", output)
            fingerprints.add(next(line.split()[-1] for line in output.splitlines()
                                  if line.startswith("layout fingerprint")))
            self.assertFalse(os.path.exists(self.system.run_dir))
        self.assertEqual(len(fingerprints), 1)

    def test_wrong_options(self):
        model = ("--model", model_path("tiny"))
        for program in PROGRAMS:
            self.assert_sentence(run(program), EXIT_USAGE, "--model")
            self.assert_sentence(run(program, *model, "--slots", "0"), EXIT_USAGE, "--slots",
                                 '"0"', "1 to 1024")
            self.assert_sentence(run(program, *model, "--slot", "1"), EXIT_USAGE, "--slot")
            self.assert_sentence(run(program, *model, "--context", "5000"), EXIT_USAGE,
                                 "--context", "5000", "4096")
            self.assert_sentence(run(program, *model, "--block-tokens", "20", "--check"),
                                 EXIT_USAGE, "--block-tokens", "20", "multiple of 8")
            self.assert_sentence(run(program, "--model", "two\nlines"), EXIT_USAGE, "--model",
                                 r'"two\x0alines"', "control character")
            self.assert_sentence(run(program, *model, "--run-dir", "/tmp/" + "d" * 90),
                                 EXIT_USAGE, "--run-dir", "too long")

    def test_missing_and_damaged_model(self):
        with tempfile.NamedTemporaryFile() as damaged:
            with open(model_path("tiny"), "rb") as file:
                damaged.write(file.read(100000))
            damaged.flush()
            for program in PROGRAMS:
                run_dir = ("--run-dir", self.system.run_dir)
                self.assert_sentence(run(program, *run_dir, "--model", "/nonexistent.gguf"),
                                     EXIT_NO_MODEL, "/nonexistent.gguf")
                self.assert_sentence(run(program, *run_dir, "--model", damaged.name),
                                     EXIT_NO_MODEL)

    def test_busy_run_directory(self):
        first = self.system.start_coordinator()
        outcome = run("tandem-coordinator", "--model", model_path("tiny"), "--run-dir",
                      self.system.run_dir)
        self.assert_sentence(outcome, EXIT_CONFIGURATION, str(first.pid), "--run-dir")
        # The first one was not harmed by the second.
        self.assertTrue(self.system.client().ask(type="health")["live"])
        first.kill()
        self.system.start_coordinator()  # a lock dies with its owner; old sockets are removed
        self.assertTrue(self.system.client().ask(type="health")["live"])

    def test_run_directory_that_cannot_be_used(self):
        options = ("--model", model_path("tiny"), "--run-dir")
        self.assert_sentence(run("tandem-coordinator", *options, "/nonexistent/a/b"), EXIT_SYSTEM,
                             "/nonexistent/a/b", "--run-dir")
        self.assert_sentence(run("tandem-coordinator", *options, model_path("tiny")), EXIT_SYSTEM,
                             "no directory")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            self.assert_sentence(run("tandem-coordinator", *options, folder), EXIT_PERMISSION,
                                 "0777", "chmod")

    def test_run_directory_of_another_user(self):
        if os.getuid() != 0:
            self.assert_sentence(run("tandem-coordinator", "--model", model_path("tiny"),
                                     "--run-dir", "/root-only-tandem"), EXIT_PERMISSION)
            return
        os.chmod(self.system.folder, 0o755)
        program = os.path.join(self.system.folder, "tandem-coordinator")
        model = os.path.join(self.system.folder, "tiny.gguf")
        for source, target in ((os.path.join(BIN, "tandem-coordinator"), program),
                               (model_path("tiny"), model)):
            with open(source, "rb") as file, open(target, "wb") as copy:
                copy.write(file.read())
            os.chmod(target, 0o755)
        prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        outcome = run(program, "--model", model, "--run-dir", self.system.run_dir, prefix=prefix)
        self.assert_sentence(outcome, EXIT_PERMISSION, self.system.run_dir, "--run-dir")

    def test_modes_of_directory_and_sockets(self):
        coordinator = self.system.start_coordinator()
        modes = {name: os.stat(os.path.join(self.system.run_dir, name)).st_mode & 0o7777
                 for name in ("", "client.ipc", "attach.sock")}
        self.assertEqual(modes, {"": 0o711, "client.ipc": 0o660, "attach.sock": 0o660})
        coordinator.send(signal.SIGINT)
        self.assertEqual(coordinator.exit_code(5), 0)

    def test_signal_while_loading(self):
        worker = self.system.start_worker(wait=False)
        worker.send(signal.SIGTERM)
        self.assertIn(worker.exit_code(10), (0, -signal.SIGTERM))  # before main blocked it


if __name__ == "__main__":
    main()
