#!/usr/bin/env python3
"""Our CPU backend beside llama.cpp's on the same files with the same threads; called by cpu_vs_llamacpp.sh.

For each round, file and workload: probes of the machine, then both programs, in an order that changes from round to
round. Printed are medians of tokens per second, the median of the rounds' ratios, and two shares of what the probe of
the same round could do:

  share     one stream: bytes of weights, keys and values over the rate at which a buffer as large as the weights is
            read again and again (`again`; `read` is that of 256 MiB, which only large caches tell apart). Prompts and
            batches: the products with weights over the peak of their type (integer, bf16, fp32), as if nothing else
            were computed.
  composed  prompts and batches: the time that the probes' peaks allow for all products, over the time taken: those
            with weights at the peak of their type, lm_head's at that of its own, and those of the attention, which is
            fp32 by contract, at the fp32 peak. Norms, rounding, SiLU, softmax and sampling count as nothing.

The streams of a batch have a prompt each on both sides; --shared-prompt yes makes llama.cpp's share one (-pps), which spares
it most of the reading of keys and values. --results keeps the rounds in a file to which later calls add theirs, so that a
long comparison may run in short pieces: the tables printed are of all rounds in the file; --rounds 0 measures nothing.
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
PROBE = re.compile(r"^probe: read ([0-9.]+) GB/s, again ([0-9.]+) GB/s, integer ([0-9.]+) GMAC/s, "
                   r"fp32 ([0-9.]+) GMAC/s, bf16 ([0-9.]+) GMAC/s", re.MULTILINE)
START_SECONDS = 30


def llama_command(options, path, workload):
    """The command, and the field of its lines of JSON that holds the rate."""
    folder, threads = options.llama, options.threads
    bench = [f"{folder}/llama-bench", "-m", path, "-t", str(threads), "-r", "1", "-o", "jsonl"]
    if workload.startswith("pp"):
        return bench + ["-p", workload[2:], "-n", "0"], "avg_ts"
    if workload.startswith("tg"):
        count, _, depth = workload[2:].partition("@")
        return bench + ["-p", "0", "-n", count, "-d", depth or "0"], "avg_ts"
    streams = int(workload[1:])
    return [f"{folder}/llama-batched-bench", "-m", path, "-t", str(threads), "-tb", str(threads), "-c",
            str(streams * 256), "-b", "2048", "-ub", "512", "-npp", "128", "-ntg", "64", "-npl", str(streams),
            "--output-format", "jsonl", *(["-pps"] if options.shared_prompt == "yes" else [])], "speed_tg"


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
    theirs, _ = llama_command(options, path, workload)
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
        _, field = llama_command(options, path, workload)
        found[workload] = {
            "probe": [max(values) for values in zip(*probes)],
            "ours": float(dict(RATE.findall(ours))[workload]),
            "llama": float(next(json.loads(line)[field] for line in lines[f"llama-{workload}"] if field in line))}
        if options.client:
            client = "\n".join(lines[f"client-{workload}"])
            found[workload]["client"] = float(dict(RATE.findall(client))[workload])
    return found


def keys_of(workload):
    """Keys that a token of the workload sees in the mean."""
    if workload.startswith("pp"):
        return (int(workload[2:]) + 1) / 2
    if workload.startswith("tg"):
        count, _, depth = workload[2:].partition("@")
        return int(depth or 0) + (int(count) + 1) / 2
    return 128 + (64 + 1) / 2


def shares(found, workload, costs):
    """Our parts of the limits of the same round: the plain one and the composed one."""
    _, again, integer, fp32, bf16 = (value * 1e9 for value in found["probe"])
    peaks = (fp32, integer, bf16)  # by enum activation_form
    if workload.startswith("tg"):
        part = found["ours"] * (costs["bytes"] + costs["kv_bytes"] * keys_of(workload)) / again
        return part, part
    head = 0 if workload.startswith("pp") else costs["head_macs"]
    layers = costs["macs"] - costs["head_macs"]
    peak, head_peak = (peaks[int(costs[key])] for key in ("form", "head_form"))
    attention = costs["attention_macs"] * keys_of(workload)
    return (found["ours"] * (layers + head) / peak,
            found["ours"] * (layers / peak + head / head_peak + attention / fp32))


def costs_of(options, path):
    """What model_bench knows of a file: bytes that a token reads, products that it takes."""
    output = run([f"{options.programs}/model_bench", path, "costs"], [])
    return {key: float(value) for key, value in re.findall(r"([a-z_]+)=([0-9.]+)", output)}


def print_table(path, workloads, rounds, costs):
    workloads = [workload for workload in workloads if rounds[workload]]
    print(f"\n{os.path.basename(path)}: medians of the rounds in the last column")
    client = any("client" in f for found in rounds.values() for f in found)
    print(f"{'workload':10} {'llama.cpp':>10} {'ours':>10} {'ratio':>7} {'least':>7} {'share':>7}"
          f" {'composed':>8} {'n':>3}"
          + (f" {'client':>10} {'ratio':>7}" if client else ""))
    for workload in workloads:
        found = rounds[workload]
        middle = {key: statistics.median(f[key] for f in found) for key in found[0] if key in ("ours", "llama")}
        ratios = [f["ours"] / f["llama"] for f in found]
        plain, composed = (statistics.median(values) for values in zip(*(shares(f, workload, costs) for f in found)))
        line = (f"{workload:10} {middle['llama']:10.1f} {middle['ours']:10.1f} {statistics.median(ratios):6.2f}x"
                f" {min(ratios):6.2f}x {plain:7.0%} {composed:8.0%} {len(found):3}")
        seen = [f for f in found if "client" in f]
        if seen:
            line += (f" {statistics.median(f['client'] for f in seen):10.1f}"
                     f" {statistics.median(f['client'] / f['llama'] for f in seen):6.2f}x")
        print(line)
    probes = [f["probe"] for found in rounds.values() for f in found]
    print("probes: read {:.1f} GB/s, again {:.1f} GB/s, integer {:.1f} GMAC/s, fp32 {:.1f} GMAC/s, bf16 {:.1f} GMAC/s"
          .format(*(statistics.median(values) for values in zip(*probes))), flush=True)


class Results:
    """Rounds of all calls that used the same file: {model file: {workload: [found]}}."""

    def __init__(self, path):
        self.path, self.rounds = path, {}
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as lines:
                for line in lines:
                    self.keep(*json.loads(line))

    def keep(self, name, workload, found):
        self.rounds.setdefault(name, {}).setdefault(workload, []).append(found)

    def add(self, name, workload, found):
        self.keep(name, workload, found)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as lines:
                lines.write(json.dumps([name, workload, found]) + "\n")

    def of(self, name, workloads):
        return {workload: self.rounds.get(name, {}).get(workload, []) for workload in workloads}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--programs", default=f"{TREE}/build/release/bin", help="folder of ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="a list with commas")
    parser.add_argument("--client", choices=("yes", "no"), default="yes", help="the clients' view as well")
    parser.add_argument("--shared-prompt", choices=("yes", "no"), default="no",
                        help="llama.cpp's streams share their prompt (-pps)")
    parser.add_argument("--results", default="", help="file of rounds, read first and added to")
    parser.add_argument("--around", default="", help="a command put before each round, as taskset is")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    options.client, options.around = options.client == "yes", shlex.split(options.around)
    workloads = options.workloads.split(",")
    results = Results(options.results)
    for path in options.files:
        name = os.path.basename(path)
        costs = costs_of(options, path)
        options.vocabulary = int(costs["vocabulary"])
        done = max(len(found) for found in results.of(name, workloads).values())
        pair = Pair(options.programs, path, options.threads) if options.client and options.rounds else None
        try:
            if pair:
                options.run_dir = pair.folder.name + "/run"
            for turn in range(done, done + options.rounds):
                for workload, found in measure(options, path, workloads, turn).items():
                    results.add(name, workload, found)
        finally:
            if pair:
                pair.close()
        print_table(path, workloads, results.of(name, workloads), costs)


if __name__ == "__main__":
    main()
