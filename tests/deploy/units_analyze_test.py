#!/usr/bin/env python3
"""What systemd-analyze says of the units: valid, and as confined as before.

usage: units_analyze_test.py ROOT UNITS SYSTEMD-ANALYZE
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

UNITS, ANALYZE = sys.argv[2], sys.argv[3]
# Exposure, 0 (best) to 10: no setting may be lost unnoticed.
EXPOSURE_MAX = {"tandem-coordinator": 1.0, "tandem-worker": 1.5}


class UnitsAnalyzeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-units-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in EXPOSURE_MAX:
            with open(os.path.join(UNITS, name + ".service"), encoding="utf-8") as file:
                # The programs are not installed here; `verify` wants an executable.
                text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", file.read(),
                              flags=re.MULTILINE)
            with open(os.path.join(self.folder, name + ".service"), "w", encoding="utf-8") as file:
                file.write(text)

    def analyze(self, *arguments):
        return subprocess.run([ANALYZE, *arguments], cwd=self.folder, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_verify_has_no_complaint(self):
        result = self.analyze("verify", *[f"./{name}.service" for name in EXPOSURE_MAX])
        ours = [line for line in result.stdout.split("\n") if "tandem" in line]
        self.assertEqual((result.returncode, ours), (0, []), result.stdout)

    def test_exposure(self):
        for name, bound in EXPOSURE_MAX.items():
            result = self.analyze("security", "--offline=true", "--no-pager", f"./{name}.service")
            found = re.search(r"Overall exposure level for \S+ ([\d.]+)", result.stdout)
            self.assertIsNotNone(found, result.stdout)
            self.assertLessEqual(float(found.group(1)), bound, name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
