#!/usr/bin/env python3
"""Applies each mutant to a copy of the tree, builds the test that must notice, and expects it to fail.

usage: run.py [--build DIRECTORY] [--list LIST] [--match TEXT] [--names]
  --build      where copy and build stay between runs (default build/mutants)
  --list       only mutants of this list, such as coordinator.txt
  --match      only mutants whose name contains this text
  --names      tell which there are and which test has to notice each; nothing is run
A mutant is caught when its test fails or the compiler refuses it; the unchanged copy must pass first.
Exit 0: every mutant was caught.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time

import mutant

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
TEST_SECONDS_MAX = 300


def copy_tree(target):
    """Brings the copy up to date. Only files that differ are written: the build stays incremental."""
    kept = set()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in ("build", ".git", ".gpu", "__pycache__")]
        for name in names:
            source = os.path.join(folder, name)
            path = os.path.relpath(source, ROOT)
            kept.add(path)
            copied = os.path.join(target, path)
            os.makedirs(os.path.dirname(copied), exist_ok=True)
            with open(source, "rb") as file:
                content = file.read()
            if not os.path.exists(copied) or open(copied, "rb").read() != content:
                with open(copied, "wb") as file:
                    file.write(content)
                shutil.copymode(source, copied)
    for folder, _, names in os.walk(target):
        for name in names:
            if os.path.relpath(os.path.join(folder, name), target) not in kept:
                os.unlink(os.path.join(folder, name))


class Copy:
    """A copy of the tree with its build directory."""

    def __init__(self, folder):
        self.tree, self.build = os.path.join(folder, "tree"), os.path.join(folder, "build")
        os.makedirs(self.tree, exist_ok=True)
        copy_tree(self.tree)
        subprocess.run(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DTANDEM_CUDA=OFF",
                        "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=subprocess.DEVNULL)
        self.commands = self.read_commands()

    def read_commands(self):
        """{test: words of its command line}, from the files that CMake writes: before the first build ctest
        itself does not tell."""
        commands = {}
        for folder, _, names in os.walk(self.build):
            if "CTestTestfile.cmake" in names:
                with open(os.path.join(folder, "CTestTestfile.cmake"), encoding="utf-8") as file:
                    for match in re.finditer(r"^add_test\((\S+) (.*)\)$", file.read(), re.MULTILINE):
                        name = re.sub(r'^(\[=\[|")|(\]=\]|")$', "", match.group(1))
                        commands[name] = re.findall(r'"([^"]*)"', match.group(2))
        return commands

    def targets(self, test):
        """What to build for a test: each program of this build that its command line names; all when none
        is (a test that starts the services)."""
        prefix = self.build + os.sep
        programs = [os.path.basename(word) for word in self.commands[test]
                    if word.startswith(prefix) and os.path.basename(word) and not os.path.isdir(word)]
        return programs or ["all"]

    def compile(self, test):
        return subprocess.run(["ninja", "-C", self.build, *self.targets(test)],
                              capture_output=True, text=True, check=False)

    def passes(self, test):
        """(whether the test passes, seconds)"""
        began = time.monotonic()
        result = subprocess.run(
            ["ctest", "--test-dir", self.build, "-R", f"^{test.replace('.', '[.]')}$",
             "--no-tests=error", "--timeout", str(TEST_SECONDS_MAX)],
            capture_output=True, text=True, check=False)
        return result.returncode == 0, time.monotonic() - began


def judge(copy, one):
    """(verdict, seconds) of one mutant; the copy is unchanged again afterwards."""
    trouble = one.trouble(copy.tree)
    if trouble is not None or one.test not in copy.commands:
        return trouble or f"ctest knows no {one.test}", 0.0
    before = one.apply(copy.tree)
    try:
        compiled = copy.compile(one.test)
        if compiled.returncode != 0:
            return "caught by the compiler", 0.0
        passed, seconds = copy.passes(one.test)
        return ("SURVIVED" if passed else "caught"), seconds
    finally:
        with open(os.path.join(copy.tree, one.file), "w", encoding="utf-8") as file:
            file.write(before)


def unchanged_passes(copy, tests):
    """The tests pass without a mutant; otherwise their failure would prove nothing."""
    for test in sorted(tests & set(copy.commands)):
        compiled = copy.compile(test)
        if compiled.returncode != 0:
            print(compiled.stdout[-2000:])
            print(f"{test} does not build without a mutant")
            return False
        if not copy.passes(test)[0]:
            print(f"{test} fails without a mutant")
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description="every mutant must be caught by its test")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "mutants"))
    parser.add_argument("--list")
    parser.add_argument("--match", default="")
    parser.add_argument("--names", action="store_true")
    arguments = parser.parse_args()
    mutants, troubles = mutant.read_all(os.path.join(ROOT, "tests", "mutants"))
    mutants = [m for m in mutants if arguments.list in (None, m.source)
               and arguments.match in m.name]
    if troubles or not mutants:
        print("\n".join(troubles) or "no such mutant")
        return 1
    if arguments.names:
        for one in mutants:
            print(f"{one.file:36} {one.name}  [{one.test}]")
        print(f"{len(mutants)} mutants")
        return 0
    copy = Copy(os.path.abspath(arguments.build))
    if not unchanged_passes(copy, {m.test for m in mutants}):
        return 1
    missed = 0
    for one in mutants:
        verdict, seconds = judge(copy, one)
        missed += not verdict.startswith("caught")
        print(f"{verdict:24} {seconds:6.1f} s  {one.file:36} {one.name}  [{one.test}]", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} mutants caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
