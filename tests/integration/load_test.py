"""Many streams at once for long: every answer has the bits of its solo run, and afterwards both processes are as
idle and as small as before. usage: load_test.py [--model PATH] [--requests N] [--streams N]"""
import argparse
import concurrent.futures
import os
import random
import sys
import time

import tandem_harness
from tandem_harness import TandemTest, main, wait_for

SHAPES = 40  # different requests; each is run alone once and then many times among others
IDLE_SECONDS, IDLE_CPU_MS, GROWTH_BYTES = 10, 20, 16 * 1024 * 1024
settings = argparse.Namespace(model=None, requests=1000, streams=64, longest=700)


def shape(number):
    chance = random.Random(number)
    count = int(settings.longest ** chance.random())  # many short ones, some long ones
    fields = dict(ids=[chance.randrange(100, 40000) for _ in range(count)],
                  max_tokens=chance.randrange(1, 60), ignore_eos=chance.random() < 0.5)
    if chance.random() < 0.5:
        fields.update(temperature=chance.uniform(0.2, 1.5), seed=number,
                      top_k=chance.choice([0, 1, 40]), top_p=chance.choice([1.0, 0.9]))
    return fields


class Load(TandemTest):
    def run_many(self, prefix, numbers, streams):
        """Outcomes of the shapes `numbers`, at most `streams` at a time."""
        def one(item):
            place, number = item
            client = self.system.client()
            try:
                return client.generate(f"{prefix}-{place}", seconds=600, **shape(number)).outcome()
            finally:
                client.close()
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            return list(pool.map(one, enumerate(numbers)))

    def settle(self):
        def idle():
            stats = self.system.stats()
            return stats["requests_running"] + stats["requests_queued"] + stats["blocks_held"] + \
                stats["blocks_retiring"] == 0
        wait_for(idle, 10, "an idle ledger")

    def test_many_streams(self):
        model = ("--model", settings.model) if settings.model else ()
        services = (self.system.start_coordinator("--slots", str(settings.streams), *model),
                    self.system.start_worker(*model))
        alone = self.run_many("alone", range(SHAPES), 1)
        # A first round takes what is kept: finished requests, touched buffers. The second must not take more.
        self.run_many("first", [n % SHAPES for n in range(settings.streams * 2)], settings.streams)
        self.settle()
        before = [process.resident_bytes() for process in services]
        started = time.monotonic()
        numbers = [random.Random(7 * n).randrange(SHAPES) for n in range(settings.requests)]
        found = self.run_many("load", numbers, settings.streams)
        seconds = time.monotonic() - started
        for place, number in enumerate(numbers):
            self.assertEqual(found[place], alone[number], f"request {place} of shape {number}")
        self.settle()
        stats = self.system.stats()
        self.assertEqual(stats["blocks_free"] + stats["blocks_cached"], stats["blocks_total"])
        self.assertEqual(stats["requests_failed"], 0)
        time.sleep(2)
        cpu = [process.cpu_ms() for process in services]
        time.sleep(IDLE_SECONDS)
        for process, cpu_before, memory in zip(services, cpu, before):
            used, grown = process.cpu_ms() - cpu_before, process.resident_bytes() - memory
            print(f"{process.name}: {used:.0f} ms of CPU in {IDLE_SECONDS} s idle, grown by "
                  f"{grown / 1048576:.1f} MiB", file=sys.stderr)
            self.assertLessEqual(used, IDLE_CPU_MS * tandem_harness.PATIENCE, process.name)
            if tandem_harness.PATIENCE == 1:  # sanitizers keep freed memory for a while
                self.assertLessEqual(grown, GROWTH_BYTES, process.name)
        print(f"{settings.requests} requests in {seconds:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int, default=settings.requests)
    parser.add_argument("--streams", type=int, default=settings.streams)
    parser.add_argument("--longest", type=int, default=settings.longest)
    settings, rest = parser.parse_known_args(namespace=settings)
    if settings.model:
        settings.model = os.path.abspath(settings.model)
    sys.argv[1:] = rest
    main()
