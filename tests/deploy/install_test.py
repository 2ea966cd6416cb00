#!/usr/bin/env python3
"""The install target is complete: programs that start, units that name them, a client library that links.

usage: install_test.py ROOT BUILD COMPILER
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT, BUILD, COMPILER = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)

PROGRAM = """
#include <tandem.h>
#include <stdio.h>

int main(void)
{
    struct tandem_settings settings = {.run_dir = "/nowhere"};
    struct tandem *tandem;
    struct tandem_error error;
    enum tandem_result result = tandem_open(&settings, &tandem, &error);
    puts(error.code);
    return result == TANDEM_UNAVAILABLE ? 0 : 1;
}
"""


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="tandem-install-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = cls.folder.name
        subprocess.run(["cmake", "--install", BUILD], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "DESTDIR": cls.root})
        cls.files = [os.path.join(folder, name)[len(cls.root):]
                     for folder, _, names in os.walk(cls.root) for name in names]

    def path(self, ending):
        """The one installed file with this ending."""
        found = [name for name in self.files if name.endswith(ending)]
        self.assertEqual(len(found), 1, f"{ending}: {found}")
        return found[0]

    def read(self, ending):
        with open(self.root + self.path(ending), encoding="utf-8") as file:
            return file.read()

    def test_programs_start(self):
        for name in ("tandem", "tandem-coordinator", "tandem-worker"):
            result = subprocess.run([self.root + self.path("/bin/" + name), "--version"], text=True,
                                    capture_output=True, check=True)
            self.assertRegex(result.stdout, name + r" \d+\.\d+\.\d+")

    def test_units_name_installed_files(self):
        for name in ("coordinator", "worker"):
            unit = self.read(f"/tandem-{name}.service")
            program = re.search(r"^ExecStart=(\S+) --config (\S+)", unit, re.MULTILINE)
            self.assertIn(program.group(1), self.files)
            self.assertIn(program.group(2), self.files)
            document = re.search(r"^Documentation=file:(\S+)", unit, re.MULTILINE)
            self.assertIn(document.group(1), self.files)

    def test_nothing_of_the_tests_is_installed(self):
        self.assertEqual([name for name in self.files if "test" in name or "fault" in name], [])

    def test_a_program_links_the_client_library(self):
        environment = {**os.environ, "PKG_CONFIG_SYSROOT_DIR": self.root, "PKG_CONFIG_PATH":
                       os.path.dirname(self.root + self.path("/tandem.pc"))}
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "tandem"], env=environment,
                               text=True, capture_output=True, check=True).stdout.split()
        source, program = os.path.join(self.root, "a.c"), os.path.join(self.root, "a.out")
        with open(source, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        subprocess.run([COMPILER, "-Wall", "-Werror", source, "-o", program, *flags], check=True)
        result = subprocess.run([program], text=True, capture_output=True, check=False)
        self.assertEqual((result.returncode, result.stdout), (0, "unavailable\n"))


if __name__ == "__main__":
    unittest.main()
