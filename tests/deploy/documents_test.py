#!/usr/bin/env python3
"""The sample configurations and the option tables of docs/OPERATIONS.md are what the programs print.

usage: documents_test.py ROOT BIN [--write]      --write brings the files up to date
"""
import os
import re
import subprocess
import sys
import unittest

WRITE = "--write" in sys.argv
ROOT, BIN = [os.path.abspath(argument) for argument in sys.argv[1:3]]
PROGRAMS = ("tandem-coordinator", "tandem-worker")


def output(*command):
    """What a program of the build prints, with no option set from outside."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("TANDEM_", "XDG_"))}
    return subprocess.run([os.path.join(BIN, command[0]), *command[1:]], check=True, text=True,
                          stdout=subprocess.PIPE, env=environment).stdout


class DocumentsTest(unittest.TestCase):
    maxDiff = None

    def compare(self, path, expected):
        full = os.path.join(ROOT, path)
        if WRITE:
            with open(full, "w", encoding="utf-8") as file:
                file.write(expected)
        with open(full, encoding="utf-8") as file:
            self.assertEqual(file.read(), expected, f"{path} is stale: run {__file__} with --write")

    def test_sample_configurations(self):
        for program in PROGRAMS:
            name = program[len("tandem-"):]
            self.compare(f"deploy/config/{name}.conf", output(program, "--print-config"))

    def test_sample_configurations_are_accepted(self):
        for program in PROGRAMS:
            name = program[len("tandem-"):]
            sample = os.path.join(ROOT, f"deploy/config/{name}.conf")
            output(program, "--config", sample, "--help")

    def test_option_tables(self):
        path = "docs/OPERATIONS.md"
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        for program in PROGRAMS:
            begin, end = f"<!-- options of {program} -->\n", "<!-- end of options -->"
            pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
            self.assertEqual(len(pattern.findall(text)), 1, begin)
            table = begin + output("print_options", program) + end
            text = pattern.sub(lambda _, table=table: table, text)
        self.compare(path, text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
