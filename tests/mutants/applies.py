#!/usr/bin/env python3
"""Each mutant still applies to the tree: its old text stands exactly once, its test is one of ctest's.

usage: applies.py ROOT BUILD
"""
import json
import os
import subprocess
import sys

import mutant


def known_tests(build):
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"],
                             capture_output=True, text=True, check=True).stdout
    return {test["name"] for test in json.loads(listing)["tests"]}


def main():
    root, build = sys.argv[1], sys.argv[2]
    mutants, troubles = mutant.read_all(os.path.join(root, "tests/mutants"))
    tests = known_tests(build)
    for one in mutants:
        trouble = one.trouble(root)
        if trouble is None and one.test not in tests:
            trouble = f"ctest knows no {one.test}"
        if trouble is not None:
            troubles.append(f"{one.source}: {one.name}: {trouble}")
    for trouble in troubles:
        print(trouble)
    print(f"{len(mutants)} mutants, {len(troubles)} do not apply")
    return 1 if troubles or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
