"""Many streams at once for long, some cancelled, some with deadlines, some of clients that vanish: every request has
one outcome, every answer the bits of its solo run (or a part of them), first tokens come in order of submission, and
afterwards both processes are as idle and as small as before.

usage: load_test.py [--model NAME] [--requests N] [--streams N] [--longest TOKENS] [--idle SECONDS] [--seed N]"""
import argparse
import concurrent.futures
import random
import sys
import time

import tandem_harness
from tandem_harness import TandemTest, main, wait_for

SHAPES = 40  # different requests; each is run alone once and then many times among others
IDLE_WINDOW_SECONDS, IDLE_CPU_MS, GROWTH_BYTES, IDLE_GROWTH_BYTES = 10, 20, 16 << 20, 1 << 20
ORPHAN_MS = 3000
settings = argparse.Namespace(model="tiny", requests=1000, streams=64, longest=1500, idle=10, seed=None)


def shape(number):
    chance = random.Random(number)
    count = int(settings.longest ** chance.random())  # many short ones, some long ones
    if number < 2:
        count = (1, settings.longest)[number]
    fields = dict(ids=[chance.randrange(100, 40000) for _ in range(count)],
                  max_tokens=chance.randrange(1, 60), ignore_eos=chance.random() < 0.5)
    if chance.random() < 0.5:
        fields.update(temperature=chance.uniform(0.2, 1.5), seed=number,
                      top_k=chance.choice([0, 1, 40]), top_p=chance.choice([1.0, 0.9]))
    return fields


class Job:
    """One request: what its client does with it, and what became of it."""

    def __init__(self, place, chance):
        self.name, self.number = f"load-{place}", chance.randrange(SHAPES)
        draw = chance.random()
        self.kind = "cancel" if draw < 0.1 else "deadline" if draw < 0.15 else "vanish" if draw < 0.2 else "read"
        self.cancel_after = chance.randrange(0, 20)
        self.deadline_ms = int(10 ** chance.uniform(0, 4))

    def run(self, system):
        client = system.client(120)
        fields = shape(self.number)
        if self.kind == "deadline":
            fields["deadline_ms"] = self.deadline_ms
        self.sent = time.monotonic()
        accepted = client.submit(self.name, **fields)
        self.accepted = time.monotonic()
        if accepted["type"] != "accepted":
            raise AssertionError(f"{self.name}: {accepted}")
        self.sequence = accepted["sequence"]
        if self.kind == "vanish":
            client.close()
            time.sleep(0.1)
            while client.ask(type="status", id=self.name)["state"] != "finished":
                time.sleep(0.25)
        elif self.kind == "cancel":
            client.follow(self.name, enough=self.cancel_after, seconds=600)
            client.ask(type="cancel", id=self.name)
        self.answer = client.follow(self.name, seconds=600, hold_tokens=16)
        again = client.follow(self.name)
        if again.outcome() != self.answer.outcome():
            raise AssertionError(f"{self.name} has two outcomes: {self.answer.outcome()}, {again.outcome()}")
        client.close()

    def code(self):
        finish = self.answer.finish
        return finish["reason"] if finish["reason"] != "error" else finish["error"]["code"]

    def first_token_ns(self):
        return self.answer.finish["timings"].get("first_token_ns", 0)


