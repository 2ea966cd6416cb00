#!/usr/bin/env python3
"""Prints the branch coverage of a build with gcc's counters, as gcov counts it.

Branches inside CHECK(...), DEBUG_CHECK(...) and static_assert(...) are left out: their other side is
a mistake of ours that ends the process.

usage: coverage.py BUILD MINIMUM [--missing]     run from the root; see tests/coverage.sh
"""
import collections
import glob
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile

# Name of a group, and its files as patterns below the root. The first group that matches counts.
GROUPS = [
    ("core", "coordinator/core_*.c coordinator/calls.c coordinator/orders.c coordinator/outbox.c "
             "coordinator/answers.c coordinator/flights.c coordinator/requests.c "
             "coordinator/request.c coordinator/admission.c coordinator/heap.c "
             "coordinator/suspicion.c coordinator/worker_state.c"),
    ("blocks", "coordinator/blocks.c coordinator/block_table.c coordinator/slots.c"),
    ("scheduler", "coordinator/scheduler.c coordinator/plan_writer.c"),
    ("proto", "proto/*.c"),
    ("model files", "common/gguf*.c common/json_input.c common/mapped_file.c common/model_*.c common/safetensors.c"),
]
ASSERTION = re.compile(r"\b(?:CHECK|DEBUG_CHECK|static_assert)\(")


def asserted_lines(path):
    """Numbers of the lines on which an assertion stands, to its closing parenthesis."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    lines = set()
    for match in ASSERTION.finditer(text):
        depth, at = 1, match.end()
        while depth > 0 and at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        lines.update(range(text.count("\n", 0, match.start()) + 1, text.count("\n", 0, at) + 2))
    return lines


def counted(build):
    """{file: {(line, index of the branch): times taken}} of everything that was run."""
    files = collections.defaultdict(dict)
    data = [os.path.abspath(p) for p in glob.glob(os.path.join(build, "**/*.gcda"), recursive=True)]
    with tempfile.TemporaryDirectory() as folder:
        # Long paths end in a hash: objects of the same name do not overwrite each other.
        subprocess.run(["gcov", "--json-format", "--branch-probabilities", "--hash-filenames", *data],
                       cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for path in glob.glob(os.path.join(folder, "*.gcov.json.gz")):
            with gzip.open(path) as file:
                add(files, json.load(file))
    return files


def add(files, report):
    root = os.getcwd() + "/"
    for entry in report["files"]:
        if not entry["file"].startswith(root):
            continue
        taken = files[entry["file"][len(root):]]
        for line in entry["lines"]:
            for index, branch in enumerate(line["branches"]):
                key = (line["line_number"], index)
                taken[key] = taken.get(key, 0) + branch["count"]


def judge(path, taken):
    """Branches that count, and those of them that were never taken."""
    skipped = asserted_lines(path)
    counting = {key: times for key, times in taken.items() if key[0] not in skipped}
    return counting, sorted(key for key, times in counting.items() if times == 0)


def show_missing(path, missed):
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number in sorted({line for line, _ in missed}):
        sides = sum(1 for line, _ in missed if line == number)
        print(f"    {path}:{number}: {sides} not taken: {lines[number - 1].strip()}")


def main():
    build, minimum, with_missing = sys.argv[1], float(sys.argv[2]), "--missing" in sys.argv
    files, failed, seen = counted(build), False, set()
    print(f"{'file':<34} {'branches':>8} {'taken':>8} {'share':>8}")
    for name, patterns in GROUPS:
        total = reached = 0
        paths = sorted({p for pattern in patterns.split() for p in glob.glob(pattern)} - seen)
        seen.update(paths)
        for path in paths:
            counting, missed = judge(path, files.get(path, {}))
            if not counting:
                continue
            total += len(counting)
            reached += len(counting) - len(missed)
            share = 100 * (1 - len(missed) / len(counting))
            print(f"{path:<34} {len(counting):>8} {len(counting) - len(missed):>8} {share:>7.1f}%")
            if with_missing:
                show_missing(path, missed)
        share = 100 * reached / total if total else 0
        failed = failed or share < minimum
        print(f"{'= ' + name:<34} {total:>8} {reached:>8} {share:>7.1f}%")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
