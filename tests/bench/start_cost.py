#!/usr/bin/env python3
"""From the start of both services to the first token, and the memory that the worker then holds.

usage: start_cost.py MODEL.gguf [RUNS] [OPTION of the worker...]

The file is read once before, so that it is in the page cache. Both services start at the same time with their own
defaults; the question is sent as soon as there is a socket. Printed per run: seconds to the coordinator's socket, to the
attached worker, to the first token; the worker's resident memory after the answer, its peak, and the bound: file, keys
and values of the answer's positions, 100 MB. TANDEM_BIN names the folder of the programs."""
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from tandem_harness import BIN, Client, wait_for  # noqa: E402

ALLOWANCE_BYTES = 100_000_000
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def status_bytes(pid, key):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def start(name, run_dir, model, log, options):
    return subprocess.Popen([os.path.join(BIN, f"tandem-{name}"), "--run-dir", run_dir, "--model", model, *options],
                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run_once(model, options):
    with tempfile.TemporaryDirectory(prefix="tandem-start-") as folder, open(folder + "/log", "w+") as log:
        run_dir, begin = folder + "/run", time.monotonic()
        processes = [start("coordinator", run_dir, model, log, []), start("worker", run_dir, model, log, options)]
        try:
            path = run_dir + "/client.ipc"
            wait_for(lambda: os.path.exists(path), 30, "the coordinator's socket")
            socket = time.monotonic() - begin
            client = Client(path)
            wait_for(lambda: "worker_attached" in open(folder + "/log").read(), 30, "an attached worker")
            attached = time.monotonic() - begin
            accepted = client.submit("first", messages=QUESTION, max_tokens=16)
            assert accepted["type"] == "accepted", accepted
            answer = client.follow("first", enough=1)
            first = answer.first_token_at - begin
            client.follow("first", answer)
            client.close()
            worker = processes[1].pid
            return socket, attached, first, status_bytes(worker, "VmRSS:"), status_bytes(worker, "VmHWM:")
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    model, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with open(model, "rb") as file:
        while file.read(1 << 24):
            pass
    bound = os.path.getsize(model) + ALLOWANCE_BYTES
    found = []
    for _ in range(runs):
        found.append(run_once(model, sys.argv[3:]))
        print("socket {:.2f} s, worker attached {:.2f} s, first token {:.2f} s; worker resident {:.1f} MB, peak {:.1f} MB"
              .format(*found[-1][:3], found[-1][3] / 1e6, found[-1][4] / 1e6), flush=True)
    middle = [statistics.median(values) for values in zip(*found)]
    print(f"median: first token {middle[2]:.2f} s (bound 1.5 s), resident {middle[3] / 1e6:.1f} MB, peak {middle[4] / 1e6:.1f} MB "
          f"(bound: file + pool used + 100 MB = {bound / 1e6:.1f} MB + pool used)")


if __name__ == "__main__":
    main()