class Load(TandemTest):
    def setUp(self):
        self.model = settings.model
        super().setUp()
        self.seed = settings.seed if settings.seed is not None else random.randrange(1 << 32)
        print(f"seed {self.seed}", file=sys.stderr)

    def run_jobs(self, jobs, streams):
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            list(pool.map(lambda job: job.run(self.system), jobs))

    def settle(self):
        def idle():
            stats = self.system.stats()
            return stats["requests_running"] + stats["requests_queued"] + stats["blocks_held"] + \
                stats["blocks_retiring"] == 0
        wait_for(idle, 10, "an idle ledger")
        return self.system.stats()

    def assert_outcome(self, job, alone):
        """What finished is as alone; what was ended early is the beginning of it."""
        allowed = {"read": set(), "cancel": {"cancelled"}, "vanish": {"cancelled"},
                   "deadline": {"deadline_exceeded"}}[job.kind]
        if job.code() in allowed:
            tokens, text = alone[0], alone[1]
            self.assertEqual(tuple(job.answer.tokens), tokens[:len(job.answer.tokens)], f"{job.name} {job.kind}")
            self.assertEqual(job.answer.text, text[:len(job.answer.text)], f"{job.name} {job.kind}")
        else:
            self.assertEqual(job.answer.outcome(), alone, f"{job.name} {job.kind}, shape {job.number}")

    def assert_order(self, jobs):
        """First tokens in order of submission; each moment is known to within the round trip of its submit."""
        latest = 0.0
        for job in sorted(jobs, key=lambda job: job.sequence):
            if job.first_token_ns() == 0:
                continue
            after, before = (moment + job.first_token_ns() / 1e9 for moment in (job.sent, job.accepted))
            self.assertLessEqual(latest, before, f"{job.name} overtook an older one")
            latest = max(latest, after)

    def assert_idle(self, services):
        before = [process.resident_bytes() for process in services]
        most = 0.0
        for _ in range(max(1, settings.idle // IDLE_WINDOW_SECONDS)):
            cpu = [process.cpu_ms() for process in services]
            time.sleep(IDLE_WINDOW_SECONDS)
            for process, start in zip(services, cpu):
                most = max(most, process.cpu_ms() - start)
                self.assertLessEqual(process.cpu_ms() - start, IDLE_CPU_MS * tandem_harness.PATIENCE, process.name)
        grown = max(process.resident_bytes() - start for process, start in zip(services, before))
        print(f"idle for {settings.idle} s: at most {most:.0f} ms of CPU in {IDLE_WINDOW_SECONDS} s, grown by "
              f"{grown / 1024:.0f} KiB", file=sys.stderr)
        self.assertLessEqual(grown, IDLE_GROWTH_BYTES)

    def test_many_streams(self):
        # A pool that is smaller than what the streams want, so that some have to yield.
        pool = ("--kv-pool-bytes", "1M") if settings.model == "tiny" else ()
        services = (self.system.start_coordinator("--slots", str(settings.streams), "--kept-requests", "1000",
                                                  "--orphan-ms", str(int(ORPHAN_MS * tandem_harness.PATIENCE)), *pool),
                    self.system.start_worker("--slots", str(settings.streams)))
        client = self.system.client()
        alone = [client.generate(f"alone-{number}", **shape(number)).outcome() for number in range(SHAPES)]
        # A first round takes what is kept: finished requests, touched buffers. The second must not take more.
        chance = random.Random(self.seed)
        warm = [Job(f"warm-{place}", chance) for place in range(settings.streams * 2)]
        self.run_jobs(warm, settings.streams)
        self.settle()
        before = [process.resident_bytes() for process in services]
        started = time.monotonic()
        jobs = [Job(place, chance) for place in range(settings.requests)]
        self.run_jobs(jobs, settings.streams)
        seconds = time.monotonic() - started
        codes = {}
        for job in warm + jobs:
            self.assert_outcome(job, alone[job.number])
            codes[job.code()] = codes.get(job.code(), 0) + 1
        self.assert_order(jobs)
        stats = self.settle()
        self.assertEqual(stats["blocks_free"] + stats["blocks_cached"], stats["blocks_total"])
        self.assertEqual(stats["requests_failed"], codes.get("deadline_exceeded", 0))
        self.assertEqual(sum(stats[f"requests_{end}"] for end in ("stopped", "length", "cancelled", "failed")),
                         stats["requests_submitted"])
        print(f"{settings.requests} requests in {seconds:.1f} s, {stats['preemptions']} preemptions, outcomes {codes}",
              file=sys.stderr)
        time.sleep(5)  # until the worker gives the pool back
        for process, memory in zip(services, before):
            grown = process.resident_bytes() - memory
            print(f"{process.name} grown by {grown / 1048576:.1f} MiB", file=sys.stderr)
            if tandem_harness.PATIENCE == 1:  # sanitizers keep freed memory for a while
                self.assertLessEqual(grown, GROWTH_BYTES, process.name)
        self.assert_idle(services)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=settings.model)
    parser.add_argument("--requests", type=int, default=settings.requests)
    parser.add_argument("--streams", type=int, default=settings.streams)
    parser.add_argument("--longest", type=int, default=settings.longest)
    parser.add_argument("--idle", type=int, default=settings.idle)
    parser.add_argument("--seed", type=int)
    _, sys.argv[1:] = parser.parse_known_args(namespace=settings)
    main()
