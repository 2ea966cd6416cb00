#!/usr/bin/env python3
"""The systemd units name users, exit codes and configuration that exist.

usage: units_test.py ROOT UNITS     UNITS: the folder of the configured units
"""
import os
import re
import sys
import unittest

ROOT, UNITS = sys.argv.pop(1), sys.argv.pop(1)
NAMES = ("tandem-coordinator", "tandem-worker")


def unit(name):
    with open(os.path.join(UNITS, name + ".service"), encoding="utf-8") as file:
        return file.read()


class UnitsTest(unittest.TestCase):
    def test_no_placeholder_is_left(self):
        for name in NAMES:
            self.assertNotIn("@CMAKE", unit(name))
            self.assertNotIn("@TANDEM", unit(name))

    def test_exit_codes_that_end_a_service_are_those_of_the_header(self):
        with open(os.path.join(ROOT, "common/exit_codes.h"), encoding="utf-8") as file:
            header = dict(re.findall(r"EXIT_CODE_(\w+) = (\d+)", file.read()))
        useless = {header[n] for n in ("USAGE", "NO_MODEL", "PERMISSION", "CONFIGURATION")}
        for name in NAMES:
            line = re.search(r"^RestartPreventExitStatus=(.*)$", unit(name), re.MULTILINE).group(1)
            self.assertEqual(set(line.split()), useless, name)

    def test_users_exist_in_sysusers(self):
        with open(os.path.join(ROOT, "deploy/systemd/tandem.sysusers"), encoding="utf-8") as file:
            users = set(re.findall(r"^u (\S+)", file.read(), re.MULTILINE))
        named = {re.search(r"^User=(.*)$", unit(name), re.MULTILINE).group(1)
                 for name in NAMES}
        self.assertEqual(named, users)
        self.assertIn("--worker-user tandem-worker", unit("tandem-coordinator"))

    def test_they_are_supervised(self):
        for name in NAMES:
            for line in ("Type=notify", "Restart=always", "StartLimitIntervalSec=0"):
                self.assertIn(line + "\n", unit(name))
            self.assertRegex(unit(name), r"\nWatchdogSec=\d+s\n")


if __name__ == "__main__":
    unittest.main()
