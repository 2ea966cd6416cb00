#!/usr/bin/env python3
"""Our CPU backend beside llama.cpp's on the same files with the same threads; called by cpu_vs_llamacpp.sh.

For each round, file and workload: probes of the machine, then both programs, in an order that changes from round to
round. Printed are medians of tokens per second, the median of the rounds' ratios, and our share of what the probe of
the same round could do: of the read bandwidth for one stream, of the integer peak for many rows.

llama.cpp's streams of a batch share their prompt (-pps), which spares it reading 128 positions per stream; ours do not.
`ours` is the worker's own step rate (model_bench: layers and sampler, no socket); `client` is what clients of the two
services see (client_bench), with the coordinator and the clients on the same processors.
"""
import argparse
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TREE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
WORKLOADS = ("tg128", "tg64@1024", "pp512", "b8", "b32")
RATE = re.compile(r"^(\S+) +([0-9.]+) tok/s", re.MULTILINE)
PROBE = re.compile(r"^probe: read ([0-9.]+) GB/s, integer ([0-9.]+) GMAC/s, fp32 ([0-9.]+) GMAC/s", re.MULTILINE)
START_SECONDS = 30


def llama_command(folder, path, workload, threads):
    """The command, and the field of its lines of JSON that holds the rate."""
    bench = [f"{folder}/llama-bench", "-m", path, "-t", str(threads), "-r", "1", "-o", "jsonl"]
    if workload.startswith("pp"):
        return bench + ["-p", workload[2:], "-n", "0"], "avg_ts"
    if workload.startswith("tg"):
        count, _, depth = workload[2:].partition("@")
        return bench + ["-p", "0", "-n", count, "-d", depth or "0"], "avg_ts"
    streams = int(workload[1:])
    return [f"{folder}/llama-batched-bench", "-m", path, "-t", str(threads), "-tb", str(threads), "-c",
            str(streams * 256), "-b", "2048", "-ub", "512", "-npp", "128", "-ntg", "64", "-npl", str(streams), "-pps",
            "--output-format", "jsonl"], "speed_tg"


