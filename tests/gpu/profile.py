#!/usr/bin/env python3
"""Time of every kernel of the steps that gpu_step_bench marks, out of the CSV of ncu: one table for each step.

usage: ncu --csv --clock-control none --profile-from-start off --metrics gpu__time_duration.sum \
           gpu_step_bench profile 64:1024 256:256 | profile.py
Kernels of one name and grid are one line: calls, us of all calls, share. ncu runs kernels one by one, so what overlaps
in a step does not overlap here.
"""
import csv
import re
import sys


def short(name):
    """Without arguments and name spaces; the library's kernels keep what tells them apart."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|void ", "", name)
    return re.sub(r"\(.*", "", name)[:60]


def main():
    lines = [line for line in sys.stdin if line.startswith('"')]
    steps = []
    for row in csv.DictReader(lines):
        name = short(row["Kernel Name"])
        if name.startswith("begin_kernel"):
            steps.append({})
        if not steps:
            continue
        unit = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3}
        time = float(row["Metric Value"].replace(",", "")) * unit[row["Metric Unit"]]
        entry = steps[-1].setdefault((name, row.get("Grid Size", "")), [0, 0.0])
        entry[0] += 1
        entry[1] += time
    if not steps:
        sys.exit("profile: no kernel in the input")
    for number, kernels in enumerate(steps, 1):
        total = sum(time for _, time in kernels.values())
        print(f"step {number}: {sum(calls for calls, _ in kernels.values())} kernels, {total:.0f} us one by one")
        for (name, grid), (calls, time) in sorted(kernels.items(), key=lambda item: -item[1][1]):
            print(f"  {time:8.1f} us {time / total * 100:5.1f} %  {calls:4} x {time / calls:7.1f}  {name} {grid}")


if __name__ == "__main__":
    main()