def run(command, around):
    result = subprocess.run(around + command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nended with {result.returncode}:\n{result.stderr[-2000:]}")
    return result.stdout


class Pair:
    """Coordinator and worker on a file, for the clients' view."""

    def __init__(self, programs, path, threads):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-bench-")
        self.log = open(os.path.join(self.folder.name, "log"), "w+", encoding="utf-8")
        base = ["--run-dir", self.folder.name + "/run", "--model", path, "--kv-pool-bytes", "512M", "--context", "2048"]
        self.processes = []
        for name, options in (("coordinator", []), ("worker", ["--threads", str(threads), "--backend", "cpu"])):
            self.processes.append(subprocess.Popen([f"{programs}/tandem-{name}", *base, *options], stdout=self.log,
                                                   stderr=self.log, stdin=subprocess.DEVNULL))
            self.wait("coordinator_ready" if name == "coordinator" else "worker_attached")

    def wait(self, event):
        end = time.monotonic() + START_SECONDS
        while event not in open(self.log.name, encoding="utf-8").read():
            if time.monotonic() > end:
                sys.exit(f"{event} did not come:\n" + open(self.log.name, encoding="utf-8").read())
            time.sleep(0.02)

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait()
        self.log.close()
        self.folder.cleanup()


def commands(options, path, workload, turn):
    """What one round of a workload runs, each with its key in front of the lines that it prints."""
    ours = [f"{options.programs}/model_bench", path, f"--threads={options.threads}", "probe", workload, "probe"]
    theirs, _ = llama_command(options.llama, path, workload, options.threads)
    script = [(f"ours-{workload}", shlex.join(ours)), (f"llama-{workload}", f"{shlex.join(theirs)} 2>/dev/null")]
    if turn % 2:
        script.reverse()
    if options.client:
        client = f"{options.programs}/client_bench {options.run_dir} {options.vocabulary} {workload}"
        script.append((f"client-{workload}", client))
    return [f"{command} | sed 's/^/{key} /'" for key, command in script]


def measure(options, path, workloads, turn):
    """One round: {workload: {probe, ours, llama[, client]}}."""
    script = [command for workload in workloads for command in commands(options, path, workload, turn)]
    output = run(["bash", "-c", "set -e -o pipefail; " + "; ".join(script)], options.around)
    lines = {}
    for line in output.split("\n"):
        key, _, rest = line.partition(" ")
        lines.setdefault(key, []).append(rest)
    found = {}
    for workload in workloads:
        ours = "\n".join(lines[f"ours-{workload}"])
        probes = [[float(value) for value in probe] for probe in PROBE.findall(ours)]
        _, field = llama_command(options.llama, path, workload, options.threads)
        found[workload] = {
            "probe": [max(values) for values in zip(*probes)],
            "ours": float(dict(RATE.findall(ours))[workload]),
            "llama": float(next(json.loads(line)[field] for line in lines[f"llama-{workload}"] if field in line))}
        if options.client:
            client = "\n".join(lines[f"client-{workload}"])
            found[workload]["client"] = float(dict(RATE.findall(client))[workload])
    return found


def share(found, workload, costs):
    """Our part of the limit of the same round."""
    if workload.startswith("tg") and "@" not in workload:
        return found["ours"] * costs["bytes"] / (found["probe"][0] * 1e9)
    if workload.startswith("tg"):
        return found["ours"] * (costs["bytes"] + costs["kv_bytes"] * 1056) / (found["probe"][0] * 1e9)
    macs = costs["macs"] - (costs["head_macs"] if workload.startswith("pp") else 0)
    return found["ours"] * macs / (found["probe"][2 if costs["float"] else 1] * 1e9)


def costs_of(options, path):
    """What model_bench knows of a file: bytes that a token reads, products that it takes."""
    output = run([f"{options.programs}/model_bench", path, "costs"], [])
    return {key: float(value) for key, value in re.findall(r"([a-z_]+)=([0-9.]+)", output)}


def print_table(path, workloads, rounds, costs):
    print(f"\n{os.path.basename(path)}: medians of {len(rounds[workloads[0]])} rounds")
    client = "client" in rounds[workloads[0]][0]
    print(f"{'workload':10} {'llama.cpp':>10} {'ours':>10} {'ratio':>7} {'least':>7} {'share':>7}"
          + (f" {'client':>10} {'ratio':>7}" if client else ""))
    for workload in workloads:
        found = rounds[workload]
        middle = {key: statistics.median(f[key] for f in found) for key in found[0] if key != "probe"}
        ratios = [f["ours"] / f["llama"] for f in found]
        shares = statistics.median(share(f, workload, costs) for f in found)
        line = (f"{workload:10} {middle['llama']:10.1f} {middle['ours']:10.1f} {statistics.median(ratios):6.2f}x"
                f" {min(ratios):6.2f}x {shares:7.0%}")
        if client:
            line += f" {middle['client']:10.1f} {statistics.median(f['client'] / f['llama'] for f in found):6.2f}x"
        print(line)
    probes = [f["probe"] for found in rounds.values() for f in found]
    print("probes: read {:.1f} GB/s, integer {:.1f} GMAC/s, fp32 {:.1f} GMAC/s".format(
        *(statistics.median(values) for values in zip(*probes))), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--programs", default=f"{TREE}/build/release/bin", help="folder of ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="a list with commas")
    parser.add_argument("--client", choices=("yes", "no"), default="yes", help="the clients' view as well")
    parser.add_argument("--around", default="", help="a command put before each round, as taskset is")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    options.client, options.around = options.client == "yes", shlex.split(options.around)
    workloads = options.workloads.split(",")
    for path in options.files:
        costs = costs_of(options, path)
        options.vocabulary = int(costs["vocabulary"])
        rounds = {workload: [] for workload in workloads}
        pair = Pair(options.programs, path, options.threads) if options.client else None
        try:
            if pair:
                options.run_dir = pair.folder.name + "/run"
            for turn in range(options.rounds):
                for workload, found in measure(options, path, workloads, turn).items():
                    rounds[workload].append(found)
        finally:
            if pair:
                pair.close()
        print_table(path, workloads, rounds, costs)


if __name__ == "__main__":
    main()
